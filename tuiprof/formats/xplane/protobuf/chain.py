"""Finds the events of a line, which follow each other like links of a chain, without a step an event.

Where an event ends the next begins, so a single look at all bytes tells every place at which one could begin and the
place it would lead to. From the first event on the chain is followed from place to place; as long as each leads to
the next, many links are taken at once.
"""

from __future__ import annotations

import numpy as np

from tuiprof.formats.xplane.protobuf.wire import Buffer, Positions

#: What a short event has before its content: the tag and one byte of length.
_HEAD = 2
_LONG = 0x80


class Chains:
    """Places of a buffer at which a message of less than 128 bytes could begin, one inside another left out.

    A place where none begins does no harm: the chain does not lead to it, or it hides places from the chain, which
    then ends early.
    """

    def __init__(self, buffer: Buffer, tag: int, then: int) -> None:
        content = buffer.bytes[: buffer.size]
        places = np.flatnonzero((content[:-2] == tag) & (content[2:] == then) & (content[1:-1] < _LONG))
        leads_to = places + (_HEAD + content[places + 1].astype(np.int64))
        reach = np.maximum.accumulate(leads_to)
        outermost = np.append(True, places[1:] >= reach[:-1]) if len(places) else reach > 0
        self._places, self._leads_to = places[outermost], leads_to[outermost]
        # The last link of each run in which every place leads to the next one.
        self._run_ends = np.flatnonzero(np.append(self._leads_to[:-1] != self._places[1:], True))

    def follow(self, position: int, end: int) -> tuple[Positions, int]:
        """Follow a chain.

        Args:
            position: Where a message begins.
            end: Where what holds the chain ends.

        Returns:
            Where the messages of the chain begin, none where none of this kind is known; and where the last ends.
        """
        first = int(np.searchsorted(self._places, position))
        if first == len(self._places) or self._places[first] != position:
            return self._places[:0], position
        run = int(self._run_ends[np.searchsorted(self._run_ends, first)])
        last = min(run, int(np.searchsorted(self._places, end)) - 1)
        return self._places[first : last + 1], int(self._leads_to[last])
