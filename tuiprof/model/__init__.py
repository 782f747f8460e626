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

_HOMES = {
    "intervals": "Window",
    "report": "Chart Column Fact Report RowsOf Rule Series Table Unavailable Verdict",
    "trace": "CATEGORIES Category DEVICE_WORK DeviceInfo EVENT_SCHEMA HOST_CALLS RawSource Trace TraceInfo Track",
    "trust": "ReadStats Remark Trust",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a name from its module on first use."""
    try:
        module = import_module(f"{__name__}.{_HOME_OF[name]}")
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(module, name)
    globals()[name] = value
    return value
