"""What a campaign is: a promise of tuiprof, and a program that tries to break it many times and counts.

A campaign is one module in this folder with two names: ``PROMISE``, the sentence that it tests, and
``run(options) -> Outcome``. It is found by its name; ``python -m tests.campaigns`` runs it.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

Case = TypeVar("Case")


@dataclass(frozen=True)
class Options:
    """How much to try."""

    folder: Path  # an empty folder for whatever the campaign writes
    seed: int = 1  # seed of every random choice; a failure names it, so that the run can be repeated
    short: bool = False  # the form for ``make check``: at most 20 seconds on two cores, still able to fail
    cases: int | None = None  # number of cases asked for; None = the campaign's own number

    def count(self, full: int, short: int) -> int:
        """Return the number of cases to try."""
        return self.cases if self.cases is not None else short if self.short else full

    def sample(self, every: list[Case], short: int) -> list[Case]:
        """Return as many of the cases as are to be tried, drawn at random, in their order."""
        chosen = self.rng("cases").sample(every, min(self.count(len(every), short), len(every)))
        return sorted(chosen, key=every.index)

    def rng(self, *key: object) -> random.Random:
        """Return a generator of its own for a case, so that the case can be repeated alone."""
        return random.Random(f"{self.seed}:{':'.join(map(str, key))}")


class SkippedError(Exception):
    """A case cannot be tried here, and why."""


@dataclass
class Outcome:
    """What a campaign found."""

    cases: int = 0  # how many were tried
    #: One line for each that broke the promise: the case, what was expected and what was seen.
    failures: list[str] = field(default_factory=list)
    #: Further figures for the table, by name (``{"steps lost": "0"}``).
    figures: dict[str, str] = field(default_factory=dict)
    #: One line for each case that could not be tried here, with the reason.
    skipped: list[str] = field(default_factory=list)

    def judge(self, name: object, tried: Callable[[], list[str]]) -> None:
        """Try a case, which returns what is wrong; the others are still tried if it fails by itself."""
        try:
            problems = tried()
        except SkippedError as why:
            self.skipped.append(f"{name}: {why}")
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what a campaign looks for
            problems = [f"{type(error).__name__}: {error}"]
        self.cases += 1
        self.failures += [f"{name}: {problem}" for problem in problems]


@dataclass(frozen=True)
class Campaign:
    """A campaign as it was found."""

    name: str  # its module's name
    promise: str  # what it tests, one sentence
    run: Callable[[Options], Outcome]  # tries it


def names() -> list[str]:
    """Return the name of every campaign of this folder, without importing it."""
    modules = [info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return [name for name in modules if not name.startswith(("_", "test_")) and name != "campaign"]


def campaign(name: str) -> Campaign:
    """Return a campaign."""
    module = importlib.import_module(f"tests.campaigns.{name}")
    return Campaign(name, module.PROMISE, module.run)


def campaigns() -> list[Campaign]:
    """Return every campaign of this folder, by name."""
    return [campaign(name) for name in names()]
