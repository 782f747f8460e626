"""Visible columns of a table: by default, and as chosen by the user, stored next to the configuration."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

import polars as pl

from tuiprof.config import config_path
from tuiprof.model.report import Table

#: In longer tables text columns are not checked for being empty: that would delay the key.
_MOST_ASKED = 100_000
#: Texts up to this many characters are words rather than sentences.
_WORD = 20


def default_columns(table: Table) -> list[str]:
    """Return the keys of the columns that show unless the user chose others.

    A column without any value is left out. Of a table of sentences only the first is a column of its own; the others
    are shown in full below the table.
    """
    shown = [column for column in table.columns if not column.hidden]
    if len(table.rows):
        shown = [column for column in shown if column is shown[0] or _has_values(table.rows[column.key])]
    if not table.prose:
        return [column.key for column in shown]
    kept: list[str] = []
    sentences = 0
    for column in shown:
        longest = 0
        if not column.right_aligned and column.elide != "start":
            longest = int(table.rows[column.key].cast(str).str.len_chars().max() or 0)  # type: ignore[arg-type]
        sentences += longest > _WORD
        if longest <= _WORD or sentences == 1:
            kept.append(column.key)
    return kept


def _has_values(values: pl.Series) -> bool:
    if values.null_count() == len(values):
        return False
    return values.dtype != pl.String or len(values) > _MOST_ASKED or bool((values != "").any())


def choices_path() -> Path:
    """Return where the choice of columns is kept."""
    return config_path().with_name("columns.json")


def chosen_columns(name: str) -> list[str] | None:
    """Return the keys of the columns the user chose for a table; None = he did not, or it cannot be read.

    Args:
        name: Analysis and table, for example ``"sync_events.places"``.
    """
    found = _read().get(name)
    return [key for key in found if isinstance(key, str)] if isinstance(found, list) else None


def choose_columns(name: str, keys: list[str] | None) -> None:
    """Keep a choice of columns.

    Raises:
        OSError: It cannot be written.
    """
    choices = _read()
    choices.pop(name, None)
    if keys is not None:
        choices[name] = keys
    path = choices_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".columns", delete=False) as file:
        json.dump(choices, file, indent=1)
    try:
        os.replace(file.name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise


def _read() -> dict[str, object]:
    try:
        content = json.loads(choices_path().read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
