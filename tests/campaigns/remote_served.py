"""Servers that traces are read from and that lie, and the server of ours that others try to come into."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import http.server
import json
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import aiohttp
import psutil

from tests import hostile
from tests.campaigns.campaign import Options, Outcome
from tests.terminals import in_terminal
from tests.waiting import came
from tuiprof.errors import TraceError
from tuiprof.formats import Cancelled
from tuiprof.formats.remote import FOLDER_VARIABLE, LIMIT_VARIABLE, TIMEOUT_VARIABLE, fetch
from tuiprof.resources import shipped

PROMISE = "No server that a trace is read from, and no visitor of `tuiprof serve`, makes tuiprof hang, leak or outlive."

_TRACE: Final = shipped("traces") / "jax-async.xplane.pb.gz"
_LIMIT: Final = 8 << 20
#: Nothing of ours outlives what it serves by more.
_OUTLIVES_S: Final = 5.0


def run(options: Options) -> Outcome:
    """Read from servers that lie, and visit ours in every way that is not meant."""
    outcome = Outcome()
    names = {FOLDER_VARIABLE: str(options.folder / "cache"), LIMIT_VARIABLE: str(_LIMIT), TIMEOUT_VARIABLE: "1",
             "TUIPROF_CONFIG": os.devnull}  # fmt: skip
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        with ThreadPoolExecutor(2) as pool:  # they wait more than they work
            jobs = [
                pool.submit(_remote, options),
                *(pool.submit(_visited, options, name) for name in _VISITS),
            ]
            jobs.append(pool.submit(lambda: list(_ends(options))))
            for job in jobs:
                found = job.result()
                outcome.cases += len(found)
                outcome.failures += [f"{name}: {what}" for name, whats in found for what in whats]
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return outcome


Found = tuple[str, list[str]]

# -- servers that lie --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    """How a server answers."""

    #: Writes the answer to a GET, headers included.
    answer: Callable[[http.server.BaseHTTPRequestHandler], None]
    #: What must come of it: ``a copy``, ``an error`` or ``stopped`` (it goes on until it is stopped).
    ends: str = "an error"
    #: Writes that to a HEAD; None = the server knows no HEAD.
    head: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None
    within_s: float = 8.0  # how long it may take


Handler = http.server.BaseHTTPRequestHandler


def _begin(handler: Handler, status: int = 200, **headers: object) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()


def _endlessly(handler: Handler, block: bytes, pause_s: float = 0.0) -> None:
    while True:
        handler.wfile.write(block)
        time.sleep(pause_s)


def _body(handler: Handler, said: int | None, body: bytes, **headers: object) -> None:
    _begin(handler, **({"Content_Length": said} if said is not None else {}), **headers)
    handler.wfile.write(body)


def _reset(handler: Handler) -> None:
    """Tear the connection down as a machine that has died does."""
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def _stall(handler: Handler) -> None:
    time.sleep(30)


def _answers() -> dict[str, _Answer]:
    body = _TRACE.read_bytes()
    size = len(body)
    bomb = gzip.compress(b" " * (64 << 20))
    half = size // 2
    ok = "HTTP/1.1 200 OK\r\n"

    def then(*parts: Callable[[Handler], None]) -> Callable[[Handler], None]:
        return lambda handler: [part(handler) for part in parts] and None

    def raw(content: bytes) -> Callable[[Handler], None]:
        return lambda handler: handler.wfile.write(content) and None

    def to(where: str) -> Callable[[Handler], None]:
        return lambda handler: _begin(handler, 302, Location=where, Content_Length=0)

    return {
        "an honest one": _Answer(
            lambda h: _body(h, size, body), "a copy", lambda h: _begin(h, Content_Length=size)
        ),
        "one that knows no HEAD": _Answer(lambda h: _body(h, size, body), "a copy"),
        "one that says no length": _Answer(lambda h: _body(h, None, body), "a copy"),
        "one that compresses unreached_hosts": _Answer(
            lambda h: _body(h, len(gzip.compress(body)), gzip.compress(body), Content_Encoding="gzip"),
            "a copy",
        ),
        "never answers": _Answer(_stall, head=_stall),
        "answers a HEAD alone": _Answer(_stall, head=lambda h: _begin(h, Content_Length=size)),
        "stalls after the headers": _Answer(then(lambda h: _body(h, size, b""), _stall)),
        "stalls in the middle": _Answer(then(lambda h: _body(h, size, body[:half]), _stall)),
        "stalls in the status line": _Answer(then(raw(b"HTTP/1."), _stall)),
        "says more than there is": _Answer(lambda h: _body(h, size * 2, body)),
        "says less than there is": _Answer(
            lambda h: _body(h, None, body), head=lambda h: _begin(h, Content_Length=half)
        ),
        "says a length below zero": _Answer(lambda h: _body(h, -5, body)),
        "says no number": _Answer(lambda h: _body(h, None, body, Content_Length="many")),
        "says two lengths": _Answer(
            raw(f"{ok}Content-Length: {size}\r\nContent-Length: {half}\r\n\r\n".encode() + body)
        ),
        "says more than fits": _Answer(
            lambda h: _body(h, _LIMIT * 4, body), head=lambda h: _begin(h, Content_Length=_LIMIT * 4)
        ),
        "never ends": _Answer(then(lambda h: _begin(h), lambda h: _endlessly(h, b" " * 65536))),
        "never ends, in chunks": _Answer(
            then(
                lambda h: _begin(h, Transfer_Encoding="chunked"),
                lambda h: _endlessly(h, b"1000\r\n" + b" " * 4096 + b"\r\n"),
            )
        ),
        "drips": _Answer(then(lambda h: _begin(h), lambda h: _endlessly(h, b" ", 0.3)), "stopped"),
        "ends in the middle": _Answer(lambda h: _body(h, size, body[:half])),
        "breaks in the middle": _Answer(then(lambda h: _body(h, size, body[:half]), _reset)),
        "breaks at once": _Answer(_reset, head=_reset),
        "a chunk that is none": _Answer(
            lambda h: _body(h, None, b"zz\r\nabc\r\n0\r\n\r\n", Transfer_Encoding="chunked")
        ),
        "says gzip and sends none": _Answer(
            lambda h: _body(h, size, b"plain" * 100, Content_Encoding="gzip")
        ),
        "says an encoding that is not known": _Answer(lambda h: _body(h, size, body, Content_Encoding="br")),
        "a bomb in the encoding": _Answer(lambda h: _body(h, len(bomb), bomb, Content_Encoding="gzip")),
        "leads to a file": _Answer(to("file:///etc/passwd"), head=to("file:///etc/passwd")),
        "leads to another protocol": _Answer(to("ftp://127.0.0.1/x"), head=to("ftp://127.0.0.1/x")),
        "leads in a circle": _Answer(to("/t.xplane.pb.gz"), head=to("/t.xplane.pb.gz")),
        "leads nowhere": _Answer(to("http://[::1"), head=to("http://[::1")),
        "headers without end": _Answer(
            then(raw(ok.encode()), lambda h: _endlessly(h, b"X-A: " + b"b" * 4096 + b"\r\n"))
        ),
        "no HTTP at all": _Answer(raw(b"SSH-2.0-OpenSSH_9.6\r\n")),
        "a status that is none": _Answer(raw(b"HTTP/1.1 999999 \x1b[2J\r\n\r\n")),
        "an error with a long page": _Answer(
            then(lambda h: _begin(h, 500), lambda h: _endlessly(h, b"<html>" * 9999))
        ),
        "what tells a terminal something": _Answer(
            lambda h: _body(h, size, body, ETag="\x1b]0;OWNED\x07"), "a copy"
        ),
    }


def _remote(options: Options) -> list[Found]:
    """Read a trace from each."""
    answers = _answers()
    if options.short:  # the others wait as long as these
        for name in ("answers a HEAD alone", "stalls after the headers", "stalls in the status line"):
            del answers[name]
    with _Liar(answers) as base:
        found = [(f"a server: {name}", _read(options.folder, f"{base}/{i}/t.xplane.pb.gz", answer))
                 for i, (name, answer) in enumerate(answers.items())]  # fmt: skip
        silent = f"{base}/{list(answers).index('stalls in the middle')}/t.xplane.pb.gz"
        return [*found, ("leaving a screen while a server is silent", _left(silent))]


class _Liar:
    """Runs a server that answers below ``/N/`` as the N-th answer says."""

    def __init__(self, answers: dict[str, _Answer]) -> None:
        by_number = list(answers.values())

        class Lying(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _do(self, *, head: bool) -> None:
                self.close_connection = True
                found = re.match(r"/(\d+)/t\.xplane", self.path)
                if found is None:  # a sidecar, or what a redirect made of the path
                    return _begin(self, 404, Content_Length=0)
                answer = by_number[int(found[1])]
                with contextlib.suppress(OSError, ValueError):
                    if not head:
                        return answer.answer(self)
                    return (
                        answer.head(self) if answer.head is not None else _begin(self, 405, Content_Length=0)
                    )
                return None

            def do_HEAD(self) -> None:
                self._do(head=True)

            def do_GET(self) -> None:
                self._do(head=False)

            def log_message(self, *args: object) -> None:
                pass

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    super().handle_one_request()

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *args: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Lying)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _read(folder: Path, url: str, answer: _Answer) -> list[str]:
    """Read from one; look at how that ends, when, and what it leaves."""
    cache = folder / "cache"
    before = hostile.within(cache) if cache.exists() else set()
    began = time.monotonic()
    stop_after_s = 2.0 if answer.ends == "stopped" else 60.0
    try:
        path = fetch(url, cancelled=lambda: time.monotonic() - began > stop_after_s)
        ended = (
            "a copy"
            if path.read_bytes() == _TRACE.read_bytes()
            else f"a copy of other bytes ({path.stat().st_size})"
        )
    except Cancelled:
        ended = "stopped"
    except TraceError as error:
        ended = "an error" if answer.ends == "an error" else f"an error: {error}"
        if bad := hostile.obeyed(str(error)):
            ended = f"an error that obeys {bad[:2]}"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what the campaign looks for
        ended = f"{type(error).__name__}: {error}"[:200]
    took_s = time.monotonic() - began
    problems = [] if ended == answer.ends else [f"came to {ended}, not {answer.ends}"]
    if took_s > answer.within_s:
        problems.append(f"took {took_s:.1f} s")
    left = (
        {path for path in hostile.within(cache) - before if os.path.isfile(path)} if cache.exists() else set()
    )
    if ended != "a copy" and left:
        problems.append(f"left {sorted(left)}")
    return problems


def _left(url: str) -> list[str]:
    """Leave the dashboard while it waits for a server that says nothing more."""
    command = [sys.executable, "-m", "tuiprof", "compare", "--tui", url, str(_TRACE)]
    with in_terminal(command, 100, 30, **{TIMEOUT_VARIABLE: "60"}) as terminal:
        terminal.until_shown("cancel")
        terminal.press("\x1b")
        began = time.monotonic()
        try:
            terminal.until_over(30.0)
        except AssertionError:
            return ["it goes on after half a minute"]
        took_s = time.monotonic() - began
    return [] if took_s <= _OUTLIVES_S else [f"it ends after {took_s:.0f} s"]


# -- our server --------------------------------------------------------------------------------------------


class _Served:
    """``tuiprof serve`` on a free port.

    Attributes:
        address: What it printed.
        port: Its port.
        token: Its token.
        process: It.
    """

    def __init__(self, folder: Path, *args: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.errors = folder / "stderr"
        places = {
            f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "CACHE", "STATE", "CONFIG")
        }
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tuiprof", "serve", str(_TRACE), "--port", "0", *args],
                stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **places, "TMPDIR": str(folder)},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        parts = urlsplit(self.address)
        assert parts.port is not None, self.errors.read_text()
        self.port = parts.port
        self.token = parse_qs(parts.query)["token"][0]
        self.own = psutil.Process(self.process.pid)

    def __enter__(self) -> _Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def dashboards(self) -> list[psutil.Process]:
        """Return the processes of pages that are open."""
        found = []
        for child in self.own.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "tuiprof.web" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def said(self) -> list[str]:
        """Return what it said that it should not have."""
        text = self.errors.read_text(errors="replace")
        return [f"the server says {text.strip().splitlines()[-1][:200]}"] if "Traceback" in text else []

    def raw(self, request: bytes, seconds: float = 5.0) -> bytes:
        """Send bytes and return the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(request)
            answer = b""
            with contextlib.suppress(OSError):
                while part := connection.recv(65536):
                    answer += part
                    if b"\r\n\r\n" in answer:
                        break
            return answer

    def status(self, request: bytes) -> int:
        """Send a request and return the status of the answer; 0 = there is none."""
        found = re.match(rb"HTTP/1\.[01] (\d{3})", self.raw(request))
        return int(found[1]) if found else 0

    def get(self, path: str, method: str = "GET", **headers: str) -> int:
        """Ask for a path; return the status."""
        given = {
            "Host": f"127.0.0.1:{self.port}",
            "Connection": "close",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        return self.status(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogateescape"))

    def cookie(self) -> str:
        """Come in with the token; return the cookie."""
        answer = self.raw(
            f"GET /?token={self.token} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode()
        )
        found = re.search(rb"Set-Cookie: ([^;\r]+)", answer)
        assert found is not None, answer
        return found[1].decode()

    @contextlib.asynccontextmanager
    async def page(self, session: aiohttp.ClientSession) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a page, until its first picture."""
        async with session.ws_connect(
            f"http://127.0.0.1:{self.port}/ws", headers={"Cookie": self.cookie()}, max_msg_size=0
        ) as page:
            await page.receive(timeout=60)
            yield page

    def open_raw(self) -> socket.socket:
        """Open a page by hand; return its connection."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        connection.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nCookie: {self.cookie()}\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(1)
        assert b" 101 " in answer, answer
        return connection


def _visited(options: Options, name: str) -> list[Found]:
    with _Served(options.folder / name.replace(" ", "-")) as server:
        found = [(f"{name}: {case}", problems) for case, problems in _VISITS[name](server, options)]
        return [*found, (f"{name}: afterwards", server.said())]


def _strangers(server: _Served, _options: Options) -> Iterator[Found]:
    """A second user of the machine, and pages of other sites in the user's own browser."""
    token, cookie = server.token, server.cookie()
    host = f"127.0.0.1:{server.port}"
    near = token[:-1] + ("y" if token.endswith("x") else "x")
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
               "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    for path in (
        "/",
        "/ws",
        "/static/js/textual.js",
        "/page.css",
        "/page.js",
        "/download/x",
        "/nothing",
        "//",
        "/../etc",
    ):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
            tried: dict[str, tuple[str, dict[str, str]]] = {
                "nothing": (path, {}),
                "a token that is near": (f"{path}?token={near}", {}),
                "an empty token": (f"{path}?token=", {}),
                "a part of the token": (f"{path}?token={token[:-1]}", {}),
                "another cookie": (path, {"Cookie": "tuiprof-000000000000=x"}),
                "the token as a cookie of another name": (path, {"Cookie": f"token={token}"}),
                "the token as a header": (path, {"Authorization": f"Bearer {token}"}),
            }
            status = {
                what: server.get(target, method, **headers) for what, (target, headers) in tried.items()
            }
            wrong = [
                f"{what} gets {code}"
                for what, code in status.items()
                if code not in (400, 401, 403, 404, 405)
            ]
            yield f"{method} {path}", wrong
            if path == "/ws":
                break
    yield "a websocket without the token", [] if server.get("/ws", **upgrade) == 401 else ["it opens"]
    for origin in ("http://evil.example", "null", "file://", "http://127.0.0.1:1", "http://[::1",
                   f"http://{host}.evil.example", f"http://evil.example#{host}"):  # fmt: skip
        code = server.get("/ws", **upgrade, Cookie=cookie, Origin=origin)
        yield f"a page of {origin}", [] if code in (400, 403) else [f"gets {code}"]
    for name in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "0.0.0.0",
        "[::1",
        "\x1b[2J",
    ):
        code = server.get("/", Cookie=cookie, Host=name)
        yield f"a host called {name!r}", [] if code in (400, 403) else [f"gets {code}"]
    yield "the user", [] if server.get("/", Cookie=cookie) == 200 else ["does not get in"]
    address = next(
        (it[4][0] for it in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)), "127.0.0.1"
    )
    reached = not address.startswith("127.") and _reachable(address, server.port)
    yield "another machine", [f"reaches {address}"] if reached else []
    with contextlib.closing(server.open_raw()):
        came(server.dashboards, 30)
        lines = [" ".join(child.cmdline()) for child in (server.own, *server.dashboards())]
        yield "a list of processes", ["shows the token"] if any(token in line for line in lines) else []
        environments = [child.environ() for child in server.dashboards()]
        kept = any(token in value for names in environments for value in names.values())
        yield "what a script is started with", ["holds the token"] if kept else []
    files = [
        path for path in server.folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()
    ]
    yield "files", [f"{path} holds the token" for path in files]


def _reachable(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2):
            return True
    except OSError:
        return False


def _crowds(server: _Served, options: Options) -> Iterator[Found]:
    """A hundred connections: that say nothing, that say half of something, and that open pages."""
    cookie = server.cookie()
    for what, begun in (
        ("nothing", b""), ("half a request", b"GET / HTTP/1.1\r\nHost: 127"), ("no HTTP", b"\x16\x03\x01" * 100),
        ("a body that does not come", b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999999\r\n\r\n"),
    ):  # fmt: skip
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for one in crowd:
            with contextlib.suppress(OSError):
                one.sendall(begun)
        began = time.monotonic()
        code, took_s = server.get("/", Cookie=cookie), time.monotonic() - began
        yield (
            f"100 that say {what}",
            [] if code == 200 and took_s < 5 else [f"a page gets {code} in {took_s:.1f} s"],
        )
        for one in crowd:
            one.close()
    gone = came(lambda: server.own.num_fds() < 60, 10)
    yield "descriptors after them", [] if gone else [f"{server.own.num_fds()} are open"]
    asked = 6 if options.short else 100
    yield f"{asked} that open a page", asyncio.run(_many_pages(server, asked))
    left = not came(lambda: not server.dashboards(), _OUTLIVES_S)
    yield "dashboards after them", [f"{len(server.dashboards())} live on"] if left else []


async def _many_pages(server: _Served, count: int) -> list[str]:
    problems = []
    async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:

        async def one() -> int:
            try:
                url = f"http://127.0.0.1:{server.port}/ws"
                page = await session.ws_connect(url, headers={"Cookie": server.cookie()})
            except aiohttp.WSServerHandshakeError as error:
                return error.status
            stack.push_async_callback(page.close)
            return 101

        codes = [await one() for _ in range(count)]
        opened = codes.count(101)
        if opened > 20 or not opened or set(codes) - {101, 503}:
            problems.append(f"{opened} pages were opened, and the others got {set(codes) - {101}}")
        if len(server.dashboards()) > 20:
            problems.append(f"{len(server.dashboards())} dashboards run")
    return problems


#: What a page may send, and no page of ours does. Text is sent as text, bytes as a binary message.
_MESSAGES: Final[dict[str, str | bytes]] = {
    "no JSON": "{",
    "nothing": "",
    "no list": "{}",
    "a number": "17",
    "null": "null",
    "an empty list": "[]",
    "a list of lists": "[[[]]]",
    "deep": "[" * 50_000,
    "no type": '[null, "x"]',
    "an unknown type": '["reboot", {}]',
    "stdin without text": '["stdin"]',
    "stdin with a number": '["stdin", 5]',
    "stdin with a list": '["stdin", ["a"]]',
    "stdin with a lone surrogate": '["stdin", "\\ud800"]',
    "stdin with controls": json.dumps(["stdin", "\x00\x1b\x9b\x7f" * 100]),
    "stdin with half an escape": '["stdin", "\\u001b["]',
    "a paste of 100 kB": json.dumps(["stdin", "x" * 100_000]),
    "resize without sizes": '["resize"]',
    "resize to text": '["resize", {"width": "a", "height": "b"}]',
    "resize to nothing": '["resize", {"width": 0, "height": 0}]',
    "resize below zero": '["resize", {"width": -5, "height": -5}]',
    "resize beyond sense": '["resize", {"width": 1000000000, "height": 1000000000}]',
    "resize to fractions": '["resize", {"width": 80.5, "height": 1e300}]',
    "resize to NaN": '["resize", {"width": NaN, "height": 24}]',
    "resize to a list": '["resize", [80, 24]]',
    "resize to true": '["resize", {"width": true, "height": true}]',
    "ping without": '["ping"]',
    "ping with all sorts": '["ping", {"a": [1, 2, null]}]',
    "ping with much": json.dumps(["ping", "x" * 100_000]),
    "focus with more": '["focus", 1, 2, 3]',
    "blur": '["blur"]',
    "a message of the process": '["quit"]',
    "bytes": b"\x00\xff" * 100,
    "bytes like text": b'["stdin", "q"]',
}


def _frame(
    opcode: int, payload: bytes, *, mask: bool = True, fin: bool = True, rsv: int = 0, said: int | None = None
) -> bytes:
    size = len(payload) if said is None else said
    head = bytes([(0x80 if fin else 0) | rsv | opcode])
    bit = 0x80 if mask else 0
    head += bytes([bit | size]) if size < 126 else bytes([bit | 126]) + struct.pack(">H", size) if size < 65536 else (
        bytes([bit | 127]) + struct.pack(">Q", size))  # fmt: skip
    return head + (b"\0\0\0\0" if mask else b"") + payload


_FRAMES: Final[dict[str, bytes]] = {
    "a frame without a mask": _frame(1, b"[]", mask=False),
    "an opcode that is none": _frame(3, b"[]"),
    "reserved bits": _frame(1, b"[]", rsv=0x70),
    "text that is not UTF-8": _frame(1, b"\xff\xfe\x9b"),
    "a close code that is none": _frame(8, struct.pack(">H", 5)),
    "a close of one byte": _frame(8, b"x"),
    "a long ping": _frame(9, b"x" * 200),
    "a ping in pieces": _frame(9, b"x", fin=False),
    "a continuation of nothing": _frame(0, b"x"),
    "pieces without end": _frame(1, b"[", fin=False) + _frame(0, b"x", fin=False) * 100,
    "a frame of exabytes": _frame(1, b"x", said=(1 << 62)),
    "a message of 64 MB": _frame(1, b"x" * (64 << 20)),
    "no frame": b"GET / HTTP/1.1\r\n\r\n" * 10,
    "half a frame, and gone": _frame(1, b"[", said=100),
    "a thousand pings": _frame(9, b"x") * 1000,
}


def _messages(server: _Served, options: Options) -> Iterator[Found]:
    """Messages and frames that no page of ours sends."""
    chosen = list(_MESSAGES.items())
    every = 11 if options.short else 1
    pages = [dict(chosen[i : i + every]) for i in range(0, len(chosen), every)]
    for group in pages:
        yield f"messages: {', '.join(group)}", asyncio.run(_send(server, list(group.values())))
    frames = list(_FRAMES.items())
    for name, frame in frames if not options.short else frames[::5]:
        yield f"frames: {name}", _send_frame(server, frame)
    gone = came(lambda: not server.dashboards(), _OUTLIVES_S)
    yield "dashboards after them", [] if gone else [f"{len(server.dashboards())} live on"]


async def _send(server: _Served, messages: list[str | bytes]) -> list[str]:
    """Send messages on a page; its dashboard must go on, or end with its page, and another page must open."""
    left = list(messages)
    async with aiohttp.ClientSession() as session:
        while left:
            async with server.page(session) as page:
                while left and not page.closed:
                    message = left.pop(0)
                    with contextlib.suppress(ConnectionError):
                        await (
                            page.send_str(message) if isinstance(message, str) else page.send_bytes(message)
                        )
                        await page.send_str('["ping", "1"]')
                    if not await _pong(page) and not page.closed:
                        return [f"after {str(message)[:40]!r} the page neither answers nor ends"]
            if not came(lambda: not server.dashboards(), _OUTLIVES_S):
                return [f"after {str(message)[:40]!r} its dashboard lives on"]
    return []


async def _pong(page: aiohttp.ClientWebSocketResponse) -> bool:
    """Whether the page answers a ping, read over what is drawn meanwhile."""
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(10):
            async for message in page:
                if message.type is aiohttp.WSMsgType.TEXT and message.data.startswith('["pong", "1"'):
                    return True
    return False


def _send_frame(server: _Served, frame: bytes) -> list[str]:
    with contextlib.closing(server.open_raw()) as connection, contextlib.suppress(OSError):
        connection.recv(1)  # its dashboard draws
        connection.sendall(frame)
    if not came(lambda: not server.dashboards(), _OUTLIVES_S):
        return ["its dashboard lives on"]
    return [] if server.get("/", Cookie=server.cookie()) == 200 else ["no other page opens"]


def _slow(server: _Served, options: Options) -> Iterator[Found]:
    """A page that reads nothing while it asks for picture after picture."""
    before = server.own.memory_info().rss
    with contextlib.closing(server.open_raw()) as connection:
        connection.recv(1)
        keys = _frame(1, json.dumps(["stdin", "\x1b[C1 2 3 4 5 ? \x1b"]).encode())
        deadline = time.monotonic() + (3 if options.short else 40)
        connection.settimeout(0.2)
        while time.monotonic() < deadline:
            try:
                connection.sendall(keys)
            except TimeoutError:
                continue
            except OSError:
                break
        grown = server.own.memory_info().rss - before
        yield "memory", [] if grown < 50 << 20 else [f"the server has grown by {grown >> 20} MB"]
        yield "another page", [] if server.get("/", Cookie=server.cookie()) == 200 else ["does not open"]
    gone = came(lambda: not server.dashboards(), _OUTLIVES_S)
    yield "its dashboard", [] if gone else ["lives on"]


_VISITS: Final[dict[str, Callable[[_Served, Options], Iterator[Found]]]] = {
    "strangers": _strangers, "crowds": _crowds, "messages": _messages, "a slow reader": _slow,
}  # fmt: skip


def _ends(options: Options) -> Iterator[Found]:
    """End the server, and a dashboard, in several ways; nothing may live on."""
    for name, number in (
        ("SIGTERM", signal.SIGTERM),
        ("SIGINT", signal.SIGINT),
        ("SIGHUP", signal.SIGHUP),
        ("SIGKILL", signal.SIGKILL),
    ):
        for stuck in (False, True):
            if options.short and (number, stuck) not in ((signal.SIGTERM, True), (signal.SIGKILL, False)):
                continue
            with (
                _Served(options.folder / f"ends-{name}-{stuck}") as server,
                contextlib.closing(server.open_raw()) as page,
            ):
                page.recv(1)
                dashboards = server.dashboards()
                if stuck:  # it takes no message any more
                    for one in dashboards:
                        one.suspend()
                began = time.monotonic()
                server.process.send_signal(number)
                ended = came(lambda: server.process.poll() is not None, 2 * _OUTLIVES_S)
                took_s = time.monotonic() - began
                if stuck:
                    for one in dashboards:
                        with contextlib.suppress(psutil.Error):
                            one.resume()
                gone = came(lambda them=dashboards: not any(map(_lives, them)), _OUTLIVES_S)  # type: ignore[misc]
                problems = (
                    [] if ended and took_s <= _OUTLIVES_S else [f"the server ended after {took_s:.1f} s"]
                )
                problems += [] if gone and dashboards else [f"its {len(dashboards)} dashboards live on"]
                for one in dashboards:
                    with contextlib.suppress(psutil.Error):
                        one.kill()
                yield (
                    f"the end of the server by {name}{', its dashboard stopped' if stuck else ''}",
                    problems + server.said(),
                )


def _lives(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
