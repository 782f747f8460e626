"""On a CPU, the same few short operators are called repeatedly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import in_a_row
from tuiprof.advice.loops.product_loop import over_slices
from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import longest_period, loops
from tuiprof.analyses.shared.frames import ancestry_of, function_label, operator_label, running_at_start
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, distinct
from tuiprof.whatif import Edit, EditRange, HostTime

#: Minimum iterations of a loop.
MIN_PASSES = 8
#: Operators shorter than this on average are dominated by call overhead …
SHORT_NS = 50_000
#: … if they take at least this share of the loop; otherwise the Python code between them dominates.
MIN_INSIDE = 0.25
#: One that takes so long, and so many times as long as usual, waits for what XLA still computes, or is interrupted.
_WAITS_NS, _WAITS_LONGER = 300_000, 10
#: Layers of a model repeat as well, and cannot be called at once. They have their own parameters: autograd
#: accumulates a gradient in (nearly) every iteration. Without a backward pass, these operators indicate layers.
_ACCUMULATES: Final = r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$"
_LAYERS: Final = (
    r"^aten::(linear|conv\dd|(layer|batch|group|instance|rms)_norm|embedding|scaled_dot_product_attention)$"
)
#: One call on the whole batch takes longer than one iteration, at most by this factor.
_LEAST = 4.0
#: Operators that make a number of a tensor.
_READS: Final = frozenset(("item", "is_nonzero", "_local_scalar_dense"))
#: A loop that reads items has at least this share of such operators; in others, reads are only a part of an iteration.
_MIN_READS: Final = 0.2
#: Arithmetic on weights, as of moving averages. Likely, least and most helpful share of the time that one pass over
#: each tensor takes, if the loop has several.
_ARITHMETIC: Final = re.compile(
    r"^(mul|add|sub|div|lerp|copy|addcmul|addcdiv|sqrt|pow|clone|zero|clamp|neg|abs)_?$"
)
_KEEP_PARAMETERS: Final = (0.4, 0.8, 0.1)
#: Operators of a loop whose shapes are read.
_LOOKED_AT: Final = 64
#: Cells of recurrent layers: an iteration needs the state of the one before, so only the whole layer can replace them,
#: if its inputs are known beforehand. The share of their time that it takes: likely, least and most helpful. Measured
#: on one thread of an EPYC (Zen 5), PyTorch 2.13, forward and backward, batches of 1 to 128, widths of 32 to 256, 50 to
#: 200 times: GRU 0.72 to 1.01, tanh 0.57 to 0.92, LSTM (one operator of oneDNN) 0.07 to 0.79.
_CELLS: Final = {
    "gru_cell": ("nn.GRU", (0.85, 1.0, 0.7)),
    "rnn_tanh_cell": ("nn.RNN", (0.8, 1.0, 0.55)),
    "rnn_relu_cell": ("nn.RNN", (0.8, 1.0, 0.55)),
    "lstm_cell": ("nn.LSTM", (0.4, 1.0, 0.1)),
}


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for loops of short operators; those that call the same at one location are one finding."""
    if trace.device_indices:
        return  # with a device, rules about launches cover loops
    in_steps = evidence.stepped
    loops_of_steps = (loop for rows in _threads(trace, in_steps) for loop in _loops_of(trace, rows))
    found = [loop for one in loops_of_steps if (loop := _steady(evidence, one)) is not None]
    # Other rules have those of an optimizer, and those that call a layer on the slices of a tensor.
    apart = evidence.updates.hold(np.array([loop["event"] for loop in found], dtype=np.int64)).tolist()
    slices = np.append(over_slices(evidence.calls), False)  # -1 reads the last one
    found = [
        loop
        for loop, updates in zip(found, apart, strict=True)
        if not (updates or slices[loop["calls"]].any())
    ]
    if not found:
        return
    places = (
        pl.DataFrame(found)
        .group_by("where", "backward", "body", maintain_order=True)
        .agg(
            pl.len().alias("loops"),
            pl.col("track", "start", "end", "times", "waits"),
            pl.col("calls").explode(),
            pl.col("operators", "event").sort_by(pl.col("end") - pl.col("start"), descending=True).first(),
        )
        .to_dicts()
    )
    forward = [place for place in places if not place["backward"]]
    for place in places:
        of = [one for one in forward if _made(one, place)] if place["backward"] else []
        if len(of) == 1:  # autograd repeats the forward loop: one location, one change
            for key in ("track", "start", "end", "times", "waits"):
                of[0][key] += place[key]
            of[0]["with_backward"] = True
        elif place["backward"]:
            forward.append(place)
    jit = "jax.jit" if evidence.is_jax else "torch.compile"
    yield from (_finding(evidence, place, jit) for place in forward)


def _made(forward: dict[str, Any], backward: dict[str, Any]) -> bool:
    """Return whether one loop is the backward pass of the other."""
    made_by = [call for call in backward["calls"] if call >= 0]
    if made_by:
        # In some steps an interruption may hide one of them.
        shares = np.isin(made_by, forward["calls"]).mean(), np.isin(forward["calls"], made_by).mean()
        return bool(max(shares) > 0.5)
    return set(forward["times"]) == set(backward["times"])


def _finding(evidence: Evidence, place: dict[str, Any], jit: str) -> Finding:
    backward = " (and again in the backward pass)" if place.get("with_backward") else ""
    times = np.array(place["times"], dtype=np.float64)
    keeps = [1 / times, np.minimum(_LEAST / times, 1.0), 1 / times]  # one iteration stays
    waits = np.array(place["waits"])  # stay as they are
    because = f"operators of less than {SHORT_NS // 1000} µs repeat in the same order, and calls cost more than work"
    names = set(place["body"])
    if place["backward"]:
        made_by = [call for call in place["calls"] if call >= 0]
        names |= set(map(operator_label, evidence.calls.names_of(np.array(made_by, dtype=np.int64))))
    if cell := next((name for name in _CELLS if name in names), ""):
        layer, shares = _CELLS[cell]
        instead = f"{layer} on the whole sequence, if its inputs do not depend on its outputs"
        keeps = [np.full(len(times), share) for share in shares]
    elif _of_parameters(evidence, place):
        instead = (
            "update all tensors at once and in place, such as torch._foreach_lerp_(averages, list(model.parameters()), "
            "weight)"
        )
        passes = len(place["body"])  # over each tensor, of which one stays
        keeps = [np.full(len(times), max(share, 1 / passes)) for share in _KEEP_PARAMETERS]
        waits = np.zeros_like(waits)  # large matrices take longer
        because = "the same arithmetic on matrices and vectors in turn, as of all parameters"
    elif sum(name in _READS for name in place["body"]) >= _MIN_READS * len(place["body"]):
        instead = "compare all items at once, or make a list of them first: tensor.tolist() or .numpy() before the loop"
    else:
        calls = evidence.calls
        twice = (calls.differentiated_twice & calls.mask(place["calls"])).any()
        instead = "process all items at once: one call on the whole batch (pad and mask if sizes differ)"
        instead += "" if twice else f"; or {jit}"
    keeps = [waits + (1 - waits) * keep for keep in keeps]
    tracks, starts, ends = (np.array(place[key], dtype=np.int64) for key in ("track", "start", "end"))
    often = evidence.how_often(place["loops"])
    several = f", {often}" if place["loops"] >= 2 * max(evidence.step_count, 1) else ""
    low, high = evidence.trace.span
    part = float((ends - starts).sum()) / (high - low)
    line = evidence.line_taking(part, "", "copies", "prints a tensor")
    return Finding(
        f"{'autograd runs' if place['backward'] else 'a loop runs'} the same short operators "
        f"{np.median(times):.0f} times in a row{several}{backward}: {place['operators']}",
        place["where"] or (line.where if line is not None else ""),
        instead,
        "low" if cell else "medium",
        because,
        *EditRange(*(Edit(host=HostTime(tracks, starts, ends, keep)) for keep in keeps)),
        event=place["event"],
    )


def _of_parameters(evidence: Evidence, place: dict[str, Any]) -> bool:
    """Return whether the tensors of a loop have as different shapes as parameters: matrices and vectors in turn."""
    if place["backward"] or not all(_ARITHMETIC.match(name) for name in place["body"]):
        return False
    rows = evidence.calls.rows[np.array(place["calls"], dtype=np.int64)]
    rows = rows[evidence.trace.named(f"^{re.escape(evidence.trace.name(place['event']))}$", rows)]
    dims = (given.dims[0] for _, given in arguments(evidence.trace, rows[:_LOOKED_AT]) if given.dims)
    ranks = [len(shape) for shape in dims if isinstance(shape, list)]
    return len(ranks) >= MIN_PASSES and 0 < ranks.count(1) < len(ranks)


def _steady(evidence: Evidence, loop: dict[str, Any]) -> dict[str, Any] | None:
    """Return a loop with its calls (for backward nodes, the forward calls).

    None = its iterations are layers, or those of one operator, as of ``nn.GRU`` on a CPU.
    """
    trace, calls = evidence.trace, evidence.calls
    within = (calls.tracks == loop["track"]) & (trace.starts[calls.rows] >= loop["start"])
    within &= trace.ends[calls.rows] <= loop["end"]
    accumulates = trace.named(_ACCUMULATES, calls.rows)
    if loop["backward"]:
        created = calls.forward[within]
        made = len(np.unique(created[created >= 0]))
        if (within & accumulates).sum() >= loop["times"] / 2 or 0 < made < loop["times"] / 2:
            return None
        if (within & (calls.created_in >= 0)).sum() >= loop["times"] / 2:
            return None
        return loop | {"calls": calls.forward[within].tolist()}
    nodes = np.isin(calls.forward, np.flatnonzero(within))
    if nodes.any():
        # A gradient is accumulated right after the node that computed it.
        last_node = np.maximum.accumulate(np.where(calls.backward & ~accumulates, np.arange(len(nodes)), 0))
        if nodes[last_node[accumulates]].sum() >= loop["times"] / 2:
            return None
    elif trace.named(_LAYERS, calls.rows[within]).any() and not _calls_a_model(trace, loop):
        return None
    return loop | {"calls": np.flatnonzero(within).tolist()}


def _calls_a_model(trace: Trace, loop: dict[str, Any]) -> bool:
    """Return whether each iteration calls a model, so the layers belong to a single call of the model."""
    forward = np.flatnonzero(trace.named("^forward$") & trace.is_category("annotation"))
    within = (trace.starts[forward] < loop["end"]) & (trace.ends[forward] > loop["start"])
    return bool(within.sum() >= loop["times"])


def _threads(trace: Trace, in_steps: bool) -> Iterator[Ints]:
    """Return the outermost operators of each thread in each step, without those that make batches."""
    rows = outermost(trace, trace.operators())
    loading = fetches(trace)
    if len(loading):
        last = loading[np.maximum(np.searchsorted(trace.starts[loading], trace.starts[rows], "right") - 1, 0)]
        begun = trace.starts[last] <= trace.starts[rows]
        rows = rows[~(begun & (trace.ends[rows] <= trace.ends[last]))]
    tracks, steps = trace.ints("track")[rows], trace.steps.step_of[rows]
    for track in distinct(tracks).tolist():
        for step in distinct(steps[tracks == track]).tolist():
            if not in_steps or step >= 0:
                yield rows[(tracks == track) & (steps == step)]


def _loops_of(trace: Trace, rows: Ints) -> Iterator[dict[str, Any]]:
    """Find the loops of one thread in one step."""
    starts, ends = trace.starts[rows], trace.ends[rows]
    codes = trace.name_codes[rows].astype(np.int32)
    for first, period, times in loops(codes, longest_period(len(codes)), MIN_PASSES):
        lengths = (ends - starts)[first : first + period * times]
        span = int(ends[first + period * times - 1] - starts[first])
        # On an overloaded machine some of them take longer.
        usual_ns = float(np.median(lengths.reshape(times, period), axis=0).mean())
        if usual_ns >= SHORT_NS or lengths.sum() < MIN_INSIDE * span:
            continue
        each = lengths.reshape(times, period)
        long = (each >= _WAITS_NS) & (each >= _WAITS_LONGER * np.median(each, axis=0))
        around = ancestry_of(trace, rows[first : first + 1])
        names = [operator_label(trace.name(int(row))) for row in rows[first : first + period]]
        frame, annotation = int(around.frames[0, 0]), int(around.annotation[0])
        where = function_label(trace.names[frame], running_at_start(trace)) if frame >= 0 else ""
        range_ = trace.names[annotation] if annotation >= 0 else ""
        yield {
            "where": where or range_,
            "body": sorted(names),
            "backward": trace.name(int(rows[first])).startswith("autograd::engine"),
            "track": int(trace.track_codes[rows[first]]),
            "start": int(starts[first]),
            "end": int(ends[first + period * times - 1]),
            "times": times,
            "waits": float(each[long].sum()) / span,
            "operators": in_a_row(names),
            "event": int(rows[first]),
        }


RULE = AdviceRule("operator-loop", find)
