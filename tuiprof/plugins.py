"""One door for built-ins and third parties: a module in a package, or an entry point of the same name.

A newcomer adds a format, an analysis, an advice rule or a telemetry backend as one new file that defines
one well-known attribute; it is found by name. A third party declares an entry point in the group
``tuiprof.<room>`` that points at an object of the same kind.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

#: What we ourselves declare in a room from outside of it, by the door that third parties use: advice answers like an
#: analysis and stands above them, so that their room cannot hold it. Declared here, it needs no installed metadata.
OWN: Final = (EntryPoint("advice", "tuiprof.advice:ANALYSIS", "tuiprof.analyses"),)


def discover(room: str, attribute: str) -> dict[str, Any]:
    """Find what a room holds.

    Args:
        room: A subpackage of tuiprof, for example ``"analyses"``.
        attribute: What a module must define to count, for example ``"ANALYSIS"``.

    Returns:
        Objects by their ``name``, built-ins first, in the order of their file names. A third party's that cannot be
        loaded is left out, with a warning.
    """
    package = importlib.import_module(f"tuiprof.{room}")
    found: dict[str, Any] = {}
    for module_info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if module_info.name.startswith("_"):
            continue
        module = importlib.import_module(f"tuiprof.{room}.{module_info.name}")
        item = getattr(module, attribute, None)
        if item is not None:
            found[item.name] = item
    group = f"tuiprof.{room}"
    for entry in OWN:
        if entry.group == group:
            item = entry.load()
            found[item.name] = item
    for entry in entry_points(group=group):
        try:
            item = entry.load()
            found.setdefault(item.name, item)
        except Exception as error:  # noqa: BLE001 - whatever somebody else's module raises must not end tuiprof
            said = f"{type(error).__name__}: {error}"
            warnings.warn(f"the plug-in {entry.name!r} ({entry.value}) is left out: {said}", stacklevel=2)
    return found
