"""Reads events in exactly libkineto's line format, one column at a time.

::

      {
        "ph": "X", "cat": "cpu_op", "name": "aten::to", "pid": 675, "tid": 675,
        "ts": 4395861450009.612, "dur": 69.087,
        "args": {
          "External id": 5,"Ev Idx": 4
        }
      },

The format is verified per event: where each line begins and ends, that every number is valid, and that no object is
nested deeper. The arguments are searched for the keys that become columns, not decoded. Other events are left to the
JSON decoder.

Numbers are parsed eight digits per step: eight characters are one 64-bit word; its digits are recognized and combined
by arithmetic on the whole word (SWAR), vectorized over all numbers with numpy.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tuiprof.formats.event_table import LIMIT_NS, Ints
from tuiprof.formats.kineto.columns import NONE, Books, Codes, Columns

Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


def _u(value: int) -> np.uint64:
    return np.uint64(value)


_ZEROS = _u(0x3030303030303030)
_CARRY = _u(0x7676767676767676)  # carries into the highest bit of each byte that is above 9
_HIGH = _u(0x8080808080808080)
_EACH = _u(0x0101010101010101)
_POWERS = np.array([10**digits for digits in range(9)], dtype=np.uint64)
#: Keeps the last bytes of a word, by how many.
_LAST = np.array(
    [0] + [(2**64 - 1) << (64 - 8 * kept) & (2**64 - 1) for kept in range(1, 9)], dtype=np.uint64
)
_DOT = ord(".")
#: Times a word with one byte of 1 this has the position of that byte, from the low end, in the highest byte.
_FROM_LAST = _u(0x0001020304050607)
#: More digits may not fit 64 bits.
MAX_DIGITS = 18


class Text:
    """A text of at least 128 bytes that can be read at many positions at once."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.characters = np.frombuffer(data, dtype=np.uint8)  # its bytes
        #: The eight bytes that begin at each of its bytes.
        self.words: Words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))

    def three_before(self, at: Ints) -> npt.NDArray[np.uint32]:
        """Return the three bytes before each position (at least 3) as one number: for many, far quicker than words."""
        bytes_ = self.characters
        ends = bytes_.take(at - 1).astype(np.uint32)
        for back in (2, 3):
            ends <<= 8
            ends |= bytes_.take(at - back)
        return ends

    def wide(self, at: Ints, size: int) -> npt.NDArray[np.void]:
        """Return a copy of the bytes that begin at each position: as quick for many bytes as for eight."""
        every: npt.NDArray[np.void] = np.ndarray(
            (len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,)
        )
        return every[at]


def true_at(mask: Mask) -> Ints:
    """Return where a mask is True, as ``flatnonzero`` does, eight bytes at once: fast where True is rare."""
    whole = len(mask) & ~7
    words: Words = mask[:whole].view("<u8")
    at = np.flatnonzero(words != 0)
    found = words.take(at)
    if (found & (found - _u(1))).any() or mask[whole:].any():
        return np.flatnonzero(mask)
    found *= _FROM_LAST
    found >>= _u(56)
    at <<= 3
    at += found.view(np.int64)
    return at


def constant(text: bytes) -> np.uint64:
    """Return eight characters as the word that :class:`Text` shows for them; a zero byte for one to be masked out."""
    return _u(int.from_bytes(text.ljust(8, b"\0"), "little"))


def _sum_up(digits: Words) -> Words:
    """Return the numbers whose decimal digits are the bytes of the words, the last one highest."""
    digits = (digits * _u(10) + (digits >> _u(8))) & _u(0x00FF00FF00FF00FF)
    digits = (digits * _u(100) + (digits >> _u(16))) & _u(0x0000FFFF0000FFFF)
    return (digits * _u(10000) + (digits >> _u(32))) & _u(0xFFFFFFFF)


def _word(words: Words, at: Ints) -> tuple[Words, Ints]:
    """Read up to eight digits at each position: their values, and how many digits there were."""
    digits = words[at] ^ _ZEROS
    other = ((digits + _CARRY) | digits) & _HIGH
    # All bits below the lowest mark (all there are when there is none): one whole byte for each digit before it.
    below = (other & (~other + _u(1))) - _u(1)
    count = (((below >> _u(7)) & _EACH) * _EACH) >> _u(56)
    empty = count == 0
    digits <<= (_u(64) - (count << _u(3))) & _u(63)
    digits[empty] = 0
    return _sum_up(digits), count.astype(np.int64)


def integers(words: Words, at: Ints) -> tuple[Ints, Ints]:
    """Read a whole number at each position: the numbers, and how many digits each has.

    None, or more than :data:`MAX_DIGITS`, is no number. The eight bytes after each number must be readable.
    """
    value, count = _word(words, at)
    long = np.flatnonzero(count == 8)
    for _ in range(2):
        if not len(long):
            break
        more, digits = _word(words, at[long] + count[long])
        value[long] = value[long] * _POWERS[digits] + more
        count[long] += digits
        long = long[digits == 8]
    return value.view(np.int64), count


def microseconds(text: Text, starts: Ints, stops: Ints) -> tuple[Ints, Mask, Words]:
    """Read microseconds without a fraction or with one of three digits: ns, which are valid, the next eight characters.

    24 bytes before the end of each number must be readable.
    """
    around = text.wide(stops - 24, 32).view(np.uint8).reshape(-1, 32)

    def before(end: int) -> Words:
        """Return the eight characters before a position counted from the end of each number."""
        return around[:, 16 + end : 24 + end].view("<u8")[:, 0]

    count = stops - starts
    broken = (before(0) >> _u(32) & _u(0xFF)) == _u(_DOT)
    broken &= count > 4
    fraction = None
    if not broken.any():
        low, high = before(0), before(-8)
    else:
        fraction, sound = _digits(before(0), 3 * broken)
        count -= 4 * broken
        if broken.all():
            low, high = before(-4), before(-12)
        else:
            low, high = np.where(broken, before(-4), before(0)), np.where(broken, before(-12), before(-8))
    value, fine = _digits(low, np.clip(count, 0, 8))
    fine &= (count > 0) & (count <= 16)
    if fraction is not None:
        fine &= sound
    long = np.flatnonzero(count > 8)
    if len(long):
        more, digits = _digits(high[long], np.minimum(count[long] - 8, 8))
        value[long] += more * _POWERS[8]
        fine[long] &= digits
    value *= _u(1000)  # 16 digits and three more fit 64 bits without a sign
    if fraction is not None:
        value += fraction
    fine &= value < _u(LIMIT_NS)
    return value.view(np.int64), fine, before(8)


def _digits(words: Words, count: Ints) -> tuple[Words, Mask]:
    """Read the numbers at the ends of words; also return which consist of digits only."""
    digits = (words ^ _ZEROS) & _LAST[count]
    other = ((digits + _CARRY) | digits) & _HIGH
    return _sum_up(digits), other == 0


_BEFORE, _AFTER = b"}", bytes(128)
_BETWEEN = constant(b"},\n  {\n ")  # from the end of an event to its successor
_PHASE, _COMPLETE = constant(b'    "ph"'), constant(b': "X", "')
_HEAD = 17  # from the brace of a complete event to the rest of its first line
_FLOWS = {phase: constant(f': "{phase}", "'.encode()) for phase in "stf"}
_TS, _ARGS = constant(b'    "ts"'), constant(b'  "args"')
_TS_ENDS, _DUR_ENDS = constant(b', "dur":'), constant(b',\n    "a')
_OPENING = constant(b": {\n")
_ARGS_END = constant(b"\n    }\n ")
_BUT_FIRST, _FOUR = np.array([0xFFFFFFFFFFFFFF00, 0xFFFFFFFF], dtype=np.uint64)
_QUOTE, _COLON, _BRACE, _BACKSLASH, _SPACE = b'":{\\ '
#: Characters after a brace that opens an object; braces in the names of lambdas are followed by others.
_OPENS = np.isin(np.arange(256), list(b'\n\r\t "}'))
#: Characters after an integer.
_ENDS = np.isin(np.arange(256), list(b",\n }"))
_CONNECTION = constant(b'tion_id"')
#: Keys of arguments by column: the last three characters, the word that ends at the quote after them and its
#: mask, the distance of the quote from the word at the beginning, that word, and its mask. Where an event has
#: both spellings of the first the capital counts: the later one stays.
_EVERY = np.uint64(0xFFFFFFFFFFFFFFFF)
_KEYS = (
    ("external_id", b" id", constant(b'rnal id"'), _EVERY, 12, constant(b'"externa')),
    ("external_id", b" id", constant(b'rnal id"'), _EVERY, 12, constant(b'"Externa')),
    ("sequence", b"ber", constant(b' number"'), _EVERY, 16, constant(b'"Sequenc')),
    ("correlation", b"ion", constant(b'elation"'), _EVERY, 12, constant(b'"correla')),
    ("device", b"ice", constant(b'"device"'), _EVERY, 7, None),
    ("stream", b"eam", constant(b'"stream"'), _EVERY, 7, None),
    ("bytes", b"tes", constant(b'\0"bytes"'), _BUT_FIRST, 6, None),
)
#: If more than this share of a chunk has another format, the JSON decoder is faster.
_MAX_OTHERS = 0.3


@dataclass(frozen=True, slots=True)
class Lines:
    """The decoded part of a chunk."""

    events: int  # number of events in the chunk
    spans: Columns  # complete events; codes index into the codebooks
    phases: dict[str, int]  # how many events of each phase were read
    others: Codes  # positions of the events that were not
    texts: list[bytes]


class LineReader:
    """Reads chunks of one file."""

    def __init__(self) -> None:
        self._heads = Heads()

    def read(self, data: bytes, books: Books) -> Lines | None:
        """Read a chunk; None if too few of its lines have this format."""
        # With this prefix the first event begins like all others.
        before = _BEFORE if data.startswith(b",") else _BEFORE + b","
        text = b"".join((before, data.rstrip(), _AFTER))
        if not text.startswith(b"},\n  {\n ") or not text.endswith(b"\n  }", 0, len(text) - len(_AFTER)):
            return None
        chunk = _Chunk(Text(text))
        complete = chunk.complete()
        flows = chunk.flows()
        numbers = chunk.numbers(complete)
        if numbers is None:
            return None
        chosen = slice(None) if complete.sound.all() else np.flatnonzero(complete.sound)
        rows = complete.rows[chosen]
        read = len(rows) + sum(map(len, flows.values()))
        if read < len(chunk.starts) * (1 - _MAX_OTHERS):
            return None
        try:
            codes = self._heads.number(
                chunk.text, chunk.starts[rows] + _HEAD, complete.heads_end[chosen], books
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
    """Complete events, as far as they are read."""

    rows: Ints  # which events of the chunk
    sound: Mask  # which of them have the expected format
    heads_end: Ints  # where the first line of each ends, after the line break
    ts: Ints  # start, ns
    dur: Ints  # length, ns


class _Chunk:
    """A chunk with the positions of its events and of their keys."""

    def __init__(self, text: Text) -> None:
        self.text, characters = text, text.characters
        end = len(characters) - len(_AFTER)
        braces = true_at(characters == _BRACE)
        braces = braces[_OPENS[characters[braces + 1]]]
        first = np.flatnonzero(text.words[braces - 5] == _BETWEEN)
        self.starts = braces[first]  # where the brace of each event stands
        self.stops = np.append(self.starts[1:] - 5, end - 1)  # where its last brace stands
        self._objects = np.diff(first, append=len(braces))
        keys = true_at((characters[:-1] == _QUOTE) & (characters[1:] == _COLON))
        self._keys = np.append(keys, (end, end))  # the quote that ends each
        self._key_ends = text.three_before(self._keys)
        opening = text.wide(self.starts + 2, 16).view("<u8")
        self._phases = np.where(opening[::2] == _PHASE, opening[1::2], np.uint64(0))

    def _ending(self, end: bytes) -> Ints:
        """Return which keys end in these three characters."""
        return np.flatnonzero(self._key_ends == np.uint32(int.from_bytes(end, "little")))

    def flows(self) -> dict[str, Ints]:
        """Return which events are flows, by phase."""
        if len(self._ending(b'"ph')) != len(self.starts):
            return {}  # a phase occurs twice, and the later one counts
        single = self._objects == 1
        return {phase: np.flatnonzero((self._phases == word) & single) for phase, word in _FLOWS.items()}

    def complete(self) -> _Complete:
        """Read the times of the complete events."""
        keys, words, characters = self._keys, self.text.words, self.text.characters
        rows = np.flatnonzero((self._phases == _COMPLETE) & (self._objects == 2))
        stamps = self._ending(b'"ts')
        stamps = stamps[words[keys[stamps] - 7] == _TS]
        stamps = np.append(stamps, (len(keys) - 2, len(keys) - 2))
        position = np.searchsorted(keys[stamps[:-2]], self.starts[rows])
        stop = self.stops[rows]
        # One line of times each.
        alone = (keys[stamps[position]] < stop) & (keys[stamps[position + 1]] > stop)
        if not alone.all():
            rows, position, stop = rows[alone], position[alone], stop[alone]
        at = stamps[position]
        at_ts, at_dur, at_args = keys[at], keys[at + 1], keys[np.minimum(at + 2, len(keys) - 1)]
        starts = np.concatenate((at_ts + 3, at_dur + 3))
        both, numbers, behind = microseconds(self.text, starts, np.concatenate((at_dur - 6, at_args - 11)))
        numbers &= characters[starts - 1] == _SPACE
        around_args = self.text.wide(at_args - 7, 16).view("<u8")
        count = len(rows)
        sound = (
            numbers[:count]
            & numbers[count:]
            & (behind[:count] == _TS_ENDS)
            & (behind[count:] == _DUR_ENDS)
            & (around_args[::2] == _ARGS)
            & ((around_args[1::2] & _FOUR) == _OPENING)
            & (words[stop - 9] == _ARGS_END)
            & (self.starts[rows] + _HEAD < at_ts - 7)
        )
        return _Complete(rows, sound, at_ts - 7, both[:count], both[count:])

    def numbers(self, complete: _Complete) -> dict[str, Ints] | None:
        """Read the arguments that become columns, one value an event; None where there are arguments unknown here."""
        words, characters = self.text.words, self.text.characters
        if (words[self._keys[self._ending(b"_id")] - 7] == _CONNECTION).any():
            return None
        found: list[tuple[str, Ints, Ints]] = []
        for column, end, last, mask, length, first in _KEYS:
            at = self._keys[self._ending(end)]
            at = at[(words[at - 7] & mask) == last]
            if first is not None:
                at = at[words[at - length] == first]
            found.append((column, at, at - length - 1))
        every = np.concatenate([at for _, at, _ in found])
        row = np.searchsorted(self.starts, every, side="right") - 1
        values, digits = integers(words, every + 3)
        fine = (
            (digits > 0)
            & (digits <= MAX_DIGITS)
            & (characters[every + 2] == _SPACE)
            & _ENDS[characters[every + 3 + digits]]
        )
        if _BACKSLASH in self.text.data:
            # Such words may end another key, after its own quote.
            fine &= characters[np.concatenate([before for _, _, before in found])] != _BACKSLASH
        if not fine.all():
            broken = np.zeros(len(self.starts), dtype=bool)
            broken[row[~fine]] = True
            complete.sound &= ~broken[complete.rows]
        columns: dict[str, Ints] = {}
        done = 0
        for column, at, _ in found:
            if len(at):
                if column not in columns:
                    columns[column] = np.full(len(self.starts), NONE, dtype=np.int64)
                columns[column][row[done : done + len(at)]] = values[done : done + len(at)]
            done += len(at)
        return columns


#: Maximum number of cached lines; then the cache is cleared.
_MAX_KNOWN = 1 << 16
#: Bytes that are hashed at a time. Lines of more blocks than this are hashed one by one.
_BLOCK, _BLOCKS = 96, 16
#: Keeps the first bytes of a block, by how many.
_WITHIN = np.array(
    [b"\xff" * kept + b"\0" * (_BLOCK - kept) for kept in range(_BLOCK + 1)], dtype=f"V{_BLOCK}"
)
_SHIFT = np.uint64(32)


class Head(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The first line of an event, without its phase."""

    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None


_decode = msgspec.json.Decoder(Head).decode


def _decoded(line: bytes) -> Head:
    if not line.endswith(b",\n"):
        raise msgspec.DecodeError("there is text between the first line and the second")
    return _decode(b"{%b}" % line[:-2])


class Heads:
    """Numbers the first lines of events (category, name, process, thread), of which a trace repeats the same few.

    A line is identified by a 64-bit hash of its text, seeded per process, so that collisions cannot be crafted; by
    chance, a million different lines collide with a probability of 3 in 10⁸. Each distinct line is decoded once.
    """

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))
        self._factor = np.uint64(secrets.randbits(64) | 1)
        self._forget()

    def _forget(self) -> None:
        self._known: list[Head] = []
        self._hashes, self._codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)

    def number(self, text: Text, starts: Ints, stops: Ints, books: Books) -> tuple[Codes, Codes, Codes]:
        """Return the codes of names, category words and lanes.

        Raises:
            msgspec.DecodeError: A line has other content.
        """
        if len(self._known) > _MAX_KNOWN:
            self._forget()
        code = self._recognise(text.data, starts, stops, self._hash(text, starts, stops))
        first = np.full(len(self._known), len(code))
        # The last assignment wins: in reverse order that is the first in the file.
        first[code[::-1]] = np.arange(len(code))[::-1]
        present = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(code))]
        mapped = np.zeros((3, len(self._known)), dtype=np.uint32)
        names, cats, lanes = books.names, books.cats, books.lanes
        mapped[:, present] = np.array(
            [
                (
                    names.setdefault(head.name, len(names)),
                    cats.setdefault(head.cat, len(cats)),
                    lanes.setdefault((head.pid, head.tid), len(lanes)),
                )
                for head in map(self._known.__getitem__, present.tolist())
            ],
            dtype=np.uint32,
        ).T.reshape(3, -1)
        return mapped[0].take(code), mapped[1].take(code), mapped[2].take(code)

    def _recognise(self, data: bytes, starts: Ints, stops: Ints, hashes: Words) -> Ints:
        """Return which known line each is; new ones are decoded."""
        index = np.searchsorted(self._hashes, hashes)
        if len(self._hashes):
            found = self._hashes[np.minimum(index, len(self._hashes) - 1)] == hashes
        else:
            found = np.zeros(len(hashes), dtype=bool)
        if not found.all():
            rows = np.flatnonzero(~found)
            new, first = np.unique(hashes[rows], return_index=True)
            heads = [
                _decoded(data[start:stop])
                for start, stop in zip(starts[rows[first]].tolist(), stops[rows[first]].tolist(), strict=True)
            ]
            everything = np.concatenate((self._hashes, new))
            codes = np.concatenate((self._codes, len(self._known) + np.arange(len(new), dtype=np.int64)))
            order = np.argsort(everything)
            self._known += heads
            self._hashes, self._codes = everything[order], codes[order]
            index = np.searchsorted(self._hashes, hashes)
        return self._codes[index]

    def _hash(self, text: Text, starts: Ints, stops: Ints) -> Words:
        length = stops - starts
        value = length.astype(np.uint64) ^ self._seed
        rows, at = np.arange(len(starts)), starts
        for block in range(_BLOCKS):
            if block:
                rows = np.flatnonzero(length > block * _BLOCK)
                if not len(rows):
                    return value
                at = starts[rows] + block * _BLOCK
            words = text.wide(at, _BLOCK).view("<u8")
            words &= _WITHIN[np.minimum(length[rows] - block * _BLOCK, _BLOCK)].view("<u8")
            part = value[rows]
            for k in range(_BLOCK // 8):
                part ^= words[k :: _BLOCK // 8]
                part *= self._factor
                part ^= part >> _SHIFT
            value[rows] = part
        rows = np.flatnonzero(length > _BLOCKS * _BLOCK)
        bounds = zip(starts[rows].tolist(), stops[rows].tolist(), strict=True)
        each = np.array([hash(text.data[start:stop]) for start, stop in bounds], dtype=np.int64)
        value[rows] = each.view(np.uint64)
        return value
