"""Every file of a session and of a measured ladder, damaged byte by byte and value by value, or replaced."""

from __future__ import annotations

from tests.campaigns._reading import read_all, summary
from tests.campaigns.campaign import Options, Outcome

PROMISE = (
    "a damaged session is listed, reported, watched, replayed and compared as far as it can be read: no traceback, no "
    "hang (60 s), at most 1 GiB"
)


def run(options: Options) -> Outcome:
    """Read them: list, report, live view, replay, comparison, ladder and library."""
    return summary(read_all({"session": options.count(1500, 8)}, options.seed, options.folder), options.seed)
