"""Pages opened in a real browser, to see whether anything in them runs or is fetched."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
from html import unescape
from types import TracebackType
from typing import Final

from tests.hostile import BEACON, RAN

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
#: Opens every page in a frame, and then says of each whether a script in it changed its title or its window.
_HARNESS: Final = """<!doctype html><meta charset="utf-8"><script>
const count = %d, seen = [];
const open = (n) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = () => setTimeout(() => {
    let title = "", ran = false;
    try { title = frame.contentDocument.title; ran = frame.contentWindow.%s === 1; } catch (e) { title = "gone: " + e; }
    seen[n] = [title, ran, frame.contentWindow.length];
    frame.remove();
    done();
  }, 30);
  frame.src = "/page/" + n;
  document.body.append(frame);
});
addEventListener("load", async () => {
  for (let n = 0; n < count; n++) await open(n);
  const said = document.createElement("pre");
  said.id = "said";
  said.textContent = JSON.stringify(seen);
  document.body.append(said);
});
</script><body>"""
#: What a page must be able to do, or the others' silence says nothing.
_SCRIPT: Final = f"document.title='{RAN}';window.{RAN}=1"
_RUNS: Final = f"<!doctype html><title>x</title><script>{_SCRIPT}</script><img src='{BEACON}/control'>"


def browser() -> str | None:
    """Return the Chromium of this machine; None = there is none."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


class Pages:
    """Pages to be opened, all in one browser. Each is opened without its content policy too: that is a second wall."""

    def __init__(self) -> None:
        self._pages: list[tuple[str, str, str]] = [("the control", _RUNS, "text/html")]
        self._fetched: list[str] = []

    def __len__(self) -> int:
        """Return how many there are, without the one that must run."""
        return len(self._pages) - 1

    def __enter__(self) -> Pages:
        """Serve them."""
        pages, fetched = self._pages, self._fetched

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Host", "").startswith("beacon.invalid"):
                    fetched.append(f"{self.path} for {self.headers.get('Referer', 'a page')}")
                    body, kind = b"", "image/svg+xml"
                elif self.path == "/":
                    body, kind = (_HARNESS % (len(pages), RAN)).encode(), "text/html"
                elif found := re.fullmatch(r"/page/(\d+)", self.path):
                    _, text, kind = pages[int(found[1])]
                    body = text.encode("utf-8", "replace")
                else:
                    body, kind = b"", "text/plain"
                self.send_response(200)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Referrer-Policy", "unsafe-url")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, name: str, text: str, kind: str = "text/html") -> None:
        """Add a page, with and without its content policy."""
        self._pages.append((name, text, kind))
        if (bare := re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text, count=1)) != text:
            self._pages.append((f"{name}, without its policy", bare, kind))

    def problems(self) -> list[str]:
        """Open them all; return what ran, and what was fetched."""
        port = self._server.server_port
        with tempfile.TemporaryDirectory(prefix="tuiprof-pages-", ignore_cleanup_errors=True) as profile:
            command = [
                browser() or "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                f"--host-resolver-rules=MAP beacon.invalid 127.0.0.1:{port}", "--disable-background-networking",
                f"--virtual-time-budget={2_000 + 400 * len(self._pages)}", "--dump-dom", f"http://127.0.0.1:{port}/",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
        if said is None:
            return [f"the browser did not open the pages: {done.stderr.strip()[-300:]}"]
        seen = json.loads(unescape(said[1]))
        if not (seen[0][0] == RAN and seen[0][1] and any("control" in fetch for fetch in self._fetched)):
            return [f"the page that must run did not: {seen[0]}, {self._fetched}"]
        problems = []
        for number, (title, ran, frames) in enumerate(seen[1:], 1):
            if ran or title == RAN or frames or title.startswith("gone"):
                problems.append(
                    f"a page runs what is in it: {self._pages[number][0]} ({title!r}, {frames} frames)"
                )
        for fetch in self._fetched:
            number = re.search(r"/page/(\d+)", fetch)
            if number is None or number[1] != "0":
                name = self._pages[int(number[1])][0] if number else "a page"
                problems.append(f"a page fetches {fetch.split()[0]}: {name}")
        return problems
