"""Settings for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Tests share their machine: how long one example takes says nothing.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
