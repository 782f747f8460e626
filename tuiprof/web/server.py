"""Serves the dashboard to a browser: on this machine alone unless told otherwise, and only to who has the token.

The token comes once in the address (``/?token=…``) and is kept in a cookie that scripts and other sites cannot use.
Whoever has neither is refused before a WebSocket is opened, and so is a page of another site that tries to open one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import secrets
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.hangup import IGNORED
from tuiprof.tui.start import Start

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HERE: Final = Path(__file__).parent
_LEAST_TOKEN: Final = 16
_FONT_PX: Final = "15"
#: Time a dashboard has to end in order, and a browser to close its socket, seconds.
_GRACE_S: Final = 3.0
#: Cells of a page that does not tell its own.
_SIZE: Final = {"width": 80, "height": 24}


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine alone.

    Args:
        host: It, without a port.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def command_of(start: Start) -> str:
    """Return the shell command that runs the dashboard for one page.

    Args:
        start: What it shows first.
    """
    content = msgspec.json.encode(start, enc_hook=str).decode()
    # exec: the shell that Textual's server starts would stand between it and the dashboard.
    return f"exec {shlex.join([sys.executable, '-m', 'tuiprof.web', content])}"


class DashboardServer(Server):
    """Textual's server behind a token.

    Args:
        start: What a page shows first.
        host: Address to listen on.
        port: Port; 0 = a free one.
        token: What a browser must bring; None = a random one.

    Attributes:
        token: It.

    Raises:
        UsageProblem: The token could be guessed.
    """

    def __init__(
        self, start: Start, *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None
    ) -> None:
        if token is not None and (
            len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable()
        ):
            raise UsageProblem(
                f"a token needs {_LEAST_TOKEN} characters or more, ASCII and printable",
                "leave --token out: a random one is made",
            )
        super().__init__(command_of(start), host, port, title="tuiprof", templates_path=str(_HERE))
        self.host, self.port = host, port
        self.token = token or secrets.token_urlsafe(24)
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
        """Let nobody through without the token, nor under a foreign name, nor from another site's page."""
        if not self._named_rightly(request):
            raise web.HTTPForbidden(text="tuiprof: this server is not known by that name\n")
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
        """Whether a text is the token; how long the answer takes tells nothing of it."""
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _named_rightly(self, request: web.Request) -> bool:
        """Whether the browser means this server: a name of somebody else's may point to this machine, too."""
        origin = request.headers.get("Origin")
        try:
            name = urlsplit(f"//{request.host}").hostname or ""
            from_here = origin is None or urlsplit(origin).netloc == request.host
        except ValueError:  # such as [::1 without the other bracket
            return False
        return from_here and (is_loopback(name) or not is_loopback(self.host))

    def _welcome(self) -> web.Response:
        """Put the token into a cookie, and out of the address line."""
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self._cookie, self.token, httponly=True, samesite="Strict", path="/")
        return response

    # -- pages -------------------------------------------------------------------------------------------

    async def _make_app(self) -> web.Application:
        app: web.Application = await super()._make_app()
        app.middlewares.append(self._guard)
        for name in ("page.css", "page.js"):
            app.router.add_get(f"/{name}", self._own)
        return app

    async def _own(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(_HERE / request.path.lstrip("/"))

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """Return the page, with addresses as this browser sees them: it may come through a tunnel.

        Args:
            request: Of the browser.
        """
        import aiohttp_jinja2

        size = request.query.get("fontsize", _FONT_PX)
        content = {
            "font_size": size if size.isdecimal() and 6 <= int(size) <= 40 else _FONT_PX,
            "app_websocket_url": f"ws://{request.host}/ws",
            "application": {"name": self.title},
        }
        return aiohttp_jinja2.render_template("page.html", request, content)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run one dashboard for one page, as long as both live; whichever ends first ends the other.

        Args:
            request: Of the browser.
        """
        socket = web.WebSocketResponse(heartbeat=15, timeout=_GRACE_S)
        await socket.prepare(request)
        service = AppService(
            self.command,
            write_bytes=socket.send_bytes,
            write_str=socket.send_str,
            close=socket.close,
            download_manager=self.download_manager,
        )
        columns, lines = (to_int(request.query.get(name, ""), default) for name, default in _SIZE.items())
        await service.start(min(max(columns, 20), 1000), min(max(lines, 5), 500))
        ended = asyncio.create_task(_close_after(service, socket))
        try:
            await self._process_messages(socket, service)
        finally:
            await _stop(service)
            await ended
        return socket

    async def on_startup(self, app: web.Application) -> None:
        """Say nothing: who starts the server says where it is.

        Args:
            app: The web application.
        """

    # -- running -----------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until the process is told to end.

        Args:
            ready: Called when browsers may come; :attr:`port` is the real one then.

        Raises:
            TuiprofError: The address or port cannot be had.
        """
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - (IGNORED & {signal.SIGHUP}):
            loop.add_signal_handler(number, over.set)
        runner = web.AppRunner(await self._make_app(), shutdown_timeout=2.0)
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


async def _stop(service: AppService) -> None:
    """End a dashboard: it is asked to, and killed where it does not answer."""
    process = service._process
    assert process is not None  # it was started
    over = asyncio.gather(service.stop(), process.wait())
    await asyncio.wait((over,), timeout=_GRACE_S)
    if process.returncode is None:
        process.kill()
    await over


async def _close_after(service: AppService, socket: web.WebSocketResponse) -> None:
    """Tell the page when its dashboard is over, also where that crashed without a word."""
    task = service._task
    if task is not None:
        await asyncio.wait([task])
    with contextlib.suppress(ConnectionError):
        await socket.close()


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
    """Serve until interrupted.

    Args:
        server: What to serve.
        ready: Called when browsers may come.
    """
    asyncio.run(server.run(ready))
