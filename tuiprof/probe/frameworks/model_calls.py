"""Names calls of models or of their parts in a capture: which, with gradients or not, and what it has seen before."""

from __future__ import annotations

import itertools
import math
import weakref
from typing import Any, NamedTuple

from ..isolation import raised_by_signal_handler

#: Arguments that are compared by value.
_PLAIN = (bool, int, float, str, type(None))
_SEVERAL = (dict, list, tuple)
#: End of the name of a call that computes the same as an earlier one of the step.
SAME = ", same inputs"
#: End of the name of a call without gradients on the inputs of the last one with gradients, as for a metric.
TRAINED = ", inputs trained on"
#: Added to it if ``train()`` or ``eval()`` was called in between.
IN_ANOTHER_MODE = " in another mode"
#: Range without length before a call whose input is longer by one than that of the call before, as of a text to which a
#: word was added: with its length, and how many of them there are (``513x24``);
#: ``tuiprof/analyses/shared/model_calls.py`` knows it.
LONGER = "tuiprof.longer"
#: Share of the elements of all inputs that the largest one has at least, as an image beside prompts. Of two inputs of
#: a similar size (noise and a text), a part of the model may see the other one.
_MIN_OF_LARGEST = 0.9
#: Values of a container that are looked at: a vocabulary or a replay buffer has many, which are of one kind.
_MAX_VALUES = 100


class ModelCalls:
    """The calls of models during captures, or of their ``parts``, where a changed buffer or attribute counts as well.

    Weak references are to the memory of tensors, as ``swap_tensors`` refuses tensors that have one.
    """

    def __init__(self, torch: Any, parts: bool = False) -> None:
        self._torch = torch
        self._parts = parts
        #: Types of tensors that are compared; not subclasses: they may compute nothing, or run code.
        self.kinds = torch.Tensor, torch.nn.Parameter
        # Models and their numbers, by id, which another model may have later.
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbered = 0
        self._step = -1
        #: The memory of the tensors of each call of the current step, by all that could make its result another.
        self._called: dict[Any, list[weakref.ref[Any]]] = {}
        #: Of each model called in the current step, by its number; of the frozen part, by the negative one.
        self._states: dict[int, _State] = {}
        #: The memory of the largest inputs of the calls of the current step by model, its mode, and input, with what
        #: the model held: all of it, and the frozen part.
        self._largest: dict[tuple[int, bool, tuple[Any, ...]], tuple[weakref.ref[Any], int, int]] = {}
        #: Of the last call with gradients, by model: its step, its mode, what it was called with, and the memory of its
        #: tensors.
        self._trained: dict[int, tuple[int, bool, Any, list[weakref.ref[Any]]]] = {}
        #: Shape of the input of the last call without gradients, by model.
        self._shapes: dict[int, tuple[int, ...]] = {}

    def name(
        self,
        model: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        learning: bool,
        step: int,
        mark: Any = None,
    ) -> str:
        """Return the name of a call's range, ``GPT #2, no gradients``: each model has a number.

        ``mark`` puts another range before it (see :data:`LONGER`).
        """
        known = self._numbers.get(id(model))
        if known is None or known[0]() is not model:
            self._numbered += 1
            known = self._numbers[id(model)] = weakref.ref(model), self._numbered
        try:
            with self._torch._C.DisableTorchFunction():  # modes of the script see nothing of it
                if mark is not None and not learning and (longer := self._longer(known[1], args, kwargs)):
                    with mark(longer):
                        pass
                again = self._again(model, known[1], args, kwargs, learning, step)
        except Exception as error:  # tensors and models of any kind; those of inference mode count no changes
            if raised_by_signal_handler(error):
                raise
            again = ""
        return f"{type(model).__name__} #{known[1]}{'' if learning else ', no gradients'}{again}"

    def _longer(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the name of the mark of a call whose input is longer by one; empty = it is not.

        The input is the largest tensor of whole numbers, as of words, else the largest one. A mask grows with a cache
        of keys and values, too, and so does a cache that is a tensor, beside which what is new has a length of one.
        """
        if self._torch.jit.is_tracing():
            return ""  # sizes are part of the graph then
        values = [*args, *(value for name, value in kwargs.items() if "mask" not in name)]
        tensors = [value for value in values if type(value) in self.kinds and value.dtype != self._torch.bool]
        if not tensors:
            return ""
        words = [value for value in tensors if not (value.is_floating_point() or value.is_complex())]
        now = tuple(max(words or tensors, key=self._torch.Tensor.numel).shape)
        before = self._shapes.get(number, ())
        self._shapes[number] = now
        grown = [at for at, (old, new) in enumerate(zip(before, now)) if old != new]
        if len(before) != len(now) or len(grown) != 1 or now[grown[0]] != before[grown[0]] + 1:
            return ""
        if any(len(value.shape) == len(now) and value.shape[grown[0]] == 1 for value in tensors):
            return ""
        return f"{LONGER} {now[grown[0]]}x{math.prod(now[: grown[0]])}"

    def _again(
        self,
        model: Any,
        number: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        learning: bool,
        step: int,
    ) -> str:
        """Return whether this step has called the same weights before, on the same unchanged tensors or the largest.

        Of a call with gradients, whose first layers may be frozen, only weights that do not learn have to be the same.
        """
        if step != self._step:
            self._step = step
            self._called.clear()
            self._states.clear()
            self._largest.clear()
        trained = self._trained.pop(number, None) if learning else self._trained.get(number)
        if self._torch.jit.is_tracing():
            return ""  # sizes are part of the graph then
        tensor = self._torch.Tensor
        values = (*args, *kwargs.values())
        tensors = [value for value in values if type(value) in self.kinds]
        if not tensors or any(type(value) not in (*self.kinds, *_PLAIN) for value in values):
            return ""
        if any(value.requires_grad and value.is_leaf for value in tensors):
            return ""  # what is optimized may be changed through .data, which is not counted
        held = _held(model, self._parts or not model.training)
        settings = _settings(model) if self._parts else ()
        inputs = tuple(
            _identity(value) if isinstance(value, tensor) else (type(value), value) for value in values
        )
        whole = self._state(number, held)
        frozen = self._state(-number, [one for one in held if not one[0].requires_grad])
        call = number, learning, model.training, whole, settings, tuple(kwargs), inputs
        before = self._called.get(call)
        self._called[call] = memory = [_memory(value) for value in tensors]
        given = tuple(kwargs), inputs
        if learning:
            self._trained[number] = step, model.training, given, memory
        # The step may have ended with the update of the weights, between the two.
        learned = ""
        if (
            trained is not None
            and not (learning or self._parts)
            and (step - trained[0] <= 1 and trained[2] == given)
            and all(map(_is_in, tensors, trained[3]))
        ):
            learned = TRAINED if trained[1] == model.training else TRAINED + IN_ANOTHER_MODE
        # A tensor that is gone may have left its id and address to another one.
        same = before is not None and all(map(_is_in, tensors, before))
        largest = max(tensors, key=tensor.numel)
        key = number, model.training, _identity(largest)
        seen = self._largest.get(key)
        self._largest[key] = _memory(largest), whole, frozen
        most = largest.numel() >= _MIN_OF_LARGEST * sum(value.numel() for value in tensors)
        part = most and seen is not None and _is_in(largest, seen[0])
        if seen is not None and (seen[2] != frozen if learning else seen[1] != whole):
            part = False
        if (
            not held
            or not (same or part or learned)
            or _varies(model, tensor, {id(value) for value, _ in held})
        ):
            return ""
        return SAME if same else learned or ", same largest input"

    def _state(self, number: int, held: list[tuple[Any, bool]]) -> int:
        """Return a number of what a model holds, which is another one after each change."""
        # An assignment to .data changes no version, but mostly the address.
        versions = [(value._version if counts else 0, value.data_ptr()) for value, counts in held]
        known = self._states.get(number)
        if (
            known is None
            or known.versions != versions
            or not all(_is_in(value, memory) for (value, _), memory in zip(held, known.memory))
        ):
            memory = [_memory(value) for value, _ in held]
            known = self._states[number] = _State(0 if known is None else known.number + 1, versions, memory)
        return known.number


class _State(NamedTuple):
    """Parameters and buffers of a model, or of its frozen part, at a call."""

    number: int
    versions: list[tuple[int, int]]  # version and address of each
    memory: list[weakref.ref[Any]]


def _identity(tensor: Any) -> tuple[Any, ...]:
    """Return what two tensors that exist at the same time, or one before and after a change, do not share."""
    return id(tensor), tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()


def _memory(tensor: Any) -> weakref.ref[Any]:
    return weakref.ref(tensor.untyped_storage())


def _is_in(tensor: Any, memory: weakref.ref[Any]) -> bool:
    return memory() is tensor.untyped_storage()


def _held(model: Any, buffers: bool) -> list[tuple[Any, bool]]:
    """Return the parameters and buffers of a model, and whether changes of each in place count.

    ``buffers`` False = those of buffers do not: a batch norm updates its own in each call, and in training they have no
    effect on its result.
    """
    return [
        (value, counts)
        for part in model.modules()
        for values, counts in ((part._parameters, True), (part._buffers, buffers))
        for value in values.values()
        if value is not None
    ]


def _settings(model: Any) -> tuple[Any, ...]:
    """Return the plain attributes of a model and its parts, such as counters and switches."""
    return tuple(value for part in model.modules() for value in vars(part).values() if type(value) in _PLAIN)


def _varies(model: Any, tensor: Any, held: set[int]) -> bool:
    """Whether two calls on the same inputs may be meant, as they differ: by dropout (SimCSE) or by a kept state."""
    return any(
        (model.training and _drops(part)) or _keeps_state(part, tensor, held) for part in model.modules()
    )


def _drops(part: Any) -> bool:
    """Whether a module has a dropout above 0, as a layer or as a number for a function."""
    named = "drop" in type(part).__name__.lower()
    return any(
        issubclass(type(value), (int, float)) and value > 0
        for name, value in vars(part).items()
        if "drop" in name.lower() or (named and name == "p")
    )


def _keeps_state(part: Any, tensor: Any, held: set[int]) -> bool:
    """Whether a module has tensors that are not registered, as spiking and recurrent ones keep for the next call."""
    kept: list[Any] = []
    for value in vars(part).values():
        kind = type(value)
        if kind in _SEVERAL:
            kept += itertools.islice(value.values() if kind is dict else value, _MAX_VALUES)
        elif kind not in _PLAIN:
            kept.append(value)
    # Not isinstance(), which runs code of proxies.
    return any(issubclass(type(value), tensor) and id(value) not in held for value in kept)
