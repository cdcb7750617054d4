"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Tests share their machine: how long one example takes says nothing.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# Whatever `hangscope compile` may have left here, tests see the recorder in Python, unless they ask
# for the other one. ``HANGSCOPE_COMPILED=1`` runs all of them with that.
os.environ.setdefault("HANGSCOPE_COMPILED", "0")
