"""The part of a backward pass in a model beside the trained one, such as a teacher that runs with gradients.

The trained model is called first, so the backward pass goes through the other before it. A trace does not record which
node gives its gradient to which. Shapes and types of gradients and inputs tell that nothing of the part goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.gradients.given_gradients import Kind, given_to
from tuiprof.advice.products.shapes import arguments_of, shape_of, shapes_in
from tuiprof.analyses.shared.arguments import Arguments, arguments
from tuiprof.analyses.shared.calls import BACKWARD, Calls
from tuiprof.analyses.shared.model_calls import model_calls
from tuiprof.model.intervals import Ints, Mask

#: Minimum share of the time of all calls, as shapes are read for it.
_MIN_SHARE: Final = 0.02
_EMBEDDING: Final = f"^{BACKWARD}Embedding(Bag)?Backward"
#: What computes gradients of weights and inputs, and the mask of a convolution that computes no gradient of its input.
_PRODUCTS: Final = r"^aten::(mm|bmm|convolution_backward)$"
_NOT_OF_INPUT: Final = "[False,"


def untrained_branch(calls: Calls, nodes: Ints, stores: Mask, unread: Mask, light: Mask) -> Ints:
    """Return the nodes of a backward pass that only compute unread gradients, though gradients that are read follow.

    ``stores`` and ``unread`` are calls that store gradients, all and those that nothing reads; ``light`` ones only pass
    the gradient of a weight on to it.
    """
    at = np.flatnonzero(stores[nodes])
    kept = ~unread[nodes[at]]
    longest = nodes[:0]
    for run in np.split(at, np.flatnonzero(np.diff(kept)) + 1):
        if unread[nodes[run[0]]] and run[-1] < at[-1]:
            before = int(at[at < run[0]][-1]) + 1 if run[0] > at[0] else 0
            part = _of_one_model(calls, nodes[before : run[-1] + 1], light)
            if len(part) > len(longest):
                longest = part
    if not len(longest) or calls.share_of_time(calls.mask(longest)) < _MIN_SHARE:
        return nodes[:0]
    rest = nodes[np.searchsorted(nodes, longest[-1]) + 1 :]
    ends = _ends_there(calls, longest[~light[longest]][-1]) and _stays(
        calls, nodes, longest, rest[~stores[rest]]
    )
    return longest if ends else nodes[:0]


def _of_one_model(calls: Calls, nodes: Ints, light: Mask) -> Ints:
    """Return the last of some nodes, from the first on of the model that has the first stored gradient."""
    made_by = calls.forward[nodes]
    feeding = np.flatnonzero(~light[nodes] & (made_by >= 0))
    stored = np.flatnonzero(light[nodes] & (made_by < 0))
    feeding = feeding[feeding < stored[0]] if len(stored) else feeding[:0]
    if not len(feeding):
        return nodes[:0]
    maker = int(made_by[feeding[-1]])
    models = model_calls(calls)
    names = np.array(["", *(name[1] for name in models.names)])
    of_node = names[np.where(made_by >= 0, models.of_call[made_by], -1) + 1]
    name = names[models.of_call[maker] + 1]
    mine = (of_node == name) & (made_by >= 0) if name else made_by == maker
    return nodes[np.argmax(mine) :]


def _ends_there(calls: Calls, node: int) -> bool:
    """Return whether a node computes the gradient of a weight, and none of an input."""
    trace = calls.trace
    if trace.named(_EMBEDDING, calls.rows[[node]]).all():
        return True
    products = trace.operators(_PRODUCTS)
    products = products[calls.inside(products) == node]
    known = dict(arguments(trace, products))
    if len(products) != 1 or products[0] not in known:
        return False
    convolves = trace.name(int(products[0])).endswith("convolution_backward")
    return not convolves or any(value.startswith(_NOT_OF_INPUT) for value in known[int(products[0])].values)


def _stays(calls: Calls, nodes: Ints, part: Ints, rest: Ints) -> bool:
    """Return whether the model of a part takes nothing that the nodes after it have to do with, by shapes and types.

    What it takes, it has computed before, or are its weights. What the first node after it belongs to goes into a later
    call, as the loss of a trained model.
    """
    given = {node: [kind, (kind[0], "")] for node, kind in given_to(calls, nodes).items() if kind[0]}
    makers = calls.forward[part]
    track = calls.tracks[makers.max()]
    forward = np.arange(makers[makers >= 0].min(), nodes[0])
    forward = forward[~calls.backward[forward] & (calls.tracks[forward] == track)]
    taken = arguments_of(calls, forward)
    last, first = int(makers.max()), given.get(int(rest[0]), []) if len(rest) else []
    if not any(kind in first for call, one in taken.items() if call > last for kind in _kinds_in(one)):
        return False
    theirs = {kind for node in rest.tolist() for kind in given.get(node, ())}
    weights = {kind for node in part[makers < 0].tolist() for kind in given.get(node, ())}
    computed = dict[Kind, int]()
    for node, maker in zip(part.tolist(), makers.tolist(), strict=True):
        for kind in given.get(node, ()) if maker >= 0 else ():
            computed[kind] = min(maker, computed.get(kind, maker))
    return all(
        kind not in theirs or kind in weights or computed.get(kind, call) < call
        for call, one in taken.items()
        if call <= last
        for kind in _kinds_in(one)
    )


def _kinds_in(given: Arguments) -> Iterator[Kind]:
    """Yield shape and type of each argument that is a tensor; of those in lists no type is known."""
    for dims, type_ in zip(given.dims, given.types, strict=False):
        if shape := shape_of(dims):
            yield shape, type_
        else:
            yield from ((listed, "") for listed in shapes_in(dims))
