"""A model, or a part of it, runs a second time in a step: without a backward pass, or on the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import ACCUMULATE, Calls, index_of_outer
from tuiprof.analyses.shared.frames import spot
from tuiprof.analyses.shared.model_calls import (
    IN_ANOTHER_MODE,
    SAME,
    SAME_LARGEST,
    TRAINED,
    ModelCalls,
    model_calls,
    part_calls,
)
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.whatif import Edit

#: Operators that identify a forward pass.
_LAYERS: Final = r"^aten::(linear|conv\dd|matmul|bmm|mm|addmm|scaled_dot_product_attention|lstm|gru)$"
#: Minimum number of them in a row for a model.
_MIN_LAYERS: Final = 4
#: Maximum number of operators with device work between two calls of a model with the same weights: more may be changing
#: them, one by one.
_MAX_BETWEEN: Final = 24
#: Maximum number of calls without gradients for each one with gradients: a loss needs one or two (another view, the
#: model of the step before), a policy acts dozens of times before it learns. The limit between them is an estimate.
_MAX_AGAIN: Final = 4
#: What remains of calls on other inputs, which the method may need in every step. An estimate.
_SELDOM: Final = 0.5
#: Operators whose results differ from call to call.
_RANDOM: Final = (
    r"^aten::(native_dropout|_fused_dropout|bernoulli_?|rand\w*|normal_?|uniform_?|exponential_|poisson|multinomial|"
    r"log_normal_|cauchy_|geometric_|random_)$"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls on the same inputs, and for layers that run again without gradients, with the same weights.

    A teacher or a target network has the same layers. But the probe numbers models. And autocast caches weights that it
    has cast to bfloat16, so a second run with the same weights launches fewer kernels, and a run with others does not.
    """
    calls = evidence.calls
    layers = np.flatnonzero(trace.named(_LAYERS, calls.rows) & ~calls.backward)
    models = model_calls(calls)
    same = _on_same_inputs(evidence, models, layers)
    chosen = np.isin(models.of_call, same) & ~calls.backward
    if chosen.any():
        yield Finding(
            f"a model is called again on the same inputs, {evidence.how_often(len(same))}",
            _location(evidence, models, chosen),
            "call it once and use its output again",
            "medium",
            "the step has called it before on the same tensors, with the same weights and without random numbers",
            calls.edit(_with_gradients(calls, models.rows, [name[1] for name in models.names], chosen)),
            event=int(calls.rows[np.argmax(chosen)]),
        )
    known = chosen
    layers = layers[~np.isin(models.of_call[layers], same)]
    parts = _same_parts(calls, models, layers)
    if parts:
        chosen = _between(calls, parts)
        yield Finding(
            f"a part of a model runs again on the same input, {evidence.how_often(len(parts))}",
            _location(evidence, models, chosen),
            "run that part once, and pass its output to each call",
            "medium",
            "the step has called the model before with the same largest input, and its first layers, which no gradient "
            "goes through, are the same",
            calls.edit(chosen),
            event=int(calls.rows[np.argmax(chosen)]),
        )
        known = known | chosen
        layers = layers[~chosen[layers]]
    yield from _modules_again(evidence, models, known)
    trained = _on_trained_inputs(calls, models, layers)
    if trained:
        yield _after_training(evidence, models, trained)
        layers = layers[~np.isin(models.of_call[layers], list(trained))]
    again, other = _same_models(calls, models, layers), False
    if again:
        count, chosen = len(again), np.isin(models.of_call, list(again)) & ~calls.backward
        for second, first in again.items():
            chosen[_used_alike(calls, models, second, first)] = True
        because = "the same model is called with gradients in the same step, with the same layers"
        # A probe that notes the parameters marks calls on the same tensors, too.
        marks = trace.uncaptured is not None and trace.uncaptured.weights is not None
        other = marks and not any(models.names[index][3] for index in again)
    else:
        runs = list(_cast_once(calls, layers))
        count, chosen = len(runs), _between(calls, runs)
        because = (
            "the same layers in the same order, with the weights that autocast has cast for the first pass"
        )
    if not count:
        return
    where, event = _location(evidence, models, chosen), int(calls.rows[np.argmax(chosen)])
    often, whole = evidence.how_often(count), calls.edit(chosen)
    if other:
        what = f"the model also runs on other tensors, without gradients, {often}"
        instead = "run it only every N steps, if the method allows it"
        half = calls.edit(chosen, _SELDOM, _SELDOM)
        yield Finding(what, where, instead, "low", because, half, Edit(), whole, event=event)
    else:
        what = f"the model runs again on what no gradient is computed from, {often}"
        instead = (
            "if the inputs are the same, take outputs.detach() of the pass with gradients; else run it only every N "
            "steps"
        )
        yield Finding(what, where, instead, "medium", because, whole, event=event)


def _on_trained_inputs(calls: Calls, models: ModelCalls, layers: Ints) -> dict[int, int]:
    """Return which calls of models without gradients have the inputs of their last call with gradients, and that call.

    A backward pass goes through that one; -1 = it was before the capture, as the step ends with the update. A model
    that runs several times after a call with gradients searches for something, as a line search does, and needs them.
    """
    layers_of, learned = models.split(layers), models.split(np.flatnonzero(calls.differentiated))
    last: dict[str, int] = {}
    found: dict[int, int] = {}
    early: dict[tuple[str, bytes], list[int]] = {}
    for index in np.argsort(calls.trace.starts[models.rows], kind="stable").tolist():
        name = models.names[index]
        if not name[2]:
            last[name[1]] = index
        elif name[1] not in last:
            early.setdefault((name[1], calls.codes[layers_of[index]].tobytes()), []).append(index)
        elif name[3] in (TRAINED, IN_ANOTHER_MODE) and len(learned[last[name[1]]]):
            found[index] = last[name[1]]
    searching = {models.names[first][1] for first, count in Counter(found.values()).items() if count > 1}
    found = {index: first for index, first in found.items() if models.names[index][1] not in searching}
    known = {(models.names[index][1], calls.codes[layers_of[index]].tobytes()) for index in found}
    return found | {indices[0]: -1 for kind, indices in early.items() if kind in known and len(indices) == 1}


def _after_training(evidence: Evidence, models: ModelCalls, again: dict[int, int]) -> Finding:
    """Return the finding about calls on the inputs of an earlier call with gradients."""
    calls, trace = evidence.calls, evidence.trace
    chosen = np.isin(models.of_call, list(again)) & ~calls.backward
    updated = False
    for second, first in again.items():
        if first >= 0:
            chosen[_used_alike(calls, models, second, first)] = True
            low, high = trace.starts[models.rows[[first, second]]]
            updated |= bool(((evidence.updates.starts > low) & (evidence.updates.starts < high)).any())
    other_mode = any(models.names[index][3] == IN_ANOTHER_MODE for index in again)
    differs = ["computed before the update"] * updated + ["in training mode"] * other_mode
    changed = ["the weights were updated"] * updated + ["train() or eval() was called"] * other_mode
    whole = calls.edit(chosen)
    return Finding(
        f"the model runs again on the inputs that it has just been trained on, without gradients, "
        f"{evidence.how_often(len(again))}",
        _location(evidence, models, chosen),
        f"for a metric, take outputs.detach() of the pass with gradients, which is {' and '.join(differs)}; or run it "
        "only every N steps"
        if differs
        else "take outputs.detach() of the pass with gradients",
        "medium",
        f"the capture saw the same tensors in both calls; only {' and '.join(changed)} in between"
        if differs
        else "the capture saw the same tensors in both calls, and no update in between",
        whole,
        least=Edit() if differs else None,
        event=int(calls.rows[np.argmax(chosen)]),
    )


def _on_same_inputs(evidence: Evidence, models: ModelCalls, layers: Ints) -> list[int]:
    """Return which calls of models are marked to be on the same inputs, with no sign that they differ.

    A model may also run other layers, as with adapters that are disabled.
    """
    trace, calls, found = evidence.trace, evidence.calls, list[int]()
    known: set[tuple[int, str, bytes]] = set()
    same = _unchanged(evidence, models, models.rows, [(name[1], name[3] == SAME) for name in models.names])
    layers_of = models.split(layers)
    for index in np.argsort(trace.starts[models.rows], kind="stable").tolist():
        name = models.names[index]
        step = int(trace.steps.step_of[models.rows[index]])
        call = step, name[0].removesuffix(name[3] or ""), calls.codes[layers_of[index]].tobytes()
        if same[index] and call in known:
            found.append(index)
        known.add(call)
    return found


def _unchanged(evidence: Evidence, models: ModelCalls, rows: Ints, names: list[tuple[str, bool]]) -> Mask:
    """Return which of the calls marked to be on the same inputs draw no random numbers and have the same weights.

    The probe sees a change of ``weights``, but not one of ``weights.data`` (as by SAM after a first backward pass
    through the same model, or by finite differences, which move all weights between two calls). The names are those of
    what is called, and whether a call is so marked; such calls do not overlap.
    """
    trace, calls = evidence.trace, evidence.calls
    found = np.array([same for _, same in names], dtype=bool)
    other = calls.backward | evidence.updates.hold(calls.rows)
    apart = np.sort(trace.starts[calls.rows[(models.of_call < 0) & (calls.work_count > 0) & ~other]])
    through, learning = _backward_through(calls, rows, [name for name, _ in names])
    random = trace.operators(_RANDOM)
    drawing = index_of_outer(trace, rows[found], random)
    found[np.flatnonzero(found)[drawing[drawing >= 0]]] = False
    last: dict[str, int] = {}
    for index in np.argsort(trace.starts[rows], kind="stable").tolist():
        name, start = names[index][0], int(trace.starts[rows[index]])
        since = last.get(name, start)
        last[name] = int(trace.ends[rows[index]])
        learned = through[slice(*np.searchsorted(learning, (since, start)))]
        between = np.diff(np.searchsorted(apart, (since, start)))
        found[index] &= name not in learned and "" not in learned and between <= _MAX_BETWEEN
    return found


def _backward_through(calls: Calls, rows: Ints, names: list[str]) -> tuple[npt.NDArray[np.str_], Ints]:
    """Return what the backward passes go through, in order, and when; empty = unknown."""
    nodes = np.flatnonzero(calls.backward & ~calls.trace.named(ACCUMULATE, calls.rows))
    made_by = calls.forward[nodes]
    inside = index_of_outer(calls.trace, rows, calls.rows[np.maximum(made_by, 0)])
    known = np.array([*names, "other"])
    through = np.where(made_by >= 0, known[inside], "")
    order = np.argsort(calls.trace.starts[calls.rows[nodes]], kind="stable")
    return through[order], calls.trace.starts[calls.rows[nodes[order]]]


def _with_gradients(calls: Calls, rows: Ints, names: list[str], chosen: Mask) -> Mask:
    """Return calls made again, with their backward passes if a backward pass goes through an earlier call, too.

    If none does, as the output was used without gradients, the backward pass stays: it goes through that call then.
    """
    trace, inside = calls.trace, index_of_outer(calls.trace, rows, calls.rows)
    steps, starts = trace.steps.step_of[rows], trace.starts[rows]
    again = set(inside[chosen].tolist())
    # The layers of the first call of a module may be calls of their own.
    learned = np.sort(trace.starts[calls.rows[calls.differentiated & ~chosen]])
    holds = np.searchsorted(learned, trace.ends[rows]) > np.searchsorted(learned, starts)
    first: dict[tuple[int, str], int] = {}
    for index in sorted(set(np.flatnonzero(holds).tolist()) - again, key=lambda index: int(starts[index])):
        first.setdefault((int(steps[index]), names[index]), int(starts[index]))
    kept = [
        index
        for index in again
        if starts[index] <= first.get((int(steps[index]), names[index]), int(starts[index]))
    ]
    return chosen | (calls.with_backward(chosen) & ~np.isin(inside[calls.forward], kept))


def _modules_again(evidence: Evidence, models: ModelCalls, known: Mask) -> Iterator[Finding]:
    """Yield the functions that call modules again on the same inputs, outside of the ``known`` calls."""
    calls = evidence.calls
    rows, names = part_calls(calls.trace)
    same = _unchanged(evidence, models, rows, [(name[1], name[3] == SAME) for name in names])
    functions: dict[tuple[str, str], dict[str, list[int]]] = {}
    for index in np.flatnonzero(same).tolist():
        if (location := spot([names[index][4]])) is not None:
            where, function, _ = location
            lines = functions.setdefault((where.rpartition(":")[0], function), {})
            lines.setdefault(where, []).append(index)
    for (_, function), lines in functions.items():
        found = [index for indices in lines.values() for index in indices]
        chosen = calls.begin_in(np.sort(rows[found])) & ~calls.backward & ~known
        if not chosen.any():
            continue
        kinds = ", ".join(sorted({names[index][1].partition(" ")[0] for index in found}))
        several = len({names[index][1] for index in found}) > 1
        first, *others = sorted(lines, key=lambda where: int(where.rpartition(":")[2]))
        yield Finding(
            f"{'modules' if several else 'a module'} ({kinds}) {'are' if several else 'is'} called again on the same "
            f"inputs, {evidence.how_often(len(found))}",
            ", ".join([function, first, *(where.rpartition(":")[2] for where in others)]),
            f"call {'each' if several else 'it'} once, before the loop or the layers that use its output",
            "medium",
            "the step has called it before on the same tensors, with the same weights and without random numbers"
            + ("; the gradients of its output add up" if calls.differentiated[chosen].any() else ""),
            _with_sums(calls, _with_gradients(calls, rows, [name[1] for name in names], chosen)),
            event=int(calls.rows[np.argmax(chosen)]),
        )


def _with_sums(calls: Calls, which: Mask) -> Edit:
    """Return the edit without some calls, of each of which one sum of gradients remains.

    Autograd adds up the gradients of the inputs and weights of several calls; without the calls, those of the output.
    """
    trace, nodes = calls.trace, which & calls.backward
    sums = trace.operators(r"^aten::add_?$")
    node = calls.inside(sums)
    sums, node = sums[(node >= 0) & nodes[node]], node[(node >= 0) & nodes[node]]
    launches = trace.links.launch_of[trace.device_work]
    sum_of = np.where(launches >= 0, index_of_outer(trace, sums, np.maximum(launches, 0)), -1)
    lengths = trace.lengths(trace.device_work)
    takes = np.bincount(sum_of[sum_of >= 0], weights=lengths[sum_of >= 0], minlength=len(sums))
    order = np.lexsort((takes, calls.forward[node]))
    last = order[np.append(np.diff(calls.forward[node[order]]) != 0, len(order) > 0)[: len(order)]]
    keep_host = np.zeros(len(which))
    keep_host[node[last]] = trace.lengths(sums[last]) / np.maximum(trace.lengths(calls.rows[node[last]]), 1)
    return calls.edit(which, keep_host, np.isin(sum_of, last).astype(np.float64))


def _same_parts(calls: Calls, models: ModelCalls, layers: Ints) -> list[Ints]:
    """Return the layers without gradients that calls with gradients begin with, as an earlier one of the step does."""
    made = calls.differentiated
    known: set[tuple[int, str, bytes]] = set()
    found: list[Ints] = []
    layers_of = models.split(layers)
    for index in np.argsort(calls.trace.starts[models.rows], kind="stable").tolist():
        mine, name = layers_of[index], models.names[index]
        part = mine[: int(np.argmax(made[mine]))] if made[mine].any() else mine[:0]
        if len(part) < _MIN_LAYERS:
            continue
        key = int(calls.steps[part[0]]), name[1], calls.codes[part].tobytes()
        if name[3] == SAME_LARGEST and key in known:
            found.append(part)
        known.add(key)
    return found


def _location(evidence: Evidence, models: ModelCalls, chosen: Mask) -> str:
    """Return the function or the line that makes the first of the chosen calls, or else the model."""
    calls = evidence.calls
    event, model = int(calls.rows[np.argmax(chosen)]), int(models.of_call[np.argmax(chosen)])
    if (function := evidence.function_of(event)) or model < 0:
        return function
    trace, name = evidence.trace, models.names[model]
    # The model may be marked as a module, too, with another number, around all that it calls.
    rows, names = part_calls(trace)
    inside = calls.rows[models.of_call == model]
    around = (trace.starts[rows] <= trace.starts[inside[0]]) & (trace.ends[rows] >= trace.ends[inside].max())
    kind = name[1].partition(" ")[0]
    sites = (
        names[part][4] for part in np.flatnonzero(around).tolist() if names[part][1].startswith(f"{kind} ")
    )
    location = spot([next(sites, "")])
    return f"{location[1]}, {location[0]}" if location else name[1] + (name[2] or "")


def _between(calls: Calls, runs: list[Ints]) -> Mask:
    """Return the calls from the first to the last layer of each run."""
    return calls.mask(*(calls.between(int(run[0]), int(run[-1])) for run in runs)) & ~calls.backward


def _same_models(calls: Calls, models: ModelCalls, layers: Ints) -> dict[int, int]:
    """Return which calls of models without gradients the same step makes with gradients too, with the same layers.

    Each comes with the first such call. A policy that acts many times and learns once computes what the pass with
    gradients cannot give in time.
    """
    learned: dict[tuple[int, str, bytes], list[int]] = {}
    again: list[tuple[tuple[int, str, bytes], int]] = []
    for index, (name, mine) in enumerate(zip(models.names, models.split(layers), strict=True)):
        if len(mine) < _MIN_LAYERS:
            continue
        key = int(calls.steps[mine[0]]), name[1], calls.codes[mine].tobytes()
        if name[2]:
            again.append((key, index))
        else:
            learned.setdefault(key, []).append(index)
    count = Counter(key for key, _ in again)
    return {
        index: learned[key][0]
        for key, index in again
        if key in learned and count[key] <= _MAX_AGAIN * len(learned[key])
    }


def _used_alike(calls: Calls, models: ModelCalls, second: int, first: int) -> Ints:
    """Return the calls after one call of a model that follow another one in the same order.

    They compute the same from its output, as the log-probabilities of a policy.
    """
    trace = calls.trace
    after, others = (
        np.flatnonzero(
            (calls.tracks == trace.track_codes[row]) & (trace.starts[calls.rows] >= trace.ends[row])
        )
        for row in models.rows[[second, first]]
    )
    count = min(len(after), len(others))
    after, others = after[:count], others[:count]
    alike = (calls.codes[after] == calls.codes[others]) & (calls.steps[after] == calls.steps[others])
    alike &= (models.of_call[after] < 0) & ~calls.backward[after]
    return after[: count if alike.all() else int(np.argmin(alike))]


def _cast_once(calls: Calls, layers: Ints) -> Iterator[Ints]:
    """Yield the layers of forward passes that no backward pass follows, with weights that autocast has cast before."""
    made = calls.differentiated
    layers = layers[np.argsort(calls.steps[layers], kind="stable")]
    for mine in np.split(layers, np.flatnonzero(np.diff(calls.steps[layers])) + 1):
        for run in np.split(mine, np.flatnonzero(np.diff(made[mine])) + 1):
            if len(run) >= _MIN_LAYERS and not made[run[0]] and _same_weights(calls, run, mine[made[mine]]):
                yield run


def _same_weights(calls: Calls, run: Ints, trained: Ints) -> bool:
    """Return whether a sequence of layers is part of the trained ones and casts fewer weights."""
    codes = calls.codes
    wanted, known = codes[run].tobytes(), codes[trained].tobytes()
    at = known.find(wanted)
    while at % codes.itemsize and at >= 0:
        at = known.find(wanted, at + 1)
    if at < 0:
        return False
    before = trained[at // codes.itemsize :][: len(run)]
    again = calls.work_count[run] - calls.work_count[before]
    return bool((again <= 0).all() and (again < 0).mean() > 0.5)


RULE = AdviceRule("repeated-forward", find)
