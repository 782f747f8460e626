"""Loops of JAX operations outside of a jit, and what such operations compile."""

from __future__ import annotations

import pytest
from analyses.made import Made
from test_operator_rules import found

from tuiprof.model import Trace

FUSION = "loop_multiply_fusion"
BODIES = (("multiply", "add"), ("multiply", "sqrt", "add"))


class Eager:
    """A host that calls JAX operations one by one, each 100 µs, every one with a kernel of 2 µs."""

    def __init__(self) -> None:
        self.made, self.at, self._number = Made(), 0.0, 0

    def op(self, name: str, us: float = 99.0) -> None:
        """Call an operation, which takes the host some µs."""
        self._number += 1
        self.made.op(f"PjitFunction({name})", self.at, self.at + us)
        call = (self.at + us - 5, self.at + us - 3)
        self.made.call("cuLaunchKernel", *call, correlation=self._number)
        self.made.kernel(FUSION, self.at + us - 2, self.at + us, self._number)
        self.at += us + 1

    def loop(self, line: int, body: tuple[str, ...], times: int = 20) -> None:
        """Call some operations for each of several tensors, from a lambda at a line."""
        for _ in range(times):
            begun = self.at
            self.at += 1
            for name in body:
                self.op(name)
            self.made.add("python_function", f"train.py({line}): <lambda>", begun, self.at)

    def trace(self) -> Trace:
        """Return the trace of what was called."""
        return self.made.trace(framework="JAX 0.11.2")


def updated(*, apart: str = "", between: int = 1) -> Trace:
    """Three steps with two loops, in one function or two, maybe with a compiled model between them."""
    host = Eager()
    for step in range(3):
        begun = host.at
        host.at += 2
        for index, body in enumerate(BODIES):
            if index and apart != "functions":
                for number in range(between):
                    host.op(f"power_{number}", 9_999.0)
            inside = host.at
            host.at += 1
            host.loop(30 + index, body)
            if apart == "functions":
                host.made.add("python_function", f"train.py({20 + index}): part{index}", inside, host.at)
        host.at += 2
        host.made.add("python_function", "train.py(17): adam_update", begun + 1, host.at)
        host.made.step(step, begun, host.at + 1)
        host.at += 2
    return host.trace()


def test_loops_of_one_function_that_follow_each_other_are_one_finding_with_what_is_between() -> None:
    row = found(updated(), "kernel-loop")
    assert row["where"] == "train.py adam_update() from line 17"
    assert row["what"].startswith(
        "2 loops that follow each other call 101 operations of JAX a step one by one; "
    )
    assert "multiply) → PjitFunction(sqrt) → PjitFunction(add) 20 times in a row" in row["what"]
    # Two iterations of 20 stay.
    host_ns = 1000 * (5 * 20 * 100 + 10_000)
    assert row["wins_ns"] == pytest.approx(0.9 * host_ns, rel=0.02)


@pytest.mark.parametrize(
    "trace", [updated(apart="functions"), updated(between=12)], ids=["two functions", "much between"]
)
def test_loops_at_different_places_stay_apart(trace: Trace) -> None:
    row = found(trace, "kernel-loop")
    assert row["where"] == "train.py <lambda>() from line 31", "the longer one"
    assert "follow each other" not in row["what"]
    assert row["wins_ns"] == pytest.approx(0.9 * 1000 * 3 * 20 * 100, rel=0.02)


def compiling(steps: int, *, eager: bool, of: int = 3) -> Trace:
    """Steps of 10 ms, some of which compile an operation for 4 ms."""
    made = Made()
    for number, at in made.steps(10_000, of):
        made.launch(FUSION, (at + 12, at + 15), (at + 20, at + 40))
        if number >= steps:
            continue
        if eager:
            made.add("python_function", "dispatch.py(81): apply_primitive", at + 100, at + 4_200)
        made.op("PjitFunction(integer_pow)", at + 110, at + 4_150)
        made.add("compile", "backend_compile_and_load", at + 120, at + 4_120)
    return made.trace(framework="JAX 0.11.2")


def test_what_is_compiled_in_each_step_is_named() -> None:
    row = found(compiling(3, eager=True), "recompiles")
    assert (
        row["what"] == "jit(integer_pow) is compiled again in each of 3 captured steps, 4.00 ms a step (40 %)"
    )
    assert row["instead"].startswith("call it inside a jax.jit")
    assert "jax_explain_cache_misses" in found(compiling(3, eager=False), "recompiles")["instead"]


@pytest.mark.parametrize(("steps", "of"), [(1, 3), (2, 2)])
def test_what_is_compiled_now_and_then_may_be_a_warm_up(steps: int, of: int) -> None:
    row = found(compiling(steps, eager=True, of=of), "recompiles")
    assert "not steady-state" in row["what"]
