"""The ladders: scripts whose header says what they show; where they are found, and how one is run.

A ladder is a Python file with a header (see :mod:`tuiprof.ladder.headers`). tuiprof ships some; any directory may
hold more. Files without a header are not ladders and are passed over; a file with a broken one is a problem that is
named with its line and hides no other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tuiprof.errors import UsageProblem
from tuiprof.ladder.availability import Available, Missing, Needs, availability
from tuiprof.ladder.headers import DEFAULT_COMMAND, Ladder, Published, Variant, name_line, read
from tuiprof.resources import shipped

__all__ = [
    "DEFAULT_COMMAND",
    "Available",
    "Ladder",
    "Missing",
    "Needs",
    "Published",
    "SameName",
    "Scan",
    "Variant",
    "availability",
    "command",
    "find",
    "find_ladder",
    "ladders",
    "scan",
]


class SameName(UsageProblem):
    """A ladder has the name of one that was found before it, and is passed over.

    Args:
        name: Their name.
        line: Where it is given: ``file:line``.
        first: The script of the one that counts.
    """

    def __init__(self, name: str, line: str, first: Path) -> None:
        super().__init__(f"{line}: {first} also defines a ladder {name!r}", "give it another name")
        self.name = name


@dataclass(frozen=True, slots=True)
class Scan:
    """What the directories hold.

    Attributes:
        ladders: The ladders, by name.
        problems: One for each header that cannot be used, with file and line.
    """

    ladders: tuple[Ladder, ...]
    problems: tuple[UsageProblem, ...]


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
    for path in (shipped("scenarios"), *extra):
        if not path.exists():
            where = "check --scenarios, and scenarios in config.toml"
            problems.append(UsageProblem(f"there is no scenario directory {path}", where))
        for script in sorted(path.glob("*.py")) if path.is_dir() else [path] * path.is_file():
            try:
                ladder = read(script)
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
    raise UsageProblem(f"the scenario {name!r} has no variant {wanted!r}", _meant(wanted, known, f"{name}:"))


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
        remedy = _meant(name, [ladder.name for ladder in scanned.ladders])
        # Nobody knows what a script would be called whose header cannot be used.
        if scanned.problems:
            remedy += f" · not read: {'; '.join(problem.message for problem in scanned.problems)}"
        raise UsageProblem(f"there is no scenario {name!r}", remedy)
    return ladder


def command(
    variant: Variant, preset: str = "fit", steps: int | None = None, flags: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the command that runs a variant, as :class:`tuiprof.session.run.launch.LaunchSpec` takes it.

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
    """Return how many steps a variant makes at least.

    Args:
        variant: The variant.
        preset: Name of a preset; ``fit`` may be any.
        steps: Steps asked for; None = the preset's.

    Returns:
        None where the script does not say.
    """
    if steps is not None:
        return steps
    known = [n for name, n in variant.presets.items() if preset in ("fit", name) and n is not None]
    return min(known, default=None)


def _meant(name: str, known: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"there are {', '.join(known)}" if known else "there is none"
