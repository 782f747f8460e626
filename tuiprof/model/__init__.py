"""The one model that every format is decoded into and every analysis, report and screen reads."""

from __future__ import annotations

from tuiprof.model.report import Column, Fact, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.schema import CATEGORIES, DEVICE_WORK, EVENT_SCHEMA, HOST_CALLS, Category
from tuiprof.model.trace import DeviceInfo, RawSource, Trace, TraceInfo, Track
from tuiprof.model.trust import ReadStats, Remark, Trust
from tuiprof.model.window import Window

__all__ = [
    "CATEGORIES",
    "DEVICE_WORK",
    "EVENT_SCHEMA",
    "HOST_CALLS",
    "Category",
    "Column",
    "DeviceInfo",
    "Fact",
    "RawSource",
    "ReadStats",
    "Remark",
    "Report",
    "Rule",
    "Table",
    "Trace",
    "TraceInfo",
    "Track",
    "Trust",
    "Unavailable",
    "Verdict",
    "Window",
]
