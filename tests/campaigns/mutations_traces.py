"""Traces of every format, damaged byte by byte and value by value, read as a user reads them."""

from __future__ import annotations

from collections import Counter

from tests.campaigns._reading import read_all
from tests.campaigns.campaign import Options, Outcome

PROMISE = "a damaged trace is read, or refused in a sentence: no traceback, no panic, no hang (60 s), at most 1 GiB of memory"
_KINDS = ("kineto", "kineto-gzip", "perfetto", "xplane", "neuron-json", "neuron-parquet", "neuron-monitor")


def run(options: Options) -> Outcome:
    """Read them."""
    outcome, seen = Outcome(), Counter[str]()
    cases = dict.fromkeys(_KINDS, options.count(1000, 6))
    peak = 0
    for result in read_all(cases, options.seed, options.folder):
        outcome.cases += 1
        seen[result.kind, "read" if result.outcome == "read" else "other"] += 1
        peak = max(peak, result.peak)
        if result.failed:
            outcome.failures.append(result.line(options.seed))
    for kind in _KINDS:
        outcome.figures[kind] = f"{seen[kind, 'read']} of {cases[kind]} read"
    outcome.figures["peak"] = f"{peak >> 20} MiB"
    return outcome
