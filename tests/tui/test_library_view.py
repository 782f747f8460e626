"""How the library reads, without a screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuiprof.session.live.listing import Summary
from tuiprof.session.store.meta import Labels
from tuiprof.tui.library import view
from tuiprof.tui.library.view import LadderItem, Listing, PastCommand, VariantItem, items
from tuiprof.tui.widgets.spans import Choice, Row, row_width

LADDER = LadderItem(
    "metrics",
    "metric collection",
    "Each variant removes one sync.",
    "off",
    "NVIDIA A40",
    ("torch>=2.5",),
    ("paper", "smoke"),
    (
        VariantItem("off", "No metrics.", "baseline", 25.8e6, "fit", None, True, measured="run"),
        VariantItem("naive", "As documented.", "≈10 % slower", 27e6, "fit", 0.0465, True),
        VariantItem("fused", runnable=False, why="torch is not installed — pip install torch"),
    ),
)
SHELF = Listing(
    ladders=(LADDER,),
    sessions=(
        Summary("b", "/s/b", "train", "failed", code=1, argv=["python", "train.py", "--name", "a b"]),
        Summary("a", "/s/a", "metrics:off", "finished", code=0, median_ns=25.8e6),
    ),
    traces=(Path("/traces/metrics-naive.pt.trace.json.gz"),),
    labels={"a": Labels(tags=("base",))},
    sizes={"a": 3 << 20, "b": 1 << 20},
    total_bytes=4 << 20,
)


def text(row: Row) -> str:
    return "".join(part for part, _ in row)


def lines(choices: list[Choice], width: int = 60) -> list[str]:
    rows = [choice.draw(width) for choice in choices]
    assert all(row_width(row) <= width for row in rows)
    return [text(row).strip() for row in rows]


def test_the_list_has_a_heading_a_group_and_marks() -> None:
    found = lines(view.items(SHELF, "", marked=["/s/a", "/s/b"]))
    assert [line for line in found if line.split("  ")[0] in ("Recent", "Learn", "Samples")] == [
        "Recent  4.00 MiB on disk",
        "Learn",
        "Samples",
    ]
    [train] = [line for line in found if line.endswith("exit 1")]
    [off] = [line for line in found if "metrics:off" in line]
    assert train.startswith("[2]")
    assert train.endswith("exit 1")
    assert off.startswith("[1]")
    assert "#base" in off
    assert off.endswith("25.8 ms")
    assert found[-1] == "metrics-naive", "what every trace ends in tells none from another"


def test_a_filter_finds_names_states_tags_and_variants() -> None:
    def keys(contains: str) -> list[str]:
        return [choice.key for choice in view.items(SHELF, contains) if choice.key]

    assert keys("#BASE") == ["session:/s/a"]
    assert keys("failed") == ["session:/s/b"]
    assert keys("fused") == ["ladder:metrics"]
    assert keys("nowhere") == []
    assert lines(view.items(SHELF, "nowhere")) == ["no match"]
    assert text(view.about_nothing(SHELF, "nowhere", 80)[0]).startswith("nothing matches 'nowhere'")


def test_a_captured_trace_is_named_by_its_time() -> None:
    profile = Path("/s/a/traces/plugins/profile/2026_11_25_21_16_45/host.xplane.pb")
    shelf = replace(SHELF, captured={SHELF.sessions[0].id: (profile,)})
    assert "trace captured at 21:16:45" in "\n".join(lines(view.items(shelf, "")))


def test_the_keys_of_a_session_are_wrapped() -> None:
    for width in (40, 64, 100):
        rows = [text(row).rstrip() for row in view.about_session(SHELF, SHELF.sessions[0], [], width)]
        assert all(len(row) <= width for row in rows if "/s/a" not in row)
        assert "mark to compare" in rows[-1]


def test_the_table_of_variants_leaves_out_columns_that_have_no_room() -> None:
    table = view.variants(LADDER)
    wide, narrow = lines(table, 110), lines(table, 45)
    assert wide[0].split() == ["variant", "published", "here", "vs", "off", "can", "run"]
    assert "1.046× slower" in wide[2] or "1.047× slower" in wide[2]
    assert wide[3].endswith("torch is not installed — pip install torch")
    assert narrow[0].split() == ["variant", "here", "vs", "off", "can", "run"]
    assert "torch" not in narrow[3], "a word cut in two says nothing"
    assert any(
        "torch is not installed" in text(row) for row in view.about_variant(LADDER, LADDER.variants[2], 80)
    )


def test_published_figures_take_the_room_until_something_was_measured() -> None:
    naive = VariantItem(
        "step-time-on-device-tensor", published="≈10 % lower throughput, 8 syncs", runnable=True
    )
    unmeasured = view.variants(replace(LADDER, variants=(naive,)))
    assert lines(unmeasured, 70)[0].split() == ["variant", "published", "can", "run"]
    assert "step-time-on-device-tensor  ≈10 % lower throughput  " in lines(unmeasured, 70)[1]
    assert lines(unmeasured, 44)[1].split("  ")[:2] == ["step-tim…e-tensor", "≈10 % lower thr…"]
    measured = view.variants(replace(LADDER, variants=(naive, LADDER.variants[0])))
    assert "here" in lines(measured, 70)[0]


def test_syncs_have_a_column_where_a_trace_was_captured_and_there_is_room() -> None:
    traced = VariantItem("off", here_ns=25.8e6, trace=Path("/t.json"), syncs_per_step=3.25, runnable=True)
    table = view.variants(replace(LADDER, variants=(traced,)))
    assert "syncs/step" in lines(table, 110)[0]
    assert "3.25" in lines(table, 110)[1]
    assert "syncs/step" not in lines(table, 45)[0]
    assert "vs off" in lines(table, 45)[0]


def test_of_a_session_the_command_can_be_copied_and_its_last_errors_are_shown() -> None:
    [failed, finished] = SHELF.sessions
    said = [text(row) for row in view.about_session(SHELF, failed, ["ValueError: x"], 100)]
    assert said[0] == "✗ train  failed, exit 1"
    assert any(line.endswith("python train.py --name 'a b'") for line in said)
    assert "▏ValueError: x" in said or "▏" + "ValueError: x" in said
    calm = [text(row) for row in view.about_session(SHELF, finished, [], 100)]
    assert any(line.split() == ["tags", "#base"] for line in calm)
    assert not any("standard error" in line for line in calm)


@pytest.mark.parametrize(
    ("width", "said"),
    [(70, "python /home/me/project/train.py --lr 1e-3"), (48, "python train.py --lr 1e-3")],
)
def test_the_last_command_is_recognised_where_paths_do_not_fit(width: int, said: str) -> None:
    argv = ("/home/me/project/.venv/bin/python", "/home/me/project/train.py", "--lr", "1e-3")
    listing = Listing(commands=(PastCommand(argv, "/home/me/project", 0),))
    line = "".join(text for text, _ in items(listing, "")[0].draw(width))
    assert line.split("   ")[-1].strip() == said
