"""Filters as people type them: ``empty > 1ms and name ~ gemm``.

::

    filter      = words | expression
    expression  = all ("or" all)*
    all         = one ("and" one)*
    one         = "not" one | "(" expression ")" | comparison | text
    comparison  = column (">" | ">=" | "<" | "<=" | "=" | "!=" | "~" | "!~") value

A text alone is looked for in every column of words; so is everything that holds no sign, no quote and no ``and``,
``or``, ``not``. ``~`` means: contains, ignoring case; a regular expression is written between slashes. Figures are
compared in the unit that is typed with them; their signs and groups of digits may be those of the tables. What holds
a sign of its own, such as ``vec<4>``, goes between double quotes.

``polars.sql_expr`` is no substitute (Polars 2.1): ``empty > 1ms`` compares with 1, because ``ms`` is read as an alias;
``sum(empty) > 3`` keeps all rows or none; a bare word, ``~ gemm`` without quotes and ``1 000`` are errors; and its
errors do not say which character is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NoReturn

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input

from tuiprof.model.report import Column
from tuiprof.model.units import typed_number
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.lines import Painted, Row, fit

Operator = Literal[">", ">=", "<", "<=", "=", "!=", "~", "!~"]

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>\"[^\"]*\"?)|(?P<op>>=|<=|!=|!~|==|[<>=~])|(?P<paren>[()])|(?P<regex>/(?:[^/\\]|\\.)+/(?=[\s)]|$))"
    r"|(?P<word>[^\s\"()<>=~!]+|!))"
)
_JOINERS: Final = ("and", "or", "not")
_NUMBER = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))\s*(?P<unit>[^\d\s.]*)$")
_UNITS: Final[dict[str, dict[str, float]]] = {
    "ns": {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9},
    "bytes": {
        "": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
        "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    },
    "share": {"%": 0.01},
    "rate": {"": 1, "/s": 1},
    "count": {"": 1, "k": 1e3, "m": 1e6},
    "number": {"": 1, "k": 1e3, "m": 1e6},
}  # fmt: skip
_EXAMPLE: Final = {
    "ns": "a time such as 50µs, 1ms or 2s",
    "bytes": "a size such as 64KiB or 1.5GB",
    "share": "a percentage such as 5%",
    "rate": "a number",
    "count": "a number",
    "number": "a number",
}


class FilterError(ValueError):
    """The text is not a valid filter."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"{message} (at character {at + 1})")
        self.message = message  # why, for a person
        self.at = at  # which character is wrong, from 0


@dataclass(frozen=True, slots=True)
class Contains:
    """A text in any column of words."""

    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column against a value."""

    column: Column
    operator: Operator  # how they are compared; never ``!=`` or ``!~``, which are :class:`Not`
    value: float | str  # a figure in the unit of the column, or a text
    regex: bool = False  # whether the text is a regular expression


@dataclass(frozen=True, slots=True)
class Not:
    """The rows that are not of something."""

    part: Node


@dataclass(frozen=True, slots=True)
class Both:
    """The rows that are of all parts, or of any."""

    all: bool
    parts: tuple[Node, ...]


Node = Contains | Comparison | Not | Both


def parse(text: str, columns: Sequence[Column]) -> Node | None:
    """Return what a filter means; None = all rows.

    Raises:
        FilterError: It is not a valid filter.
    """
    if not text.strip():
        return None
    tokens = _tokens(text)
    plain = all(token.kind in ("word", "paren") and token.text.casefold() not in _JOINERS for token in tokens)
    if plain:
        return Contains(text.strip())
    return _Parser(text, tokens, columns).read()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        assert match is not None, text  # every character belongs to some token
        assert match.lastgroup is not None
        found = match[match.lastgroup]
        start = match.start(match.lastgroup)
        if match.lastgroup == "quoted" and (len(found) == 1 or not found.endswith('"')):
            raise FilterError("unclosed quote", start)
        tokens.append(_Token(match.lastgroup, found, start))
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, text: str, tokens: Sequence[_Token], columns: Sequence[Column]) -> None:
        self._text, self._tokens, self._columns = text, tokens, columns
        self._next = 0

    def read(self) -> Node:
        node = self._any()
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            self._fail("unmatched closing bracket" if token.text == ")" else "expected 'and' or 'or'", token)
        return node

    # -- the grammar ---------------------------------------------------------------------------------------

    def _any(self) -> Node:
        return self._joined("or", self._all, all_=False)

    def _all(self) -> Node:
        return self._joined("and", self._one, all_=True)

    def _joined(self, word: str, part: Callable[[], Node], *, all_: bool) -> Node:
        parts = [part()]
        while self._is(word):
            self._next += 1
            parts.append(part())
        return parts[0] if len(parts) == 1 else Both(all_, tuple(parts))

    def _one(self) -> Node:
        token = self._peek()
        if token is None:
            self._fail("unexpected end of filter", None)
        if self._is("not"):
            self._next += 1
            return Not(self._one())
        if token.text == "(" and token.kind == "paren":
            self._next += 1
            node = self._any()
            if (closing := self._peek()) is None or closing.text != ")":
                self._fail("unclosed bracket", token)
            self._next += 1
            return node
        words = self._words()
        sign = self._peek()
        if sign is not None and sign.kind == "op":
            if not words:
                self._fail("expected a column name before this", sign)
            self._next += 1
            return self._comparison(words, sign)
        if not words:
            self._fail("expected a text or a column name", token)
        return Contains(" ".join(_bare(word) for word in words))

    def _comparison(self, words: list[_Token], sign: _Token) -> Node:
        column = self._column(words)
        operator = "=" if sign.text == "==" else sign.text
        value = self._words()
        if not value:
            wanted = "a text" if column.kind == "text" else _EXAMPLE[column.kind]
            self._fail(f"expected {wanted} after this", sign, behind=True)
        negated = operator in ("!=", "!~")
        plain: Operator = "=" if operator in ("=", "!=") else "~" if operator in ("~", "!~") else operator  # type: ignore[assignment]
        node: Node
        if column.kind == "text":
            if plain not in ("=", "~"):
                self._fail(f"{column.label!r} is text: use ~ (contains), = or !=", sign)
            node = self._text_comparison(column, plain, value)
        else:
            if plain == "~":
                self._fail(f"{column.label!r} is a number: use <, <=, =, !=, >= or >", sign)
            node = Comparison(column, plain, _figure(column, value))
        return Not(node) if negated else node

    def _text_comparison(self, column: Column, operator: Operator, value: list[_Token]) -> Node:
        if len(value) == 1 and value[0].kind == "regex":
            pattern = value[0].text[1:-1]
            import polars as pl

            try:
                pl.Series([""]).str.contains(pattern)
            except pl.exceptions.ComputeError:
                self._fail("invalid regular expression", value[0])
            return Comparison(column, "~", pattern, regex=True)
        return Comparison(column, operator, " ".join(_bare(word) for word in value))

    def _column(self, words: list[_Token]) -> Column:
        typed = " ".join(_bare(word) for word in words)
        found = find_columns(typed, self._columns)
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(column.label for column in found[:4])
            self._fail(f"{typed!r} is ambiguous: {names}", words[0])
        names = ", ".join(column.label for column in self._columns if not column.hidden)
        wrong = f"no column {typed!r}; columns: {names}. Put text to search for in double quotes"
        raise FilterError(wrong, words[0].at)

    # -- tokens --------------------------------------------------------------------------------------------

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _is(self, word: str) -> bool:
        token = self._peek()
        return token is not None and token.kind == "word" and token.text.casefold() == word

    def _words(self) -> list[_Token]:
        """Take the words up to the next sign, bracket or joining word."""
        words: list[_Token] = []
        while (token := self._peek()) is not None and token.kind in ("word", "quoted", "regex"):
            if token.kind == "word" and token.text.casefold() in _JOINERS:
                break
            words.append(token)
            self._next += 1
        return words

    def _fail(self, message: str, token: _Token | None, *, behind: bool = False) -> NoReturn:
        if token is None:
            raise FilterError(message, len(self._text.rstrip()))
        raise FilterError(message, token.at + (len(token.text) if behind else 0))


def _bare(token: _Token) -> str:
    return token.text[1:-1] if token.kind == "quoted" else token.text


def _figure(column: Column, value: list[_Token]) -> float:
    units = _UNITS[column.kind]
    match = _NUMBER.match(typed_number(" ".join(_bare(word) for word in value)))
    if match is None:
        raise FilterError(f"expected {_EXAMPLE[column.kind]}", value[0].at)
    number, unit = float(match["number"]), match["unit"].casefold()
    if unit in units:
        return number * units[unit]
    if not unit and number == 0:
        return 0.0
    at = value[-1].at if len(value) > 1 else value[0].at + match.start("unit")
    what = f"unknown unit {match['unit']!r}" if unit else "missing unit"
    raise FilterError(f"{what}: {column.label!r} needs {_EXAMPLE[column.kind]}", at)


def find_columns(typed: str, columns: Sequence[Column]) -> list[Column]:
    """Return the columns that a name may mean: exact before begun, visible before hidden."""
    wanted = _plain(typed)
    for visible in (True, False):
        some = [column for column in columns if column.hidden != visible]
        exact = [c for c in some if wanted in (_plain(c.label), _plain(c.key))]
        begun = [c for c in some if _plain(c.label).startswith(wanted) or _plain(c.key).startswith(wanted)]
        if exact or begun:
            return exact[:1] or begun
    return []


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())


_MARGIN = 1
#: What a figure of each kind may be compared with.
_FIGURES: Final = {"ns": "1ms", "bytes": "1MiB", "share": "5%", "count": "10", "number": "10", "rate": "10"}


class FilterLine(Input):
    """The text; escape gives it up, enter keeps it."""

    DEFAULT_CSS = """
    FilterLine { height: 1; border: none; background: $surface; }
    FilterLine, FilterLine.-textual-compact { padding: 0 1; }
    FilterLine:focus { border: none; background-tint: transparent 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "clear filter", "Show all rows again", id="filter.clear", group="Filter"),
        key(
            "down",
            "submit",
            "to the rows",
            "Keep the filter and go to the rows",
            id="filter.keep",
            group="Filter",
            show=False,
        ),
    ]

    def action_give_up(self) -> None:
        """Clear the text; the pane then closes the line."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class FilterBar(Vertical):
    """The text and the line below it; hidden until it is opened."""

    DEFAULT_CSS = """
    FilterBar { height: auto; display: none; }
    FilterBar.-open { display: block; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._columns: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        """The text, the hint."""
        yield FilterLine(compact=True)
        yield Painted()

    @property
    def is_open(self) -> bool:
        """Whether a filter is being typed."""
        return self.has_class("-open")

    def open(self, text: str, columns: Sequence[Column]) -> None:
        """Open the input for rows with these columns."""
        self._columns = tuple(sanitize(column.label) for column in columns)
        self.add_class("-open")
        line = self.query_one(FilterLine)
        line.placeholder = f"text to search for, or a condition such as: {example(columns)}"
        line.value = text
        line.focus()
        self.explain(None)

    def close(self) -> None:
        """Close the input."""
        self.remove_class("-open")

    def explain(self, error: FilterError | None) -> None:
        """Show the error below its character; without an error, suggestions."""
        if error is None:
            names = " · ".join(self._columns)
            row: Row = [(f" > < = != ~ and or not ( )   columns: {names}", "dim")]
        else:
            row = [(" " * (_MARGIN + error.at) + "^ ", "bad"), (sanitize(error.message), "bad")]
        self.query_one(Painted).paint(lambda width, _h: [_placed(row, width)])


def example(columns: Sequence[Column]) -> str:
    """Return a filter of a table's own columns: of its first figure and its first text."""
    parts = []
    if (figure := next((column for column in columns if column.kind in _FIGURES), None)) is not None:
        parts.append(f"{sanitize(figure.label)} > {_FIGURES[figure.kind]}")
    if (words := next((column for column in columns if column.kind == "text"), None)) is not None:
        parts.append(f"{sanitize(words.label)} ~ copy")
    return " and ".join(parts)


def _placed(row: Row, width: int) -> Row:
    """Return a row cut to the width; an explanation that would lose more than half goes before its mark."""
    if len(row) == 2 and len(row[0][0]) + len(row[1][0]) > width:
        mark, text = row[0][0], row[1][0]
        room = len(mark) - 3
        if room > width - len(mark):
            before = f" {text}"[: room - 1]
            ending = "…" if len(text) + 1 > room - 1 else ""
            return [((before + ending).ljust(len(mark) - 2) + "^", row[1][1])]
    return fit(row, width)
