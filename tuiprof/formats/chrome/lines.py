"""Reads events that stand in exactly the lines in which libkineto writes them, a column at a time.

::

      {
        "ph": "X", "cat": "cpu_op", "name": "aten::to", "pid": 675, "tid": 675,
        "ts": 4395861450009.612, "dur": 69.087,
        "args": {
          "External id": 5,"Ev Idx": 4
        }
      },

What an event must show for that is checked event by event: where each line begins and ends, that every number is
one, and that no object is nested deeper. Its arguments are searched for the keys that become columns, not decoded.
Whatever is not exactly so is left to the JSON decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from tuiprof.formats.chrome.arrays import Codes, Ints
from tuiprof.formats.chrome.clock import LIMIT_NS
from tuiprof.formats.chrome.columns import Books, Columns
from tuiprof.formats.chrome.digits import MOST_DIGITS, Mask, constant, integers, microseconds, text_of
from tuiprof.formats.chrome.events import NONE
from tuiprof.formats.chrome.heads import Heads

_BEFORE, _AFTER = b"}", bytes(24)
_BETWEEN = constant(b"},\n  {\n ")  # from the end of an event to its successor
_PHASE, _COMPLETE = constant(b'    "ph"'), constant(b': "X", "')
_HEAD = 17  # from the brace of a complete event to the rest of its first line
_FLOWS = {phase: constant(f': "{phase}", "'.encode()) for phase in "stf"}
_TS, _DUR, _ARGS = constant(b'    "ts"'), constant(b'\0, "dur"'), constant(b'  "args"')
_TS_LINE, _ARGS_LINE = constant(b',\n    "t'), constant(b',\n    "a')
_VALUE, _OPENING = constant(b'": '), constant(b'": {\n')
_ARGS_END, _EVENT_END = constant(b"\n    }\n "), constant(b"   }\n  }")
_BUT_FIRST, _THREE, _FIVE = np.array([0xFFFFFFFFFFFFFF00, 0xFFFFFF, 0xFFFFFFFFFF], dtype=np.uint64)
_QUOTE, _COLON, _BRACE, _BACKSLASH = b'":{\\'
#: Behind a brace that opens an object; those in the names of lambdas have something else behind them.
_OPENS = np.isin(np.arange(256), list(b'\n\r\t "}'))
#: Behind a whole number.
_ENDS = np.isin(np.arange(256), list(b",\n }"))
_EXTERNAL, _CORRELATION = constant(b'rnal id"'), constant(b'elation"')
_EXTERNAL_FIRST, _OLDER_FIRST = constant(b'"Externa'), constant(b'"externa')
_CORRELATION_FIRST = constant(b'"correla')
_SHORT = {"device": constant(b'"device"'), "stream": constant(b'"stream"'), "bytes": constant(b'\0"bytes"')}
#: From the quote that ends a key back to what stands before it.
_LENGTH = {"external_id": 13, "correlation": 13, "device": 8, "stream": 8, "bytes": 7}
_CONNECTION = constant(b'tion_id"')
#: When more than this share of a chunk stands otherwise, the JSON decoder is quicker.
_MOST_OTHERS = 0.3


@dataclass(frozen=True, slots=True)
class Lines:
    """What was read of a chunk.

    Attributes:
        events: Number of events in the chunk.
        spans: Complete events; codes index into the codebooks.
        phases: How many events of each phase were read.
        others: Positions of the events that were not.
        texts: Their texts.
    """

    events: int
    spans: Columns
    phases: dict[str, int]
    others: Codes
    texts: list[bytes]


class LineReader:
    """Reads chunks of one file."""

    def __init__(self) -> None:
        # The C library gives large blocks back as soon as they are free, and has every page of the next one zeroed,
        # unless it has seen a larger one come and go. This quarters the time of looking through a chunk.
        np.empty(31 << 20, dtype=np.uint8)
        self._heads = Heads()

    def read(self, data: bytes, books: Books) -> Lines | None:
        """Read a chunk.

        Args:
            data: Events with commas between them (one may come first).
            books: Codebooks to extend.

        Returns:
            What was read; None when too little of it stands in such lines.
        """
        # With this in front the first event begins like all others.
        before = _BEFORE if data.startswith(b",") else _BEFORE + b","
        text = b"".join((before, data.rstrip(), _AFTER))
        if not text.startswith(b"},\n  {\n ") or not text.endswith(b"\n  }", 0, len(text) - len(_AFTER)):
            return None
        chunk = _Chunk(text)
        complete = chunk.complete()
        flows = chunk.flows()
        numbers = chunk.numbers(complete)
        if numbers is None:
            return None
        chosen = np.flatnonzero(complete.sound)
        rows = complete.rows[chosen]
        read = len(rows) + sum(map(len, flows.values()))
        if read < len(chunk.starts) * (1 - _MOST_OTHERS):
            return None
        try:
            codes = self._heads.number(
                text, chunk.words, chunk.starts[rows] + _HEAD, complete.heads_end[chosen], books
            )
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        known = np.zeros(len(chunk.starts), dtype=bool)
        for found in (rows, *flows.values()):
            known[found] = True
        others = np.flatnonzero(~known)
        bounds = zip(chunk.starts[others].tolist(), chunk.stops[others].tolist(), strict=True)
        return Lines(
            len(chunk.starts),
            Columns(
                rows.astype(np.uint32),
                complete.ts[chosen],
                complete.dur[chosen],
                *codes,
                {key: column[rows] for key, column in numbers.items()},
            ),
            {phase: len(found) for phase, found in (("X", rows), *flows.items()) if len(found)},
            others.astype(np.uint32),
            [text[start : stop + 1] for start, stop in bounds],
        )


@dataclass(slots=True)
class _Complete:
    """Complete events, as far as they are read.

    Attributes:
        rows: Which events of the chunk.
        sound: Which of them stand as they should.
        heads_end: Where the first line of each ends.
        ts: Start, ns.
        dur: Length, ns.
    """

    rows: Ints
    sound: Mask
    heads_end: Ints
    ts: Ints
    dur: Ints


class _Chunk:
    """A chunk with the places of its events and of their keys.

    Args:
        text: The padded text.

    Attributes:
        words: The text eight bytes at a time.
        starts: Where the brace of each event stands.
        stops: Where its last brace stands.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        characters, self.words = self._characters, _ = text_of(text)
        end = len(text) - len(_AFTER)
        braces = np.flatnonzero(characters == _BRACE)
        braces = braces[_OPENS[characters[braces + 1]]]
        first = np.flatnonzero(self.words[braces - 5] == _BETWEEN)
        self.starts = braces[first]
        self.stops = np.append(self.starts[1:] - 5, end - 1)
        self._objects = np.diff(first, append=len(braces))
        keys = np.flatnonzero((characters[:-1] == _QUOTE) & (characters[1:] == _COLON))
        self._keys = np.append(keys, (end, end))  # the quote that ends each
        self._key_ends = self.words[self._keys - 7]
        self._phases = self.words[self.starts + 10]
        self._phases[self.words[self.starts + 2] != _PHASE] = 0

    def flows(self) -> dict[str, Ints]:
        """Return which events are flows, by phase."""
        single = self._objects == 1
        return {phase: np.flatnonzero((self._phases == word) & single) for phase, word in _FLOWS.items()}

    def complete(self) -> _Complete:
        """Read the times of the complete events."""
        keys, ends, words = self._keys, self._key_ends, self.words
        rows = np.flatnonzero((self._phases == _COMPLETE) & (self._objects == 2))
        stamps = np.append(np.flatnonzero(ends == _TS), (len(keys) - 1, len(keys) - 1))
        position = np.searchsorted(keys[stamps[:-2]], self.starts[rows])
        stop = self.stops[rows]
        # One line of times each.
        alone = (keys[stamps[position]] < stop) & (keys[stamps[position + 1]] > stop)
        if not alone.all():
            rows, position, stop = rows[alone], position[alone], stop[alone]
        at = stamps[position]
        at_ts, at_dur, at_args = keys[at], keys[at + 1], keys[np.minimum(at + 2, len(keys) - 1)]
        sound = (
            ((ends[at + 1] & _BUT_FIRST) == _DUR)
            & (words[at_ts - 9] == _TS_LINE)
            & (words[at_args - 11] == _ARGS_LINE)
            & ((words[at_ts] & _THREE) == _VALUE)
            & ((words[at_dur] & _THREE) == _VALUE)
            & ((words[at_args] & _FIVE) == _OPENING)
            & (ends[np.minimum(at + 2, len(keys) - 1)] == _ARGS)
            & (words[stop - 9] == _ARGS_END)
            & (words[stop - 7] == _EVENT_END)
            & (self.starts[rows] + _HEAD + 8 <= at_ts - 9)
        )
        both, numbers = microseconds(
            self._characters,
            words,
            np.concatenate((at_ts + 3, at_dur + 3)),
            np.concatenate((at_dur - 6, at_args - 11)),
        )
        count = len(rows)
        sound &= numbers[:count] & numbers[count:] & (both[:count] < LIMIT_NS) & (both[count:] < LIMIT_NS)
        return _Complete(rows, sound, at_ts - 9, both[:count], both[count:])

    def numbers(self, complete: _Complete) -> dict[str, Ints] | None:
        """Read the arguments that become columns, one value an event of the chunk.

        Args:
            complete: The complete events; those with an argument that is no plain number are no longer sound.

        Returns:
            The columns; None when there are arguments that are not known here.
        """
        ends = self._key_ends
        if (ends == _CONNECTION).any():
            return None
        keys = self._keys
        external = keys[np.flatnonzero(ends == _EXTERNAL)]
        external_first = self.words[external - 12]
        correlation = keys[np.flatnonzero(ends == _CORRELATION)]
        places = {
            # Where an event has both spellings the capital counts: what comes last stays.
            "external_id": np.concatenate(
                (external[external_first == _OLDER_FIRST], external[external_first == _EXTERNAL_FIRST])
            ),
            "correlation": correlation[self.words[correlation - 12] == _CORRELATION_FIRST],
        }
        for key, word in _SHORT.items():
            places[key] = keys[np.flatnonzero((ends if key != "bytes" else ends & _BUT_FIRST) == word)]
        every = np.concatenate(list(places.values()))
        row = np.searchsorted(self.starts, every, side="right") - 1
        values, digits = integers(self.words, every + 3)
        fine = (
            (digits > 0)
            & (digits <= MOST_DIGITS)
            & ((self.words[every] & _THREE) == _VALUE)
            & _ENDS[self._characters[every + 3 + digits]]
        )
        if b"\\" in self._text:
            # A key that only ends in such words, behind a quote of its own.
            length = np.repeat([_LENGTH[key] for key in places], [len(at) for at in places.values()])
            fine &= self._characters[every - length] != _BACKSLASH
        if not fine.all():
            broken = np.zeros(len(self.starts), dtype=bool)
            broken[row[~fine]] = True
            complete.sound &= ~broken[complete.rows]
        columns, at = {}, 0
        for key, found in places.items():
            if len(found):
                columns[key] = np.full(len(self.starts), NONE, dtype=np.int64)
                columns[key][row[at : at + len(found)]] = values[at : at + len(found)]
            at += len(found)
        return columns
