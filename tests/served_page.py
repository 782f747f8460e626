"""A page of ``tuiprof serve`` without a browser: its WebSocket, opened and read as the script of the page does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil

from tests.waiting import running, until

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
    """A page and what serves it."""

    server: subprocess.Popen[str]  # ``tuiprof serve``
    address: str  # what it printed
    client: subprocess.Popen[str]  # holds the page open
    dashboard: psutil.Process  # the process that draws for this page


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
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "env": env}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(serve, **options))
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        client = stack.enter_context(running([sys.executable, "-c", _CLIENT, address], **options))
        assert client.stdout is not None
        for line in ("connected\n", "drawn\n")[: 1 + drawn]:
            assert client.stdout.readline() == line
        until(lambda: _dashboards(server), "the process of the dashboard")
        (dashboard,) = _dashboards(server)
        yield Page(server, address, client, dashboard)


def _dashboards(server: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children(recursive=True)
    return [child for child in children if "tuiprof.web" in child.cmdline()]
