"""Text that others chose, put wherever a recording can hold it, through every output."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import csv
import gc
import io
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from rich.segment import Segment
from textual.pilot import Pilot
from textual.widgets import Input

from tests import hostile
from tests.campaigns._pages import Pages, browser
from tests.campaigns.campaign import Options, Outcome
from tests.hostile import CORPUS, Made, obeyed, obeyed_in_lines
from tests.terminals import in_terminal
from tests.tui.on_screen import until
from tuiprof.cli import main
from tuiprof.cli.screens import _encoded
from tuiprof.errors import TuiprofError
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.app.snapshot import Shot, take, text_of
from tuiprof.tui.terminal import output

PROMISE = "Text that others chose is shown by every output, and obeyed by none."

FORMATS: Final = ("text", "json", "csv", "md", "html")
_FORMULA: Final = re.compile(r"[\s\"]*[=+\-@＝＋－＠]")
_COMMAND: Final = re.compile(r"::[A-Za-z-]+( [^:]*)?::")
#: Where nothing of what stands in a test's own environment is looked at.
_QUIET: Final = {"TUIPROF_CONFIG": os.devnull, "TUIPROF_TRACE_CACHE": "off"}
#: Title, text and media type of a page.
Page = tuple[str, str, str]


def run(options: Options) -> Outcome:
    """Put every text of the corpus, and mixtures of them, through every output."""
    outcome = Outcome()
    texts = _texts(options)
    with _environment(_QUIET), Pages() as pages, ThreadPoolExecutor(1) as beside:
        for cases, failures, shown in _put_all(texts, options):
            outcome.cases += cases
            outcome.failures += failures
            for page in shown:
                pages.add(*page)
        terminals = beside.submit(_terminals, options.folder / "terminals")
        outcome.cases += len(_TERMINALS)
        outcome.failures += terminals.result()
        if browser() is None:
            outcome.skipped.append("pages in a browser: there is no Chromium here")
        else:
            outcome.cases += len(pages)
            outcome.failures += pages.problems()
    outcome.figures["texts"] = str(len(texts))
    return outcome


#: Of one text: the number of cases, what failed, and pages for the browser.
Put = tuple[int, list[str], list[Page]]


def _put_all(texts: dict[str, str], options: Options) -> Iterator[Put]:
    """Put each text through every output, several at once."""
    numbered = [(number, key, text, options) for number, (key, text) in enumerate(texts.items())]
    if len(numbered) == 1:  # not worth the start of a process
        yield _put(*numbered[0])
        return
    # Half of the time is spent waiting for screens, so there is one process more than processors.
    count = min(len(texts), (os.cpu_count() or 1) + 1)
    # As for the dashboard: a third of the time would be collections.
    collector = {"initializer": gc.set_threshold, "initargs": (10_000, 5, 10)}
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), **collector) as several:
        for result in [several.submit(_put, *each) for each in numbered]:
            yield result.result()


def _put(number: int, key: str, text: str, options: Options) -> Put:
    """Put one text through every output."""
    folder, pages = options.folder / f"text {number}", list[Page]()
    made = hostile.make(folder, text, raw=key == "lone surrogates")
    found = [*_commands(made, pages, key), *_completion(made)]
    if key != "lone surrogates" and (not options.short or key == "all"):
        found += asyncio.run(_screens(made, folder, pages, key, options))
    return len(found), [f"{key}: {where}: {what}" for where, whats in found for what in whats], pages


def _texts(options: Options) -> dict[str, str]:
    """Return each text of the corpus, and mixtures of several; in short mixtures alone, which hold all of them."""
    if options.short:
        brief = [text for text in CORPUS.values() if len(text) < 1000]
        # Little of it has room on a screen: what ends a program comes first. Each text alone is for the full form.
        worst = "\x1b[2J[/][@click=app.leave_all]x[/]\u202e\n<b>\u3164"
        return {"all": " ".join((worst, *brief))}
    rng = options.rng("mixtures")
    mixtures = {
        f"mixture {i}": rng.choice(("", " ", "\n")).join(rng.sample(list(CORPUS.values()), rng.randint(2, 5)))
        for i in range(options.count(40, 0))
    }
    return {**CORPUS, **mixtures}


@contextlib.contextmanager
def _environment(changed: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# -- what is printed ---------------------------------------------------------------------------------------

Found = tuple[str, list[str]]


def printed(*args: object) -> tuple[object, str, str]:
    """Run a command line in this process; return its status (an exception is none) and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: object = main([os.fsdecode(arg) if isinstance(arg, Path) else str(arg) for arg in args])
        except SystemExit as ended:
            status = ended.code or 0
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the campaign looks for
            status = f"{type(error).__name__}: {error}"[:300]
    streams = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, err))  # type: ignore[attr-defined]
    return (status, *streams)  # type: ignore[return-value]


def _commands(made: Made, pages: list[Page], key: str) -> list[Found]:
    """Put it through every verb that prints, in every format."""
    typed = made.name.replace("\x00", "").encode("utf-8", "replace").decode()  # an argument holds no NUL
    limits = ("--max", "step_median_ms=1", "--max", "syncs_per_step=0", "--min", "no_such_ms=3")
    wanted: list[tuple[str, tuple[object, ...]]] = []
    for fmt in FORMATS:
        wanted += [
            (fmt, ("report", made.trace, "all", "-f", fmt)),
            (fmt, ("report", made.session, "all", "-f", fmt)),
            (fmt, ("compare", made.trace, made.session, "-f", fmt)),
            (fmt, ("ladder", "--show", made.ladder, "-f", fmt)),
        ]
    for fmt in ("text", "json", "junit", "github"):
        wanted += [(fmt, ("check", it, *limits, "-f", fmt)) for it in (made.session, made.trace)]
    wanted += [
        ("text", ("list",)),
        ("json lines", ("list", "--json")),
        ("text", ("doctor",)),
        ("json", ("doctor", "--json")),
        ("text", ("ladder", "--resume", made.ladder, "--quiet")),
        ("text", ("report", typed)),
        ("text", ("report", made.session, typed)),
        ("text", ("compare", typed, made.trace)),
        ("text", ("compare", made.ladder, f"{made.ladder}:{typed}")),
        ("text", ("ladder", typed)),
        ("text", ("record", typed)),
        ("text", ("record", "--", typed)),
        ("text", (typed,)),
        ("text", ("report", made.trace.parent / hostile.file_name(f"absent {made.name}"))),
    ]
    found = []
    for fmt, args in wanted:
        status, out, err = printed("--sessions", made.root, "--scenarios", made.scenarios, *args)
        problems = [] if isinstance(status, int) else [str(status)]
        problems += [f"stderr obeys {bad}" for bad in sorted(set(obeyed_in_lines(err)))[:3]]
        problems += _workflow_commands(err) + _pasted(err, made) + _CHECKS[fmt](out)
        name = " ".join(str(arg) for arg in args if arg not in (typed, *limits) and not isinstance(arg, Path))
        found.append((f"{name} ({fmt})", problems))
        if fmt in ("html", "md") and out:
            page = (
                out if fmt == "html" else MarkdownIt("commonmark", {"html": True}).enable("table").render(out)
            )
            pages.append((f"{key}: {name}", page, "text/html"))
    return found


def _lines(out: str) -> list[str]:
    return [f"stdout obeys {bad}" for bad in sorted(set(obeyed_in_lines(out)))[:3]]


def _workflow_commands(text: str) -> list[str]:
    """Return what GitHub's runner would take for a command in a log."""
    lines = [line for line in text.split("\n") if _COMMAND.match(line.strip()) or "##[" in line]
    return [f"a CI log obeys {line.strip()[:60]!r}" for line in lines[:2]]


def _text(out: str) -> list[str]:
    return _lines(out) + _workflow_commands(out)


def _json(out: str) -> list[str]:
    return _json_lines(" ".join(out.split("\n")))


def _json_lines(out: str) -> list[str]:
    for line in filter(None, out.split("\n")):
        try:
            json.loads(line)
        except ValueError as error:
            return [f"no JSON: {error}"]
    return [] if out.replace("\n", "").isprintable() and out.isascii() else ["JSON is not printable ASCII"]


def _csv(out: str) -> list[str]:
    problems = _lines(out)
    csv.field_size_limit(sys.maxsize)
    for delimiter in ",;":  # a spreadsheet takes one or the other, by the user's language
        for row in csv.reader(io.StringIO(out, newline=""), delimiter=delimiter):
            problems += [f"a spreadsheet runs {cell[:60]!r}" for cell in row if _is_formula(cell)]
    return problems[:3]


def _is_formula(cell: str) -> bool:
    if not _FORMULA.match(cell):
        return False
    with contextlib.suppress(ValueError):
        float(cell)
        return False
    return True


def _junit(out: str) -> list[str]:
    try:
        cases = ElementTree.fromstring(out.encode()) if out else ()
    except ElementTree.ParseError as error:
        return [f"no XML: {error}"]
    return _lines(out) + ([] if len(cases) in (0, 3, 4) else [f"{len(cases)} elements for three limits"])


def _github(out: str) -> list[str]:
    begun = (
        "::notice title=tuiprof check::",
        "::error title=tuiprof check::",
        "::warning title=tuiprof check::",
    )
    foreign = [line for line in out.rstrip("\n").split("\n") if line and not line.startswith(begun)]
    return _lines(out) + [f"a line of its own: {line[:60]!r}" for line in foreign[:2]]


_CHECKS: Final[dict[str, Callable[[str], list[str]]]] = {
    "text": _text, "json": _json, "json lines": _json_lines, "csv": _csv, "md": _lines, "html": _lines,
    "junit": _junit, "github": _github,
}  # fmt: skip


def _pasted(err: str, made: Made) -> list[str]:
    """Let a shell take the commands that are offered to be pasted; they must be one command each."""
    offered = "\n".join(re.findall(r"(?:show it again|see a trace|see it|resume): +(tuiprof .*)", err))
    if not offered:
        return []
    counted = 'tuiprof() { [ -e "${@: -1}" ] || echo "no such file: $*"; }\n'
    done = subprocess.run(
        ["bash", "-c", counted + offered],
        cwd=made.root,
        capture_output=True,
        timeout=60,
        errors="replace",
        text=True,
    )
    said = done.stdout + done.stderr
    return [f"a shell takes a command for something else: {said[:200]!r}"] if said else []


def _completion(made: Made) -> list[Found]:
    """Ask for what a shell would complete."""
    found = []
    for line in ("tuiprof open ", "tuiprof ladder ", "tuiprof record ", "tuiprof ladder --resume "):
        line = line.replace("tuiprof ", f"tuiprof --sessions {shlex.quote(str(made.root))} ", 1)
        for shell in ("bash", "zsh", "fish"):
            words = line.split()
            asked = {"_TUIPROF_COMPLETE": f"{shell}_complete", "COMP_LINE": line, "COMP_WORDS": line,
                     "COMP_CWORD": "" if shell == "fish" else str(len(words))}  # fmt: skip
            with _environment(asked):
                status, out, err = printed()
            problems = [] if isinstance(status, int) else [str(status)]
            offered = [part for part in re.split(r"[\n,\t]", out) if part]
            problems += [
                f"completes {part[:40]!r}" for part in offered if not re.fullmatch(r"[\w.:~+-]*", part, re.A)
            ]
            problems += [f"obeys {bad}" for bad in obeyed_in_lines(err)[:1]]
            found.append((f"completion of {shell}", problems[:3]))
    return found


# -- what is drawn -----------------------------------------------------------------------------------------


class _Drawn:
    """Looks at every line that a screen draws, before the last filter makes it harmless."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._apply = output.StripControls.apply

    def __enter__(self) -> _Drawn:
        def look(this: output.StripControls, segments: list[Segment], background: Any) -> list[Segment]:
            for segment in segments:
                if bad := [] if segment.control else obeyed(segment.text):
                    self.problems.append(f"a widget draws {bad[:3]} in {segment.text.strip()[:40]!r}")
                if segment.style is not None and (segment.style.link or "OWNED" in str(segment.style.meta)
                                                  or "leave_all" in str(segment.style.meta)):  # fmt: skip
                    self.problems.append(f"a name became a link: {segment.text.strip()[:40]!r}")
            return self._apply(this, segments, background)

        output.StripControls.apply = look  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        output.StripControls.apply = self._apply  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def _app(start: Start, *shows: str) -> AsyncIterator[Pilot[int]]:
    app = TuiprofApp(start)
    async with app.run_test(size=(140, 44), notifications=True) as pilot:
        await until(pilot, lambda: all(text in text_of(pilot) for text in shows))
        yield pilot


async def _press(pilot: Pilot[int], keys: Iterable[str]) -> None:
    """Press keys, each when what the one before began is done, and draw the screen after each."""
    for key in keys:
        await pilot.press(key)
        await _idle(pilot)
        text_of(pilot)


async def _idle(pilot: Pilot[int]) -> None:
    await until(pilot, lambda: all(worker.is_finished for worker in pilot.app.workers), 60)
    await pilot.pause()


async def _screens(made: Made, folder: Path, pages: list[Page], key: str, options: Options) -> list[Found]:
    """Visit every screen, and take pictures of some."""
    found = []
    library = Start(sessions=made.root, scenarios=(made.scenarios,), python=Path(sys.executable))
    tabs = "12" if options.short else "123456789"
    for name, visit in (
        ("trace", _trace(made, tabs)), ("live", _live(made, folder)), ("library", _library(made, library)),
        ("ladder", _ladder(made, library)), ("compare", _compare(made)),
    ):  # fmt: skip
        with _Drawn() as drawn:
            try:
                said = await visit
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what the campaign looks for
                said = [f"{type(error).__name__}: {error}"[:300]]
        found.append((f"the {name} screen", [*dict.fromkeys(said + drawn.problems)][:5]))
    for start in (Start("trace", made.trace), Start("live", made.session)):
        try:
            picture = await asyncio.to_thread(take, Shot(start, 100, 30))
        except TuiprofError:  # a file of it is damaged
            continue
        found.append((f"a picture of the {start.view} screen", _lines(picture.text)))
        pages += [
            (f"{key}: snapshot of {start.view}", picture.svg, "image/svg+xml"),
            (f"{key}: snapshot of {start.view} as a page", _encoded(picture, ".html").decode(), "text/html"),
        ]
    return found


async def _trace(made: Made, tabs: str) -> list[str]:
    said = []
    async with _app(Start("trace", made.trace), "Syncs") as pilot:
        await _idle(pilot)
        for tab in tabs:
            await _press(pilot, (tab, "enter", "y", "escape", "y", "Y"))
            said += [f"the clipboard gets {bad}" for bad in obeyed(pilot.app.clipboard.replace("\t", ""))]
        await _press(
            pilot,
            ("i", "escape", "r", "escape", "t", "n", "b", "question_mark", "escape", "slash", "a", "escape"),
        )
        await _press(pilot, "e")
        said += _suggested(pilot)
        await _press(pilot, ("escape", "C", "escape", "escape"))
    return said


def _suggested(pilot: Pilot[int]) -> list[str]:
    """Look at the name of the file that is suggested for an export."""
    path = Path(pilot.app.screen.query_one(Input).value)
    plain = re.fullmatch(r"[\w.+-]+", path.name) and path.name[0] not in ".-~" and not obeyed(path.name)
    return [] if plain and path.absolute().parent == Path.cwd() else [f"the file is called {str(path)!r}"]


async def _live(made: Made, folder: Path) -> list[str]:
    run = hostile.run_of(folder / "running", made.name)
    async with _app(Start("live", run.session.path), "step time") as pilot:
        await _press(
            pilot, ("l", "l", "a", "escape", "P", "escape", "m", "escape", "question_mark", "escape")
        )
        await _press(pilot, ("z", "n", "Q", "escape", "ctrl+p", *"open", "escape", "o"))
    return []


async def _library(made: Made, start: Start) -> list[str]:
    async with _app(start, "Recent", "evil") as pilot:
        app = pilot.app
        assert isinstance(app, TuiprofApp)
        await _press(pilot, ["down"] * 12)
        items = app.screen.query_one("#items")
        for choice in [
            choice.key for choice in items._choices if choice.key.startswith(("ladder:evil", "session:"))
        ]:  # type: ignore[attr-defined]
            items.move_to(choice)  # type: ignore[attr-defined]
            items.focus()
            await _press(
                pilot,
                ("t", "escape", "m", "escape", "delete", "escape", "space", "s", "escape", "right", "left"),
            )
        await _press(
            pilot, ("slash", "e", "escape", "ctrl+p", "o", "p", "escape", "o", *"x/", "enter", "escape")
        )
        for name in (made.name[:40], hostile.file_name(made.name)):
            app.go.path(made.root / name.replace("\x00", ""))
            app.go.trace(made.root / name.replace("\x00", ""))
            await _idle(pilot)
            text_of(pilot)
    return []


async def _ladder(made: Made, start: Start) -> list[str]:
    said = []
    async with _app(replace(start, view="ladder", path=made.ladder), "ladder") as pilot:
        await _idle(pilot)
        await _press(
            pilot, ("down", "down", "enter", "escape", "s", "down", "escape", "r", "escape", "N", "escape")
        )
        await _press(pilot, "e")
        if pilot.app.screen.query(Input):
            said = _suggested(pilot)
        await _press(pilot, ("escape", "question_mark", "escape"))
    return said


async def _compare(made: Made) -> list[str]:
    start = Start("compare", compared=(str(made.trace), str(made.session)), sessions=made.root)
    async with _app(start, "after") as pilot:
        await _idle(pilot)
        await _press(pilot, ("1", "2", "3", "4", "enter", "escape", "y", "question_mark", "escape"))
    return []


# -- what reaches a terminal -------------------------------------------------------------------------------

#: Arguments, keys, and what must be shown before the first key and after the last.
_TERMINALS: Final[tuple[tuple[tuple[str, ...], str, str, str], ...]] = (
    (("open", "{running}"), "lla", "step time", "notes"),
    (("open", "{trace}"), "1y2y", "Syncs", "copied"),
    (("--scenarios", "{scenarios}"), "\x1b[B" * 12, "Recent", "evil"),
)


def _terminals(folder: Path) -> list[str]:
    """Open screens in real terminals; all that they send must be of our own making."""
    made = hostile.make(folder, hostile.WORST)
    running = hostile.run_of(folder / "running", hostile.WORST)
    names = {
        **{name: str(getattr(made, name)) for name in ("trace", "scenarios")},
        "running": str(running.session.path),
    }

    def one(case: tuple[tuple[str, ...], str, str, str]) -> list[str]:
        args, keys, first, last = case
        command = [
            sys.executable,
            "-m",
            "tuiprof",
            "--sessions",
            str(made.root),
            *(arg.format(**names) for arg in args),
        ]
        with in_terminal(command, 120, 36) as terminal:
            terminal.until_shown(first, "? help")
            for key in re.findall("\x1b\\[.|.", keys):
                before = len(terminal.received)
                terminal.press(key)
                with contextlib.suppress(AssertionError):  # not every key changes the picture
                    terminal.until(lambda before=before: len(terminal.received) > before, 1.0)  # type: ignore[misc]
            terminal.until_shown(last)
            sent = terminal.received
        return [f"a terminal, {' '.join(args)}: {what}" for what in _sent(sent)]

    with ThreadPoolExecutor(3) as pool:
        return [problem for problems in pool.map(one, _TERMINALS) for problem in problems]


#: The beginning of a control sequence, at the end of what was read.
_UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*|\][^\x07]*|[()])?\Z")


def _sent(sent: bytes) -> list[str]:
    """Return what a screen sent beside text and its own sequences; what it puts into the clipboard counts as text."""
    copied = re.compile(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07")
    clipboard = "".join(base64.b64decode(text).decode() for text in copied.findall(sent)).replace("\t", "")
    problems = [f"the clipboard gets {bad}" for bad in obeyed(clipboard)[:3]]
    try:
        whole = codecs.getincrementaldecoder("utf-8")().decode(
            copied.sub(b"", sent)
        )  # it may end in a character, or in a sequence
        whole = _UNFINISHED.sub("", whole)
        problems += [f"the screen sends {bad}" for bad in hostile.obeyed_on_screen(whole)[:3]]
    except UnicodeDecodeError as error:
        problems.append(f"the screen sends what is not UTF-8: {error}")
    for payload in (b"\x1b]0;", b"\x1b]8;", b"\x1bP1", b"\x1bc", b"\x1b_", b"\x1b[6n", b"OWNED\x07"):
        if payload in sent:
            problems.append(f"the screen sends {payload!r}")
    return problems
