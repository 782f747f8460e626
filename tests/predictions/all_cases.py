"""Every case, by name."""

from tests.predictions import (
    blind_cases,
    blind_host_cases,
    cpu_cases,
    device_cases,
    fresh_cases,
    habit_cases,
    other_cases,
    unseen_cases,
    written_cases,
)
from tests.predictions.cases import CASES

__all__ = [
    "CASES",
    "blind_cases",
    "blind_host_cases",
    "cpu_cases",
    "device_cases",
    "fresh_cases",
    "habit_cases",
    "other_cases",
    "unseen_cases",
    "written_cases",
]
