"""Finds what extends tuiprof: modules in a package of tuiprof, and entry points of other packages.

A format, an analysis, an advice rule, a telemetry backend or an output format of reports is one file that defines one
name (:data:`ATTRIBUTES`). Another package declares an entry point in the group ``tuiprof.<package>`` that points at an
object of the same type. If one cannot be loaded, only that one is missing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple

from tuiprof.errors import describe

#: The packages of tuiprof that can be extended, and the name that a module there has to define.
ATTRIBUTES: Final = {
    "formats": "FORMAT",
    "analyses": "ANALYSIS",
    "advice": "RULE",
    "telemetry": "BACKEND",
    "report": "RENDERER",
}
#: Advice is an analysis, but its package imports ``analyses``, so it is declared like that of another package; here,
#: so that it needs no installed metadata.
OWN: Final = (EntryPoint("advice", "tuiprof.advice:ANALYSIS", "tuiprof.analyses"),)


class Found(NamedTuple):
    """What extends a package."""

    items: dict[str, Any]  # objects by their ``name``, built-ins first, in the order of their names
    failed: dict[str, str]  # why a module or an entry point could not be loaded, by its name


def discover(package: str) -> Found:
    """Find what extends a package of :data:`ATTRIBUTES`."""
    group = f"tuiprof.{package}"
    found = Found({}, {})
    _look_through(found, group, ATTRIBUTES[package])
    found = Found(dict(sorted(found.items.items())), found.failed)
    for entry in (*(own for own in OWN if own.group == group), *entry_points(group=group)):
        _load(found, entry.name, entry.load)
    return found


def _look_through(found: Found, package: str, attribute: str) -> None:
    """Add what the modules of a package define, and those of its folders that define nothing themselves."""
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    for info in sorted(modules, key=lambda info: info.name):
        if info.name.startswith("_") or info.name == "shared":  # what several modules use
            continue
        module = f"{package}.{info.name}"
        there = _load(found, info.name.rstrip("_"), partial(_attribute, module, attribute))
        if info.ispkg and not there:
            _look_through(found, module, attribute)


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


def _load(found: Found, name: str, load: Callable[[], Any]) -> bool:
    """Add what is loaded; return whether there was anything, whole or broken."""
    try:
        item = load()
        if item is None:  # a module that others use, or a folder
            return False
        found.items.setdefault(item.name, item)
    except Exception as error:  # noqa: BLE001 - whatever a module raises, the others are there
        found.failed[name] = f"it cannot be loaded: {describe(error)}"
    return True
