"""A page of ``tuiprof serve`` without a browser: its WebSocket, opened and read as the script of the page does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil

_CLIENT = """
import asyncio, sys, aiohttp
async def main(address):
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        await (await client.get(address)).read()
        async with client.ws_connect(address.partition("?")[0] + "ws") as socket:
            print("connected", flush=True)
            await socket.receive()
            print("drawn", flush=True)
            async for _ in socket:
                pass
asyncio.run(main(sys.argv[1]))
"""


@dataclass
class Page:
    """A page and what serves it.

    Attributes:
        server: ``tuiprof serve``.
        address: What it printed.
        client: Holds the page open.
        dashboard: The process that draws for this page.
    """

    server: subprocess.Popen[str]
    address: str
    client: subprocess.Popen[str]
    dashboard: psutil.Process


@contextlib.contextmanager
def served_page(
    arguments: Sequence[object],
    *,
    drawn: bool = True,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Page]:
    """Serve something and open a page of it; all is ended after the block.

    Args:
        arguments: Of ``tuiprof serve``.
        drawn: Wait until something is drawn; else until the page is connected.
        env: The environment; None = this process's.
        prefix: What the server is run by, e.g. a shell that ignores signals.
    """
    serve = [*prefix, sys.executable, "-m", "tuiprof", "serve", *map(str, arguments), "--port", "0"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_process(serve, env))
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        client = stack.enter_context(_process([sys.executable, "-c", _CLIENT, address], env))
        assert client.stdout is not None
        for line in ("connected\n", "drawn\n")[: 1 + drawn]:
            assert client.stdout.readline() == line
        found: list[psutil.Process] = []
        while not found:
            found = [
                child
                for child in psutil.Process(server.pid).children(recursive=True)
                if "tuiprof.web" in child.cmdline()
            ]
        (dashboard,) = found
        yield Page(server, address, client, dashboard)


@contextlib.contextmanager
def _process(command: list[str], env: Mapping[str, str] | None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as process:
        try:
            yield process
        finally:
            process.kill()
