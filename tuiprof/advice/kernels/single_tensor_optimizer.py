"""The optimizer updates one parameter at a time, or many optimizers step one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import index_of_outer
from tuiprof.analyses.shared.optimizers import CLEARS
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_count
from tuiprof.whatif import Edit, EditRange, HostTime

#: Optimizers of torch.optim that support ``fused=True``, and those that support only ``foreach=True``.
_FUSED: Final = frozenset(("Adagrad", "Adam", "AdamW", "SGD"))
_FOREACH: Final = frozenset(("ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"))
#: Minimum number of launches in one optimizer step.
MIN_LAUNCHES = 50
#: Share of the host time and of the device work of a per-parameter update that a fused step takes: likely, least and
#: most helpful.
_KEEP_HOST: Final = (0.05, 0.1, 0.025)
_KEEP: Final = (0.35, 0.6, 0.2)
#: On a CPU, the minimum number of operators in one optimizer step, and the share of the step that a fused one takes:
#: of optimizers that divide by the root of a moment, whose operators read a large parameter a dozen times, and of
#: others, if their operators are short; the latter also for ``foreach=True``. docs/predictions.md has measurements.
_MIN_OPERATORS: Final = 8
_SHORT_NS: Final = 50_000
_OF_MOMENTS: Final = (0.22, 0.36, 0.1)
_OF_OTHERS: Final = (0.45, 1.0, 0.2)
_OF_FOREACH: Final = (0.7, 1.0, 0.45)
#: Operators on a sparse gradient, which neither a fused optimizer nor one over all parameters takes.
_SPARSE: Final = "^aten::(_nnz|_values)$"
#: Minimum number of steps of optimizers that one optimizer could do at once.
MIN_OPTIMIZERS = 8
#: Operators that identify a forward pass.
_LAYERS: Final = r"^aten::(linear|conv\dd|matmul|bmm|mm|addmm|embedding|lstm|gru)$"
#: Number of such steps that take as long on the host as one step over all parameters: likely, least and most helpful.
#: Estimates: the fixed part of a step is that of one optimizer, and the rest grows with the number of parameters.
_AS_LONG: Final = (3.0, 6.0, 1.5)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for optimizer steps with many launches and no multi-tensor kernel."""
    rows = evidence.updates.rows
    if not len(rows):
        return
    count = steps_in_a_row(evidence, rows)
    if count >= MIN_OPTIMIZERS:
        yield _many(trace, evidence, rows, count)
        return
    if not trace.device_indices:
        yield from _on_cpu(trace, evidence)
        return
    work = evidence.update_work
    launches = np.unique(trace.links.launch_of[work])
    if len(launches) < MIN_LAUNCHES * len(rows) or trace.named("multi_tensor_apply|fused|Fused", work).any():
        return
    name = trace.name(int(rows[0]))
    instead, has_fused = fewer_calls(evidence, name)
    yield Finding(
        f"the optimizer launches {len(launches) / len(rows):.0f} kernels a step, one parameter at a time",
        name,
        instead,
        "high",
        "Optimizer.step launches no multi-tensor kernel",
        *EditRange.over(evidence.without_updates, _KEEP_HOST, _KEEP),
        event=int(rows[0]),
        switch="fused_optimizer=1" if has_fused else "",
    )


def _on_cpu(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for optimizers on a CPU whose operators update one parameter each; each kind is one finding."""
    updates, called, every = evidence.updates, evidence.calls.rows, trace.operators()
    inside, every = called[updates.hold(called)], every[updates.hold(every)]
    for code in np.unique(trace.name_codes[updates.rows]):
        mine = trace.name_codes[updates.rows] == code
        rows, name = updates.rows[mine], trace.names[code]
        calls = inside[index_of_outer(trace, rows, inside) >= 0]
        single = calls[~trace.named("^aten::_(foreach|fused)_", calls)]
        ns = trace.lengths(single)
        if len(single) < _MIN_OPERATORS * len(rows) or 2 * ns.sum() < trace.lengths(calls).sum():
            continue
        if trace.named(_SPARSE, every[index_of_outer(trace, rows, every) >= 0]).any():
            continue
        instead, has_fused = fewer_calls(evidence, name)
        shares = _OF_FOREACH if not has_fused else _OF_OTHERS if "SGD" in name else _OF_MOMENTS
        if shares is not _OF_MOMENTS and ns.mean() >= _SHORT_NS:
            continue
        host = replace(HostTime.of(trace, rows), starts=updates.starts[mine])
        count = format_count(round(len(single) / len(rows)))
        yield Finding(
            f"the optimizer calls {count} operators a step, one parameter at a time",
            evidence.function_of(int(single[0])) or name,
            fused(evidence, name, "fused=True when creating the optimizer; foreach=True saves less on a CPU")
            if has_fused
            else instead,
            "high" if has_fused else "medium",
            "Optimizer.step calls neither a fused operator nor those over all parameters (_foreach)",
            *EditRange(*(Edit(host=replace(host, keep=np.full(len(rows), keep))) for keep in shares)),
            event=int(rows[0]),
            switch="fused_optimizer=1" if has_fused else "",
        )


def steps_in_a_row(evidence: Evidence, rows: Ints) -> float:
    """Return how many steps of optimizers follow each other, with no forward or backward pass that begins between them.

    Optimizers that step in hooks do so within a backward pass.
    """
    trace, calls = evidence.trace, evidence.calls
    layers = calls.rows[trace.named(_LAYERS, calls.rows) & ~calls.backward]
    # A compiled forward pass has no operators of layers.
    passes = calls.rows[[int(nodes[0]) for nodes in calls.backward_passes()]]
    starts = np.sort(np.concatenate((trace.starts[layers], trace.starts[passes], trace.steps.starts)))
    groups = np.unique(np.searchsorted(starts, trace.starts[rows]))
    return len(rows) / max(len(groups), 1)


def _many(trace: Trace, evidence: Evidence, rows: Ints, count: float) -> Finding:
    both = np.union1d(rows, trace.host_events(CLEARS))
    name = trace.name(int(rows[0]))
    instead, has_fused = fewer_calls(evidence, name)
    return Finding(
        f"{format_count(round(count))} optimizers step one after the other",
        evidence.function_of(int(rows[0])) or name,
        "one optimizer over all parameters, with groups where options differ"
        + (", and fused=True" if has_fused else f"; {instead}"),
        "high",
        "one call updates all parameters; stepping in hooks of the backward pass saves the memory of gradients",
        *EditRange.over(
            lambda as_long, part: evidence.without_operators(both, as_long / count, part), _AS_LONG, _KEEP
        ),
        event=int(rows[0]),
    )


def fused(evidence: Evidence, step: str, plain: str) -> str:
    """Return how to get the fused form of the optimizer whose step has this range."""
    return evidence.write("fused-adamw" if _kind(step) == "AdamW" else "optimizer", plain)


def _kind(step: str) -> str:
    """Return the class of an optimizer, by the range of its step."""
    return step.partition("#")[2].partition(".")[0]


def fewer_calls(evidence: Evidence, step: str) -> tuple[str, bool]:
    """Return the option that reduces the calls of an optimizer step, by its range, and whether it is ``fused=True``."""
    kind = _kind(step)
    if kind in _FUSED:
        return fused(evidence, step, "fused=True (or foreach=True) when creating the optimizer"), True
    if kind in _FOREACH:
        return evidence.write("optimizer", "foreach=True when creating the optimizer"), False
    if kind == "LBFGS":
        return "a smaller history_size: each iteration goes over all of it", False
    return "torch._foreach_* functions in the optimizer, over all parameters at once", False


RULE = AdviceRule("single-tensor-optimizer", find)
