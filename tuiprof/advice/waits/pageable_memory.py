"""Batches are copied from memory that is not pinned."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.on_cpu import operators_on_cpu, without_threads
from tuiprof.advice.waits.small_copy import SMALL_BYTES, sizes
from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.stretches import VIEWS
from tuiprof.analyses.shared.waits import COPY_KINDS
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Floats, Ints, Mask
from tuiprof.whatif import Edit, EditRange, HostTime
from tuiprof.whatif.chips import link_bytes_per_s

#: To the device, and from it.
_TORCH = (
    "DataLoader(pin_memory=True) and .to(device, non_blocking=True)",
    "copy into a pinned tensor with non_blocking=True and read it a step later, after an event",
)
#: To the device, of a tensor that the step makes.
_MADE = "create it on the device (device=...), or once before the loop and keep it there (register_buffer)"
#: Operators that make a tensor from nothing, as no loaded batch is made.
_MAKING = (
    r"^aten::(arange|linspace|logspace|eye|tril_?|triu_?|tril_indices|triu_indices|one_hot|\w+_window|"
    r"(randn?|normal|uniform|bernoulli)(_like|_)?|outer|polar)$"
)
#: Operators that make what may be written to, as a padded batch is, before it is copied.
_CONSTANT = r"^aten::(new_)?(zeros|ones|full)(_like)?$"
#: Operators by which a batch is picked from data on the CPU, also with numbers that are made.
_PICKING = r"^aten::index(_select)?$"
#: Operators that average, add up or scale what has just been copied from the device.
_ARITHMETIC = r"^aten::(lerp|add|sub|mul|div|addcmul|addcdiv|sum|mean)_?$"
#: Operators that a script calls for a copy.
_COPYING = (
    r"^aten::(_?to(_copy)?|copy_?|cpu|cuda|contiguous|clone|pin_memory|_pin_memory|lift|lift_fresh|tensor)$"
)
#: Minimum share of copies that follow such operators.
_FOLLOWING = 0.5
_JAX = (
    "jax.device_put the next batch during the step, or keep the array on the device",
    "start the copy with .copy_to_host_async() and read it a step later",
)
#: Share of the link bandwidth that a pinned copy reaches: likely, least, most.
_OF_LINK = (0.85, 0.5, 1.0)
#: The copies are slow if being faster saves at least this share of the time for which their calls block the host.
_MATTERS = 0.1
#: Minimum rate at which the host copies into the driver's pinned buffer, and maximum additional time of a call.
_SLOWEST_BYTES_PER_S = 0.5e9
_CALL_NS = 100_000


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for copies of more than a few bytes between the device and pageable memory that block the host."""
    by_operator: dict[tuple[str, str], list[tuple[WaitLocation, Ints, Ints]]] = {}
    for row in evidence.waits(*COPY_KINDS):
        size = (row.bytes or 0) / max(row.count, 1)
        operators = evidence.operators_of(row)
        copies, inside = evidence.work_in(operators)
        if size <= SMALL_BYTES or trace.named("Pinned", copies).any():
            continue
        operator = trace.name(int(operators[0]))
        if operator.startswith("aten::") and not trace.named(_COPYING, operators[:1]).any():
            by_operator.setdefault((operator, evidence.location(row)), []).append((row, copies, inside))
            continue
        to_device = row.kind.endswith("to device")
        made = to_device and (_made_in_step(trace, evidence, copies) or _are_constant(evidence, operators))
        copied = "computed on the CPU and copied to" if made else "copied to" if to_device else "copied from"
        edits = pinned(trace, copies, inside)
        copied_on, computed = (
            np.zeros(0, dtype=bool) if to_device else _next_on_cpu(evidence, operators, names)
            for names in (r"^aten::copy_$", _ARITHMETIC)
        )
        for used in (copied_on, computed):
            if used.any():
                edits |= evidence.calls.edit(used)
                faster = without_threads(trace, used)
                if faster is not None:
                    edits |= faster
        yield Finding(
            f"{sizes(trace, copies, size)} are {copied} the device {evidence.rhythm(row)}, "
            f"{'from' if to_device else 'into'} pageable memory",
            evidence.location(row),
            _MADE if made else _kept_on_device(evidence, computed) + _instead(evidence, row, to_device),
            "high",
            "the memory is not pinned, so the call blocks the host"
            + (
                " and the copy runs well below link speed"
                if _slow(trace, edits.likely, row.blocked_ns)
                else ""
            )
            + ("; then it is copied once more, on the CPU" if copied_on.any() else ""),
            *edits,
            event=row.event,
            switch="pin_memory=1" if to_device and not made and not evidence.is_jax else "",
        )

    for (operator, location), found in by_operator.items():
        rows = [row for row, _, _ in found]
        name = operator_label(operator)
        yield Finding(
            f"{name} copies arguments between the device and pageable memory itself, {evidence.rhythm(*rows)}",
            location,
            f"give {name} its arguments where it needs them: an index on the device, lengths and sizes on the CPU",
            "high",
            "the copies lie inside the operator, and each blocks the host",
            *EditRange.all_of(pinned(trace, copies, inside) for _, copies, inside in found),
            event=rows[0].event,
        )


def _instead(evidence: Evidence, row: WaitLocation, to_device: bool) -> str:
    if evidence.is_jax or not to_device:
        return (_JAX if evidence.is_jax else _TORCH)[0 if to_device else 1]
    return evidence.write_for(row, "pinned-batches", _TORCH[0])


def _slow(trace: Trace, faster: Edit, blocked_ns: float) -> bool:
    """Return whether the speed of the copies matters: of small ones, the wait for earlier work is what costs."""
    lost = trace.lengths(faster.work) * (1 - faster.keep)
    return bool(lost.sum() >= _MATTERS * blocked_ns)


def _made_in_step(trace: Trace, evidence: Evidence, copies: Ints) -> bool:
    """Return whether operators on the CPU make what is copied."""
    calls = evidence.calls
    on_host = (calls.work_count == 0) & ~calls.begin_in(fetches(trace))
    making, picking = (calls.rows[on_host & trace.named(name, calls.rows)] for name in (_MAKING, _PICKING))
    return follow(trace, copies, making) and not follow(trace, copies, picking)


def _are_constant(evidence: Evidence, operators: Ints) -> bool:
    """Return whether most operators copy what the call right before them has made, which nothing has written to."""
    calls = evidence.calls
    at = calls.inside(operators)
    at = at[at > 0]
    constant = evidence.trace.named(_CONSTANT, calls.rows[at - 1]) & (calls.work_count[at - 1] == 0)
    return int((constant & (calls.tracks[at - 1] == calls.tracks[at])).sum()) > len(operators) / 2


def follow(trace: Trace, copies: Ints, operators: Ints) -> bool:
    """Return whether most copies follow some of the operators, with no other launch and no loaded batch between."""
    launches, loading = trace.links.launches, fetches(trace)
    copying = np.unique(trace.links.launch_of[copies])
    copying = copying[copying >= 0]
    known = 0
    for track in np.unique(trace.track_codes[copying]).tolist():
        mine = copying[trace.track_codes[copying] == track]
        others = np.setdiff1d(launches[trace.track_codes[launches] == track], copying)
        loaded = trace.ends[loading[trace.track_codes[loading] == track]]
        before = np.sort(np.concatenate([[np.iinfo(np.int64).min], trace.starts[others], loaded]))
        since = before[np.searchsorted(before, trace.starts[mine]) - 1]
        at = np.sort(trace.starts[operators[trace.track_codes[operators] == track]])
        known += int((np.searchsorted(at, since) < np.searchsorted(at, trace.starts[mine])).sum())
    return known > 0 and known >= _FOLLOWING * len(copying)


def _next_on_cpu(evidence: Evidence, operators: Ints, names: str) -> Mask:
    """Return which calls run on the CPU right after most of the operators, which copy from the device, by name."""
    calls, trace = evidence.calls, evidence.trace
    result = np.zeros(len(calls.rows), dtype=bool)
    inside = calls.inside(operators)
    inside = inside[inside >= 0]
    for track in np.unique(calls.tracks[inside]):
        others = np.flatnonzero((calls.tracks == track) & ~trace.named(VIEWS, calls.rows))
        after = np.searchsorted(others, inside, side="right")
        result[others[after[after < len(others)]]] = True
    result &= (calls.work_count == 0) & trace.named(names, calls.rows)
    # Those of small tensors are too short to be told from bookkeeping by their time.
    is_most = result.sum() >= _FOLLOWING * len(operators) and (result & operators_on_cpu(trace)).any()
    return result if is_most else np.zeros_like(result)


def _kept_on_device(evidence: Evidence, computed: Mask) -> str:
    """Return the beginning of a fix for copies from which the CPU computes; empty = it does not."""
    if not computed.any():
        return ""
    name = evidence.calls.names[int(np.flatnonzero(computed)[0])]
    return f"keep on the device what {operator_label(name)} computes with it on the CPU; or "


def pinned(trace: Trace, work: Ints, inside: Ints) -> EditRange:
    """Return the edits in which copies run at a share of the link bandwidth, and their calls do not block."""
    lengths = trace.lengths(work)
    sizes = np.maximum(trace.ints("bytes", work), 0)
    held = _held_ns(trace, work, sizes, inside) / np.maximum(trace.lengths(inside), 1)
    host = HostTime.of(trace, inside, 1.0 - held)
    linked_ns = sizes / link_bytes_per_s(trace.info.device_name) * 1e9
    keeps = (linked_ns / part / np.maximum(lengths, 1) for part in _OF_LINK)
    return EditRange(
        *(Edit(inside, host, work, np.where(sizes > 0, np.minimum(keep, 1.0), 1.0)) for keep in keeps)
    )


def _held_ns(trace: Trace, work: Ints, sizes: Ints, calls: Ints) -> Floats:
    """Return how long pageable memory can have blocked each call, ns.

    The rest of a long call has another cause: the first one of a process initializes the device, which takes
    seconds.
    """
    busy = Coverage(*trace.union(trace.device_work))
    launch = trace.links.launch_of[work]
    at = np.searchsorted(calls, launch)
    known = (at < len(calls)) & (calls[np.minimum(at, len(calls) - 1)] == launch) if len(calls) else at < 0
    moved = np.bincount(at[known], weights=sizes[known], minlength=len(calls))
    waited = busy.between(trace.starts[calls], trace.ends[calls])
    return np.minimum(waited + moved / _SLOWEST_BYTES_PER_S * 1e9 + _CALL_NS, trace.lengths(calls))


RULE = AdviceRule("pageable-memory", find, needs=("sync_events",))
