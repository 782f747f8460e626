"""Runs inside a Python process that was started without tuiprof: loads the probe there, or removes it.

:mod:`tuiprof.session.ptrace` has the process execute this file with two names set: ``session``, its directory,
and ``what``, ``"enter"`` or ``"leave"``. The work is done in a separate thread, so that the borrowed thread continues
at once. The result is a file in the session's ``control/``.
"""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    session = what = here = ""

_NAME = "_tuiprof_probe"


def _answer(fields: dict[str, Any]) -> None:
    """Write the answer atomically."""
    from json import dumps

    path = os.path.join(session, "control", f"{what}-{os.getpid()}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(dumps({"pid": os.getpid(), "python": list(sys.version_info[:3]), **fields}))
    os.replace(path + ".part", path)


def _load() -> Any:
    """Load the probe package from its file location, for this session."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(here)
    spec: Any = spec_from_file_location(
        _NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package: Any = module_from_spec(spec)
    package.attached_to = session
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    return import_module(f"{_NAME}.attached")


def _forget() -> None:
    for name in [name for name in sys.modules if name == _NAME or name.startswith(_NAME + ".")]:
        sys.modules.pop(name, None)


def _work() -> None:
    before = sys.dont_write_bytecode
    try:
        loaded = sys.modules.get(_NAME)
        if what == "leave":
            found = sys.modules.get(f"{_NAME}.attached")
            _answer({"left": [] if found is None else found.leave()})
            _forget()
            return
        if loaded is not None:
            other = getattr(loaded, "attached_to", "") or os.environ.get("TUIPROF_SESSION", "")
            _answer({"error": "it is already recorded", "session": other})
            return
        sys.dont_write_bytecode = True  # the folder may belong to another user
        try:
            found = _load()
        finally:
            sys.dont_write_bytecode = before
        _answer(found.enter())
    except BaseException as error:  # the process must continue undisturbed
        sys.dont_write_bytecode = before
        if what == "enter":
            _forget()
        with contextlib.suppress(OSError):
            _answer({"error": f"{type(error).__name__}: {error}"})


def _start() -> None:
    import _thread

    _thread.start_new_thread(_work, ())


_start()
