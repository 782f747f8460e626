"""Text and folders that somebody else made: what a terminal, browser, spreadsheet, shell or CI log would obey.

``CORPUS`` holds the texts by what they try; :func:`make` puts one of them into every place where a trace, a session, a
ladder or a scenario can carry text; :func:`obeyed` says what of an output would still be obeyed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.tui.synthetic import Synthetic
from tuiprof.ladder.state import LadderMeta, Rung, Trial
from tuiprof.session.store.meta import Labels, RunNote, Scenario

#: What a page would do if it ran: change its title and ask a host that only a test resolves.
RAN: Final = "OWNED"
BEACON: Final = "http://beacon.invalid"
_JS: Final = f"document.title='{RAN}';window.{RAN}=1;new Image().src='{BEACON}/js'"

CORPUS: Final[dict[str, str]] = {
    # What terminals obey.
    "C0 and DEL": "".join(map(chr, (*range(0x20), 0x7F))),
    "C1": "".join(map(chr, range(0x80, 0xA0))),
    "CSI": "a\x1b[2J\x1b[31;7m\x1b[?1049l\x1b[6n\x1b[1;1Hb",
    "CSI in 8 bits": "a\x9b2J\x9b?1049lb",
    "OSC title": "a\x1b]0;OWNED\x07\x1b]2;OWNED\x1b\\b",
    "OSC 8 link": "a\x1b]8;;http://x.example\x1b\\link\x1b]8;;\x1b\\b",
    "OSC 52 clipboard": "a\x1b]52;c;T1dORUQ=\x07b",
    "OSC in 8 bits": "a\x9d0;OWNED\x9c\x9d52;c;T1dORUQ=\x9cb",
    "DCS, APC, PM, SOS": "a\x1bP1$r\x1b\\\x1b_Gi=1\x1b\\\x1b^x\x1b\\\x1bXx\x1b\\\x90x\x9cb",
    "reset": "a\x1bc\x1b#8\x1b(0b",
    "an escape at the end": "a\x1b",
    "overwriting": "bad\x08\x08\x08good\rfine",
    # What turns, hides or breaks text.
    "line breaks": "a\nb\r\nc\x0bd\x0ce\x85f\u2028g\u2029h",
    "bidi override": "abc\u202egnp.exe\u202c \u202ax\u202b\u202dy",
    "bidi isolates": "a\u2066b\u2067c\u2068d\u2069\u061c\u200e\u200f",
    "zero width": "a\u200bb\u200cc\u200dd\u2060e\u2064f\ufeffg\u00adh\u180ei",
    "letters that are not drawn": "a\u115fb\u1160c\u3164d\uffa0e\u034ff\u17b4g\u2065h",
    "tags and variation selectors": "a\U000e0041\U000e007f\ufe0f\U000e0100b",
    "interlinear": "a\ufff9b\ufffac\ufffbd",
    "lone surrogates": "a\ud800b\udcffc\udc9b2Jd",
    "bytes that are not UTF-8": "a\udcff\udc9b2J\udc80b",
    "homographs": "аten::mm cudaΜemcpy",
    "wide and combining": "カー🤖e\u0301" + "a" + "\u0301" * 64,
    # What Rich and Textual take for markup, and what formats a text.
    "Rich markup": "[red]r[/red][/red][/] [bold \\[b] [[x]] [link=http://x.example]l[/link] :skull:",
    "Textual markup": "[@click=app.bell]OWNED[/] [@click='app.leave_all']x[/] [$primary]y[/]",
    "format": "%s%n%(x)s {0}{x!r} {{7*7}} ${x} $(x)",
    # What spreadsheets calculate.
    "formula =": "=1+1",
    "formula +": "+cmd|' /C calc'!A0",
    "formula -": "-2+3",
    "formula @": "@SUM(1+1)",
    "formula after blanks": " \t =HYPERLINK(\"http://x.example\")",
    "formula in full width": "＝1+1",
    "formula after a comma": 'x,=1+1,"=2+2","+3',
    "formula after a semicolon": 'x;=1+1;"=2+2";@x',
    "formula on a line of its own": "x\n=1+1\n\r=2+2",
    # What browsers run or fetch.
    "script": f"<script>{_JS}</script>",
    "end of a script": f"</script></style></title></textarea></svg><script>{_JS}</script>",
    "event": f'<img src=x onerror="{_JS}"><svg onload="{_JS}"><details open ontoggle="{_JS}">',
    "attribute": f"\"><img src=x onerror={_JS.replace(' ', '/**/')}> ' onmouseover='{_JS}' autofocus onfocus='{_JS}",
    "markup that fetches": f'<img src="{BEACON}/img"><link rel=stylesheet href={BEACON}/css>'
    f'<iframe src="{BEACON}/frame"></iframe><base href="{BEACON}"><meta http-equiv=refresh content="0;url={BEACON}">',
    "style": f"</style><style>*{{background:url({BEACON}/style)}}</style><p style='background:url({BEACON}/p)'>",
    "entities and comments": "&lt;b&gt; &#60;script&#62; &amp; &copy; <!-- x --> <![CDATA[ ]]> <?xml?> &xxe;",
    "svg": f'</text><script>{_JS}</script><foreignObject><iframe src="{BEACON}/svg"/></foreignObject><text>',
    # What Markdown renders.
    "markdown": f"[x](javascript:alert(1)) ![x]({BEACON}/md) # h\n- x\n1. y | a | b |\n```\n**b** _i_ ~~s~~ `c`",
    "markdown html": f"<details open ontoggle={_JS.replace(' ', '/**/')}>x</details> <a href='javascript:{_JS}'>y</a>",
    "mention": "@everyone @org/team cc:@someone",
    "backticks": "` `` ``` \\` |",
    # What a CI log obeys.
    "workflow command": "::error file=x::OWNED",
    "workflow commands on lines": "x\n::error::OWNED\r\n  ::stop-commands::x\n%0A::add-mask::a",
    "older workflow command": "x ##[error]OWNED ##[add-matcher]x.json",
    # What shells and file systems take for something else.
    "shell": "$(touch OWNED) `touch OWNED` ; touch OWNED # ' \" | x > y & z",
    "option": "--help",
    "home": "~root/x",
    "parent": "../../../../etc/passwd",
    "absolute": "/etc/passwd",
    "JSON": '"}],"traceEvents":[{"name":"\\u001b[2J',
    "XML": "]]> <!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]> &e; \x00\ufffe\uffff",
    "empty": "",
    "blank": "   ",
    "very long": "x" * 20_000,
    "very long and combining": "e" + "\u0301" * 5_000,
}  # fmt: skip
#: All of it in one text, but for what is long.
WORST: Final = " ".join(text for text in CORPUS.values() if len(text) < 1000)

#: What a terminal obeys or cannot take (Cc, Cs), other line breaks (Zl, Zp), and characters that Unicode says are drawn
#: as nothing (Default_Ignorable_Code_Point).
_OBEYED: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
#: What our own screens and reports send: cursor and colours, modes, title of the pointer, character sets.
_OURS: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\]22;[a-z-]*\x07|\x1b[()][A-Z0-9]|\x1b[=>78]|[\r\n\x08\x0f\x0e]"
)
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")


def obeyed(text: str) -> list[str]:
    """Return the characters that a terminal would obey, or that hide, turn or break what they stand in.

    Args:
        text: Text without line breaks of its own.
    """
    return [f"U+{ord(c):04X}" for c in _OBEYED.findall(text)]


def obeyed_in_lines(text: str) -> list[str]:
    """Return the same of a text of lines, in which colours are allowed."""
    return obeyed(_COLOURS.sub("", text).replace("\n", ""))


def obeyed_on_screen(sent: str) -> list[str]:
    """Return the same of all that a screen sent to its terminal, without the sequences that ours send."""
    return obeyed(_OURS.sub("", sent))


def file_name(text: str, ending: str = "") -> str:
    """Return a text as far as it can be the name of a file."""
    plain = re.sub("[/\x00]", "_", text).encode("utf-8", "surrogateescape" if _escaped(text) else "replace")
    cut = plain[: 200 - len(ending)].decode("utf-8", "ignore" if not _escaped(text) else "surrogateescape")
    return f"{cut or '_'}{ending}" if cut not in (".", "..") else f"_{cut}{ending}"


def _escaped(text: str) -> bool:
    """Whether all surrogates in a text stand for bytes."""
    return not re.search("[\ud800-\udc7f\udd00-\udfff]", text)


@dataclass(frozen=True)
class Made:
    """What :func:`make` made."""

    name: str  # the text that stands everywhere
    root: Path  # folder of sessions; holds ``session`` and ``ladder``
    trace: Path  # a trace, its name included; its sidecar lies beside it
    session: Path  # a session that has failed
    ladder: Path  # a ladder that was measured
    scenarios: Path  # a folder of scenarios


def make(folder: Path, name: str, *, raw: bool = False) -> Made:
    """Put a text into every place of a trace, a session, a ladder and a scenario that can carry it.

    Args:
        folder: Where to.
        name: The text.
        raw: Keep lone surrogates in ``session.json`` and ``ladder.json``, which cannot be read then.
    """
    root = folder / "sessions"
    scenarios = folder / "scenarios"
    scenarios.mkdir(parents=True)
    trace = folder / file_name(name, ".pt.trace.json")
    write_trace(trace, name)
    session = _session(root, name, raw)
    # In a folder, a hidden file is not taken for a trace.
    found = f"_{name}" if name.startswith(".") else name
    write_trace(session / "traces" / file_name(found, ".pt.trace.json"), name)
    write_scenario(scenarios / file_name(name, ".py"), name)
    return Made(name, root, trace, session, _ladder(root, name, raw), scenarios)


def write_trace(path: Path, name: str, steps: int = 3) -> None:
    """Write a Kineto trace in which everything has the same name, and what the probe writes beside it."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "ts": 0, "args": {"labels": name}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": name}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": name}},
    ]

    def add(category: str, label: str, start: float, dur: float, tid: Any = 1, **args: Any) -> None:
        pid = 0 if tid == 7 else 1
        args = {**args, name: name, "External id": 1, "Call stack": name}
        events.append({"ph": "X", "cat": category, "name": label, "pid": pid, "tid": tid, "ts": start, "dur": dur,
                       "args": args})  # fmt: skip

    for step in range(steps):
        at = 1000.0 + step * 12_000
        add("user_annotation", f"ProfilerStep#{step}", at, 10_000)
        add("user_annotation", name, at, 4_000)
        add("python_function", f"{name}.py(12): {name}", at, 10_000, **{"Python id": step})
        add("cpu_op", f"aten::{name}", at + 1_000, 2_000)
        add("cpu_op", name, at + 5_000, 4_500)
        add("cuda_runtime", "cudaLaunchKernel", at + 1_000, 1_000, correlation=10 + step)
        add("cuda_runtime", "cudaStreamSynchronize", at + 6_000, 3_000, correlation=90 + step)
        add("kernel", name, at + 3_000, 2_000, 7, correlation=10 + step, stream=7, device=0)
        add("kernel", f"void {name}<float>", at + 5_000, 3_000, 7, correlation=10 + step, stream=7, device=0)
        add(name, name, at + 1_000, 100, name)
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": name, "totalGlobalMem": 1 << 30}],
        "traceName": name,
        name: name,
        "traceEvents": events,
    }
    path.write_text(json.dumps(document))
    site = {
        "unix_ns": 7_000_000,
        "tid": 1,
        "what": name,
        "frames": [f"/{name}/x.py:9 {name}", name],
        "dur_ns": 3_000_000,
    }
    path.with_name(path.name.removesuffix(".pt.trace.json") + ".syncs.jsonl").write_text(
        json.dumps(site) + "\n"
    )


def run_of(root: Path, name: str, *, raw: bool = False) -> Synthetic:
    """Write a run that goes on, and in which everything has the same name."""
    plain = name.encode("utf-8", "replace").decode()  # our own writers refuse lone surrogates
    made = Synthetic(
        root,
        phases={plain: 0.4, "forward": 0.3, f"{plain} 2": 0.3},
        scenario=Scenario(plain, plain, plain),
        argv=("python", plain, "--name", plain),
        ranks=2,
    )
    meta = made.session.meta
    meta.name = meta.host = meta.cwd = meta.python = plain
    meta.devices = [
        msgspec.structs.replace(device, name=plain, details={plain: plain}) for device in meta.devices
    ]
    meta.absent = {plain: plain}
    meta.versions = {plain: plain}
    _write_json(made.session.path / "session.json", meta, plain, name if raw else plain)
    labels = Labels(tags=(plain,), notes=(RunNote(meta.unix_ns, plain, 1_000_000, 3),))
    _write_json(made.session.path / "labels.json", labels, plain, name if raw else plain)
    made.start()
    made.run_until(8)
    made.note("warn", plain)
    made.note("info", plain)
    made.capture("failed", id=plain, why=plain, path=plain)
    raw = name.encode("utf-8", "surrogatepass")
    for path in (made.session.stdout, made.session.stderr):
        with open(path, "ab") as file:
            file.write(
                b"Traceback (most recent call last):\n"
                + raw
                + b"\n\xff\xfe\x9b31m\nValueError: "
                + raw
                + b"\n"
            )
    return made


def _session(root: Path, name: str, raw: bool) -> Path:
    """Write a session of a run that failed; its folder has the name too."""
    made = run_of(root, name, raw=raw)
    made.end(1, why=name.encode("utf-8", "replace").decode())
    place = root / file_name(f"20261121T092115Z-{name}")
    made.session.path.rename(place)
    return place


def _ladder(root: Path, name: str, raw: bool) -> Path:
    """Write a ladder of two rungs with traces and a check that failed; its folder has the name too."""
    path = root / file_name(f"20261121T092116Z-ladder-{name}")
    (path / "trials" / "t1" / "traces").mkdir(parents=True)
    (path / "control").mkdir()
    write_trace(path / "trials" / "t1" / "traces" / file_name(name, ".pt.trace.json"), name)
    session = (root / file_name(f"20261121T092115Z-{name}") / "session.json").read_bytes()
    (path / "trials" / "t1" / "session.json").write_bytes(session)
    plain = name.encode("utf-8", "replace").decode()
    rungs = (
        Rung(plain, plain, "", plain, (plain,), command=(plain,)),
        Rung(f"{plain}2", plain, plain, plain, (plain,), reason=plain, remedy=plain, command=(plain,)),
    )
    trials = [
        Trial("check", 0, plain, "t1", "wrong", plain, plain),
        Trial("trace", 0, plain, "t1", "done", plain, plain),
        Trial("timing", 1, f"{plain}2", plain, "failed", plain, plain),
    ]
    meta = LadderMeta(
        v=1, ladder=plain, title=plain, source=plain, script=plain, digest="", baseline=plain, preset=plain, steps=9,
        rounds=1, python=plain, host=plain, machine=plain, cwd=plain, unix_ns=1_790_000_000_000_000_000, rungs=rungs,
        trials=trials, software={plain: plain},
    )  # fmt: skip
    _write_json(path / "ladder.json", meta, plain, name if raw else plain)
    (path / "control" / "runner.log").write_bytes(name.encode("utf-8", "surrogatepass") + b"\n")
    return path


def write_scenario(path: Path, name: str) -> None:
    """Write a script whose header has the text in all that people read."""
    text = _toml(name)
    header = [
        "dependencies = []",
        "[tool.tuiprof]",
        'name = "evil"',
        f"title = {text}",
        f"story = {text}",
        'baseline = "off"',
        "[tool.tuiprof.reference]",
        f"hardware = {text}",
        f"software = {text}",
        "[tool.tuiprof.presets.smoke]",
        f"note = {text}",
        "[[tool.tuiprof.variants]]",
        'name = "off"',
        f"note = {text}",
        f"published = [{{ text = {text} }}]",
    ]
    lines = "".join(f"# {line}\n" for line in header)
    path.write_bytes(f"# /// script\n{lines}# ///\n".encode() + name.encode("utf-8", "replace"))


def _toml(text: str) -> str:
    """Return a text as TOML writes it, all but the plainest characters by their number."""
    text = text.encode("utf-8", "replace").decode()
    return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text) + '"'


def _write_json(path: Path, content: Any, plain: str, name: str) -> None:
    """Write what our writers would, with the lone surrogates that they refuse."""
    text = json.dumps(msgspec.to_builtins(content))
    if plain and plain != name:
        text = text.replace(json.dumps(plain)[1:-1], json.dumps(name)[1:-1])
    path.write_text(text)


def within(folder: Path) -> set[str]:
    """Return everything that lies below a folder, links as such, to see what was made or taken away."""
    return {
        os.path.join(where, name) for where, folders, names in os.walk(folder) for name in (*folders, *names)
    }
