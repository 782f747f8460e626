"""Names that others chose, in every place of a report and in every format; what they come to elsewhere."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.hostile import CORPUS, WORST, obeyed, obeyed_in_lines
from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Unavailable, Verdict, Window
from tuiprof.model.characters import as_utf8, shell_word
from tuiprof.report import Style, formats, render_all
from tuiprof.report.sanitize import as_stem, for_log, sanitize

NAMES = st.lists(st.sampled_from(sorted(CORPUS.values())) | st.text(max_size=4), min_size=1, max_size=6).map(
    lambda parts: as_utf8("".join(parts))
)  # a column holds nothing else


@pytest.mark.parametrize("fmt", sorted(formats()))
@given(name=NAMES)
@example(name=as_utf8(WORST))
@settings(max_examples=60)
def test_every_part_of_a_report(fmt: str, name: str) -> None:
    columns = (
        Column("a", name, help=name),
        Column("b", name, "ns", help=name),
        Column("c", name, "share"),
        Column("d", name, figure=True),
    )
    rows = pl.DataFrame({"a": [name, "x"], "b": [5, 3], "c": [0.6, 0.4], "d": [name, "1"]})
    tables = [
        Table(key, name, columns, rows, name, name, prose) for key, prose in (("t", False), ("p", True))
    ]
    series = (Column("step", name), Column("step_ns", name, "ns"))
    steps = rows.rename({"a": "step", "b": "step_ns"})
    tables += [
        replace(tables[0], rows=steps, columns=series, chart=Chart(name, (Series("step_ns"),), at="step"))
    ]
    tables += [replace(tables[0], rows=rows.head(0))]
    fact, rule = Fact("f", name, name, "text", name), Rule(name, name)
    window = Window(None, None, name)
    report = Report("x", name, Verdict(name, "bad"), (fact,), tuple(tables), (rule,), (name,), window)
    style = Style(width=80, details=True, title=name)
    text = render_all([report, Unavailable("y", name, name)], fmt, trust=name, style=style)
    assert not obeyed_in_lines(text)
    if fmt == "html":
        assert "<b>{{" not in text
        assert text.count("<script>") == 1


@pytest.mark.parametrize("text", CORPUS.values(), ids=list(CORPUS))
def test_a_shell_takes_one_word_for_what_it_is(text: str) -> None:
    text = text.replace("\0", "")[:5000].encode("utf-8", "replace").decode()
    word = shell_word(text)
    assert not obeyed(word)
    assert for_log(f"see it: {word}") == f"see it: {word}"  # a CI system's log has it as it is
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout.decode() == text


@pytest.mark.parametrize("text", CORPUS.values(), ids=list(CORPUS))
def test_the_name_of_a_file_is_plain(text: str) -> None:
    stem = as_stem(text, "trace")
    assert stem[0] not in ".-~"
    assert len(stem) <= 80
    assert not obeyed(stem)
    assert not set(stem) & set(" /\\$`'\"|;&<>()[]*?!#=@%\n")


def test_a_log_keeps_names_that_only_look_like_commands_readable() -> None:
    assert for_log("  ::at::native::add  3\nvoid at::native") == "  \\::at::native::add  3\nvoid at::native"
    assert for_log("x ##[error]y") == "x ##\\[error]y"


def test_what_is_replaced_is_shown() -> None:
    assert sanitize("a\x1b[2J\u202eb\u3164") == "a␛[2J<U+202E>b<U+3164>"
    assert sanitize(CORPUS["homographs"]) == CORPUS["homographs"]  # they are letters like any other
