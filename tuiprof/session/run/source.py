"""The script that a session ran, kept so that two runs of a script that was edited in place can be distinguished.

What is kept is the text of the script that the user launched, of a scenario also the files in the folder of its name,
up to a size, in ``source/``; the digest of each in ``session.json``. Nothing else is: no module that it imports, no
environment, no data. A script may hold secrets of its own; ``--no-source``, or ``keep_source = false`` in the
configuration file, leaves the text out and keeps the digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from tuiprof.errors import SessionError
from tuiprof.session.run.interpreter import is_python
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import Source
from tuiprof.system.files import open_regular, read_small, typed_path, write_atomic

#: Folder of the copies in a session.
FOLDER: Final = "source"
#: Bytes of text that are kept of one session.
LARGEST: Final = 256 << 10
#: A folder named like the script may contain data as well: maximum size of a source file, and maximum number of files
#: to inspect.
_LARGEST_SOURCE: Final = 1 << 20
_MOST_FILES: Final = 1000


def script_of(argv: Sequence[str], cwd: Path) -> Path | None:
    """Return the Python file that a command runs.

    Args:
        argv: The command as typed: ``python train.py``, ``train.py``, ``torchrun … train.py``, ``python -m train``.
        cwd: Where it runs.

    Returns:
        Its absolute path; None = none, or unknown.
    """
    for part in argv:
        if part.endswith(".py") and os.path.isfile(path := cwd / typed_path(part)):
            return path
    if "-m" in argv[:-1]:
        module = cwd.joinpath(*argv[argv.index("-m") + 1].split("."))
        found = (module.with_name(f"{module.name}.py"), module / "__main__.py")
    elif len(argv) > 1 and is_python(argv[0]):
        found = (cwd / typed_path(argv[1]), cwd / argv[1] / "__main__.py")
    else:
        return None
    return next((path for path in found if os.path.isfile(path)), None)


def own_files(script: Path) -> list[Path]:
    """Return the files of a scenario's script alone: its TOML header, and what is in the folder of its name."""
    header = script.with_suffix(".toml")
    found = [
        path
        for path in islice(_in_order(script.with_suffix("")), _MOST_FILES)
        if path.is_file() and path.suffix != ".pyc" and path.stat().st_size <= _LARGEST_SOURCE
    ]
    return [header, *found] if header.is_file() else found


def _in_order(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder and below, always in the same order: which files are the first must not change."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (Path(where, name) for name in sorted(names))


def keep(session: Session, script: Path, *, scenario: bool, text: bool) -> Source | None:
    """Copy a script into its session.

    Returns:
        The kept source; None = the script cannot be read, which is reported when it is started.
    """
    digests: dict[str, str] = {}
    kept: list[str] = []
    room = LARGEST
    for path in (script, *(own_files(script) if scenario else ())):
        name = path.relative_to(script.parent).as_posix()
        try:
            with open_regular(path) as file:
                content = file.read()
        except OSError:
            continue
        digests[name] = hashlib.sha256(content).hexdigest()
        if not text or len(content) > room or b"\0" in content:
            continue
        copy = session.path / FOLDER / name
        with contextlib.suppress(OSError, SessionError):  # a full disk is reported by what needs it
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, content)
            kept.append(name)
            room -= len(content)
    return Source(script.name, digests, kept) if script.name in digests else None


def texts(session: Session) -> dict[str, str]:
    """Return the texts that a session (untrusted) keeps of its script, by their paths beside it; the script first."""
    source = session.meta.source
    folder = (session.path / FOLDER).resolve()
    found: dict[str, str] = {}
    for name in source.kept if source is not None else ():
        path = (folder / name).resolve()
        if path.is_relative_to(folder):
            with contextlib.suppress(OSError):
                found[name] = read_small(path)[:LARGEST].decode("utf-8", "replace")
    return found
