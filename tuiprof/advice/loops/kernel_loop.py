"""The same few operators with short kernels are called repeatedly, item by item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import in_a_row
from tuiprof.advice.loops.product_loop import over_slices
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared.calls import ACCUMULATE, BACKWARD, Calls, longest_period, loops
from tuiprof.analyses.shared.collectives import buffer_broadcasts
from tuiprof.analyses.shared.formatting import formatted
from tuiprof.analyses.shared.optimizers import CLEARS
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.units import format_count
from tuiprof.whatif import Edit

#: Maximum operators per iteration, and minimum iterations of a loop. Longer iterations (:func:`longest_period`) are
#: looked for once, with those that copy from the host.
LONGEST_PERIOD, MIN_PASSES = 40, 12
#: A loop inside another one is short each time (the sequences of a batch, for each new token): minimum iterations each
#: time, and in a step.
MIN_INNER, MIN_INNER_IN_ALL = 6, 48
#: Minimum iterations of a loop whose results are joined, as those of the heads of an attention: none builds on another.
MIN_JOINED = 4
#: Longer kernels compute more than their launch costs. Those of one call may take longer, if not those of its loop.
SHORT_NS: Final = 15_000
_LONGEST_NS: Final = 4 * SHORT_NS
#: Layers of a model repeat as well; these loops must not contain operators typical of layers. Products with nothing
#: between them are no layers, which have an activation each; nor are products without trained weights in a step that
#: trains others. Copies from the host have their own rule.
_LAYERS: Final = ("gemm", "convolution", "attention", "norm")
_PRODUCT: Final = r"^aten::(matmul|mm|bmm|addmm|baddbmm|einsum)$"
_TABLES_AND_COPIES: Final = r"HtoD|(?i:embedding)"
#: But an iteration may have some of these, if at least this share of its calls is of other kinds.
_MIN_REPEATABLE: Final = 0.75
#: Reads of values have rules of their own.
_READS: Final = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
#: Maximum number of calls with device work between two passes over the same items.
_MAX_BETWEEN: Final = 8
#: Share of the device work of many short kernels that remains when done for all items at once: likely, least, most.
_KEEP: Final = (0.3, 1.0, 0.1)
#: The gradient of a part of a tensor is as large as the tensor, and zero in the rest. One of all parts is made once.
_OF_PARTS: Final = rf"^{BACKWARD}(Select|Slice|Index|IndexSelect|Gather|Diagonal|AsStrided)Backward"
#: What joins the results of all iterations, right after the last one.
_JOINS: Final = r"^aten::(stack|cat|concat|concatenate|hstack|vstack)$"
_IF_IT_STAYS: Final = "; if the loop must stay, compile it or capture it in a CUDA graph"
_SAMPLES: Final = "process all items at once: one call on the whole batch (pad and mask if sizes differ)"
_PARAMETERS: Final = "update all tensors at once: torch._foreach_*, or clip_grad_norm_(foreach=True)"
_EITHER: Final = (
    "process all items at once: torch._foreach_* over parameters, one call on a padded batch over samples"
)
_PRODUCTS: Final = "multiply all items at once: one wider layer, or torch.bmm with stacked weights"
_TABLES: Final = "use one table for all of them, with an offset added to the ids of each"
_FILL: Final = (
    "fill all parts at once: masked_fill_ with one mask, made by comparing their limits with torch.arange"
)
#: What sets a tensor to a value, and what returns a part of a tensor.
_FILLS: Final = ("aten::fill_", "aten::zero_")
_TAKES_PART: Final = r"^aten::(slice|select|narrow)$"
_LIST: Final = "collect the parts in a list, and join them once"
#: What changes each of several tensors in place, or computes their norms.
_OF_PARAMETERS: Final = re.compile(r"[a-z]_$|(::|vector_|matrix_|linalg_|frobenius_)norm$")
_JAX: Final = (
    "one jax.jit around the loop or the whole step; or process all items at once (jax.vmap; pad, then mask)"
)
_JAX_FUNCTION: Final = "one jax.jit around all of them: the function that they are in, or the whole step"


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop of calls with device work, or several one after the other that end with the same change."""

    calls: Ints  # those of all iterations, as indices, with what joins their results
    period: int  # calls with device work in an iteration
    times: int  # iterations
    stays: int  # iterations whose host time remains once all items are done at once
    first: int = 0  # the first call of the longest of several loops, which the other fields describe
    count: int = 1  # how many loops it is
    function: str = ""  # that holds all of several loops

    def body(self, calls: Calls) -> Ints:
        """Return the calls with device work of the first iteration."""
        return self.calls[(calls.work_count[self.calls] > 0) & (self.calls >= self.first)][: self.period]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Which calls may be in a loop."""

    repeatable: Mask
    product: Mask  # products with short kernels
    copies: Mask  # copies from the host and lookups in tables, among others


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for loops of operators with short kernels outside the optimizer; those of one place are one finding."""
    if not trace.device_indices:
        return
    kinds = _kinds(evidence.calls)
    product = kinds.product
    begin = 0.0
    slices = over_slices(evidence.calls)  # these have a rule of their own
    found = (loop for loop in _all_loops(evidence, kinds) if not slices[loop.calls].any())
    for place in _places(evidence, found):
        end = begin + _share_of_weights(evidence.calls, place)
        fewer = _fewer_weights(evidence, begin, end) if end > begin else Edit()
        yield _finding(evidence, place, product, fewer)
        begin = end


def _places(evidence: Evidence, found: Iterable[_Loop]) -> list[list[_Loop]]:
    """Return the loops of each place: those of the same calls in the same function, and what belongs together there.

    Without Python frames and lines, all loops of the same calls are of one place.
    """
    calls = evidence.calls
    ordered = sorted(found, key=lambda loop: int(loop.calls[0]))
    if evidence.is_jax:
        ordered = _in_one_jit(evidence, ordered)
    functions = evidence.functions_of(calls.rows[[loop.calls[0] for loop in ordered]])
    keys = [
        (
            loop.function or function,
            evidence.line_in(loop.calls),
            np.sort(calls.codes[loop.body(calls)]).tobytes(),
        )
        for function, loop in zip(functions, ordered, strict=True)
    ]
    place_of = {key: key for key in keys}
    for one, other in _together(evidence, ordered):
        (function, line, _), (other_function, other_line, _) = keys[one], keys[other]
        # Only loops that wait have a line.
        if function == other_function and (line == other_line or not line or not other_line):
            joined, into = place_of[keys[other]], place_of[keys[one]]
            place_of |= {key: into for key, place in place_of.items() if place == joined}
    places: dict[tuple[str, str, bytes], list[_Loop]] = {}
    for loop, key in zip(ordered, keys, strict=True):
        places.setdefault(place_of[key], []).append(loop)
    return list(places.values())


def _in_one_jit(evidence: Evidence, ordered: Sequence[_Loop]) -> list[_Loop]:
    """Join the loops that follow each other in one call of a function, as one jit of it ends all of them.

    What is called between them is in that jit as well. Without Python frames, nothing is joined.
    """
    trace, calls = evidence.trace, evidence.calls
    firsts, lasts = (calls.rows[[loop.calls[at] for loop in ordered]] for at in (0, -1))
    holding = _frames.functions_holding(trace, firsts, lasts, jax=True)
    chains = list[list[int]]()
    for index, loop in enumerate(ordered):
        if chains and holding[index] >= 0 and holding[index] == holding[chains[-1][0]]:
            before = ordered[chains[-1][-1]]
            between = calls.between(int(before.calls[-1]), int(loop.calls[0]))[1:-1]
            if (
                calls.steps[before.calls[0]] == calls.steps[loop.calls[0]]
                and calls.work_count[between].sum() <= _MAX_BETWEEN
            ):
                chains[-1].append(index)
                continue
        chains.append([index])
    running, joined = _frames.running_at_start(trace), list[_Loop]()
    for chain in chains:
        loops_of = [ordered[index] for index in chain]
        longest = max(loops_of, key=lambda loop: loop.period * loop.times)
        if len(chain) > 1:
            longest = replace(
                longest,
                calls=calls.between(int(loops_of[0].calls[0]), int(loops_of[-1].calls[-1])),
                first=int(longest.calls[0]),
                count=len(chain),
                function=_frames.function_label(trace.name(int(holding[chain[0]])), running),
            )
        joined.append(longest)
    return joined


def _together(evidence: Evidence, ordered: Sequence[_Loop]) -> Iterator[tuple[int, int]]:
    """Yield two loops, as indices, if the same change removes both.

    One call joins the results of both right after them, or both pass over the same items without gradients, one soon
    after the other: the norms of all gradients, and their scaling.
    """
    calls = evidence.calls
    joined, other = _joined_results(calls), calls.backward | evidence.updates.hold(calls.rows)
    in_a_row: dict[tuple[int, int], list[int]] = {}  # of each thread and step, with nothing between
    for index, loop in enumerate(ordered):
        first, last = int(loop.calls[0]), int(loop.calls[-1])
        row = in_a_row.setdefault((int(calls.tracks[first]), int(calls.steps[first])), [])
        if row:
            before = ordered[row[-1]]
            between = slice(int(before.calls[-1]) + 1, first)
            count = int((calls.work_count[between][calls.tracks[between] == calls.tracks[first]] > 0).sum())
            same_items = before.times == loop.times and not other[between].any()
            if (
                same_items
                and count <= _MAX_BETWEEN
                and not calls.differentiated[[*before.calls, *loop.calls]].any()
            ):
                yield row[-1], index
            if count:
                row.clear()
        row.append(index)
        if joined[last] == sum(ordered[one].times for one in row):
            yield from ((row[0], one) for one in row[1:])


def _finding(evidence: Evidence, found: Sequence[_Loop], product: Mask, fewer: Edit) -> Finding:
    """Return what is said about the loops of a place."""
    trace, calls = evidence.trace, evidence.calls
    once = np.ones(len(calls.rows))
    for loop in found:
        once[loop.calls] = loop.stays / loop.times
    whole = calls.with_backward(once < 1)
    once = np.where(calls.forward >= 0, np.minimum(once, once[calls.forward]), once)
    of_parts = trace.named(_OF_PARTS, calls.rows)
    edit, works = calls.edit(whole, once), calls.call_of_work[calls.launched_by(whole)]
    of_parts, once = of_parts[works], once[works]
    likely, least, most = (
        replace(edit, keep=np.where(of_parts, np.minimum(part, np.maximum(once, part * _KEEP[0])), part))
        for part in _KEEP
    )
    largest = max(found, key=lambda loop: loop.period * loop.times)
    body = largest.body(calls)
    first = int(body[0])
    per_step = round(sum(loop.count for loop in found) / evidence.step_count)
    what = f"{in_a_row(calls.names_of(body))} {largest.times} times in a row"
    if largest.count > 1:
        made = np.concatenate([loop.calls for loop in found])
        of_jax = format_count(round((calls.work_count[made] > 0).sum() / evidence.step_count))
        what = (
            f"{largest.count} loops that follow each other call {of_jax} operations of JAX a step one by one; "
            f"the longest calls {what}"
        )
    else:
        what = f"a loop calls {what}" + (f", one of {per_step} loops a step" if per_step > 1 else "")
    return Finding(
        what,
        largest.function or evidence.line_in(largest.calls) or evidence.function_of(int(calls.rows[first])),
        _fix(evidence, largest, product[first]),
        "medium",
        f"operators whose kernels take less than {SHORT_NS // 1000} µs repeat in the same order",
        likely | fewer,
        least,
        most | fewer,
        proof="giou-kernel:jax,jax-jit" if evidence.is_jax else "",
        event=int(calls.rows[first]),
    )


def _fix(evidence: Evidence, loop: _Loop, multiplies: bool) -> str:
    """Return what to write instead of a loop."""
    calls = evidence.calls
    if evidence.is_jax:
        return _JAX_FUNCTION if loop.count > 1 else _JAX
    body = loop.body(calls)
    parts = int(calls.trace.named(_TAKES_PART, calls.rows[loop.calls]).sum())
    if parts >= loop.times and all(name in _FILLS for name in calls.names_of(body)):
        return _FILL + _IF_IT_STAYS
    return _instead(calls, body, multiplies) + _IF_IT_STAYS


def _instead(calls: Calls, body: Ints, multiplies: bool) -> str:
    """Return what to write instead of a loop with these calls in an iteration."""
    names = calls.names_of(body)
    if multiplies:
        return _PRODUCTS
    if any("embedding" in name for name in names):
        return _TABLES
    if all(re.match(_JOINS, name) for name in names):
        return _LIST
    if calls.differentiated[body].any() or any(name.startswith(BACKWARD) for name in names):
        return _SAMPLES
    return _PARAMETERS if all(_OF_PARAMETERS.search(name) or name in _READS for name in names) else _EITHER


def _share_of_weights(calls: Calls, found: Sequence[_Loop]) -> float:
    """Return the share of all weights that disappears if the weights of all iterations become one."""
    makers = _with_weights(calls)
    counts = [(int(np.isin(makers, loop.calls).sum()), loop) for loop in found]
    gone = sum(count * (1 - loop.stays / loop.times) for count, loop in counts if count >= loop.times)
    return gone / max(len(makers), 1)


def _fewer_weights(evidence: Evidence, begin: float, end: float) -> Edit:
    """Return the edit in which the optimizer's host time lacks a part, as it falls with the number of weights.

    Each place removes a part of its own, so that all places together remove the sum.
    """
    trace = evidence.trace
    clears = outermost(trace, trace.host_events(CLEARS))
    edit = Edit.of_host(trace, clears) | replace(evidence.without_updates(0.0, 1.0), waits=clears[:0])
    host, length = edit.host, edit.host.ends - edit.host.starts
    starts, ends = (host.starts + (length * part).astype(np.int64) for part in (begin, end))
    return replace(edit, host=replace(host, starts=starts, ends=ends))


def _all_loops(evidence: Evidence, kinds: _Kinds) -> Iterator[_Loop]:
    """Yield the loops of each thread and step; each call is in at most one."""
    calls, repeatable, product = evidence.calls, kinds.repeatable, kinds.product
    joined, sums = _joined_results(calls), _sums_of_gradients(calls)
    joins = calls.trace.named(_JOINS, calls.rows)
    for run in _runs(evidence):
        left = np.ones(len(run), dtype=bool)
        for first, period, times, last in _of_joined(calls, run, (repeatable | product)[run], joined, sums):
            left[first : last + 1] = False
            yield _Loop(calls.between(int(run[first]), int(run[last])), period, times, 1)
        for first, period, times in _loops(
            calls, run, repeatable[run] & left, (product & ~repeatable)[run] & left, kinds.copies[run] & left
        ):
            if all(calls.names[index] in _READS for index in run[first : first + period].tolist()):
                continue
            last = first + period * times - 1
            last += int(joins[run[last + 1 : last + 2]].any())
            yield _Loop(calls.between(int(run[first]), int(run[last])), period, times, 2)


def _loops(
    calls: Calls, run: Ints, repeatable: Mask, product: Mask, copies: Mask
) -> Iterator[tuple[int, int, int]]:
    """Yield the first call, as an index into the run, the period and the iterations of each loop of short kernels."""
    codes, of_products = (np.where(which, calls.codes[run], np.int32(-1)) for which in (repeatable, product))
    long = list[tuple[int, int, int]]()
    for first, period, times in loops(codes, LONGEST_PERIOD, MIN_PASSES):
        loop = slice(first, first + period * times)
        if _is_short(calls, run[loop]):
            long.append((first, period, times))
            codes[loop] = -1
    with_copies = np.where(copies, calls.codes[run], codes).astype(np.int32)
    for first, period, times in loops(with_copies, longest_period(len(run)), MIN_PASSES):
        loop = slice(first, first + period * times)
        if (codes[loop] >= 0).mean() >= _MIN_REPEATABLE and _is_short(calls, run[loop]):
            long.append((first, period, times))
            codes[loop] = -1
    codes[calls.work_ns[run] >= SHORT_NS * calls.work_count[run]] = -1
    long += loops(codes, LONGEST_PERIOD, MIN_PASSES)
    yield from long
    yield from loops(of_products, LONGEST_PERIOD, MIN_PASSES)
    yield from _inner(codes, long)


def _is_short(calls: Calls, loop: Ints) -> bool:
    return bool(calls.work_ns[loop].sum() < SHORT_NS * calls.work_count[loop].sum())


def _of_joined(
    calls: Calls, run: Ints, short: Mask, joined: Ints, sums: Ints
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the loops whose results are joined right after, of as many as they have iterations, and where that is.

    They may have weights of their own. Layers that build on each other usually leave one result. If all their results
    are joined nevertheless (jumping knowledge, DETR's auxiliary losses), the input of the last layer has two uses, so
    that its gradients are summed, and the input of the first layer has one.
    """
    if not (joined[run] >= MIN_JOINED).any():
        return
    codes = np.where(short, calls.codes[run], np.int32(-1))
    for first, period, times in loops(codes, LONGEST_PERIOD, MIN_JOINED):
        end = first + period * times
        # The loop may begin within an iteration.
        join = next((at for at in range(end, min(end + period, len(run))) if joined[run[at]] == times), None)
        builds_up = (sums[run[end - period : end]] > sums[run[first : first + period]]).any()
        if join is not None and not builds_up and _is_short(calls, run[first:end]):
            yield first, period, times, join


def _sums_of_gradients(calls: Calls) -> Ints:
    """Return how many gradients the backward nodes of each call add to those of other uses of its inputs."""
    inside = calls.inside(np.flatnonzero(calls.trace.named(r"^aten::add_?$")))
    count = np.bincount(inside[inside >= 0], minlength=len(calls.rows))
    nodes = np.flatnonzero(calls.backward & (calls.forward >= 0))
    return np.bincount(calls.forward[nodes], count[nodes], minlength=len(calls.rows)).astype(np.int64)


def _joined_results(calls: Calls) -> Ints:
    """Return how many tensors each call joins, as its backward node shows, which takes them apart; 0 = unknown."""
    parts = calls.inside(np.flatnonzero(calls.trace.named(r"^aten::(narrow|select)$")))
    count = np.bincount(parts[parts >= 0], minlength=len(calls.rows))
    nodes = np.flatnonzero(
        calls.trace.named(f"^{BACKWARD}(Cat|Stack)Backward", calls.rows) & (calls.forward >= 0)
    )
    result = np.zeros(len(calls.rows), dtype=np.int64)
    result[calls.forward[nodes]] = count[nodes]
    return result


def _inner(codes: npt.NDArray[np.int32], long: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the loops of two and more operators that are short each time, and run many times in a step."""
    rest = codes.copy()
    for first, period, times in long:
        rest[first : first + period * times] = -1
    of_body: dict[bytes, list[tuple[int, int, int]]] = {}
    for first, period, times in loops(rest, LONGEST_PERIOD, MIN_INNER):
        if period > 1:
            of_body.setdefault(np.sort(codes[first : first + period]).tobytes(), []).append(
                (first, period, times)
            )
    for same in of_body.values():
        if sum(times for _, _, times in same) >= MIN_INNER_IN_ALL:
            yield from same


def _runs(evidence: Evidence) -> Iterator[Ints]:
    """Yield the calls with device work of each thread and step, except of optimizers, DDP and the backward pass."""
    trace, calls = evidence.trace, evidence.calls
    of_ddp = trace.named(r"^torch(\.|::)distributed", calls.rows) | buffer_broadcasts(calls)
    # Fills of gradients with zeros have a rule of their own, and so have tensors that are formatted as text.
    of_others = calls.backward | evidence.updates.hold(calls.rows) | of_ddp | calls.within(CLEARS)
    of_others |= calls.mask(*formatted(trace))
    busy = np.flatnonzero((calls.work_count > 0) & ~of_others)
    keys = calls.tracks[busy].astype(np.int64) * (len(trace.steps) + 1) + calls.steps[busy] + 1
    for key in np.unique(keys):
        yield busy[keys == key]


def _kinds(calls: Calls) -> _Kinds:
    """Return what calls may be in a loop."""
    trace = calls.trace
    with_layer, with_copy, with_product = (
        calls.work_count_of(works) > 0
        for works in (
            calls.works_of(*_LAYERS[1:]),
            trace.named(_TABLES_AND_COPIES, trace.device_work),
            calls.works_of(_LAYERS[0]),
        )
    )
    mean = calls.work_ns / np.maximum(calls.work_count, 1)
    untrained = trace.named(_PRODUCT, calls.rows) & ~_trains(calls)
    may = ~with_layer & (~with_product | untrained) & (mean < _LONGEST_NS)
    product = with_product & ~with_layer & ~with_copy & (mean < SHORT_NS)
    return _Kinds(may & ~with_copy, product & trace.named("^aten::", calls.rows), may & with_copy)


def _trains(calls: Calls) -> Mask:
    """Return which calls may have weights: autograd accumulates a gradient after theirs, or none in the step."""
    accumulates, makers = calls.trace.named(ACCUMULATE, calls.rows), _with_weights(calls)
    return np.isin(calls.steps, calls.steps[accumulates], invert=True) | calls.mask(makers)


def _with_weights(calls: Calls) -> Ints:
    """Return the call that each accumulated gradient belongs to: that of the node before it; -1 = unknown."""
    accumulates = calls.trace.named(ACCUMULATE, calls.rows)
    nodes = np.where(calls.backward & ~accumulates, np.arange(len(calls.rows)), -1)
    before = np.maximum.accumulate(nodes)[accumulates]
    return calls.forward[before[before >= 0]]


RULE = AdviceRule("kernel-loop", find)
