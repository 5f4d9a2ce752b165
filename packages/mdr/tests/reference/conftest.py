"""Hypothesis for the tests of references."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("references", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("references")  # how fast a busy machine draws is no property of the code
