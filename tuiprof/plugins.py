"""One door for built-ins and third parties: a module in a package, or an entry point of the same name.

A newcomer adds a format, an analysis, an advice rule or a telemetry backend as one new file that defines
one well-known attribute; it is found by name. A third party declares an entry point in the group
``tuiprof.<room>`` that points at an object of the same kind. What cannot be loaded, ours or theirs, is missing alone.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple

from tuiprof.errors import describe

#: Subpackages of tuiprof that hold such modules, and what a module there must define to count.
ROOMS: Final = {
    "formats": "FORMAT",
    "analyses": "ANALYSIS",
    "advice": "RULE",
    "telemetry": "BACKEND",
    "report": "RENDERER",
}
#: What we ourselves declare in a room from outside of it, by the door that third parties use: advice answers like an
#: analysis and stands above them, so that their room cannot hold it. Declared here, it needs no installed metadata.
OWN: Final = (EntryPoint("advice", "tuiprof.advice:ANALYSIS", "tuiprof.analyses"),)


class Found(NamedTuple):
    """What a room holds."""

    items: dict[str, Any]  # objects by their ``name``, built-ins first, in the order of their names
    failed: dict[str, str]  # why a module or an entry point could not be loaded, by its name


def discover(room: str) -> Found:
    """Find what a room holds."""
    package = group = f"tuiprof.{room}"
    found = Found({}, {})
    _look_through(found, package, ROOMS[room])
    found = Found(dict(sorted(found.items.items())), found.failed)
    for entry in (*(own for own in OWN if own.group == group), *entry_points(group=group)):
        _load(found, entry.name, entry.load)
    return found


def _look_through(found: Found, package: str, attribute: str) -> None:
    """Add what the modules of a package define, and those of its folders that define nothing themselves."""
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    for info in sorted(modules, key=lambda info: info.name):
        if info.name.startswith("_") or info.name == "shared":  # what several modules are made of
            continue
        module = f"{package}.{info.name}"
        there = _load(found, info.name.rstrip("_"), partial(_attribute, module, attribute))
        if info.ispkg and not there:
            _look_through(found, module, attribute)


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


def _load(found: Found, name: str, load: Callable[[], Any]) -> bool:
    """Add what is loaded; answer whether there was anything, whole or broken."""
    try:
        item = load()
        if item is None:  # a module that others use, or a folder
            return False
        found.items.setdefault(item.name, item)
    except Exception as error:  # noqa: BLE001 - whatever a module raises, the others are there
        found.failed[name] = f"it cannot be loaded: {describe(error)}"
    return True
