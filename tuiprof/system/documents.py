"""A stream of JSON objects as monitors print it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: A document longer than this is no report.
_MOST_BYTES = 16 << 20


def documents(lines: Iterable[bytes], said: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """Decode a stream of JSON objects, one a line or pretty-printed over several.

    Args:
        lines: Lines of bytes.
        said: Is called with every line that belongs to no document (messages of the program).

    Yields:
        Objects in order. One that is cut off or damaged is left out; the next one counts again.
    """
    pending: list[bytes] = []
    size = 0
    for line in lines:
        text = line.strip()
        inside = pending and not line.startswith(b"{")  # an object on a line of its own, within one
        if (
            not inside
            and text.startswith(b"{")
            and text.endswith(b"}")
            and (whole := _object(text)) is not None
        ):
            pending, size = [], 0
            yield whole
        elif line.startswith(b"{"):
            pending, size = [line], len(line)
        elif pending:
            pending.append(line)
            size += len(line)
            if line.startswith(b"}") and (whole := _object(b"".join(pending))) is not None:
                yield whole
            if line.startswith(b"}") or size > _MOST_BYTES:
                pending, size = [], 0
        elif text and said is not None:
            said(text.decode("utf-8", "replace"))


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # damaged, not UTF-8, a number without end, or nested beyond sense
        return None
    return value if isinstance(value, dict) else None
