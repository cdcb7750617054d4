"""Prevention: barriers, environment, launch, warm-up, deterministic reduction."""
