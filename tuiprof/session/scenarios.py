"""The ladders: scripts whose PEP 723 header says what they show, read without running or importing anything.

A ladder is a Python file with a comment block ``# /// script`` … ``# ///`` that holds a TOML table
``[tool.tuiprof]`` with at least ``name`` and one ``[[tool.tuiprof.variants]]`` with a ``name``. tuiprof ships some;
any directory may hold more. Files without such a table are not ladders and are passed over; a file with a broken
one is a problem that is named with its line and hides no other.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tuiprof.errors import UsageProblem
from tuiprof.resources import shipped
from tuiprof.session.availability import Available, Missing, Needs, availability

__all__ = [
    "Available",
    "Ladder",
    "Missing",
    "Needs",
    "Published",
    "Scan",
    "Variant",
    "availability",
    "command",
    "find",
    "ladders",
    "scan",
]

#: Placeholders of a ladder's ``command``; a part of it that holds one without a value is left out whole.
DEFAULT_COMMAND = (("--variant", "{variant}"), ("--preset", "{preset}"), ("--steps", "{steps}"))
_LARGEST_SCRIPT_BYTES = 1 << 20


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of the publication a ladder follows: a reference, never ours.

    Attributes:
        text: The figure as it is shown.
        value: The number in it, where there is one.
        unit: Unit of the number, for example ``"ms"``.
        preset: Preset it belongs to; empty = the ladder's paper size.
    """

    text: str
    value: float | None = None
    unit: str = ""
    preset: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of a ladder.

    Attributes:
        ladder: Name of its ladder.
        name: Its name.
        note: What it changes, in a sentence.
        baseline: Name of the variant it is compared with.
        builds_on: Name of the variant it changes one thing of; empty = none.
        changes: What it sets, by name, as the script understands it.
        published: Figures of the publication.
        needs: What it needs to run.
        preset: Preset that stands for the paper size; empty = ``paper``.
        presets: Names of the presets it accepts besides ``fit``.
        script: The script.
        command: Arguments of the script, in groups, with placeholders.
    """

    ladder: str
    name: str
    note: str
    baseline: str
    builds_on: str
    changes: Mapping[str, Any]
    published: tuple[Published, ...]
    needs: Needs
    preset: str
    presets: tuple[str, ...]
    script: Path
    command: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return ``ladder:variant``."""
        return f"{self.ladder}:{self.name}"


@dataclass(frozen=True, slots=True)
class Ladder:
    """One script and the variants it has.

    Attributes:
        name: Its name.
        title: What it is about, in a line.
        story: What it shows, in some sentences; line breaks as written.
        baseline: Name of the variant that the others are compared with.
        source: Hardware and software of the published figures; empty = none.
        needs: Packages that every variant needs, with their versions.
        presets: Note of each preset by its name.
        variants: Its variants, in the order of the script.
        script: The script.
    """

    name: str
    title: str
    story: str
    baseline: str
    source: str
    needs: tuple[str, ...]
    presets: Mapping[str, str]
    variants: tuple[Variant, ...]
    script: Path


@dataclass(frozen=True, slots=True)
class Scan:
    """What the directories hold.

    Attributes:
        ladders: The ladders, by name.
        problems: One for each header that cannot be used, with file and line.
    """

    ladders: tuple[Ladder, ...]
    problems: tuple[UsageProblem, ...]


class _Reference(msgspec.Struct, forbid_unknown_fields=True):
    hardware: str = ""
    software: str = ""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    note: str = ""
    baseline: str = ""
    builds_on: str = ""
    preset: str = ""
    changes: dict[str, Any] = msgspec.field(default_factory=dict, name="set")
    published: tuple[Published, ...] = ()
    needs: dict[str, Any] = {}


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    variants: tuple[_Entry, ...]
    title: str = ""
    story: str = ""
    baseline: str = ""
    reference: _Reference = msgspec.field(default_factory=_Reference)
    needs: dict[str, Any] = {}
    presets: dict[str, dict[str, Any]] = {}
    command: tuple[tuple[str, ...], ...] = DEFAULT_COMMAND


def ladders(extra: Iterable[Path] = ()) -> list[Ladder]:
    """Return the ladders that are shipped and those in other directories, by name.

    Args:
        extra: More directories (or single scripts).
    """
    return list(scan(extra).ladders)


def scan(extra: Iterable[Path] = ()) -> Scan:
    """Read every header.

    Args:
        extra: More directories (or single scripts), read after the shipped ones; of two ladders of one name the
            first counts, and the second is a problem.
    """
    found: dict[str, Ladder] = {}
    problems: list[UsageProblem] = []
    for place in (shipped("scenarios"), *extra):
        if not place.exists():
            problems.append(UsageProblem(f"there is no scenario directory {place}", "check --scenarios"))
        for script in sorted(place.glob("*.py")) if place.is_dir() else [place] * place.is_file():
            try:
                ladder = _read(script)
                if ladder is not None and ladder.name in found:
                    line = _line_of(script.read_text(encoding="utf-8").splitlines(), r'# name = "')
                    raise _problem(
                        script, line, f"{found[ladder.name].script} is a ladder {ladder.name!r} too"
                    )
            except UsageProblem as problem:
                problems.append(problem)
            else:
                if ladder is not None:
                    found[ladder.name] = ladder
    return Scan(tuple(sorted(found.values(), key=lambda ladder: ladder.name)), tuple(problems))


def find(text: str, extra: Iterable[Path] = ()) -> Variant:
    """Return a variant by name.

    Args:
        text: ``"metrics:naive"``; ``"metrics"`` alone is the ladder's baseline.
        extra: More directories, as in :func:`ladders`.

    Raises:
        UsageProblem: There is none; says what was probably meant, or what is wrong with the header.
    """
    scanned = scan(extra)
    name, _, variant_name = text.partition(":")
    ladder = next((ladder for ladder in scanned.ladders if ladder.name == name), None)
    if ladder is None:
        for problem in scanned.problems:
            if name.replace("-", "_") in problem.message:
                raise problem
        known = [ladder.name for ladder in scanned.ladders]
        raise UsageProblem(f"there is no scenario {name!r}", _meant(name, known))
    wanted = variant_name or ladder.baseline
    for variant in ladder.variants:
        if variant.name == wanted:
            return variant
    known = [variant.name for variant in ladder.variants]
    raise UsageProblem(f"the scenario {name!r} has no variant {wanted!r}", _meant(wanted, known, f"{name}:"))


def command(
    variant: Variant, preset: str = "fit", steps: int | None = None, flags: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the command that runs a variant, as :class:`tuiprof.session.launch.LaunchSpec` takes it.

    Args:
        variant: The variant.
        preset: Name of a preset; ``fit`` lets the script choose by the machine.
        steps: Steps in all; None = the preset's.
        flags: More arguments, for example ``("--check", "--steps", "0")``, which compares the variant's numbers
            with its baseline's and ends with status 0, or 3 if they differ.

    Raises:
        UsageProblem: The ladder has no such preset.
    """
    if variant.presets and preset not in ("fit", *variant.presets):
        remedy = _meant(preset, ["fit", *variant.presets])
        raise UsageProblem(f"the scenario {variant.ladder!r} has no preset {preset!r}", remedy)
    values = {"variant": variant.name, "preset": preset, "steps": "" if steps is None else str(steps)}
    arguments = [str(variant.script)]
    for group in variant.command:
        names = re.findall(r"\{(variant|preset|steps)\}", " ".join(group))
        if all(values[name] for name in names):
            arguments += [
                re.sub(r"\{(variant|preset|steps)\}", lambda m: values[m[1]], part) for part in group
            ]
    return (*arguments, *flags)


def _meant(name: str, known: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"there are {', '.join(known)}" if known else "there is none"


def _read(script: Path) -> Ladder | None:
    """Read one script, or remember it as long as it has not changed; None = it is not a ladder.

    Raises:
        UsageProblem: Its header cannot be used.
    """
    try:
        stat = script.stat()
    except OSError as error:
        raise UsageProblem(f"{script} cannot be read: {error.strerror}", "check that it exists") from error
    if stat.st_size > _LARGEST_SCRIPT_BYTES:
        return None
    return _read_version(script, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)
def _read_version(script: Path, mtime_ns: int, size: int) -> Ladder | None:
    try:
        lines = script.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageProblem(f"{script} cannot be read: {error.strerror}", "check its permissions") from error
    except UnicodeDecodeError:
        return None  # not a Python script of our time
    if "# /// script" not in lines:
        return None
    start = lines.index("# /// script")
    block: list[str] = []
    for line in lines[start + 1 :]:
        if line == "# ///":
            break
        if line != "#" and not line.startswith("# "):
            end = start + 1 + len(block)
            raise _problem(script, end + 1, "the block '# /// script' is not closed by a line '# ///'")
        block.append(line[2:])
    else:
        raise _problem(script, start + 1, "the block '# /// script' is not closed by a line '# ///'")
    try:
        header = tomllib.loads("\n".join(block))
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at line ")
        below = int(where.split(",")[0]) if where else len(block)
        raise _problem(script, start + 1 + below, what) from error
    tool = header.get("tool")
    table = tool.get("tuiprof") if isinstance(tool, dict) else None
    if table is None:
        return None  # somebody else's script
    return _ladder(script, lines, header, table)


def _ladder(script: Path, lines: list[str], header: dict[str, Any], raw: Any) -> Ladder:
    try:
        table = msgspec.convert(raw, _Table)
        dependencies = msgspec.convert(header.get("dependencies", []), tuple[str, ...])
        python = msgspec.convert(header.get("requires-python", ""), str)
    except msgspec.ValidationError as error:
        where = re.search(r"`\$\.variants\[(\d+)\]", str(error))
        variant = int(where[1]) if where else None
        line = (
            _line_of(lines, r"# \[tool\.tuiprof\]") if variant is None else _line_of_variant(lines, variant)
        )
        raise _problem(script, line, str(error)) from error
    names = [entry.name for entry in table.variants]
    baseline = table.baseline or (names[0] if names else "")
    if not names:
        raise _problem(script, _line_of(lines, r"# \[tool\.tuiprof\]"), "the ladder has no variants")
    presets = {name: str(preset.get("note", "")) for name, preset in table.presets.items()}
    if baseline not in names:
        line = _line_of(lines, r"# baseline = ")
        raise _problem(script, line, f"the baseline {baseline!r} is not one of its variants")
    variants: list[Variant] = []
    for index, entry in enumerate(table.variants):
        line = _line_of_variant(lines, index)
        try:
            needs = _needs({**table.needs, **entry.needs}, dependencies, python)
        except msgspec.ValidationError as error:
            raise _problem(script, line, f"needs of {entry.name!r}: {error}") from error
        if entry.name in names[:index]:
            raise _problem(script, line, f"there are two variants {entry.name!r}")
        for other in (entry.baseline, entry.builds_on):
            if other and other not in names:
                raise _problem(script, line, f"{entry.name!r} refers to {other!r}, which is not a variant")
        if entry.preset and entry.preset not in presets:
            raise _problem(script, line, f"{entry.name!r} refers to {entry.preset!r}, which is not a preset")
        variants.append(
            Variant(
                ladder=table.name,
                name=entry.name,
                note=" ".join(entry.note.split()),
                baseline=entry.baseline or baseline,
                builds_on=entry.builds_on,
                changes=entry.changes,
                published=entry.published,
                needs=needs,
                preset=entry.preset,
                presets=tuple(presets),
                script=script.absolute(),
                command=table.command,
            )
        )
    source = ", ".join(filter(None, (table.reference.hardware, table.reference.software)))
    return Ladder(
        name=table.name,
        title=table.title or table.name,
        story=table.story.strip(),
        baseline=baseline,
        source=source,
        needs=dependencies,
        presets=presets,
        variants=tuple(variants),
        script=script.absolute(),
    )


def _needs(raw: dict[str, Any], dependencies: tuple[str, ...], python: str) -> Needs:
    remedy = " ".join(str(raw.get("remedy", "")).split())
    header = {"dependencies": dependencies, "python": python, "remedy": remedy}
    return msgspec.convert({**raw, **header}, Needs)


def _line_of(lines: list[str], pattern: str) -> int:
    """Return the number of the first line that begins so; 1 = none does."""
    return next((number for number, line in enumerate(lines, 1) if re.match(pattern, line)), 1)


def _line_of_variant(lines: list[str], index: int) -> int:
    starts = [
        number for number, line in enumerate(lines, 1) if line.startswith("# [[tool.tuiprof.variants]]")
    ]
    return starts[index] if index < len(starts) else _line_of(lines, r"# \[tool\.tuiprof\]")


def _problem(script: Path, line: int, what: str) -> UsageProblem:
    return UsageProblem(f"{script}:{line}: {what}", "mend the header of the script")
