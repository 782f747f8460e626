"""One dashboard in a process of its own, and what goes between it and the page that it is drawn on.

The process is drawn by Textual's driver for the web, which writes packets: a letter, four bytes of size, the content
(``D`` what a terminal is sent, ``M`` a message as JSON). It takes packets of the same kind. The page sends JSON lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

#: Least and most cells of a terminal that is drawn.
_COLUMNS: Final = (20, 1000)
_LINES: Final = (5, 500)
#: How long a dashboard may take to close by itself, and then to heed SIGTERM, seconds.
_TO_CLOSE_S: Final = 1.0
_TO_END_S: Final = 0.5
#: How long a dashboard may leave what it is sent unread.
_TO_TAKE_S: Final = 3.0
#: Characters that a page may want back, to measure the way.
_LONGEST_PING: Final = 100
#: Bytes that a dashboard may write before it begins to draw, and of a message; pictures have no limit.
_LONGEST_LINE: Final = 1 << 16
_READY: Final = b"__GANGLION__\n"


def within(columns: object, lines: object) -> tuple[int, int]:
    """Return a size that can be drawn, whatever a page asks for."""
    return _bounded(columns, 80, _COLUMNS), _bounded(lines, 24, _LINES)


def _bounded(value: object, default: int, edges: tuple[int, int]) -> int:
    number = default
    if isinstance(value, (int, float, str)):
        with contextlib.suppress(ValueError, OverflowError):
            number = int(value)
    return max(edges[0], min(number, edges[1]))


class Dashboard:
    """One dashboard, from its start to its end.

    Args:
        process: Where it runs; leader of a process group.

    Attributes:
        errors: What it wrote to standard error, once it is over; untrusted.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.errors = ""

    @classmethod
    async def start(cls, command: Sequence[str], env: dict[str, str], columns: int, lines: int) -> Dashboard:
        """Start one."""
        drawn = {
            "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
            "TEXTUAL_FPS": "60",
            "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "TERM_PROGRAM": "textual",
            "COLUMNS": str(columns),
            "ROWS": str(lines),
        }
        pipe = subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, env={**env, **drawn}, start_new_session=True
            )
        )

    async def draw(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass on what it draws until it is over or has said that it ends.

        Args:
            send: Sends to the page; waits while the page takes nothing, and the dashboard with it.
        """
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        heard = asyncio.create_task(err.read(_LONGEST_LINE))
        try:
            while (line := await out.readline()) != _READY:
                if not line:
                    return
            while True:
                kind = await out.readexactly(1)
                content = await out.readexactly(int.from_bytes(await out.readexactly(4), "big"))
                if kind == b"D":
                    await send(content)
                elif kind == b"M" and json.loads(content).get("type") == "exit":
                    return
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return
        finally:
            if heard.done():
                self.errors = heard.result().decode(errors="replace")
            heard.cancel()

    async def take(self, message: str) -> str | None:
        """Forward a message of the page; anything else is ignored.

        Returns:
            What to answer; None = nothing.
        """
        try:
            content = json.loads(message)
        except (ValueError, RecursionError):
            return None
        match content:
            case ["stdin", str(text), *_]:
                await self._write(b"D", text.encode("utf-8", "replace"))
            case ["resize", {"width": width, "height": height}, *_]:
                columns, lines = within(width, height)
                await self._tell({"type": "resize", "width": columns, "height": lines})
            case ["ping", str(text), *_] if len(text) <= _LONGEST_PING:
                return json.dumps(["pong", text])
            case ["focus" | "blur" as event, *_]:
                await self._tell({"type": event})
        return None

    async def _tell(self, message: dict[str, Any]) -> None:
        await self._write(b"M", json.dumps(message).encode())

    async def _write(self, kind: bytes, content: bytes) -> None:
        to = self._process.stdin
        assert to is not None
        try:
            to.write(kind + len(content).to_bytes(4, "big") + content)
            async with asyncio.timeout(_TO_TAKE_S):
                await to.drain()
        except TimeoutError as error:
            raise ConnectionError("the dashboard no longer accepts input") from error
        except (OSError, RuntimeError):  # it is over, as the reading side will notice
            pass

    async def stop(self) -> None:
        """End it: ask it to close, then SIGTERM, then SIGKILL for all that it started beside the runs.

        Nothing else may read what it draws meanwhile.
        """
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_TO_CLOSE_S):
                    await self._tell({"type": "quit"})
                    await self._drained()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TO_END_S):
                    self._signal(signal.SIGTERM)
                    await self._drained()
        finally:  # also where the server cannot wait any longer
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _drained(self) -> None:
        """Wait for its end; what it still writes is let go, as a full pipe would hold it up."""
        out = self._process.stdout
        assert out is not None
        while await out.read(1 << 16):
            pass
        await self._process.wait()
