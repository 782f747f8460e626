"""The dashboard in a browser: opens with the token, shows a live run, takes keys, and lets nobody else in."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import open_page
from tui.synthetic import Synthetic

from tests import real_traces
from tuiprof.errors import UsageProblem
from tuiprof.tui import Start

pytest.importorskip("textual_serve", reason="pip install 'tuiprof[serve]'")

TRACE = real_traces.SMALL
#: Where pictures of the browser are kept, to be looked at.
OUTPUT = Path(__file__).parent / "output"


@contextlib.contextmanager
def served(*args: str | Path) -> Iterator[str]:
    """Run the verb on a free port; yields the address it prints."""
    command = [sys.executable, "-m", "tuiprof", "serve", *map(str, args), "--port", "0"]
    env = {**os.environ, "TUIPROF_CONFIG": os.devnull}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address or process.stderr.read()
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        assert process.returncode == 0, said
        assert "Traceback" not in said


def ask(address: str, path: str, **headers: str) -> http.client.HTTPResponse:
    """Ask for a path as a browser would, redirects not followed."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_only_the_token_opens_the_door() -> None:
    with served(TRACE) as address:
        token = parse_qs(urlsplit(address).query)["token"][0]
        assert len(token) >= 32
        near = token[:-1] + ("y" if token.endswith("x") else "x")
        for path in ("/", "/ws", "/static/js/textual.js", "/page.css", "/download/x", "/nothing"):
            assert ask(address, path).status == 401, path
            assert ask(address, f"{path}?token={near}").status == 401, path
            assert ask(address, path, Cookie="tuiprof-000000000000=x").status == 401, path
        assert ask(address, "/ws", **UPGRADE).status == 401
        assert ask(address, "/ws?token=wrong", **UPGRADE).status == 401

        entered = ask(address, f"/?token={token}")
        assert (entered.status, entered.getheader("Location")) == (303, "/")
        cookie = entered.getheader("Set-Cookie", "")
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        mine = cookie.split(";")[0]
        page = ask(address, "/", Cookie=mine)
        assert page.status == 200
        assert "default-src 'self'" in page.getheader("Content-Security-Policy", "")
        # A page of another site may make the browser ask, with the cookie even; it is not let in.
        assert ask(address, "/ws", Cookie=mine, Origin="http://evil.example", **UPGRADE).status == 403
        assert ask(address, "/", Cookie=mine, Host="evil.example").status == 403
        assert ask(address, "/ws", Cookie=mine, **UPGRADE).status == 101


def test_nonsense_is_refused_without_a_fault() -> None:
    with served(TRACE) as address:
        token = parse_qs(urlsplit(address).query)["token"][0]
        mine = ask(address, f"/?token={token}").getheader("Set-Cookie", "").split(";")[0]
        name = mine.partition("=")[0]
        assert ask(address, "/?token=%ff%ed%a0%80").status == 401
        assert ask(address, "/", Cookie=f"{name}=\xff\xfe").status in (400, 401)
        assert ask(address, "/", Cookie=mine, Host="[::1").status in (400, 403)
        assert ask(address, "/ws", Cookie=mine, Origin="http://[::1", **UPGRADE).status == 403


def test_the_page_names_nothing_outside() -> None:
    web = Path(sys.modules["tuiprof"].__file__ or "").parent / "web"
    for name in ("page.html", "page.css", "page.js"):
        assert not re.findall(r"https?://", (web / name).read_text()), name


def test_each_page_is_a_process_that_shows_what_was_asked_for() -> None:
    import msgspec

    from tuiprof.web.__main__ import _as
    from tuiprof.web.server import command_of

    start = replace(Start("trace", Path("/a b'c/$(x)\udcff.json")), scenarios=(Path("/s"),))
    program, *_, content = command_of(start)
    assert program == sys.executable
    assert msgspec.convert(json.loads(content), Start, dec_hook=_as) == start
    assert json.loads(content)["view"] == "trace"


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("x.org", False)],
)
def test_which_addresses_are_this_machine(host: str, here: bool) -> None:
    from tuiprof.web.server import is_loopback

    assert is_loopback(host) == here


def test_a_token_that_can_be_guessed_is_refused() -> None:
    from tuiprof.web.server import DashboardServer

    with pytest.raises(UsageProblem, match="at least 16"):
        DashboardServer(Start(), token="1234")


def test_other_machines_are_warned_of_and_a_taken_port_is_said() -> None:
    with served(TRACE) as address:
        port = str(urlsplit(address).port)
        command = [sys.executable, "-m", "tuiprof", "serve", str(TRACE), "--host", "0.0.0.0", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert "can be reached from other machines" in done.stderr
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "--port N" in done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Synthetic]:
    """A run that goes on, its session written as time passes."""
    made = Synthetic(tmp_path / "s").ran(1)
    over = threading.Event()

    def go_on() -> None:
        began = time.monotonic()
        while not over.wait(0.1):
            made.run_until(1 + time.monotonic() - began)

    thread = threading.Thread(target=go_on)
    thread.start()
    yield made
    over.set()
    thread.join()


def test_a_live_run_in_a_real_browser(run: Synthetic) -> None:
    OUTPUT.mkdir(exist_ok=True)
    with served(run.session.path) as address, open_page() as page:
        problems: list[str] = []
        elsewhere: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on(
            "request",
            lambda r: None if "127.0.0.1" in r.url or r.url[:5] == "data:" else elsewhere.append(r.url),
        )
        received: list[bytes] = []
        page.on("websocket", lambda ws: ws.on("framereceived", lambda data: received.append(data)))

        def written() -> str:
            return "".join(
                part if isinstance(part, str) else part.decode(errors="replace") for part in received
            )

        page.goto(address)
        assert "token" not in page.url
        page.wait_for_selector("body.-first-byte", timeout=20_000)

        def arrived(text: str, within_s: float = 15.0) -> bool:
            deadline = time.monotonic() + within_s
            while time.monotonic() < deadline:
                if text in written():
                    return True
                page.wait_for_timeout(100)
            return False

        assert arrived("running")
        assert arrived("27.0 ms")
        first = page.screenshot()
        page.wait_for_timeout(1500)
        assert page.screenshot() != first, "a run that goes on must be seen to go on"
        page.screenshot(path=OUTPUT / "serve-live.png")
        page.keyboard.press("?")
        assert arrived("esc closes")
        page.screenshot(path=OUTPUT / "serve-help.png")
        page.keyboard.press("Escape")
        page.wait_for_timeout(500)  # a key right after esc would be alt and that key
        page.keyboard.press("q")
        page.wait_for_selector("body.-closed", timeout=10_000)
        assert page.get_by_text("Open it again").is_visible()
        assert problems == []
        assert elsewhere == []


def test_a_wrong_token_shows_nothing_in_a_real_browser() -> None:
    OUTPUT.mkdir(exist_ok=True)
    with served(TRACE) as address, open_page() as page:
        sockets: list[Any] = []
        page.on("websocket", lambda socket: sockets.append(socket))
        response = page.goto(address[:-4] + "0000")
        assert response.status == 401
        assert "the token is wrong" in page.inner_text("body")
        assert sockets == []
        page.screenshot(path=OUTPUT / "serve-refused.png")
