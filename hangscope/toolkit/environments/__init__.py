"""Variables and interfaces: what to set, what is set, what is wrong."""
