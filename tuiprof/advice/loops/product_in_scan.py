"""A compiled loop multiplies one slice after another by the same weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.compiled.instructions import carried_out, source_of
from tuiprof.analyses.shared.compiled.scans import LoopProduct, Shared, shared_products
from tuiprof.analyses.shared.kernel_names import is_fp32_gemm
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, distinct
from tuiprof.model.programs import Program
from tuiprof.model.units import format_count, format_rough_share, plural
from tuiprof.whatif import Edit, EditRange
from tuiprof.whatif.chips import Chip, find_chip

#: Share of the chip's peak that a large product reaches: likely, where it helps least and most.
_OF_PEAK: Final = (0.6, 0.4, 0.85)
#: Share of the time that remains on an unknown chip, likewise.
_UNKNOWN_CHIP: Final = (0.4, 1.0, 0.15)
#: What the table of chips calls the types of products. XLA computes those of float32 in TF32 where the chip has it.
_RATES: Final = {
    "f64": ("float64",),
    "f32": ("tfloat32", "float32"),
    "bf16": ("bfloat16", "float16"),
    "f16": ("float16", "bfloat16"),
    "s8": ("int8",),
}
#: Maximum share of the device's memory that the results of all iterations may take.
_OF_MEMORY: Final = 0.1
_INSTEAD: Final = {
    "before": "multiply the inputs of all iterations at once before the scan, and scan over the products: "
    "lax.scan(cell, init, xs @ w)",
    "after": "return what is multiplied from the scan, and multiply it for all iterations at once after it: hs @ w",
}
_APART: Final = (
    "multiply the inputs of all iterations by their rows of the weights before the scan, and in the scan only the "
    "state by the others: lax.scan(cell, init, xs @ w[:n]) with x + h @ w[n:] in the cell"
)


@dataclass(frozen=True, slots=True)
class _Launched:
    """A product and the kernels that make it."""

    product: LoopProduct
    rows: Ints  # in order of start
    sums: Ints  # rows of what adds its results up

    def merged(self, trace: Trace, chip: Chip | None, part: int) -> Edit:
        """Return the change in which one product replaces those of all iterations; ``part`` indexes the estimates."""
        keep, codes = _UNKNOWN_CHIP[part], trace.name_codes[self.rows]
        # A product may take several kernels, each of which runs in every iteration.
        each = [self.rows[codes == code] for code in distinct(codes).tolist()]
        slow = any(is_fp32_gemm(trace.name(int(rows[0]))) for rows in each)
        kinds = ("float32",) if slow else _RATES.get(self.product.dtype, ())
        rates = chip.operations_per_s if chip is not None else {}
        rate = next((rates[kind] for kind in kinds if kind in rates), None)
        if chip is not None and rate is not None:
            seconds = max(self.product.operations / rate, self.product.bytes / chip.bytes_per_s)
            whole_ns = max(map(len, each)) * seconds * 1e9 / _OF_PEAK[part]
            keep = min(whole_ns / max(int(trace.lengths(self.rows).sum()), 1), 1.0)
        moves = self.product.moves
        # Kernels that remain whole take as long as the one product: the others are not launched.
        merged = Edit.all_of(
            Edit.of_work(rows, 1 - moves + moves * np.diff(np.floor(np.arange(len(rows) + 1) * keep)))
            for rows in each
        )
        return (
            merged
            if (merged.keep == 1).all()
            else merged | Edit.of_work(self.sums, 1 - self.product.sums_move)
        )


@dataclass(frozen=True, slots=True)
class _Moved:
    """A product that moves out of its loops, with those of its gradients, and what only gets their operands."""

    products: list[_Launched]  # the product first
    slices: Ints  # rows
    parts: list[
        tuple[Ints, float]
    ]  # rows of what gets those of products that leave in part, and which part does

    def edit(self, trace: Trace, chip: Chip | None, part: int) -> Edit:
        """Return the change; ``part`` indexes the estimates."""
        merged = Edit.all_of(one.merged(trace, chip, part) for one in self.products)
        parts = (Edit.of_work(rows, 1 - moves) for rows, moves in self.parts)
        return (
            merged if (merged.keep == 1).all() else Edit.all_of((merged, Edit.of_work(self.slices), *parts))
        )


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for products that all iterations of a loop can share."""
    if not trace.device_indices:
        return
    found = defaultdict[Shared, list[_Moved]](list)
    done = carried_out(trace)
    for program in done.programs:
        for moved in _moved(
            program, done.rows_of(program), trace.info.devices[0].memory_bytes if trace.info.devices else None
        ):
            found[moved.products[0].product.shared].append(moved)
    for kind, chosen in found.items():
        yield _finding(trace, evidence, kind, chosen)


def _moved(program: Program, rows_of: Mapping[str, Ints], memory: int | None) -> Iterator[_Moved]:
    """Yield the products of a program that move out of their loops, if their results fit into the memory."""
    groups = list(shared_products(program))
    moving = {one.carrier.id for same in groups for one in same if one.moves == 1}
    for same in groups:
        stacked = max(one.result_bytes * one.trips for one in same if not one.backward)
        launched = [
            _Launched(one, rows_of[one.carrier.name], _rows(rows_of, one.sums))
            for one in same
            if one.carrier.name in rows_of
        ]
        if not launched or launched[0].product.backward:
            continue  # it is of a loop that did not run
        if memory is not None and stacked > _OF_MEMORY * memory:
            continue
        slices = {name for one in same for name, users in one.slices.items() if users <= moving}
        parts = [
            (
                _rows(rows_of, [name for name, users in one.slices.items() if users <= {one.carrier.id}]),
                one.moves,
            )
            for one in same
            if one.moves < 1
        ]
        joins = {name for one in same for name in one.joins}
        yield _Moved(launched, _rows(rows_of, sorted(slices | joins)), parts)


def _rows(rows_of: Mapping[str, Ints], names: Iterable[str]) -> Ints:
    """Return the rows of some launches that ran."""
    return np.concatenate(
        [np.empty(0, dtype=np.int64), *(rows_of[name] for name in names if name in rows_of)]
    )


def _finding(trace: Trace, evidence: Evidence, kind: Shared, chosen: list[_Moved]) -> Finding:
    """Return the finding about products that move out of loops in one direction."""
    chip = find_chip(trace.info.device_name)
    every = [one for moved in chosen for one in moved.products]
    largest = max((moved.products[0] for moved in chosen), key=lambda one: int(trace.lengths(one.rows).sum()))
    share = sum(one.product.moves * evidence.share_of_device_time(one.rows) for one in every)
    trips = largest.product.trips
    times = f"each of {format_count(trips)} iterations" if trips else "each iteration"
    what = "a slice of its input" if kind == "before" else "a result that it only returns"
    with_state = largest.product.moves < 1
    what += ", joined with its state," if with_state else ""
    gradients = ", gradients included" if any(one.product.backward for one in every) else ""
    where = source_of(largest.product.instruction)
    others = {source_of(moved.products[0].product.instruction) for moved in chosen} - {where, ""}
    edits = (Edit.all_of(moved.edit(trace, chip, part) for moved in chosen) for part in range(3))
    return Finding(
        f"in {times}, a scan multiplies {what} by the same weights: {format_rough_share(share)} of device time"
        + gradients,
        f"{where} and {plural(len(others), 'other line')}" if others else where,
        _APART if with_state else _INSTEAD[kind],
        "high",
        "the compiled program: a product of what is joined is the sum of the products of its parts"
        if with_state
        else "the compiled program: the state of the loop takes no part in the product"
        if kind == "before"
        else "the compiled program: the loop does not use the product itself",
        *EditRange(*edits),
        event=int(trace.longest(largest.rows)),
    )


RULE = AdviceRule("product-in-scan", find)
