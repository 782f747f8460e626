"""Traces of every format, damaged byte by byte and value by value, and odd ones made by hand."""

from __future__ import annotations

from tests.campaigns._odd import odd_files
from tests.campaigns._reading import read_all, summary
from tests.campaigns.campaign import Options, Outcome

PROMISE = (
    "a damaged or odd trace is read or refused in a sentence: no traceback, no hang (60 s), at most 1 GiB"
)
_KINDS = ("kineto", "kineto-gzip", "perfetto", "xplane", "neuron-json", "neuron-parquet", "neuron-monitor")


def run(options: Options) -> Outcome:
    """Read them: with open_trace, every analysis and rule, and every output format."""
    cases = {**dict.fromkeys(_KINDS, options.count(1000, 5)), "odd": 0 if options.short else len(odd_files())}
    return summary(read_all(cases, options.seed, options.folder), options.seed)
