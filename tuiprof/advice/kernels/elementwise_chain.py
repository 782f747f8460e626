"""Chains of elementwise operations, each with its own kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tuiprof.advice.doubles import doubles
from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import (
    ACTIVATION_TENSORS,
    COMPILED_NS,
    OPERATOR_NS,
    SWISH,
    Region,
    find_regions,
    fused,
    in_a_row,
)
from tuiprof.advice.redundant.one_hot_sum import picked
from tuiprof.advice.redundant.repeated_in_layers import computed_again
from tuiprof.analyses.shared.calls import COPY, Calls
from tuiprof.analyses.shared.formatting import formatted
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats

#: Maximum share of a chain that layers compute again, that picks values with one-hot vectors, or that formats tensors
#: as text, and of all chains that is float64: these have advice of their own.
_MAX_APART: Final = 0.5


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for written-out activations, and for other chains of elementwise operators, combined in one finding."""
    calls = evidence.calls
    apart = computed_again(trace) | picked(trace) | calls.mask(*formatted(trace))
    regions = find_regions(trace)
    for function, written in regions.activations.items():
        names = calls.names_of(written[0].busy)
        event = int(calls.rows[written[0].busy[0]])
        yield Finding(
            f"an activation is written out as {len(names)} operators, {evidence.how_often(len(written))}: "
            f"{in_a_row(names)}",
            evidence.function_of(event),
            f"torch.nn.functional.{function}, a single kernel",
            "high",
            "the operators of its formula are in a row",
            *fused(
                calls,
                written,
                OPERATOR_NS,
                evidence.host_part,
                (_in_fewer_bits(calls, written), 1.0, 1.0),
                ACTIVATION_TENSORS,
            ),
            event=event,
        )
    found = [chain for chain in regions.chains if np.mean(apart[chain.busy]) <= _MAX_APART]
    if not found:
        return
    chains = [calls.names_of(chain.busy) for chain in found]
    times = Counter[tuple[str, ...]]()
    for of_one, chain in zip(chains, found, strict=True):
        times[of_one] += int(calls.work_ns[chain.busy].sum())
    longest = times.most_common(1)[0][0]
    event = int(calls.rows[found[chains.index(longest)].busy[0]])
    function = evidence.function_of(event)
    yield Finding(
        (
            f"{len(times)} chains of elementwise operators could each be a single kernel"
            if len(times) > 1
            else "a chain of elementwise operators could be a single kernel"
        )
        + (", forward and backward" if calls.backward.any() else ""),
        f"{function}: {in_a_row(longest)}" if function else in_a_row(longest),
        (
            "jax.jit the function"
            if evidence.is_jax
            else evidence.write("compile", "torch.compile the module or the function")
        )
        + " to fuse them, or write them as one operation"
        + (": torch.nn.functional.silu (glu, if two tensors meet)" if longest == SWISH else ""),
        "medium",
        "back-to-back operators, each reading and writing whole tensors",
        *fused(calls, found, COMPILED_NS, evidence.host_part),
        # float32 also shortens what the compiler fuses, and is the smaller edit.
        remainder=_share_of_doubles(calls, found) > _MAX_APART,
        proof="giou-kernel:jax,jax-jit" if evidence.is_jax else "attention:native,native-compiled",
        event=event,
    )


def _share_of_doubles(calls: Calls, chains: Sequence[Region]) -> float:
    """Return the share of the time of chains that is float64."""
    mine = calls.mask(*(chain.busy for chain in chains))
    in_double = calls.work_ns_of(doubles(calls.trace).work)
    return float(in_double[mine].sum() / max(calls.work_ns[mine].sum(), 1))


def _in_fewer_bits(calls: Calls, written: Sequence[Region]) -> Floats:
    """Return how much less memory each activation takes in the type of its input.

    Autocast computes softplus and pow in float32, so these convert what they are given; the activation does not.
    """
    converts = calls.work_count_of(calls.works_of(COPY)) > 0
    converts &= calls.work_count_of(calls.works_of("elementwise")) > 0
    return np.where([converts[region.busy].any() for region in written], 0.5, 1.0)


RULE = AdviceRule("elementwise-chain", find)
