"""Hypothesis profiles: `quick` for `make test`, `ci` for `make check`, `nojit` for plain Python kernels, `soak`."""

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", max_examples=100, deadline=None, suppress_health_check=SLOW, derandomize=True)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=50)
settings.register_profile("nojit", settings.get_profile("ci"), max_examples=25)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=1500, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "NEARCAST_CHECK" in os.environ else "quick"))
