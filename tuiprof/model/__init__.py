"""The one model that every format is decoded into and every analysis, report and screen reads.

Names load on first use, so that a screen may format a number without importing polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuiprof.model.intervals import Window
    from tuiprof.model.report import (
        Chart,
        Column,
        Fact,
        Report,
        RowsOf,
        Rule,
        Series,
        Table,
        Unavailable,
        Verdict,
    )
    from tuiprof.model.trace import (
        CATEGORIES,
        DEVICE_WORK,
        EVENT_SCHEMA,
        HOST_CALLS,
        Category,
        DeviceInfo,
        RawSource,
        Trace,
        TraceInfo,
        Track,
    )
    from tuiprof.model.trust import ReadStats, Remark, Trust

__all__ = [
    "CATEGORIES",
    "DEVICE_WORK",
    "EVENT_SCHEMA",
    "HOST_CALLS",
    "Category",
    "Chart",
    "Column",
    "DeviceInfo",
    "Fact",
    "RawSource",
    "ReadStats",
    "Remark",
    "Report",
    "RowsOf",
    "Rule",
    "Series",
    "Table",
    "Trace",
    "TraceInfo",
    "Track",
    "Trust",
    "Unavailable",
    "Verdict",
    "Window",
]


def __getattr__(name: str) -> Any:
    """Load a name from its module on first use."""
    if name in __all__:
        for home in ("intervals", "report", "trace", "trust"):
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
