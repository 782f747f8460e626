"""Decodes stretches in threads beside the reader.

For text in libkineto's lines: numpy reads those, and lets go of the interpreter lock meanwhile. A thread starts at
once and hands its columns over as they are, where a process would first have to load numpy.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from tuiprof.formats.chrome.decode import Chunk, ChunkDecoder
from tuiprof.formats.chrome.stretches import Stretch

#: Stretches a thread holds at once: one it decodes, one that waits.
_DEPTH = 2


class Threads:
    """Threads that decode stretches.

    Args:
        count: How many.
        text: Returns the text of a stretch; called in the threads.
    """

    def __init__(self, count: int, text: Callable[[Stretch], bytes]) -> None:
        self._text = text
        self._most = count * _DEPTH
        self._held = 0
        self._requests: queue.SimpleQueue[tuple[int, Stretch] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, Chunk] | Exception] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="tuiprof-decode", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._held)

    def offer(self, number: int, stretch: Stretch) -> bool:
        """Give a stretch to a thread.

        Args:
            number: Its number, which comes back with the answer.
            stretch: The stretch.

        Returns:
            False when all threads have enough to do.
        """
        if self._held >= self._most:
            return False
        self._held += 1
        self._requests.put((number, stretch))
        return True

    def answers(self, timeout: float | None) -> Iterator[tuple[int, Chunk]]:
        """Yield the answers that have come.

        Args:
            timeout: How long to wait for the first, s; None = as long as it takes.

        Raises:
            OSError: The file could not be read.
            MemoryError: A stretch did not fit into memory.
        """
        while self._held:
            try:
                answer = self._answers.get(timeout=timeout)
            except queue.Empty:
                return
            self._held -= 1
            if isinstance(answer, Exception):
                raise answer
            yield answer
            timeout = 0

    def _run(self) -> None:
        decoder = ChunkDecoder()
        while (request := self._requests.get()) is not None and not self._stop.is_set():
            number, stretch = request
            try:
                self._answers.put((number, decoder.decode(self._text(stretch))))
            except Exception as error:  # noqa: BLE001 - raised again where the answer is asked for
                self._answers.put(error)

    def close(self) -> None:
        """End the threads; what they have not begun is dropped."""
        self._stop.set()
        for _ in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            thread.join()
