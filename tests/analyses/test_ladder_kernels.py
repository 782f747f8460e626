"""Kernels and the chip's limits, and the parts of a step, in a ladder's report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuiprof.ladder.report import _figure, kernel_words, report
from tuiprof.ladder.state import Figures, KernelFigures, LadderMeta, Rung, Trial, create
from tuiprof.model import Report
from tuiprof.report import Style, render
from tuiprof.whatif.chips import find_chip


def told(tmp_path: Path, figures: dict[str, list[Figures]], *, wrong: str = "") -> Report:
    """Return the report of a ladder whose trials measured this."""
    names = list(figures)
    meta = LadderMeta(
        v=1,
        ladder="toy",
        title="toys",
        source="",
        script="toy.py",
        digest="",
        baseline=names[0],
        preset="fit",
        steps=None,
        rounds=max(map(len, figures.values())),
        python="python",
        host="here",
        machine="1 toy",
        cwd="/",
        unix_ns=0,
        rungs=tuple(Rung(name, names[0]) for name in names),
    )
    ladder = create(tmp_path, meta)
    for name, trials in figures.items():
        for number, one in enumerate(trials, 1):
            ladder.put(Trial("timing", number, name, "", "done", figures=one))
    if wrong:
        ladder.put(Trial("check", 0, wrong, "", "wrong", "numbers differ", equal=False))
    return report(ladder)


def kernel(device: str, kind: str = "int8", **times_ms: float) -> Figures:
    """Return the figures of a product of 8192³: 10¹² operations, 400 MB."""
    measured = KernelFigures(
        400_000_000, 10**12, kind, {name: ms * 1e6 for name, ms in times_ms.items()}, {"replayed": "it waits"}
    )
    return Figures(times_ms["warm"] * 1e6, 20, device=device, kernel=measured)


def test_rates_are_of_the_cold_call_beside_the_chip(tmp_path: Path) -> None:
    trials = [kernel("NVIDIA H200", cold=ms, warm=0.7, host=0.01) for ms in (0.99, 1.0, 1.4)]
    answer = told(tmp_path, {"int8": trials})
    row = answer.table("kernels").rows.row(0, named=True)
    assert row["cold_ns"] == 1e6  # the median of three
    assert row["operations_per_s"] == pytest.approx(1e15)
    assert row["arithmetic_share"] == pytest.approx(1e15 / 1978.9e12)
    assert row["bandwidth_share"] == pytest.approx(400e9 / 4800e9)
    assert row["least_ns"] == pytest.approx(1e12 / 1978.9e12 * 1e9)  # arithmetic, not memory, is the limit
    assert row["not_measured"] == "replayed: it waits"
    drawn = render(answer, style=Style(width=100, rows=None, details=False))
    assert "NVIDIA H200 SXM: 4800 GB/s, 1979 T int8 op/s" in drawn
    line = next(line for line in drawn.splitlines() if "10.0 µs" in line)
    assert line.split()[:9] == ["int8", "1.00", "ms", "700", "µs", "10.0", "µs", "400", "8.3"]


def test_a_kernel_in_words(tmp_path: Path) -> None:
    trial = kernel("NVIDIA H200", cold=1.0, warm=0.7, host=0.01)
    row = told(tmp_path, {"int8": [trial]}).table("kernels").rows.row(0, named=True)
    words = kernel_words(row)
    assert words.startswith("cold 1.00 ms, warm 700 µs, host 10.0 µs; 400 GB/s (8.3 % of NVIDIA H200 SXM); ")
    assert words.endswith("; the chip's limits allow 505 µs")


def test_without_a_cold_call_no_share_of_bandwidth_is_told(tmp_path: Path) -> None:
    answer = told(tmp_path, {"jax": [kernel("TPU v5 lite", warm=4, replayed=3.5)]})
    row = answer.table("kernels").rows.row(0, named=True)
    assert row["operations_per_s"] == pytest.approx(1e12 / 3.5e-3)
    assert row["bandwidth_share"] is None
    assert row["arithmetic_share"] == pytest.approx(1e12 / 3.5e-3 / 394e12)


def test_an_unknown_chip_has_rates_and_no_shares(tmp_path: Path) -> None:
    answer = told(tmp_path, {"numpy": [kernel("cpu", warm=1e3)]})
    row = answer.table("kernels").rows.row(0, named=True)
    assert (row["bandwidth"], row["arithmetic_rate"]) == ("0.4", "1")
    assert row["arithmetic_share"] is None
    drawn = render(answer, style=Style(width=100, rows=None, details=False))
    assert "so no shares: cpu" in drawn
    assert "% of peak" not in drawn


def test_a_wrong_kernel_has_no_speed(tmp_path: Path) -> None:
    both = {name: [kernel("NVIDIA L4", warm=1)] for name in ("right", "quick")}
    answer = told(tmp_path, both, wrong="quick")
    assert answer.table("kernels").rows["variant"].to_list() == ["right"]


def test_an_interpreted_kernel_has_no_verdict(tmp_path: Path) -> None:
    quick = [Figures(1e6, 20, device="cpu (interpreted)", interpreted=True)] * 3
    slow = [Figures(ms * 1e6, 20) for ms in (9.0, 9.1, 9.2)]
    answer = told(tmp_path, {"numpy": slow, "pallas": quick})
    rungs = {row["variant"]: row for row in answer.table("rungs").rows.to_dicts()}
    assert rungs["pallas"]["verdict"] == "undecided"
    assert rungs["pallas"]["change"] == ""
    assert any(note.startswith("pallas: a kernel was interpreted") for note in answer.notes)


def test_parts_of_the_step_have_a_table_of_their_own(tmp_path: Path) -> None:
    slow = [Figures(9e6, 20, ranges_ns={"copy data": 2e6, "calc loss": ms * 1e6}) for ms in (5, 6, 70)]
    answer = told(tmp_path, {"loop": slow, "fused": [Figures(3e6, 20, ranges_ns={"calc loss": 4e5})]})
    rows = answer.table("ranges").rows
    assert rows["calc_loss_ns"].to_list() == [6e6, 4e5]
    assert rows["copy_data_ns"].to_list() == [2e6, None]
    plain = told(tmp_path / "other", {"loop": [Figures(9e6, 20)]})
    assert not {"ranges", "kernels"} & {table.key for table in plain.tables}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40 GB"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80 GB"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("NVIDIA A40", "NVIDIA A40"),
        ("TPU v5 lite", "Google TPU v5e"),
        ("Inferentia2", "AWS Inferentia2"),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA L40", None),
        ("TPU v5p", None),
        ("cpu", None),
    ],
)
def test_a_chip_is_known_by_the_name_its_driver_gives(device: str, name: str | None) -> None:
    chip = find_chip(device)
    assert (chip.name if chip else None) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.1712e-05, "0.0000417"), (0.000443, "0.000443"), (3.4567, "3.46"), (999.6, "1000"), (0.0, "0")],
)
def test_a_rate_is_never_said_with_an_exponent(value: float, text: str) -> None:
    assert _figure(value) == text
