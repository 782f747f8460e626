"""How fast an xplane.pb and a Neuron Parquet directory open, and what they cost in memory.

::

    TUIPROF_BENCH_JAX_PYTHON=/tmp/jax/bin/python pytest -m bench -s tests/benchmarks/bench_xplane_neuron.py

A peer runs in the same rounds: ``jax.profiler.ProfileData``, which parses and then walks over every event with its
stats, in the Python that ``TUIPROF_BENCH_JAX_PYTHON`` names (default: this one, if it has JAX). Time is processor time,
because the machine may be shared; the medians of several rounds are printed. The goal was set on a machine on which the
peer takes 1.9 s, so it is judged as a ratio too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "formats"))
import xspace

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("TUIPROF_BENCH_ROUNDS", "5"))
EVENTS = 1_000_000
#: Processor time for them, s, and what the peer took where the goal was set.
GOAL_S, PEER_S = 1.2, 1.9
INSTRUCTIONS = 5_000_000

OURS = """
import json, resource, sys, time
import polars
from tuiprof.formats import open_trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cpu = time.process_time()
trace = open_trace(sys.argv[1])
cpu = time.process_time() - cpu
peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps({"cpu_s": cpu, "events": trace.stats.events, "peak_bytes": peak}))
"""
JAX = """
import json, sys, time
from jax.profiler import ProfileData
cpu = time.process_time()
data = ProfileData.from_file(sys.argv[1])
count = sum(1 + 0 * len(list(event.stats)) for plane in data.planes for line in plane.lines for event in line.events)
print(json.dumps({"cpu_s": time.process_time() - cpu, "events": count}))
"""


def measure(path: Path, *readers: tuple[str, str]) -> list[dict[str, float] | None]:
    """Run readers (a Python and its code) in turns, each in a process of its own; None = it cannot run."""
    answers: list[list[dict[str, float]]] = [[] for _ in readers]
    for number in range(ROUNDS):
        for (python, code), said in zip(readers, answers, strict=True):
            if len(said) < number:  # it could not run the first time
                continue
            done = subprocess.run(
                [python, "-c", code, str(path)], capture_output=True, text=True, check=False
            )
            if not done.returncode:
                said.append(json.loads(done.stdout))
    return [
        {key: statistics.median(answer[key] for answer in said) for key in said[0]} if said else None
        for said in answers
    ]


def large_xplane(path: Path) -> None:
    """Write a million events, four in ten with two stats, as a Python-traced host thread has them."""
    plane = xspace.Plane("/host:CPU")
    line = plane.line("python")
    for i in range(500):
        line.event(f"$core.py:{i} function_{i}", i * 1_000_000, 900_000)
        line.event(f"PjitFunction(f{i % 40})", i * 1_000_000, 500_000, run_id=i, device_ordinal=0)
    block = b"".join(xspace.chunk(4, event) for event in line.events)
    head = b"".join(xspace.chunk(4, event) for event in line.events[:1])
    assert block.startswith(head)
    line.events.clear()
    copies = [
        xspace.chunk(3, xspace.Line(plane, "python", i * 1_000_000, i).encode() + block)
        for i in range(EVENTS // 1000)
    ]
    path.write_bytes(xspace.chunk(1, plane.encode() + b"".join(copies)))


def large_neuron(folder: Path) -> None:
    """Write five million instructions in two parts."""
    folder.mkdir()
    frame = pl.select(pl.int_range(INSTRUCTIONS, dtype=pl.Int64).alias("id")).with_columns(
        (pl.col("id") * 200).alias("start_ts"),
        (pl.col("id") % 1900 + 100).alias("duration_ns"),
        pl.Series("engine", ["Tensor", "Vector", "Scalar", "GpSimd", "Sync"] * (INSTRUCTIONS // 5)),
        pl.Series(
            "opcode", ["MATMUL", "TENSOR_TENSOR", "ACTIVATE", "IOTA", "EVENT_SEMAPHORE"] * (INSTRUCTIONS // 5)
        ),
        (pl.col("id") % 2).alias("pcore_idx"),
    )
    half = INSTRUCTIONS // 2
    frame[:half].write_parquet(folder / "Instruction_0.parquet")
    frame[half:].write_parquet(folder / "Instruction_1.parquet")


def test_xplane(tmp_path: Path) -> None:
    path = tmp_path / "large.xplane.pb"
    large_xplane(path)
    jax = os.environ.get("TUIPROF_BENCH_JAX_PYTHON", sys.executable)
    ours, peer = measure(path, (sys.executable, OURS), (jax, JAX))
    assert ours is not None
    assert ours["events"] == EVENTS
    size = path.stat().st_size / 1e6
    print(f"\nxplane.pb, {EVENTS:,} events, {size:.1f} MB; limits {GOAL_S} s and 300 B an event")
    print(f"  tuiprof          {ours['cpu_s']:6.2f} s   {ours['peak_bytes'] / EVENTS:6.0f} B an event")
    if peer is None:
        print("  jax ProfileData  not measured: name a Python that has JAX in TUIPROF_BENCH_JAX_PYTHON")
    else:
        share = ours["cpu_s"] / peer["cpu_s"]
        said = "met" if share <= GOAL_S / PEER_S else "MISSED"
        print(f"  jax ProfileData  {peer['cpu_s']:6.2f} s")
        print(f"  goal: at most {GOAL_S / PEER_S:.2f} of the peer's time; {share:.2f}: {said}")
    assert ours["peak_bytes"] / EVENTS < 300


def test_neuron(tmp_path: Path) -> None:
    folder = tmp_path / "large@latest"
    large_neuron(folder)
    [ours] = measure(folder, (sys.executable, OURS))
    assert ours is not None
    assert ours["events"] == INSTRUCTIONS
    print(f"\nNeuron Parquet, {INSTRUCTIONS:,} instructions; limit 2 s on two cores")
    print(
        f"  tuiprof          {ours['cpu_s']:6.2f} s of processor time   {ours['peak_bytes'] / INSTRUCTIONS:6.0f} B each"
    )
