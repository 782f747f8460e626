"""Begin and end events become spans like brackets."""

from __future__ import annotations

import numpy as np

from tuiprof.formats.kineto.assemble import match


def matched(
    text: str, names: list[str] | None = None, lanes: list[int] | None = None
) -> list[tuple[int, int, str]]:
    """Return (begin, end, name) of each span of events such as ``BBEE``, one ns apart."""
    names = names or ["f"] * len(text)
    found = match(
        np.arange(len(text), dtype=np.int64),
        np.frombuffer(text.encode(), dtype=np.uint8),
        lanes or [0] * len(text),
        names,
        len(text),
    )
    return sorted(
        (int(begin), int(end), names[begin]) for begin, end in zip(found.begins, found.ends_ns, strict=True)
    )


def test_an_end_closes_the_innermost_of_several_begins_of_its_name() -> None:
    assert matched("BBEE") == [(0, 3, "f"), (1, 2, "f")]
    assert matched("BBBEEE") == [(0, 5, "f"), (1, 4, "f"), (2, 3, "f")]


def test_an_end_with_the_name_of_an_outer_one_closes_that_one() -> None:
    assert matched("BBEE", ["outer", "inner", "outer", "inner"]) == [(0, 2, "outer"), (1, 3, "inner")]


def test_an_end_without_a_name_closes_the_innermost() -> None:
    assert matched("BBEE", ["outer", "inner", "", ""]) == [(0, 3, "outer"), (1, 2, "inner")]


def test_lanes_do_not_close_each_other() -> None:
    assert matched("BBEE", lanes=[0, 1, 0, 1]) == [(0, 2, "f"), (1, 3, "f")]


def test_what_has_no_end_lasts_to_the_end_of_the_trace() -> None:
    assert matched("BB") == [(0, 2, "f"), (1, 2, "f")]


def counted(text: str, times: list[int]) -> tuple[int, int, int]:
    """Return how many spans there are, how many begins without end, and how many ends without begin."""
    phases = np.frombuffer(text.encode(), dtype=np.uint8)
    found = match(np.array(times), phases, [0] * len(text), ["f"] * len(text), 100)
    return len(found.begins), found.unended, found.unbegun


def test_an_end_waits_for_a_begin_of_the_same_instant_and_what_belongs_to_none_is_counted() -> None:
    assert counted("EB", [5, 5]) == (1, 0, 0)
    assert counted("EEB", [5, 5, 5]) == (1, 0, 1)
    assert counted("EB", [5, 6]) == (1, 1, 1)
    assert counted("EE", [5, 6]) == (0, 0, 2)
