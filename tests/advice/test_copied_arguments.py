"""Arguments that a compiled program copies because its caller keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from formats import made_hlo, xspace

from tuiprof.advice import advise
from tuiprof.formats import open_trace

US = 1_000_000  # ps
LINES = ("/home/me/decode.py:9 main", "/home/me/decode.py:31 attend")
#: A cache of 64 x 256 x 64 in bfloat16 that is copied, and gets a row; what is returned, and what reads the cache.
CACHE = """
update {{
  old = bf16[64,256,64] parameter(), index=0
  new = bf16[64,1,64] parameter(), index=1
  at = s32[] parameter(), index=2
  replaced = bf16[64,256,64] {updates}, site=2
}}
main {{
  cache = bf16[64,256,64] parameter(), index=0, op="{argument}"
  row = bf16[64,1,64] parameter(), index=1, op="row"
  pos = s32[] parameter(), index=2, op="pos"
  {before}
  copy.1 = bf16[64,256,64] copy({copied})
  fusion.1 = bf16[64,256,64] fusion(copy.1, row, pos), calls=update, op="jit(step)/dynamic_update_slice", site=2
  {after}
  reduce.1 = bf16[64,64] reduce(fusion.1), site=2
  result = [] tuple(reduce.1, {returned})
}}
"""
#: A loop of iterations that each replace a row.
LOOP = """
body {
  state = [] parameter(), index=0
  count = s32[] get-tuple-element(state), index=0
  rows = bf16[64,256,64] get-tuple-element(state), index=1
  row = bf16[64,1,64] get-tuple-element(state), index=2
  replaced = bf16[64,256,64] dynamic-update-slice(rows, row, count), site=2
  result = [] tuple(count, replaced, row)
}
main {
  cache = bf16[64,256,64] parameter(), index=0, op="cache"
  row = bf16[64,1,64] parameter(), index=1, op="row"
  pos = s32[] parameter(), index=2, op="pos"
  copy.1 = bf16[64,256,64] copy(cache)
  given = [] tuple(pos, copy.1, row)
  loop = [] while(given), calls=body, site=2
  after = bf16[64,256,64] get-tuple-element(loop), index=1
  result = [] tuple(after)
}
"""


def program(
    *,
    argument: str = "cache[0]['k']",
    copied: str = "cache",
    before: str = "sum.1 = bf16[64] reduce(cache)",
    after: str = "abs.1 = bf16[64,1,64] abs(row)",
    returned: str = "fusion.1",
    updates: str = "dynamic-update-slice(old, new, at)",
) -> str:
    return CACHE.format(**locals())


def found(tmp_path: Path, text: str) -> dict[str, Any] | None:
    """Return the finding about steps that copy for 100 µs, and do the rest in 50 µs."""
    proto = made_hlo.encode("jit_step", text, LINES)
    host = xspace.Plane("/host:CPU", values={"jax_version": "0.11.2"})
    gpu = xspace.Plane("/device:GPU:0", values={"gpu_device_name": "NVIDIA H100"})
    thread, stream = host.line("python", 1000), gpu.line("Stream #7(Compute)", 1000)
    at = number = 0
    for step in range(4):
        thread.event("train", step * 40 * US, 35 * US, step_num=step)
        for order, (operation, kernel, length) in enumerate(
            (("copy.1", "memcpy128", 100), ("fusion.1", "fusion_1", 10), ("reduce.1", "reduce_1", 40))
        ):
            number += 1
            thread.event("cuLaunchKernel", (step * 40 + order * 10 + 1) * US, US, correlation_id=number)
            stats = {"hlo_op": operation, "program_id": 1, "kernel_details": "regs:1"}
            stream.event(kernel, (10 + at) * US, length * US, correlation_id=number, **stats)
            at += length
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(xspace.encode(host, gpu, made_hlo.plane(jit_step=proto)))
    report = advise(open_trace(path))
    assert not [note for note in report.notes if "unavailable" in note], report.notes
    rows = report.table("findings").rows.to_dicts()
    return next((row for row in rows if row["rule"] == "copied-arguments"), None)


def test_an_argument_that_is_copied_before_it_is_updated_and_returned_is_to_be_donated(
    tmp_path: Path,
) -> None:
    row = found(tmp_path, program())
    assert row is not None
    assert row["what"].startswith(
        "each call of jit(step) copies 1 array of cache (2.00 MiB) only to update a part"
    )
    assert "67 % of device time" in row["what"]
    assert row["where"] == "attend, …/home/me/decode.py:31"
    assert "jax.jit(step, donate_argnames='cache')" in row["instead"]
    assert row["wins_ns"] == pytest.approx(100_000, rel=0.05)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (program(argument="state.mu", before="abs.2 = bf16[64,1,64] abs(row)"), "donate_argnames='state'"),
        (program(argument="args[3]"), "donate_argnums=…"),
        (program(argument=""), "donate_argnums=…"),
        (program(updates="scatter(old, at, new)"), "donate_argnames='cache'"),
        (LOOP, "donate_argnames='cache'"),
    ],
    ids=["an attribute", "positional", "without a name", "scatter", "a loop"],
)
def test_arguments_are_named_as_far_as_they_have_names(tmp_path: Path, text: str, option: str) -> None:
    row = found(tmp_path, text)
    assert row is not None
    assert option in row["instead"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (program(returned="copy.1"), "it returns the copy as it was"),
        (program(returned="row"), "it returns nothing of the size of the argument"),
        (program(after="later = bf16[64] reduce(cache)"), "the argument is read after the update"),
        (program(returned="fusion.1, cache"), "it returns the argument too"),
        (program(before="made = bf16[64,256,64] exponential(cache)", copied="made"), "it copies no argument"),
        (program(updates="add(old, old)"), "it changes all of it"),
    ],
)
def test_a_copy_that_donation_does_not_end_is_not_advised_against(
    tmp_path: Path, text: str, why: str
) -> None:
    assert found(tmp_path, text) is None, why
