"""Gradients that no optimizer uses: their weights are not updated, or they are cleared before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.gradients.untrained_branch import untrained_branch
from tuiprof.advice.gradients.zeroed_gradients import zero_fills
from tuiprof.analyses.shared.calls import ACCUMULATE, BACKWARD, Calls
from tuiprof.analyses.shared.model_calls import model_calls
from tuiprof.analyses.shared.optimizers import CLEARS, updates
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import EditRange

#: Nodes that compute the gradient of a weight and of its input, each about half of the work: the share that
#: remains, likely, and where freezing the weight helps least and most. Other nodes are not considered, except norms
#: with a kernel of their own for weight and bias.
_WITH_WEIGHT: Final = ("gemm", "convolution")
_KEEP: Final = (0.5, 0.7, 0.4)
#: Some names of kernels tell which of the two they compute. The gradient of a bias is a sum.
_OF_NORM: Final = "GammaBeta"
_OF_WEIGHT: Final = rf"wgrad|at::native::reduce_kernel|{_OF_NORM}"
_OF_INPUT: Final = "dgrad"
_NOT_UPDATED: Final = (
    "belong to weights that the optimizer does not update",
    "model.backbone.requires_grad_(False) for what is not trained: the backward pass then ends before it",
    "they are added to gradients of earlier steps, which nothing has used or cleared",
)
_BESIDE: Final = (
    "belong to a model that the optimizer does not update",
    "torch.no_grad() around the call of that model, as of a teacher (with .eval() alone it keeps its gradients), or "
    "model.requires_grad_(False): the backward pass then does not go through it",
    "they are added to gradients of earlier steps, which nothing has used or cleared, and no other gradient comes from "
    "this model",
)
_UPDATED_LATER: Final = (
    "belong to weights that another optimizer of the step updates, not the one after this backward pass",
    ".detach() of the other model's output, or torch.no_grad() around its call, in the loss that does not train it "
    "(in a GAN, the discriminator's loss): the backward pass then ends before that model",
    "they are added to gradients that nothing has cleared; another backward pass of the step ends in the same layers, "
    "and its optimizer uses the gradients",
)
_CLEARED: Final = (
    "are cleared before an optimizer uses them",
    "torch.autograd.grad(loss, inputs) or loss.backward(inputs=inputs), which compute these gradients alone",
    "backward passes add to them, and zero_grad() follows before the step",
)
#: Nodes that only pass the gradient on to its weight, and those that scale an input by constants.
_HANDS_ON: Final = ("T", "Transpose", "Permute", "View", "UnsafeView", "Reshape", "ToCopy")
_SCALES: Final = ("Clone", "Div", "Sub")
#: Nodes of a second derivative, as that of a gradient penalty, which needs the gradient of the input.
_OF_GRADIENTS: Final = f"^{BACKWARD}.*BackwardBackward"
#: Minimum share of device work that the gradient of the input takes.
_MIN_OF_INPUT: Final = 0.01


@dataclass(frozen=True)
class _Backward:
    """What the backward passes of a trace do; masks and counts are of all calls."""

    calls: Calls

    @cached_property
    def passes(self) -> list[Ints]:
        """The nodes of each pass, as indices."""
        return list(self.calls.backward_passes())

    @cached_property
    def steps(self) -> Ints:
        """When optimizers begin to update, ns."""
        return np.sort(updates(self.calls.trace).starts)

    @cached_property
    def stepped(self) -> Ints:
        """How many optimizers update between each pass and the next one."""
        return self.between(self.steps)

    def between(self, instants: Ints) -> Ints:
        """Return how many of some sorted instants, ns, lie between each pass and the next one."""
        trace = self.calls.trace
        starts = [trace.starts[self.calls.rows[nodes[0]]] for nodes in self.passes]
        return np.diff(np.searchsorted(instants, np.array([*starts, trace.span[1]])))

    @cached_property
    def accumulated(self) -> Mask:
        """Which calls store the gradient of a weight, or add it."""
        return self.calls.trace.named(ACCUMULATE, self.calls.rows)

    @cached_property
    def added(self) -> Mask:
        """Which of these add it to an existing one."""
        adding = np.flatnonzero(self.calls.trace.named(r"^aten::add_$"))
        return self.calls.mask(self.calls.inside(adding)) & self.accumulated

    @cached_property
    def zeroed(self) -> bool:
        """Whether an optimizer fills gradients with zeros, to which the next ones are added."""
        return bool(zero_fills(self.calls).any())

    @cached_property
    def heavy(self) -> Ints:
        """How many products and convolutions each call launches."""
        return self.calls.work_count_of(self.calls.works_of(*_WITH_WEIGHT))

    @cached_property
    def with_weight(self) -> Mask:
        """Which calls compute the gradient of a weight beside that of an input."""
        calls = self.calls
        norms = calls.work_ns_of(calls.trace.named(_OF_NORM, calls.trace.device_work)) > 0
        result: Mask = (self.heavy > 1) | (norms & calls.backward)
        return result

    @cached_property
    def light(self) -> Mask:
        """Which calls only pass the gradient of a weight on to it."""
        return self.named(*_HANDS_ON) | self.accumulated

    def through(self, nodes: Ints) -> set[str]:
        """Return the marked models that made some nodes."""
        models, made_by = model_calls(self.calls), self.calls.forward[nodes]
        return {models.names[at][1] for at in set(models.of_call[made_by[made_by >= 0]].tolist()) if at >= 0}

    def named(self, *nodes: str) -> Mask:
        """Return which calls are nodes of some operators."""
        return self.calls.trace.named(f"^{BACKWARD}({'|'.join(nodes)})Backward", self.calls.rows)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for gradients of weights and of inputs that no optimizer uses."""
    backward = _Backward(evidence.calls)
    yield from _of_weights(trace, evidence, backward)
    yield from _of_inputs(trace, evidence, backward)


def _of_weights(trace: Trace, evidence: Evidence, backward: _Backward) -> Iterator[Finding]:
    """Look for gradients that are added to older ones and never used.

    The optimizer's gradients are cleared before the backward pass that it needs them from. In a step with a single
    pass, a gradient that still exists belongs to a weight without an optimizer, or with another one, such as the
    discriminator's while the generator is trained. In a step with several, those of a pass are unused if they are
    cleared before the next one. Gradients that are filled with zeros still exist, as do those that CUDA graphs clear.
    """
    calls, accumulated, added = backward.calls, backward.accumulated, backward.added
    graphs = trace.named(r"^(cuda|hip)GraphLaunch", trace.host_calls).any()
    if not len(backward.steps) or graphs or not added.any() or backward.zeroed:
        return
    several = len(backward.passes) > len(backward.steps)
    passes = _cleared(backward) if several else backward.passes
    unneeded = np.zeros(len(calls.rows), dtype=bool)
    halved, unread = unneeded.copy(), unneeded.copy()
    ends = dict[int, Ints]()  # nodes after the last gradient that is used, by the first node of the pass
    branch = unneeded.copy()  # a model beside the trained one, in each pass
    for nodes in passes:
        read = nodes[(accumulated & ~added)[nodes]]
        if not len(read):  # gradients are accumulated over several steps
            continue
        unread[nodes[added[nodes]]] = True
        end = nodes[nodes > read[-1]]
        unneeded[end] = True
        if len(end):
            ends[int(nodes[0])] = end
        feeding, handing = _feeding(backward, nodes[nodes < read[-1]])
        halved[feeding] = unneeded[handing] = True
        if not several:
            branch[untrained_branch(calls, nodes, accumulated, added, backward.light)] = True
    unneeded |= branch
    halved &= ~branch
    if not unread.any():
        return
    halved[_of_other_calls(backward, passes, unread) & ~unneeded] = True
    chosen = unneeded | halved | unread
    part = halved[calls.call_of_work]
    of_weight, of_input = (part & trace.named(name, trace.device_work) for name in (_OF_WEIGHT, _OF_INPUT))
    of_input |= part & calls.works_of("norm")
    edits = EditRange(
        *(
            calls.edit(
                chosen,
                np.select([halved & (backward.heavy > 1), halved], [keep, 1.0], 0.0),
                np.select([of_weight, of_input, part], [0.0, 1.0, keep], 0.0),
            )
            for keep in _KEEP
        )
    )
    made_by = calls.forward[np.flatnonzero((unneeded | halved) & (calls.forward >= 0))]
    event = int(calls.rows[made_by[0] if len(made_by) else np.flatnonzero(unread)[0]])
    share = format_rough_share(int(unread.sum()) / max(int(accumulated.sum()), 1))
    of_another = not several and _trained_by_another(backward, ends)
    beside = branch.any() or _of_other_models(backward, passes, ends)
    not_updated = _BESIDE if beside else _NOT_UPDATED
    what, instead, because = _CLEARED if several else _UPDATED_LATER if of_another else not_updated
    yield Finding(
        f"{share} of the gradients {what}",
        evidence.function_of(event) or (_line_of(evidence, backward, ends) if of_another else ""),
        instead,
        "high",
        because,
        *edits,
        event=event,
    )


def _of_inputs(trace: Trace, evidence: Evidence, backward: _Backward) -> Iterator[Finding]:
    """Look for a first convolution that computes the gradient of its input, a leaf tensor that need not have one.

    Only the pass before the optimizer's step counts: a gradient of an earlier one may be used, as in an attack. If
    nothing clears the gradients of the weights, the optimizer may update the input, as in style transfer.
    """
    calls, accumulated = backward.calls, backward.accumulated
    of_input = calls.works_of("convolution") & trace.named("dgrad", trace.device_work)
    with_input = calls.work_ns_of(of_input)
    replaced = accumulated if backward.zeroed else accumulated & ~backward.added
    light = backward.named(*_HANDS_ON, *_SCALES) | replaced
    of_gradients = trace.named(_OF_GRADIENTS, calls.rows)
    first, casts = list[int](), list[int]()
    for nodes in itertools.compress(backward.passes, backward.stepped):
        layers = np.flatnonzero(backward.heavy[nodes])
        if not len(layers) or not with_input[nodes[layers[-1]]] or of_gradients[nodes].any():
            continue
        after = nodes[layers[-1] + 1 :]
        if light[after].all() and accumulated[after].sum() > 1:
            first.append(int(nodes[layers[-1]]))
            # The input is larger than the weights.
            casts.append(int(after[np.argmax(calls.work_ns[after])]))
    if not first or with_input[first].sum() < _MIN_OF_INPUT * calls.work_ns.sum():
        return
    chosen = np.isin(np.arange(len(calls.rows)), first + casts)
    keep = np.where(of_input | ~np.isin(calls.call_of_work, first), 0.0, 1.0)
    made_by = calls.forward[first[0]]
    event = int(calls.rows[made_by if made_by >= 0 else first[0]])
    yield Finding(
        "the first convolution computes the gradient of its input",
        evidence.function_of(event),
        "inputs that do not require gradients (no requires_grad_() or Variable), unless the script reads input.grad "
        "or trains the input",
        "medium",
        "nothing but the accumulation of this gradient follows in the backward pass before the optimizer's step",
        calls.edit(chosen, 1.0, keep),
        event=event,
    )


def _cleared(backward: _Backward) -> list[Ints]:
    """Return the backward passes whose added gradients are cleared before an optimizer uses them.

    After such a pass there is no optimizer step before the next pass, which either begins with cleared gradients of as
    many weights and is followed by one optimizer step, or adds to these gradients and is such a pass itself.
    """
    trace, passes, stepped = backward.calls.trace, backward.passes, backward.stepped
    cleared = backward.between(np.sort(trace.starts[trace.host_events(CLEARS)])) > 0
    lost = [False] * len(passes)
    for i in range(len(passes) - 2, -1, -1):
        mine, following = passes[i], passes[i + 1]
        anew = cleared[i] and stepped[i + 1] == 1 and not backward.added[following].any()
        goes_on = not cleared[i] and lost[i + 1]
        which = backward.accumulated if anew else backward.added
        lost[i] = bool(
            stepped[i] == 0 and (anew or goes_on) and 0 < backward.added[mine].sum() <= which[following].sum()
        )
    return [nodes for nodes, is_lost in zip(passes, lost, strict=True) if is_lost]


def _trained_by_another(backward: _Backward, ends: dict[int, Ints]) -> bool:
    """Return whether for each of these ends of a backward pass, another one of the step ends alike and is used.

    With marks of models, it has to go through the same ones.
    """
    calls = backward.calls

    def also_used(end: Ints) -> bool:
        mine = end[np.argmax(backward.added[end]) :]
        for nodes in itertools.compress(backward.passes, backward.stepped):
            other = nodes[-len(mine) :]
            if (
                calls.steps[other[0]] == calls.steps[mine[0]]
                and np.array_equal(calls.codes[other], calls.codes[mine])
                and not backward.added[other].any()
                and backward.through(other) == backward.through(mine)
            ):
                return True
        return False

    return bool(ends) and all(also_used(end) for end in ends.values())


def _of_other_models(backward: _Backward, passes: list[Ints], ends: dict[int, Ints]) -> bool:
    """Return whether each of these ends of a backward pass is all that it has of a model, as marks of models say."""
    ended = [(nodes, end) for nodes in passes if len(end := ends.get(int(nodes[0]), nodes[:0]))]
    sides = [(backward.through(nodes[: -len(end)]), backward.through(end)) for nodes, end in ended]
    return bool(sides) and all(mine and not mine & others for others, mine in sides)


def _line_of(evidence: Evidence, backward: _Backward, ends: dict[int, Ints]) -> str:
    """Return the line that begins the backward passes with these ends, by the samples of the session; empty = none."""
    trace, rows = evidence.trace, backward.calls.rows
    spans = [trace.ends[rows[end[-1]]] - trace.starts[rows[first]] for first, end in ends.items()]
    low, high = trace.span
    line = evidence.line_taking(sum(spans) / max(high - low, 1), "backward")
    return line.where if line is not None else ""


def _feeding(backward: _Backward, nodes: Ints) -> tuple[Ints, Ints]:
    """Return the nodes whose weight gradients are all unread, and the nodes that only transpose or cast these
    gradients.

    The engine passes a gradient on as soon as it is computed, so these nodes directly follow the one that computes
    it.
    """
    accumulated, added = backward.accumulated, backward.added
    feeding, handing = [], []
    for at in np.flatnonzero(backward.with_weight[nodes]).tolist():
        last = at + 1
        while last < len(nodes) and backward.light[nodes[last]]:
            last += 1
        after = nodes[at + 1 : last]
        handed = np.flatnonzero(accumulated[after])
        if len(handed) and added[after[handed]].all():
            feeding.append(nodes[at])
            handing += after[: handed[-1] + 1].tolist()
    return np.array(feeding, dtype=np.int64), np.array(handing, dtype=np.int64)


def _of_other_calls(backward: _Backward, passes: list[Ints], unread: Mask) -> Mask:
    """Return the nodes of layers whose weight gradients another call of the same model shows to be unread.

    Autograd adds up the gradients of all calls before it accumulates them, and autocast casts a weight once for all, so
    only the nodes of one call are followed by an accumulation.
    """
    calls, accumulated, heavy = backward.calls, backward.accumulated, backward.heavy
    last_of = {False: set[int](), True: set[int]()}  # forward calls whose gradients are read and unread
    for nodes in passes:
        makers = np.where(accumulated[nodes], -1, calls.forward[nodes])
        known = np.maximum.accumulate(np.where(makers >= 0, np.arange(len(nodes)), -1))
        for index in np.flatnonzero(accumulated[nodes] & (known >= 0)).tolist():
            last_of[bool(unread[nodes[index]])].add(int(makers[known[index]]))
    read, unread_too = (np.array(sorted(last_of[which]), dtype=np.int64) for which in (False, True))
    models = model_calls(calls)
    alike: dict[tuple[int, str, bytes], list[Ints]] = {}
    layers = models.split(np.flatnonzero((heavy > 0) & ~calls.backward))
    for name, mine in zip(models.names, layers, strict=True):
        if len(mine):
            key = int(calls.steps[mine[0]]), name[1], calls.codes[mine].tobytes()
            alike.setdefault(key, []).append(mine)
    chosen = np.zeros(len(calls.rows), dtype=bool)
    for same in alike.values():
        by_call = np.stack(same)
        frozen = np.isin(by_call, unread_too).any(axis=0) & ~np.isin(by_call, read).any(axis=0)
        chosen[by_call[:, frozen]] = True
    result = np.zeros(len(calls.rows), dtype=bool)
    nodes = np.concatenate(passes)
    nodes = nodes[(heavy[nodes] > 1) & (calls.forward[nodes] >= 0)]
    result[nodes[chosen[calls.forward[nodes]]]] = True
    return result


RULE = AdviceRule("unneeded-gradients", find)
