"""Names the calls of models in a capture: which model, with gradients or not, and whether on the same inputs again."""

from __future__ import annotations

import weakref
from typing import Any

#: Arguments that are compared by value.
_PLAIN = (bool, int, float, str, type(None))


class ModelCalls:
    """The calls of models during captures."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # Models and their numbers, by id, which another model may have later.
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbered = 0
        self._step = -1
        #: The tensors of each call of the current step, by all that could make its result another.
        self._called: dict[Any, list[weakref.ref[Any]]] = {}

    def name(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], learning: bool, step: int
    ) -> str:
        """Return the name of a call's range, ``GPT #2, no gradients``: each model has a number."""
        known = self._numbers.get(id(model))
        if known is None or known[0]() is not model:
            self._numbered += 1
            known = self._numbers[id(model)] = weakref.ref(model), self._numbered
        try:
            again = self._again(model, known[1], args, kwargs, learning, step)
        except Exception:  # tensors and models of any kind, some of which have no such attributes
            again = False
        return (
            f"{type(model).__name__} #{known[1]}{'' if learning else ', no gradients'}"
            f"{', same inputs' if again else ''}"
        )

    def _again(
        self,
        model: Any,
        number: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        learning: bool,
        step: int,
    ) -> bool:
        """Whether this step has made the same call before: of the same weights, on the same unchanged tensors."""
        if step != self._step:
            self._step = step
            self._called.clear()
        tensor = self._torch.Tensor
        values = (*args, *kwargs.values())
        tensors = [value for value in values if isinstance(value, tensor)]
        if not tensors or not all(isinstance(value, (tensor, *_PLAIN)) for value in values):
            return False
        weights = next(iter(model.parameters()), None)
        if weights is None or any(value.is_inference() for value in (*tensors, weights)):
            return False  # those count no changes
        inputs = tuple(
            (id(value), value._version) if isinstance(value, tensor) else (type(value), value)
            for value in values
        )
        call = number, learning, model.training, weights._version, tuple(kwargs), inputs
        before = self._called.get(call)
        self._called[call] = [weakref.ref(value) for value in tensors]
        # A tensor that is gone may have left its id to another one.
        same = before is not None and all(ref() is value for ref, value in zip(before, tensors))
        return same and not _draws(model)


def _draws(model: Any) -> bool:
    """Whether a model in training leaves out values at random: two calls on the same inputs may be meant (SimCSE)."""
    return bool(model.training) and any(_drops(part) for part in model.modules())


def _drops(part: Any) -> bool:
    """Whether a module has a dropout above 0, as a layer or as a number for a function."""
    named = "drop" in type(part).__name__.lower()
    return any(
        isinstance(value, (int, float)) and value > 0
        for name, value in vars(part).items()
        if "drop" in name.lower() or (named and name == "p")
    )
