"""Arguments of operators, on tiny traces."""

from __future__ import annotations

from analyses.made import BACKWARD, Made, with_arguments

from tuiprof.analyses.shared.arguments import ASKED, arguments


def test_nodes_of_a_backward_pass_say_nothing_about_those_of_operators() -> None:
    """They have none, and more of them than are asked may come first in the file."""
    made = Made()
    for at in range(2 * ASKED):
        made.op("autograd::engine::evaluate_function: MulBackward0", at, at + 0.5, track=BACKWARD)
    trace = made.op("aten::mul", 0, 1).trace()
    last = max(trace.ints("ordinal").tolist())
    trace = with_arguments(trace, lambda ordinal: {"Input Dims": [[8]]} if ordinal == last else {})
    assert [given.dims for _, given in arguments(trace, trace.operators())] == [[[8]]]
