"""What a ladder says of its traces: the sync that vanished, the launches that fell, the kernels that changed;
kernels and the chip's limits, and the parts of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from analyses.made import Made, site
from ladder.made_ladders import ladder_meta
from session.session_logs import new_session

from tests import real_traces
from tuiprof.advice import priorities, proof
from tuiprof.formats import open_trace
from tuiprof.ladder.report import _figure, kernel_words, report
from tuiprof.ladder.state import Figures, KernelFigures, LadderRun, Rung, Trial, create
from tuiprof.ladder.why import Seen, changes, same_work
from tuiprof.model import Report, Trace
from tuiprof.report import Style, render
from tuiprof.resources import shipped
from tuiprof.whatif.chips import find_chip


def naive() -> Trace:
    """Two steps of 100 µs: three kernels, then a NaN check that waits for them."""
    made, sites = Made(), []
    for number, start in enumerate((0, 100)):
        made.step(number, start, start + 100)
        for index in range(3):
            begin = start + 5 + 10 * index
            made.launch(
                "elementwise_kernel", (begin, begin + 4), (begin + 6, begin + 16), 10 * number + index + 1
            )
        made.op("aten::item", start + 40, start + 90)
        made.call("cudaStreamSynchronize", start + 42, start + 88)
        sites.append(site(start + 43, "aggregation.py:91 update"))
    return made.trace(sites)


def checked() -> Trace:
    """The same without the check, and with one kernel for three."""
    made = Made()
    for number, start in enumerate((0, 50)):
        made.step(number, start, start + 50)
        made.launch("triton_fused_add", (start + 5, start + 9), (start + 11, start + 41), number + 1)
    return made.trace()


def cpu(*names: str) -> Trace:
    made = Made()
    for number, start in enumerate((0, 100)):
        made.step(number, start, start + 100)
        for index, name in enumerate(names):
            made.op(name, start + 10 * index + 1, start + 10 * index + 9)
    return made.trace()


def test_a_sync_that_vanished_and_launches_that_fell() -> None:
    told = changes(naive(), checked())
    assert told[0] == "syncs 1 → 0 a step"
    assert told[1].startswith("gone: aggregation.py:91")
    assert told[2] == "launches 3 → 1 a step"
    assert "device time of elementwise 30.0 µs → 0 ns a step" in told
    assert changes(naive(), naive()) == ()
    assert any(clause.startswith("new: aggregation.py:91") for clause in changes(checked(), naive()))


def test_on_a_cpu_operators_come_and_go_and_their_share_counts() -> None:
    told = changes(cpu("aten::mm", "aten::isnan"), cpu("aten::mm", "aten::mm"))
    assert told == ("gone: aten::isnan (1 a step)", "aten::mm 50.0 % → 100 % of the operators' time")
    assert changes(cpu("aten::mm"), cpu("aten::mm")) == ()
    graphs = [cpu("aten::mm", f"## Call CompiledFxGraph {hash_} ##") for hash_ in ("fhh", "fnk")]
    assert changes(*graphs) == (), "one graph has another hash in another run"
    assert changes(cpu("aten::mm"), graphs[0])[0] == "new: CompiledFxGraph (1 a step)"
    unmarked = Made().op("aten::mm", 0, 9).trace()
    assert changes(unmarked, cpu("aten::mm")) == ("unknown: not both traces mark steps",)


def test_variants_that_did_the_same_on_the_device_are_told() -> None:
    def ran(work_ns: float, **kernels: float) -> Seen:
        return Seen(None, work=frozenset(kernels.items()), work_ns=work_ns)

    told = {
        "math": ran(900.0, softmax=24.0, gemm=48.0),
        "flash": ran(500.0, flash=24.0),
        "cudnn": ran(505.0, flash=24.0),
        "twice": ran(1000.0, flash=24.0),
        "cpu": ran(0.0),
        "cpu too": ran(0.0),
    }
    assert same_work(told) == ["flash, cudnn: the same kernels in the captured steps, as often and as long"]


def test_real_traces_of_two_devices_can_be_held_against_each_other() -> None:
    steps = open_trace(real_traces.SMALL)
    assert changes(steps, steps) == ()
    told = changes(cpu("aten::mm"), steps)  # operators are what both have
    assert told[0] == "gone: aten::mm (1 a step)" or told[0].startswith("new: ")
    assert not any("nan" in clause for clause in told)


def ladder_of_two(
    root: Path, naive_ns: Sequence[float], checked_ns: Sequence[float], *further: tuple[Rung, Sequence[float]]
) -> tuple[LadderRun, dict[Path, Trace]]:
    """Return a ladder whose rounds took this long, and the traces of its variants; further ones are like the second."""
    rungs = Rung("naive", "naive"), Rung("checked", "naive", "naive", published=("10 % faster",))
    meta = ladder_meta(*rungs, *(rung for rung, _ in further), source="NVIDIA A40", rounds=2, price=2.0)
    ladder = create(root, meta)
    traces = {}
    made = [("naive", naive(), naive_ns), ("checked", checked(), checked_ns)]
    for name, trace, times in (*made, *((rung.name, checked(), times) for rung, times in further)):
        session = new_session(ladder.root, name)
        path = session.path / "traces" / "rank0.1.pt.trace.json"
        path.touch()
        traces[path] = trace
        ladder.put(Trial("trace", 0, name, session.id, "done", equal=True))
        for number, step_ns in enumerate(times, 1):
            figures = Figures(step_ns, 20, batch=8, samples_per_s=8e9 / step_ns, peak_bytes=1 << 30)
            ladder.put(Trial("timing", number, name, session.id, "done", equal=True, figures=figures))
    return ladder, traces


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ((30e3, 120e3), "checked may be 1.67× faster than naive: syncs 1 → 0 a step"),
        ((99.5e3, 100.2e3, 99.8e3), "checked takes as long as naive: syncs 1 → 0 a step"),
    ],
)
def test_what_a_variant_gained_is_said_as_surely_as_its_verdict(
    rounds: tuple[float, ...], said: str, tmp_path: Path
) -> None:
    ladder, traces = ladder_of_two(tmp_path, [100e3] * len(rounds), rounds)
    why = report(ladder, traces.__getitem__).table("why").rows.row(0, named=True)
    assert why["sentence"].startswith(said)


@pytest.mark.parametrize(("rounds", "said"), [(1, "may be"), (3, "is")])
def test_what_is_gained_on_another_variant_is_said_as_surely_as_its_trials_allow(
    rounds: int, said: str, tmp_path: Path
) -> None:
    cheap = Rung("cheap", "naive", "checked"), [40e3] * rounds
    ladder, traces = ladder_of_two(tmp_path, [100e3] * rounds, [80e3] * rounds, cheap)
    rows = report(ladder, traces.__getitem__).table("why").rows
    sentence = rows.filter(pl.col("variant") == "cheap")["sentence"][0]
    assert sentence.startswith(f"cheap {said} 2.00× faster than checked")


def test_the_report_joins_times_and_traces(tmp_path: Path) -> None:
    ladder, traces = ladder_of_two(tmp_path, [100e3, 100e3], [40e3, 40e3])
    told = report(ladder, traces.__getitem__)
    assert told.verdict.level == "good"
    assert told.verdict.sentence == "checked is 2.50× faster than naive"
    rungs = told.table("rungs").rows
    assert rungs["syncs_per_step"].to_list() == [1.0, 0.0]
    assert rungs["launches_per_step"].to_list() == [3.0, 1.0]
    assert rungs["samples_per_usd"].to_list() == pytest.approx([8e4 * 1800, 2e5 * 1800])
    why = told.table("why").rows.row(0, named=True)
    assert (why["variant"], why["against"]) == ("checked", "naive")
    assert why["changes"].startswith("syncs 1 → 0 a step; gone: aggregation.py:91")
    assert why["sentence"].startswith("checked is 2.50× faster than naive: syncs 1 → 0 a step")
    assert why["measured_ns"] == 60_000, "100 µs a step, and 40"
    assert not any("the same kernels" in note for note in told.notes)
    traces[next(iter(traces))] = checked()
    assert any(
        note.startswith("naive, checked: the same kernels")
        for note in report(ladder, traces.__getitem__).notes
    )
    traces[next(iter(traces))] = naive()
    narrow = render(
        report(ladder, traces.__getitem__, brief=True), style=Style(width=80, rows=None, details=True)
    )
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "checked  faster    40.0 µs  2.50× faster" in narrow
    assert told.table("trials").rows.height == 6
    assert pl.Series(rungs["published"]).to_list() == ["", "10 % faster"]
    halved = Figures(40e3, 20, batch=4, samples_per_s=4e9 / 40e3, peak_bytes=1 << 30)
    for number in (1, 2):
        ladder.put(Trial("timing", number, "checked", "", "done", equal=True, figures=halved))
    why = report(ladder, traces.__getitem__).table("why").rows.row(0, named=True)
    assert why["sentence"].startswith("checked is 1.25× faster a sample than naive")
    assert why["measured_ns"] == pytest.approx(10_000, abs=1), (
        "4 samples take 50 µs in the one, 40 in the other"
    )
    assert why["predicted_ns"] is None


def test_a_finding_that_is_still_there_is_not_dealt_with_where_it_wins_nothing_or_cannot_be_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = (open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz") for _ in range(2))
    found = priorities(before)
    unpriced = replace(found, findings=tuple(replace(item, win=None) for item in found.findings))
    monkeypatch.setattr(proof, "priorities", lambda trace: unpriced if trace is after else found)
    assert proof.prove(before, after) is None
    small = replace(unpriced, findings=(), small=unpriced.findings)
    monkeypatch.setattr(proof, "priorities", lambda trace: small if trace is after else found)
    assert proof.prove(before, after) is None
    monkeypatch.setattr(
        proof, "priorities", lambda trace: replace(found, findings=()) if trace is after else found
    )
    assert proof.prove(before, after) is not None


def told(tmp_path: Path, figures: dict[str, list[Figures]], *, wrong: str = "") -> Report:
    """Return the report of a ladder whose trials measured this."""
    names = list(figures)
    rungs = [Rung(name, names[0]) for name in names]
    ladder = create(tmp_path, ladder_meta(*rungs, rounds=max(map(len, figures.values()))))
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
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("NVIDIA GH200 480GB", "NVIDIA GH200"),
        ("NVIDIA GH200 144G HBM3e", "NVIDIA GH200 HBM3e"),
        ("NVIDIA B200", "NVIDIA B200"),
        ("NVIDIA A10G", "NVIDIA A10G"),
        ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA RTX 4090"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("TPU v5p", "Google TPU v5p"),
        ("TPU v6 lite", "Google TPU v6e"),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
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
