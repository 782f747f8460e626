"""What autograd gives to its nodes, by the arguments that a trace records of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from tuiprof.advice.products.shapes import Shape, shape_of
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model.intervals import Ints

#: Shape and type of a tensor.
Kind = tuple[Shape, str]
#: Nodes, and what stores gradients, inside of the events that evaluate them.
_NODE: Final = r"^(\w+Backward\d*|torch::autograd::AccumulateGrad)$"


def given_to(calls: Calls, nodes: Ints) -> dict[int, Kind]:
    """Return shape and type of the gradient that each of some nodes is given, by its index; () = a number.

    They are those of what the node's operator computed, the first if it computed several. Nodes without recorded shapes
    are left out.
    """
    operators = calls.trace.operators(_NODE)
    inside = calls.inside(operators)
    chosen = np.isin(inside, nodes)
    of_row = dict(zip(operators[chosen].tolist(), inside[chosen].tolist(), strict=True))
    return {
        of_row[row]: (shape_of(given.dims[0]), given.types[0])
        for row, given in arguments(calls.trace, operators[chosen])
        if given.dims and given.types
    }
