"""What documents, docstrings and configuration refer to exists: files, modules and the names in them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tuiprof.advice import available

ROOT = Path(__file__).parents[1]
CODE = ROOT / "tuiprof"
#: Files that docs/adding.md has its reader create.
NEW = set(re.findall(r'title="(\S+)"', (ROOT / "docs" / "adding.md").read_text()))
PAGES = ["CONTRIBUTING.md", "docs/architecture.md", "docs/adding.md"]
#: What belongs to others: traces and scripts of publications, and runs of earlier versions.
APART = ("tests/data/", "tests/campaigns/", "docs/results/", "docs/predictions.md", "CHANGELOG.md")
FOLDERS = ("tuiprof", "tests", "docs", "scenarios", "skills")
#: Where a wheel has its scenarios and traces.
WHEEL = "tuiprof/_shipped/"


def texts() -> dict[str, str]:
    """Every text of the checkout that refers to modules and files, by its path."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    for folder in FOLDERS:
        found += [path for end in ("py", "md", "toml", "tcss") for path in (ROOT / folder).rglob(f"*.{end}")]
    names = {path.relative_to(ROOT).as_posix(): path for path in found}
    return {name: path.read_text() for name, path in sorted(names.items()) if not name.startswith(APART)}


TEXTS = texts()


@cache
def defined(path: Path) -> tuple[set[str], set[str]]:
    """Return the names that a module defines or gives an object, and those that it imports."""
    own: set[str] = set()
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.alias):
            imported.add((node.asname or node.name).partition(".")[0])
    return own, imported


def is_defined(names: list[str], path: Path) -> bool:
    """Return whether a module defines a name and its attributes; of what it imports, the attributes are elsewhere."""
    own, imported = defined(path)
    return not names or set(names) <= own or names[0] in imported


def exists(name: str, root: Path = ROOT) -> bool:
    """Return whether a dotted name is a module, or what a module defines."""
    place, parts = root, name.split(".")
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py").exists():
        return is_defined(parts[1:], place / f"{parts[0]}.py")
    return not parts or ((place / "__init__.py").exists() and is_defined(parts, place / "__init__.py"))


def found_in(pattern: str, *endings: str) -> list[tuple[str, str]]:
    """Return what a pattern finds, with the place of each."""
    return [
        (f"{name}:{text.count(chr(10), 0, match.start()) + 1}", match[1])
        for name, text in TEXTS.items()
        if name.endswith(endings or "")
        for match in re.finditer(pattern, text)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_named_exists(page: str) -> None:
    text = TEXTS[page]
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|tcss))`", text))
    named |= set(re.findall(r"\]\(([\w./-]+\.md)\)", text))
    assert named
    places = (ROOT, CODE, (ROOT / page).parent)
    missing = {name for name in named - NEW if not any((place / name).exists() for place in places)}
    assert not missing


def test_the_walks_name_what_their_files_define() -> None:
    walks = TEXTS["docs/architecture.md"].partition("## Four walks")[2]
    named = re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", walks)
    assert len(named) > 30
    assert not {(name, path) for name, path in named if not is_defined(name.split("."), CODE / path)}


def test_every_module_file_referred_to_exists() -> None:
    files = found_in(r"(?<![\w./-])((?:tuiprof|tests)/[\w/]+\.(?:py|tcss|css|js|html))\b")
    files += found_in(r"(?<![\w./-])(tuiprof/[\w/]+)(?![\w./])")
    assert len(files) > 20
    known = NEW | {path for _, path in files if path.startswith(WHEEL)}
    assert not {(at, path) for at, path in files if path not in known and not (ROOT / path).exists()}


def test_every_module_named_exists() -> None:
    names = found_in(r"`(tuiprof(?:\.\w+)+)`")
    names += found_in(r"\"(tuiprof(?:\.\w+)+)\"", "pyproject.toml")
    assert len(names) > 40
    assert not {(at, name) for at, name in names if not name.endswith(".gif") and not exists(name)}


def test_every_reference_of_a_docstring_is_resolved() -> None:
    roles = found_in(r":(?:mod|class|func|meth|data|attr|exc):`[~!]?([\w.]+)`", ".py")
    assert len(roles) > 100
    missing = set()
    for at, name in roles:
        module = ROOT / at.partition(":")[0]
        if name.startswith("."):
            known = exists(name[1:], module.parent) or exists(name[1:], module.parents[1])
        else:
            known = is_defined(name.split("."), module) or exists(name) or exists(name, ROOT / "scenarios")
        if not known:
            missing.add((at, name))
    assert not missing


def test_the_table_of_predictions_has_every_rule() -> None:
    page = (ROOT / "docs" / "predictions.md").read_text().partition("\n## Rules\n")[2]
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    listed = {rule.strip() for cell in cells for rule in cell.split(",")} - {"rule"}
    missing, gone = available().keys() - listed, listed - available().keys()
    assert not missing | gone, (
        f"rows of the table Rules of docs/predictions.md to add: {missing}, to remove: {gone}"
    )
