"""What changed in a script between two runs, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Final

import polars as pl

from tuiprof.model.report import Column, Table

KEY: Final = "script"
#: Lines around a change, as in a unified diff.
_CONTEXT: Final = 2
#: Rows shown, and characters of a line.
_ROWS: Final = 400
_LINE: Final = 200
_SCHEMA: Final = {
    "file": pl.String,
    "before_line": pl.Int64,
    "after_line": pl.Int64,
    "change": pl.String,
    "text": pl.String,
}


def script_change(
    before: Mapping[str, str], after: Mapping[str, str], *, note: str = "", empty: str = ""
) -> tuple[Table, str]:
    """Compare the scripts of two runs.

    Args:
        before: Texts of the baseline by their paths, the script itself first; empty = none was kept.
        after: The same of the other; the script itself may have another name.
        note: Additional note.
        empty: Why there is nothing to compare; empty = the scripts can be compared.

    Returns:
        The differing lines with context, and a sentence with their number (empty = unknown).
    """
    pairs = list(_pairs(before, after)) if before and after else []
    rows = [row for name, old, new in pairs for row in _changed(name, old, new)]
    if len(rows) > _ROWS:
        note = " ".join(filter(None, (f"The first {_ROWS} of {len(rows)} rows.", note)))
    several = len({row["file"] for row in rows}) > 1
    gone, come = (sum(row["change"] == sign for row in rows) for sign in "-+")
    said = f"{_lines(gone)} removed, {_lines(come)} added" if gone or come else "the same" if pairs else ""
    table = Table(
        KEY,
        "What changed in the script",
        (
            Column("file", "file", elide="start", hidden=not several),
            Column("before_line", "before", "count", "Line number in the script before."),
            Column("after_line", "after", "count", "Line number in the script after."),
            Column("change", "±", whole=True, help="- removed, + added, … unchanged lines left out."),
            Column("text", "line", elide="end", code=True),
        ),
        pl.DataFrame(rows[:_ROWS], schema=_SCHEMA, orient="row"),
        note,
        empty or "the script did not change",
    )
    return table, said


def _pairs(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, old and new text of every file: the scripts, regardless of their names, then the others by name."""
    first, second = next(iter(before)), next(iter(after))
    yield (first if first == second else f"{first} → {second}"), before[first], after[second]
    for name in sorted((before.keys() - {first}) | (after.keys() - {second})):
        yield name, before.get(name, ""), after.get(name, "")


def _changed(name: str, old: str, new: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file."""
    lines = old.splitlines(), new.splitlines()
    matcher = SequenceMatcher(None, *lines)
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
        if number:
            yield {"file": name, "before_line": None, "after_line": None, "change": "…", "text": ""}
        for what, a, a_end, b, b_end in group:
            if what == "equal":
                for i, j in zip(range(a, a_end), range(b, b_end), strict=True):
                    yield _row(name, i, j, " ", lines[0][i])
                continue
            for i in range(a, a_end):
                yield _row(name, i, None, "-", lines[0][i])
            for j in range(b, b_end):
                yield _row(name, None, j, "+", lines[1][j])


def _row(name: str, before: int | None, after: int | None, change: str, text: str) -> dict[str, Any]:
    text = text.expandtabs(4).rstrip()
    return {
        "file": name,
        "before_line": None if before is None else before + 1,
        "after_line": None if after is None else after + 1,
        "change": change,
        "text": text if len(text) <= _LINE else f"{text[:_LINE]}…",
    }


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"
