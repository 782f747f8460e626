"""Serves the dashboard to a browser: on this machine alone unless asked otherwise, and only with the token.

The token comes once in the address (``/?token=…``) and is kept in a cookie that scripts and other sites cannot use.
Whoever has neither is refused before a WebSocket is opened, and so is a page of another site that tries to open one.
It stands in no file, on no command line and in no environment but that which the user put it into.

The terminal in the page is that of textual-serve, whose scripts and styles are served as they are. Each page has a
dashboard in a process of its own. That is drawn by Textual's driver for the web, which writes packets: a letter, four
bytes of size, the content (``D`` what a terminal is sent, ``M`` a message as JSON). It takes packets of the same kind.
The page sends JSON lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import textual_serve
from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.report.sanitize import sanitize_lines
from tuiprof.system.own_process import IGNORED, module_command, module_environment
from tuiprof.tui import Start

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

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LOG: Final = logging.getLogger("aiohttp.server")
_HERE: Final = Path(__file__).parent
_TERMINAL: Final = Path(textual_serve.__file__).parent / "static"
#: In the environment: what a browser must bring.
TOKEN_VARIABLE: Final = "TUIPROF_TOKEN"
_MIN_TOKEN: Final = 16
_FONT_PX: Final = "15"
#: A name or address, with or without a port.
_HOST: Final = re.compile(r"[\w.:\[\]-]+", re.ASCII)
#: Pages at once: each is a process of about 100 MB.
_MAX_PAGES: Final = 16
#: Bytes of a message of a page: a paste.
_LONGEST_MESSAGE: Final = 1 << 20
#: A page that does not answer within half of it is gone, seconds.
_HEARTBEAT_S: Final = 15.0


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
    """One dashboard, from its start to its end; its process is the leader of a process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.errors = ""  # what it wrote to standard error, once it is over; untrusted

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

        ``send`` waits while the page takes nothing, and the dashboard with it.
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
        """Forward a message of the page, ignoring anything else; return what to answer, None = nothing."""
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


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def command_of(start: Start) -> list[str]:
    """Return the command that runs the dashboard for one page."""
    return module_command("tuiprof.web", json.dumps(msgspec.to_builtins(start, enc_hook=str)))


class DashboardServer:
    """A server of dashboards behind a token.

    Args:
        start: What a page shows first.
        host: Address to listen on.
        port: Port; 0 = a free one.
        token: What a browser must bring; None = a random one.

    Raises:
        UsageProblem: The token could be guessed.
    """

    def __init__(
        self, start: Start, *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None
    ) -> None:
        if token is not None and (len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable()):
            raise UsageProblem(
                f"a token needs at least {_MIN_TOKEN} printable ASCII characters",
                "omit --token to use a random one",
            )
        self.host = host
        self.port = port  # the real one once it listens
        self.token = token or secrets.token_urlsafe(24)
        self._command = command_of(start)
        self._environment = {
            name: value for name, value in module_environment().items() if name != TOKEN_VARIABLE
        }
        self._pages: set[web.WebSocketResponse] = set()
        # Cookies do not know ports: the name keeps two servers of one machine apart.
        self._cookie = f"tuiprof-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    @property
    def address(self) -> str:
        """What to open in a browser, token included."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/?token={self.token}"

    # -- who may come in ---------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests without the token, under another host name, or from another site's page."""
        if not self._named_rightly(request):
            raise web.HTTPForbidden(text="tuiprof: unknown host name\n")
        given = request.query.get("token")
        if given is not None:
            if not self._is_token(given):
                raise _refused("the token is wrong")
            if request.path == "/":
                return self._welcome()
        elif not self._is_token(request.cookies.get(self._cookie, "")):
            raise _refused("the token is missing: open the address that `tuiprof serve` printed")
        response = await handler(request)
        if not response.prepared:
            _harden(response, request.host)
        return response

    def _is_token(self, given: str) -> bool:
        """Whether a text is the token; the time that the answer takes reveals nothing of it."""
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _named_rightly(self, request: web.Request) -> bool:
        """Whether the request names this server: a foreign host name may resolve to this machine, too."""
        origin = request.headers.get("Origin")
        try:
            name = urlsplit(f"//{request.host}").hostname or ""
            from_here = origin is None or urlsplit(origin).netloc == request.host
        except ValueError:  # such as [::1 without the other bracket
            return False
        plain = _HOST.fullmatch(request.host) is not None  # it is written into the page
        return plain and from_here and (is_loopback(name) or not is_loopback(self.host))

    def _welcome(self) -> web.Response:
        """Put the token into a cookie, and out of the address line."""
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self._cookie, self.token, httponly=True, samesite="Strict", path="/")
        return response

    # -- pages -------------------------------------------------------------------------------------------

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/ws", self._page)
        for name in ("page.css", "page.js"):
            app.router.add_get(f"/{name}", self._own)
        app.router.add_static("/static", _TERMINAL)
        app.on_shutdown.append(self._close_pages)
        return app

    async def _own(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(_HERE / request.path.lstrip("/"))

    async def _index(self, request: web.Request) -> web.Response:
        """Return the page, with addresses as this browser sees them: it may come through a tunnel."""
        size = request.query.get("fontsize", _FONT_PX)
        page = Template((_HERE / "page.html").read_text()).substitute(
            font_size=size if size in map(str, range(6, 41)) else _FONT_PX,
            websocket=f"ws://{request.host}/ws",
        )
        return web.Response(text=page, content_type="text/html")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        """Run one dashboard for one page, as long as both live; whichever ends first ends the other."""
        if len(self._pages) >= _MAX_PAGES:
            raise web.HTTPServiceUnavailable(text=f"tuiprof: {_MAX_PAGES} pages are open: close one\n")
        socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, max_msg_size=_LONGEST_MESSAGE)
        self._pages.add(socket)
        try:
            await socket.prepare(request)
            size = within(request.query.get("width"), request.query.get("height"))
            dashboard = await Dashboard.start(self._command, self._environment, *size)
            drawn = asyncio.create_task(self._draw(dashboard, socket))
            try:
                async for message in socket:
                    if message.type is WSMsgType.TEXT:
                        answer = await dashboard.take(message.data)
                        if answer is not None:
                            await socket.send_str(answer)
            except ConnectionError:  # it went away while it was answered
                pass
            finally:
                drawn.cancel()
                await asyncio.wait([drawn])
                await dashboard.stop()
        finally:
            self._pages.discard(socket)
        return socket

    async def _draw(self, dashboard: Dashboard, socket: web.WebSocketResponse) -> None:
        """Draw until the dashboard is over, and tell the page, also where it crashed without a word."""
        await dashboard.draw(socket.send_bytes)
        if dashboard.errors:
            sys.stderr.write(f"{sanitize_lines(dashboard.errors)}\n")
        with contextlib.suppress(ConnectionError):
            await socket.close()

    async def _close_pages(self, _app: web.Application) -> None:
        """Close all pages: their dashboards end with them."""
        closing = (page.close(code=WSCloseCode.GOING_AWAY) for page in tuple(self._pages))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.gather(*closing, return_exceptions=True)

    # -- running -----------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until the process is asked to end; ``ready`` is called when browsers may come, at :attr:`port`.

        Raises:
            TuiprofError: The address or port cannot be had.
        """
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - (IGNORED & {signal.SIGHUP}):
            loop.add_signal_handler(number, over.set)
        _LOG.addFilter(_no_bad_request)
        runner = web.AppRunner(self._app(), shutdown_timeout=4.0, logger=_LOG)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self.host, self.port)
            try:
                await site.start()
            except OSError as error:
                raise TuiprofError(
                    f"cannot listen on {self.host} port {self.port}: {error.strerror or error}",
                    "another port: --port N, or --port 0 for any free one",
                ) from error
            with contextlib.suppress(IndexError):
                self.port = runner.addresses[0][1]
            ready()
            await over.wait()
        finally:
            await runner.cleanup()


def _no_bad_request(record: logging.LogRecord) -> bool:
    """Leave out of the log what is no HTTP: it was answered, and says nothing of the server."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _refused(why: str) -> web.HTTPUnauthorized:
    return web.HTTPUnauthorized(text=f"tuiprof: {why}\n")


def _harden(response: web.StreamResponse, host: str) -> None:
    """Tell the browser to load nothing from elsewhere, and to let no other site frame the page."""
    response.headers["Content-Security-Policy"] = (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        f"connect-src 'self' ws://{host}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"


def serve(server: DashboardServer, ready: Callable[[], Any]) -> None:
    """Serve until interrupted."""
    asyncio.run(server.run(ready))
