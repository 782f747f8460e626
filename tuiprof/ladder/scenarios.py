"""Ladders: scripts with a header that describes their variants; finding them, and the commands that run them.

tuiprof ships some; any directory may hold more. Files without a header are not ladders and are skipped; a file
with a broken one is reported with its line and hides no other.

A header is read without running or importing anything. It is the TOML table ``[tool.tuiprof]`` of a PEP 723 comment
block (``# /// script`` … ``# ///``) in the script, or, beside a script ``name.py`` without such a block, of a file
``name.toml`` with the same content. It has at least ``name`` and one ``[[tool.tuiprof.variants]]`` with a ``name``.
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
from tuiprof.ladder.availability import Needs
from tuiprof.resources import shipped
from tuiprof.system.described import described
from tuiprof.system.files import read_small

#: Placeholders of a ladder's ``command``; a part with a placeholder that has no value is left out.
DEFAULT_COMMAND = (("--variant", "{variant}"), ("--preset", "{preset}"), ("--steps", "{steps}"))
_PLACEHOLDERS = ("variant", "preset", "steps")
#: Added to the default command line for a check, unless the header has its own.
DEFAULT_CHECK = ("--check", "--steps", "0")
_LARGEST_SCRIPT_BYTES = 1 << 20
#: The preset of the published size.
_PAPER = "paper"


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published figure, for reference; never a measurement of this machine."""

    text: str  # the figure as it is shown
    value: float | None = None  # the number in it, if any
    unit: str = ""  # unit of the number, for example ``"ms"``
    preset: str = ""  # preset it belongs to; empty = the published size


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of a ladder."""

    ladder: str  # name of its ladder
    name: str
    note: str  # what it changes, in a sentence
    baseline: str  # name of the variant it is compared with
    builds_on: str  # name of the variant it changes one thing of; empty = none
    changes: Mapping[str, Any]  # what it sets, by name, as the script understands it
    published: tuple[Published, ...]  # figures of the publication
    needs: Needs  # what it needs to run
    preset: str  # preset of the published size; empty = ``paper``
    #: The presets it accepts besides ``fit``, and the steps of each; None = unknown.
    presets: Mapping[str, int | None]
    script: Path
    command: tuple[tuple[str, ...], ...]  # arguments of the script, in groups, with placeholders
    #: Arguments that make it compare its numbers with the reference's and end with status 0, or 3 if they differ; None
    #: = it has no such check.
    check: tuple[str, ...] | None
    #: Arguments that make it compare its numbers and go on; empty = it cannot.
    check_and_run: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return ``ladder:variant``."""
        return f"{self.ladder}:{self.name}"


@dataclass(frozen=True, slots=True)
class Ladder:
    """One script and its variants."""

    name: str
    title: str  # its subject, one line
    story: str  # what it shows, in some sentences; line breaks as written
    baseline: str  # name of the variant that the others are compared with
    source: str  # hardware and software of the published figures; empty = none
    needs: tuple[str, ...]  # packages that every variant needs, with their versions
    presets: Mapping[str, str]  # note of each preset by its name
    #: Presets of the published size: ``paper``, and those that say ``as_published = true``.
    paper_sizes: tuple[str, ...]
    variants: tuple[Variant, ...]  # its variants, in the order of the script
    script: Path

    def sizes_of(self, figure: Published) -> tuple[str, ...]:
        """Return the presets with which a published figure may be compared; empty = the ladder has no sizes."""
        return (figure.preset,) if figure.preset else self.paper_sizes


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
    check: tuple[str, ...] | None = None
    check_and_run: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Text:
    """The lines of a header, without comment signs."""

    file: Path
    first: int  # number of its first line in that file
    lines: tuple[str, ...]

    def line_of(self, pattern: str, occurrence: int = 0) -> int:
        """Return the number of the first line with this beginning; else that of the table, else 1."""
        found = [number for number, line in enumerate(self.lines, self.first) if re.match(pattern, line)]
        if occurrence < len(found):
            return found[occurrence]
        return self.line_of(_TABLE) if pattern != _TABLE else 1

    def line_of_variant(self, index: int) -> int:
        """Return the number of the line where a variant begins."""
        return self.line_of(r"\s*\[\[tool\.tuiprof\.variants\]\]", index)

    def problem(self, line: int, what: str) -> UsageProblem:
        """Return a problem as an error with file and line."""
        return UsageProblem(f"{self.file}:{line}: {what}", "fix the header of the script")


_TABLE = r"\s*\[tool\.tuiprof\]"


def read_header(script: Path) -> Ladder | None:
    """Read the header of a script; the result is cached until the script changes.

    Returns:
        The ladder; None = it is not one.

    Raises:
        UsageProblem: Its header cannot be used.
    """
    try:
        stat = script.stat()
    except OSError as error:
        raise UsageProblem(f"{script} cannot be read: {error.strerror}", "check that it exists") from error
    if stat.st_size > _LARGEST_SCRIPT_BYTES:
        return None
    beside = _beside(script)
    version = (beside.stat().st_mtime_ns, beside.stat().st_size) if beside is not None else (0, 0)
    return _read_version(script, stat.st_mtime_ns, stat.st_size, *version)


def name_line(script: Path) -> str:
    """Return the location of the name of a ladder: ``file:line``."""
    text = _text(script)
    return f"{text.file}:{text.line_of('name = ')}" if text is not None else str(script)


def _beside(script: Path) -> Path | None:
    beside = script.with_suffix(".toml")
    return beside if beside.is_file() else None


@functools.lru_cache(maxsize=256)
def _read_version(script: Path, *_version: int) -> Ladder | None:
    text = _text(script)
    if text is None:
        return None
    try:
        header = tomllib.loads("\n".join(text.lines))
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at line ")
        below = int(where.split(",")[0]) if where else len(text.lines)
        raise text.problem(text.first - 1 + below, what) from error
    tool = header.get("tool")
    table = tool.get("tuiprof") if isinstance(tool, dict) else None
    if table is None:
        return None  # not a ladder
    return _ladder(script, text, header, table)


def _text(script: Path) -> _Text | None:
    """Return the lines of a script's header; None = it has none."""
    lines = _lines(script)
    if lines is None:
        return None
    if "# /// script" not in lines:
        beside = _beside(script)
        content = _lines(beside) if beside is not None else None
        return _Text(beside, 1, tuple(content)) if beside is not None and content is not None else None
    start = lines.index("# /// script")
    text = _Text(script, start + 2, ())
    block: list[str] = []
    for line in lines[start + 1 :]:
        if line == "# ///":
            return _Text(script, start + 2, tuple(block))
        if line != "#" and not line.startswith("# "):
            end = start + 1 + len(block)
            raise text.problem(end + 1, "the block '# /// script' is not closed by a line '# ///'")
        block.append(line[2:])
    raise text.problem(start + 1, "the block '# /// script' is not closed by a line '# ///'")


def _lines(file: Path) -> list[str] | None:
    try:
        return read_small(file, _LARGEST_SCRIPT_BYTES).decode().splitlines()
    except OSError as error:
        raise UsageProblem(f"{file} cannot be read: {error.strerror}", "check its permissions") from error
    except UnicodeDecodeError:
        return None  # neither a Python script of our time nor TOML


def _ladder(script: Path, text: _Text, header: dict[str, Any], raw: Any) -> Ladder:
    try:
        table = msgspec.convert(raw, described(_Table))
        dependencies = msgspec.convert(header.get("dependencies", []), tuple[str, ...])
        python = msgspec.convert(header.get("requires-python", ""), str)
    except msgspec.ValidationError as error:
        where = re.search(r"`\$\.variants\[(\d+)\]", str(error))
        variant = int(where[1]) if where else None
        line = text.line_of(_TABLE) if variant is None else text.line_of_variant(variant)
        raise text.problem(line, str(error)) from error
    names = [entry.name for entry in table.variants]
    baseline = table.baseline or (names[0] if names else "")
    if not names:
        raise text.problem(text.line_of(_TABLE), "the ladder has no variants")
    presets = {name: str(preset.get("note", "")) for name, preset in table.presets.items()}
    for placeholder in re.findall(r"\{(\w+)\}", " ".join(part for group in table.command for part in group)):
        meant = difflib.get_close_matches(placeholder, _PLACEHOLDERS, n=1)
        if meant and placeholder not in _PLACEHOLDERS:
            line = text.line_of("command = ")
            raise text.problem(line, f"{{{placeholder}}} in its command: did you mean {{{meant[0]}}}?")
    if baseline not in names:
        line = text.line_of("baseline = ")
        raise text.problem(line, f"the baseline {baseline!r} is not one of its variants")
    variants = tuple(
        _variant(script, text, table, index, presets, baseline, dependencies, python)
        for index in range(len(names))
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
        paper_sizes=tuple(
            name for name in presets if name == _PAPER or table.presets[name].get("as_published") is True
        ),
        variants=variants,
        script=script.absolute(),
    )


def _variant(
    script: Path,
    text: _Text,
    table: _Table,
    index: int,
    presets: Mapping[str, str],
    baseline: str,
    dependencies: tuple[str, ...],
    python: str,
) -> Variant:
    """Return a variant of a ladder, checked against the rest of its header."""
    entry, names = table.variants[index], [entry.name for entry in table.variants]
    line = text.line_of_variant(index)
    try:
        needs = _needs({**table.needs, **entry.needs}, dependencies, python)
    except msgspec.ValidationError as error:
        raise text.problem(line, f"needs of {entry.name!r}: {error}") from error
    if entry.name in names[:index]:
        raise text.problem(line, f"there are two variants {entry.name!r}")
    for other in (entry.baseline, entry.builds_on):
        if other and other not in names:
            raise text.problem(line, f"{entry.name!r} refers to {other!r}, which is not a variant")
    if entry.preset and entry.preset not in presets:
        raise text.problem(line, f"{entry.name!r} refers to {entry.preset!r}, which is not a preset")
    # A script with its own command line need not know the flags of the default check.
    usual = DEFAULT_CHECK if table.command == DEFAULT_COMMAND else ()
    check = usual if table.check is None else table.check
    return Variant(
        ladder=table.name,
        name=entry.name,
        note=" ".join(entry.note.split()),
        baseline=entry.baseline or baseline,
        builds_on=entry.builds_on,
        changes=entry.changes,
        published=entry.published,
        needs=needs,
        preset=entry.preset,
        presets={name: _steps(table.presets[name]) for name in presets},
        script=script.absolute(),
        command=table.command,
        check=check or None,
        check_and_run=table.check_and_run,
    )


def _steps(preset: Mapping[str, Any]) -> int | None:
    """Return the steps of a preset, where it gives them."""
    steps = preset.get("steps")
    return steps if type(steps) is int else None


def _needs(raw: dict[str, Any], dependencies: tuple[str, ...], python: str) -> Needs:
    remedy = " ".join(str(raw.get("remedy", "")).split())
    header = {"dependencies": dependencies, "python": python, "remedy": remedy}
    return msgspec.convert({**raw, **header}, described(Needs))


# -- finding them ----------------------------------------------------------------------------------------


class SameName(UsageProblem):
    """A ladder (at ``line``) has the name of one that was found before it, in the script ``first``, and is skipped."""

    def __init__(self, name: str, line: str, first: Path) -> None:
        super().__init__(f"{line}: {first} also defines a ladder {name!r}", "give it another name")
        self.name = name


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of the directories."""

    ladders: tuple[Ladder, ...]  # the ladders, by name
    problems: tuple[UsageProblem, ...]  # one for each header that cannot be used, with file and line


def ladders(extra: Iterable[Path] = ()) -> list[Ladder]:
    """Return the shipped ladders and those in other directories (or single scripts), by name."""
    return list(scan(extra).ladders)


def scan(extra: Iterable[Path] = ()) -> Scan:
    """Read every header: the shipped ones, then more directories or single scripts.

    Of two ladders of one name the first counts, and the second is a problem.
    """
    found: dict[str, Ladder] = {}
    problems: list[UsageProblem] = []
    for path in (shipped("scenarios"), *extra):
        if not path.exists():
            where = "check --scenarios, and scenarios in config.toml"
            problems.append(UsageProblem(f"there is no scenario directory {path}", where))
        for script in sorted(path.glob("*.py")) if path.is_dir() else [path] * path.is_file():
            try:
                ladder = read_header(script)
                if ladder is not None and ladder.name in found:
                    raise SameName(ladder.name, name_line(script), found[ladder.name].script)
            except UsageProblem as problem:
                problems.append(problem)
            else:
                if ladder is not None:
                    found[ladder.name] = ladder
    return Scan(tuple(sorted(found.values(), key=lambda ladder: ladder.name)), tuple(problems))


def find(text: str, extra: Iterable[Path] = ()) -> Variant:
    """Return a variant by name.

    Raises:
        UsageProblem: There is none; says what was probably meant, or what is wrong with the header.
    """
    name, _, variant_name = text.partition(":")
    ladder = find_ladder(name, extra)
    wanted = variant_name or ladder.baseline
    for variant in ladder.variants:
        if variant.name == wanted:
            return variant
    known = [variant.name for variant in ladder.variants]
    raise UsageProblem(f"the scenario {name!r} has no variant {wanted!r}", meant(wanted, known, f"{name}:"))


def find_ladder(name: str, extra: Iterable[Path] = ()) -> Ladder:
    """Return a ladder by name.

    Raises:
        UsageProblem: There is none; says what was probably meant, or what is wrong with the header.
    """
    scanned = scan(extra)
    ladder = next((ladder for ladder in scanned.ladders if ladder.name == name), None)
    if ladder is None:
        for problem in scanned.problems:
            if name.replace("-", "_") in problem.message:
                raise problem
        remedy = meant(name, [ladder.name for ladder in scanned.ladders])
        # The name in a broken header is unknown.
        if scanned.problems:
            remedy += f" · not read: {'; '.join(problem.message for problem in scanned.problems)}"
        raise UsageProblem(f"there is no scenario {name!r}", remedy)
    return ladder


def command(
    variant: Variant, preset: str = "fit", steps: int | None = None, flags: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the command that runs a variant, as :class:`tuiprof.session.run.launch.LaunchSpec` takes it.

    The preset ``fit`` lets the script choose by the machine; without ``steps`` the preset's are run. The flags
    ``--check --steps 0`` compare the variant's numbers with its baseline's, with status 0, or 3 if they differ.

    Raises:
        UsageProblem: The ladder has no such preset.
    """
    if variant.presets and preset not in ("fit", *variant.presets):
        remedy = meant(preset, ["fit", *variant.presets])
        raise UsageProblem(f"the scenario {variant.ladder!r} has no preset {preset!r}", remedy)
    size = preset if variant.presets or preset != "fit" else ""  # a ladder of one size need not know the word
    values = {"variant": variant.name, "preset": size, "steps": "" if steps is None else str(steps)}
    arguments = [str(variant.script)]
    for group in variant.command:
        names = re.findall(r"\{(variant|preset|steps)\}", " ".join(group))
        if all(values[name] for name in names):
            arguments += [
                re.sub(r"\{(variant|preset|steps)\}", lambda m: values[m[1]], part) for part in group
            ]
    return (*arguments, *flags)


def least_steps(variant: Variant, preset: str = "fit", steps: int | None = None) -> int | None:
    """Return how many steps a variant makes at least, with those asked for or the preset's; None = the script does not
    say.

    The preset ``fit`` may be any.
    """
    if steps is not None:
        return steps
    known = [n for name, n in variant.presets.items() if preset in ("fit", name) and n is not None]
    return min(known, default=None)


def meant(name: str, known: list[str], prefix: str = "") -> str:
    """Return what may have been meant by an unknown name, else what there is."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"there are {', '.join(known)}" if known else "there is none"
