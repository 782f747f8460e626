"""What ``tuiprof doctor`` reports: devices, the scripts' Python, scenarios, the terminal, folders, every part."""

from __future__ import annotations

import locale
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tuiprof
from tuiprof import plugins
from tuiprof.errors import LaunchError, UsageProblem
from tuiprof.ladder.availability import availability
from tuiprof.ladder.scenarios import Scan, scan
from tuiprof.model import Column, Fact, Report, Table, Verdict
from tuiprof.model.report import listed
from tuiprof.model.units import format_bytes
from tuiprof.session.run.interpreter import Facts, facts
from tuiprof.session.store.folders import sessions_root
from tuiprof.system.files import size_of
from tuiprof.telemetry import Device, Hardware, backends, find_hardware

#: Distributions that matter to somebody who trains models, in the order shown.
FRAMEWORKS = (
    "torch",
    "torchvision",
    "torchmetrics",
    "triton",
    "jax",
    "jaxlib",
    "torch-xla",
    "libtpu",
    "torch-neuronx",
    "neuronx-cc",
    "nki",
    "lightning",
    "transformers",
    "xformers",
    "flash-attn",
    "numpy",
)
#: PyPI carries empty packages under the names of AWS's real ones.
_PLACEHOLDERS = {"nki": "0.0.1", "torch-neuronx": "1.0", "neuronx-cc": "1.0.post1"}
_SMALL_DISK = 2 << 30
_PARTS = {
    "formats": "format",
    "analyses": "analysis",
    "advice": "rule",
    "telemetry": "telemetry",
    "report": "output format",
}


def examine(
    python: Path | None = None, *, scenarios: Iterable[Path] = (), sessions: Path | None = None
) -> Report:
    """Report what this machine has, for scripts that ``python`` (None = the active environment's) would run."""
    hardware = find_hardware()
    notes: list[str] = []
    have: Facts | None = None
    try:
        have = facts(python)
    except LaunchError as error:
        notes.append(str(error))
    ladders = scan(scenarios)
    notes += [str(problem) for problem in ladders.problems]
    root = sessions_root(sessions)
    storage, storage_notes = _storage(root)
    by_ladder, lacking, runnable, variants = _scenarios(ladders, have, hardware.all)
    accelerators = [device for device in hardware.all if device.kind != "host"]
    return Report(
        "doctor",
        "This machine",
        _verdict(accelerators, have, runnable, variants),
        facts=(
            Fact("tuiprof", "tuiprof", tuiprof.__version__, "text"),
            Fact("own_python", "its Python", f"{sys.version.split()[0]} ({sys.executable})", "text"),
            Fact(
                "script_python",
                "scripts' Python",
                f"{have.version} ({have.python})" if have else None,
                "text",
            ),
            Fact("accelerators", "accelerators", len(accelerators), "count"),
            Fact("variants_runnable", "scenario variants that can run", runnable, "count"),
            Fact("variants", "scenario variants", variants, "count"),
            *storage,
        ),
        tables=(
            _devices(hardware),
            _absent(hardware),
            _frameworks(have),
            by_ladder,
            lacking,
            _terminal(os.environ, sys.stdout.isatty()),
            _parts(),
        ),
        notes=(*notes, *storage_notes),
    )


def present(report: Report, fmt: str = "text", *, ladder: str | None = None, verbose: bool = False) -> str:
    """Return the report as a document; what single variants lack only where that is asked for.

    Raises:
        UsageProblem: There is no such ladder.
    """
    import polars as pl

    from tuiprof.report import render, stdout_style

    tables = report.tables
    if ladder is not None:
        known = report.table("ladders").rows["ladder"].to_list()
        if ladder not in known:
            raise UsageProblem(f"there is no ladder {ladder!r}", f"there are {', '.join(known)}")
        tables = tuple(
            replace(table, rows=table.rows.filter(pl.col("ladder") == ladder))
            for table in tables
            if table.key in ("ladders", "lacking")
        )
        report = replace(report, facts=(), notes=())
    elif fmt == "text" and not verbose:
        tables = tuple(
            replace(table, note="for the missing requirements: tuiprof doctor LADDER")
            if table.key == "ladders"
            else table
            for table in tables
            if table.key not in ("lacking", "parts")
        )
    style = replace(stdout_style(), details=True, rows=None)
    return render(replace(report, tables=tables), fmt, style=style)


def _verdict(accelerators: list[Device], have: Facts | None, runnable: int, variants: int) -> Verdict:
    if have is None:
        return Verdict("no Python interpreter for scripts: see the notes", "bad")
    counts = Counter(device.name for device in accelerators)
    hardware = ", ".join(f"{name} ×{count}" for name, count in counts.items())
    where = hardware or f"no accelerator: the CPU ({have.cores} cores) is the device"
    return Verdict(
        f"{where}; {runnable} of {variants} scenario variants can run here", "good" if runnable else "warn"
    )


def _devices(hardware: Hardware) -> Table:
    rows = [
        (
            device.key,
            backend,
            device.name,
            device.memory_bytes,
            ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in device.details.items()),
        )
        for backend, devices in hardware.devices.items()
        for device in devices
    ]
    columns = (
        Column("device", "device"),
        Column("backend", "backend"),
        Column("name", "name"),
        Column("memory_bytes", "memory", "bytes"),
        Column("details", "details", elide="end"),
    )
    return _table("devices", "Devices", columns, rows)


def _absent(hardware: Hardware) -> Table:
    rows = [(name, absent.reason, absent.remedy) for name, absent in hardware.absent.items()]
    columns = (Column("backend", "not found"), Column("reason", "why"), Column("remedy", "what to do"))
    return _table("absent", "Absent", columns, rows, empty="all supported kinds of devices are present")


def _frameworks(have: Facts | None) -> Table:
    rows = []
    for name in FRAMEWORKS:
        version = have.distribution(name) if have else None
        if version is None:
            continue
        remark = ""
        if _PLACEHOLDERS.get(name) == version:
            remark = "an empty placeholder: install AWS's from pip.repos.neuron.amazonaws.com"
        elif name == "torch" and have is not None:
            remark = "with CUDA" if have.torch_cuda else "without CUDA"
        rows.append((name, version, remark))
    columns = (Column("framework", "package"), Column("version", "version"), Column("remark", ""))
    where = f"in {have.python}" if have else "no interpreter"
    return _table(
        "frameworks", "Frameworks", columns, rows, empty=f"none of {', '.join(FRAMEWORKS[:6])} … {where}"
    )


def _scenarios(found: Scan, have: Facts | None, devices: list[Device]) -> tuple[Table, Table, int, int]:
    """Return how much of each ladder can run, what variants lack, how many can run, and how many there are."""
    lacking: dict[tuple[str, str, str], list[str]] = {}
    ladders = []
    for ladder in found.ladders:
        missing = {variant.name: _can_run(variant, have, devices) for variant in ladder.variants}
        for name, what in missing.items():
            if what is not None:
                lacking.setdefault((ladder.name, *what), []).append(name)
        ladders.append((ladder.name, list(missing.values()).count(None), len(missing), ladder.title))
    rows = [
        (ladder, len(names), reason, remedy, ", ".join(names))
        for (ladder, reason, remedy), names in lacking.items()
    ]
    able = (
        Column("ladder", "ladder"),
        Column("can", "can run", "count"),
        Column("of", "of", "count"),
        Column("title", "shows"),
    )
    table = _table("ladders", "Scenarios", able, ladders, empty="no scenarios found")
    columns = (
        Column("ladder", "ladder"),
        Column("count", "variants", "count"),
        Column("reason", "lack"),
        Column("remedy", "what to do"),
        Column("variants", "which"),
    )
    title = "Missing requirements of scenarios"
    lacks = _table("lacking", title, columns, rows, empty="every variant can run here")
    return table, lacks, sum(can for _, can, _, _ in ladders), sum(of for _, _, of, _ in ladders)


def _can_run(variant: Any, have: Facts | None, devices: list[Device]) -> tuple[str, str] | None:
    if have is None:
        return "no Python interpreter", ""
    lacks = availability(variant, have, devices)
    return (lacks.reason, lacks.remedy) if lacks else None


def terminal_facts(environment: Mapping[str, str], tty: bool) -> list[tuple[str, str, str]]:
    """Return what the terminal can do, as far as it answers: what, found, advice."""
    size = shutil.get_terminal_size((0, 0))
    term = environment.get("TERM", "")
    console = term in ("", "dumb", "linux", "vt100")
    rows = []
    if not tty:
        rows.append(("output", "not a terminal", "the dashboard needs one; report and record do not"))
    small = size.columns and (size.columns < 80 or size.lines < 24)
    found = f"{size.columns}×{size.lines}" if size.columns else "unknown"
    rows.append(("size", found, "80×24 is the smallest that shows everything" if small else ""))
    if environment.get("NO_COLOR"):
        colours, advice = "off (NO_COLOR)", ""
    elif environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        colours, advice = "16 million", ""
    elif "256" in term:
        colours, advice = "256", "set COLORTERM=truecolor if your terminal has it"
    else:
        colours, advice = ("none" if term in ("", "dumb") else "16"), "TERM=xterm-256color gives more"
    rows.append(("colours", colours, advice))
    encoding = locale.getpreferredencoding(False)
    unicode = encoding.lower().replace("-", "") == "utf8"
    rows.append(("text", encoding, "" if unicode else "charts need UTF-8: set LANG=C.UTF-8"))
    braille = "no" if not unicode or console else "most likely (depends on the font)"
    rows.append(("braille", braille, "" if braille != "no" else "charts fall back to blocks"))
    rows.append(("mouse", "no" if console else "most likely", ""))
    inside = "tmux" if environment.get("TMUX") else "screen" if environment.get("STY") else ""
    if inside:
        advice = "" if inside == "tmux" else "screen shows fewer colours than tmux"
        rows.append(("inside", inside, advice))
    if environment.get("SSH_CONNECTION"):
        keep = "" if inside else "runs continue if the connection drops; return with tuiprof attach"
        rows.append(("SSH", "yes (latency not measured)", keep))
    return rows


def _terminal(environment: Mapping[str, str], tty: bool) -> Table:
    columns = (Column("what", "terminal"), Column("found", "found"), Column("advice", "advice"))
    return _table("terminal", "Terminal", columns, terminal_facts(environment, tty))


def _parts() -> Table:
    from tuiprof import advice, analyses, formats, report

    rows = [("format", f.name, f.title) for f in formats.available().values()]
    rows += [("analysis", a.name, f"{a.title}: {a.question}") for a in analyses.available().values()]
    rows += [
        ("rule", name, (rule.find.__doc__ or "").partition("\n")[0])
        for name, rule in advice.available().items()
    ]
    rows += [("telemetry", name, "") for name in backends()]
    rows += [("output format", name, "") for name in report.formats()]
    for package in plugins.ATTRIBUTES:
        part, failed = _PARTS[package], plugins.discover(package).failed
        rows = [row for row in rows if row[0] != part or row[1] not in failed]
        rows += [(part, name, f"unavailable: {why}") for name, why in failed.items()]
    columns = (Column("part", "part"), Column("name", "name"), Column("title", "title"))
    return _table(
        "parts", "Formats, analyses, advice rules, telemetry backends and output formats", columns, rows
    )


def _storage(root: Path) -> tuple[list[Fact], list[str]]:
    """Return where sessions and the cache are kept and how much room there is."""
    import platformdirs

    notes = []
    there = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        notes.append(f"sessions cannot be written to {there}: set TUIPROF_SESSIONS or use --sessions")
    if free < _SMALL_DISK:
        notes.append(
            f"only {format_bytes(free)} free in {there}: a captured trace can take several hundred MB"
        )
    cache = platformdirs.user_cache_path("tuiprof", appauthor=False)
    return [
        Fact("sessions", "sessions in", str(root), "text"),
        Fact("sessions_free_bytes", "free there", free, "bytes"),
        Fact("cache", "cache in", str(cache), "text"),
        Fact("cache_bytes", "cache size", sum(map(size_of, cache.rglob("*"))), "bytes"),
    ], notes


def _table(
    key: str,
    title: str,
    columns: tuple[Column, ...],
    rows: Sequence[tuple[Any, ...]],
    empty: str = "nothing found",
) -> Table:
    return Table(key, title, columns, listed(columns, rows), empty=empty)
