"""Every case, by name."""

from tests.predictions import (
    cpu_cases,
    device_cases,
    habit_cases,
    other_cases,
    blind_cases,
    blind_host_cases,
    written_cases,
)
from tests.predictions.cases import CASES

__all__ = [
    "CASES",
    "cpu_cases",
    "device_cases",
    "habit_cases",
    "other_cases",
    "blind_cases",
    "blind_host_cases",
    "written_cases",
]
