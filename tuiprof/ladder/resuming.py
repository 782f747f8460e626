"""Whether a ladder may be resumed: it belongs to the user, and its code and software are unchanged.

The code is the script, its header, the modules beside it that it imports (and those that these import), and the folder
of its name with sources in other languages. The software is Python and the packages that its variants name; the GPUs
count too.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import SessionError
from tuiprof.ladder.scenarios import Ladder, Variant
from tuiprof.ladder.state import LadderMeta, LadderRun
from tuiprof.model.characters import shell_word
from tuiprof.session.run.launch import own_files
from tuiprof.system.files import explain

if TYPE_CHECKING:
    from tuiprof.session.run.interpreter import Facts


def must_be_own(ladder: LadderRun) -> None:
    """Refuse a ladder that may come from somebody else, as its file contains the commands to run.

    Raises:
        SessionError: Its folder is another user's, or it was not begun in this folder, but copied there.
    """
    try:
        folder = ladder.path.stat()
    except OSError as error:
        raise explain(error, ladder.path, "read") from error
    if folder.st_uid != os.geteuid():
        why = "its folder belongs to another user"
    elif folder.st_ino != ladder.meta.inode:
        why = "it was not started in this folder, so it may come from somebody else"
    else:
        return
    remedy = f"check what it runs, then: tuiprof ladder --resume {shell_word(str(ladder.path))} --trust"
    raise SessionError(f"{ladder.id}: {why}", remedy)


def sources(script: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a script, by its path relative to the script's folder.

    Raises:
        SessionError: A file cannot be read.
    """
    root = script.parent
    found = {script}
    waiting = [script]
    while waiting:
        for module in _imported(waiting.pop(), root) - found:
            found.add(module)
            waiting.append(module)
    found |= set(own_files(script))
    return {path.relative_to(root).as_posix(): _sha256(path) for path in sorted(found)}


def software(ladder: Ladder, variants: Iterable[Variant], facts: Facts) -> dict[str, str]:
    """Return the versions that a ladder's results depend on, by name.

    Returns:
        The version of Python, of each package that they name (empty = not installed), and the names of the GPUs, by
        which scripts choose their size.
    """
    wanted = [*ladder.needs, *(package for variant in variants for package in variant.needs.packages)]
    names = {re.split(r"[^\w.-]", package, maxsplit=1)[0] for package in wanted}
    return {name: _version(name, facts) for name in ("python", "GPU", *sorted(names))}


def differences(meta: LadderMeta, facts: Facts) -> list[str]:
    """Return what has changed since a ladder was planned, one clause each.

    Raises:
        SessionError: A file cannot be read.
    """
    script = Path(meta.script)
    now = sources(script)
    then = meta.sources or {script.name: meta.digest}  # an earlier tuiprof considered only the script
    if not meta.sources:
        now = {script.name: now[script.name]}
    said = [f"{script.parent / name} was removed" for name in then if name not in now]
    said += [f"{script.parent / name} was added" for name in now if name not in then]
    said += [
        f"{script.parent / name} has changed" for name in then if name in now and now[name] != then[name]
    ]
    for name, version in meta.software.items():
        have = _version(name, facts)
        if have != version:
            said.append(f"{name} was {version or 'missing'} and is {have or 'missing'}")
    return said


def _version(name: str, facts: Facts) -> str:
    match name:
        case "python":
            return facts.version
        case "GPU":
            return ", ".join(gpu for gpu, _ in facts.gpus)
        case _:
            return facts.distribution(name) or ""


def _imported(file: Path, root: Path) -> set[Path]:
    """Return the modules below a folder that a module imports, at any point in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # it will say so itself when it is run
        return set()
    except OSError as error:
        raise SessionError(f"{file} cannot be read: {error.strerror}") from error
    return {path for name in _names(tree, file, root) for path in _files(name, root)}


def _names(tree: ast.AST, file: Path, root: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, absolute ones and those relative to its package."""
    package = file.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _files(name: str, root: Path) -> Iterator[Path]:
    """Yield the files below a folder that importing a dotted name would load."""
    parts = name.split(".") if name else []
    for end in range(1, len(parts) + 1):
        stem = root.joinpath(*parts[:end])
        for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if path.is_file():
                yield path


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}") from error
