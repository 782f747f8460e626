"""A trace on one page: findings by saving, and one line per analysis."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tuiprof.advice import advise, priorities
from tuiprof.advice.shared.pricing import Priced
from tuiprof.analyses import run_all
from tuiprof.analyses.shared.replay import opening
from tuiprof.model import Report, Trace, Window
from tuiprof.model.report import Answer, Change, Line

#: The analyses with a line on the page, in this order.
ANALYSES: Final = ("sync_events", "kernel_launches", "device_idle", "kernels", "data_loading", "steps")


def answer(trace: Trace, title: str, window: Window | None = None) -> Answer:
    """Return a trace on one page."""
    begun, found = opening(trace, title), priorities(trace, window)
    reports = [item for item in run_all(ANALYSES, trace, window) if isinstance(item, Report)]
    return replace(
        begun,
        step_ns=found.step_ns if begun.step_ns is not None and found.step_ns is not None else begun.step_ns,
        together_ns=found.together.ns if found.together is not None and begun.step_ns is not None else None,
        changes=tuple(_change(item) for item in found.findings),
        lines=tuple(
            Line(report.analysis, report.title, report.verdict.level, report.verdict.sentence)
            for report in reports
        ),
        notes=advise(trace, window).notes,
    )


def _change(item: Priced) -> Change:
    finding, win = item.finding, item.win
    ladder, _, variants = finding.proof.partition(":")
    return Change(
        item.rule,
        finding.what,
        finding.where,
        finding.instead,
        finding.because,
        finding.sure,
        win.ns if win else None,
        win.low_ns if win else None,
        win.high_ns if win else None,
        item.share,
        item.overlaps,
        f"tuiprof ladder {ladder} --variants {variants}" if ladder else "",
    )
