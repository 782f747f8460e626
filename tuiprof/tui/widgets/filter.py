"""Filters of tables, such as ``empty > 1ms and name ~ gemm``: the grammar, the parser and the input line.

::

    filter      = words | expression
    expression  = all ("or" all)*
    all         = one ("and" one)*
    one         = "not" one | "(" expression ")" | comparison | text
    comparison  = column (">" | ">=" | "<" | "<=" | "=" | "!=" | "~" | "!~") value

Input without operators, quotes and ``and``, ``or``, ``not`` is text, which is searched for in every text column. ``~``
means "contains", ignoring case; a regular expression is written between slashes. Numbers need the unit of their column,
and may be written as in the tables, with ``−`` and digit groups. Text that contains an operator, such as ``vec<4>``,
goes between double quotes.

``polars.sql_expr`` cannot replace this parser (Polars 2.1): ``empty > 1ms`` compares with 1, because ``ms`` is read as
an alias; ``sum(empty) > 3`` keeps all rows or none; a bare word, ``~ gemm`` without quotes and ``1 000`` are errors;
and its error messages have no position.
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
#: What is typed for each kind of number, and an example to compare with.
_EXAMPLE: Final = {
    "ns": ("a time such as 50µs, 1ms or 2s", "1ms"),
    "bytes": ("a size such as 64KiB or 1.5GB", "1MiB"),
    "share": ("a percentage such as 5%", "5%"),
    **dict.fromkeys(("rate", "count", "number"), ("a number", "10")),
}


class FilterError(ValueError):
    """The filter is not valid."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"{message} (at character {at + 1})")
        self.message = message  # without the position
        self.at = at  # index of the wrong character


@dataclass(frozen=True, slots=True)
class Contains:
    """Any text column contains the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with a value."""

    column: Column
    operator: Operator  # never ``!=`` or ``!~``, which are :class:`Not`
    value: float | str  # a number in the column's unit, or text
    regex: bool = False  # whether the text is a regular expression


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a condition."""

    part: Node


@dataclass(frozen=True, slots=True)
class Joined:
    """All or any of several conditions."""

    all: bool
    parts: tuple[Node, ...]


Node = Contains | Comparison | Not | Joined


def parse(text: str, columns: Sequence[Column]) -> Node | None:
    """Return a parsed filter, None if it selects all rows; raises FilterError if it is not valid."""
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
        assert match is not None, text  # the pattern has a token for every character
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
        return parts[0] if len(parts) == 1 else Joined(all_, tuple(parts))

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
        operator = self._peek()
        if operator is not None and operator.kind == "op":
            if not words:
                self._fail("expected a column name before this", operator)
            self._next += 1
            return self._comparison(words, operator)
        if not words:
            self._fail("expected text or a column name", token)
        return Contains(" ".join(_bare(word) for word in words))

    def _comparison(self, words: list[_Token], token: _Token) -> Node:
        column = self._column(words)
        operator = "=" if token.text == "==" else token.text
        value = self._words()
        if not value:
            expected = "text" if column.kind == "text" else _EXAMPLE[column.kind][0]
            self._fail(f"expected {expected} after this", token, behind=True)
        negated = operator in ("!=", "!~")
        plain: Operator = "=" if operator in ("=", "!=") else "~" if operator in ("~", "!~") else operator  # type: ignore[assignment]
        node: Node
        if column.kind == "text":
            if plain not in ("=", "~"):
                self._fail(f"{column.label!r} is text: use ~ (contains), = or !=", token)
            node = self._text_comparison(column, plain, value)
        else:
            if plain == "~":
                self._fail(f"{column.label!r} is a number: use <, <=, =, !=, >= or >", token)
            node = Comparison(column, plain, _number(column, value))
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
        """Consume the words up to the next operator, bracket, ``and``, ``or`` or ``not``."""
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


def _number(column: Column, value: list[_Token]) -> float:
    """Return the number typed, in the unit of the column."""
    units = _UNITS[column.kind]
    match = _NUMBER.match(typed_number(" ".join(_bare(word) for word in value)))
    if match is None:
        raise FilterError(f"expected {_EXAMPLE[column.kind][0]}", value[0].at)
    number, unit = float(match["number"]), match["unit"].casefold()
    if unit in units:
        return number * units[unit]
    if not unit and number == 0:
        return 0.0
    at = value[-1].at if len(value) > 1 else value[0].at + match.start("unit")
    problem = f"unknown unit {match['unit']!r}" if unit else "missing unit"
    raise FilterError(f"{problem}: {column.label!r} needs {_EXAMPLE[column.kind][0]}", at)


def find_columns(typed: str, columns: Sequence[Column]) -> list[Column]:
    """Return the columns that match a name or, if none does, a prefix; hidden ones only if no visible one matches."""
    wanted = _normalised(typed)
    for visible in (True, False):
        names = [
            (column, (_normalised(column.label), _normalised(column.key)))
            for column in columns
            if column.hidden != visible
        ]
        if exact := [column for column, both in names if wanted in both]:
            return exact[:1]
        if found := [column for column, both in names if any(name.startswith(wanted) for name in both)]:
            return found
    return []


def _normalised(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())


_MARGIN = 1


class FilterLine(Input):
    """The input of a filter."""

    DEFAULT_CSS = """
    FilterLine { height: 1; border: none; background: $surface; }
    FilterLine, FilterLine.-textual-compact { padding: 0 1; }
    FilterLine:focus { border: none; background-tint: transparent 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "clear filter", "Show all rows again", id="filter.clear", group="Filter"),
        key("down", "submit", "to the rows", "Keep the filter and go to the rows", id="filter.keep",
            group="Filter", show=False),
    ]  # fmt: skip

    def action_give_up(self) -> None:
        """Clear the text and submit it, upon which the pane closes the filter."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class FilterBar(Vertical):
    """The input with a line for hints and errors below; hidden until it is opened."""

    DEFAULT_CSS = """
    FilterBar { height: auto; display: none; }
    FilterBar.-open { display: block; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._columns: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        yield FilterLine(compact=True)
        yield Painted()

    @property
    def is_open(self) -> bool:
        """Whether a filter is being typed."""
        return self.has_class("-open")

    def open(self, text: str, columns: Sequence[Column]) -> None:
        self._columns = tuple(sanitize(column.label) for column in columns)
        self.add_class("-open")
        line = self.query_one(FilterLine)
        line.placeholder = f"text to search for, or a condition such as: {example(columns)}"
        line.value = text
        line.focus()
        self.explain(None)

    def close(self) -> None:
        self.remove_class("-open")

    def explain(self, error: FilterError | None) -> None:
        """Show an error below its character; None = operators and columns."""
        if error is None:
            names = " · ".join(self._columns)
            row: Row = [(f" > < = != ~ and or not ( )   columns: {names}", "dim")]
        else:
            row = [(" " * (_MARGIN + error.at) + "^ ", "bad"), (sanitize(error.message), "bad")]
        self.query_one(Painted).paint(lambda width, _h: [_placed(row, width)])


def example(columns: Sequence[Column]) -> str:
    """Return an example of a filter that uses the first number and the first text column."""
    parts = []
    if (number := next((column for column in columns if column.kind in _EXAMPLE), None)) is not None:
        parts.append(f"{sanitize(number.label)} > {_EXAMPLE[number.kind][1]}")
    if (text := next((column for column in columns if column.kind == "text"), None)) is not None:
        parts.append(f"{sanitize(text.label)} ~ copy")
    return " and ".join(parts)


def _placed(row: Row, width: int) -> Row:
    """Return a row cut to the width; an error message with more room to the left of its mark goes there."""
    if len(row) == 2 and len(row[0][0]) + len(row[1][0]) > width:
        mark, text = row[0][0], row[1][0]
        room = len(mark) - 3
        if room > width - len(mark):
            before = f" {text}"[: room - 1]
            ending = "…" if len(text) + 1 > room - 1 else ""
            return [((before + ending).ljust(len(mark) - 2) + "^", row[1][1])]
    return fit(row, width)
