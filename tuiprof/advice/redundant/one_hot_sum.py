"""Scores are multiplied by one-hot vectors and summed, which picks one score of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask
from tuiprof.model.trace import cached_on_trace
from tuiprof.whatif import EditRange

_CASTS: Final = ("aten::to", "aten::_to_copy", "aten::type", "aten::type_as")
_VIEWS: Final = ("aten::view", "aten::reshape", "aten::permute", "aten::transpose", "aten::movedim")
#: One-hot vectors written out: a value is scattered into a tensor that these have filled.
_ZEROS: Final = ("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::empty_like", "aten::zero_")
FULL: Final = ("aten::full", "aten::full_like", "aten::new_full", "aten::fill_")
_FREE: Final = ("aten::unsqueeze", "aten::detach", "aten::alias", "aten::view", "aten::to")
#: Label smoothing scales the vectors and adds to them before they are multiplied by the scores.
_ARITHMETIC: Final = ("aten::mul", "aten::add", "aten::sub", "aten::rsub", "aten::div", "aten::neg")
#: What makes the scores, if it comes after the vectors.
_SCORES: Final = (
    *("aten::log_softmax", "aten::softmax", "aten::log", "aten::sigmoid", "aten::log_sigmoid"),
    *("aten::clamp", "aten::clamp_min", "aten::flatten", "aten::pow"),
)
_SUMS: Final = ("aten::sum", "aten::mean")
#: Maximum number of operators from the vectors to the sum.
_LONGEST: Final = 12
#: Share of the time that remains: the gradient of what is picked is filled with zeros. With smoothing all scores are
#: summed too, and each has a gradient. Likely, least helpful and most helpful.
_KEEP: Final = {False: (0.15, 0.35, 0.05), True: (0.3, 0.5, 0.2)}


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for one-hot vectors, arithmetic and a sum."""
    calls = evidence.calls
    found = _found(trace)
    if not found:
        return
    smoothed = any(_is_smoothed(calls.names_of(np.array(saved))) for saved in found)
    event = int(calls.rows[found[0][0]])
    whole = calls.with_backward(calls.mask(*found))
    yield Finding(
        "scores are multiplied by one-hot vectors and summed, several passes over all classes to pick one of each row, "
        f"{evidence.how_often(len(found))}",
        evidence.function_of(event),
        "F.cross_entropy(logits, target, label_smoothing=...) for a loss with smoothed labels"
        if smoothed
        else "if the sum is over the classes: scores.gather(-1, target[..., None]); for a loss, "
        "F.cross_entropy(logits, target)",
        "high" if smoothed else "medium",
        "one-hot vectors are multiplied element by element, and the product is summed",
        *EditRange(*(calls.edit(whole, keep, keep) for keep in _KEEP[smoothed])),
        event=event,
    )


def picked(trace: Trace) -> Mask:
    """Return which calls would disappear if values were picked without one-hot vectors."""
    return calls_of(trace).mask(*_found(trace))


@cached_on_trace
def _found(trace: Trace) -> list[list[int]]:
    """Return the calls that are not needed, of each sum of a product with one-hot vectors."""
    calls = calls_of(trace)
    made = (one_hot_vectors(calls, one) for one in one_hot_calls(calls))
    return [saved for vectors in made if vectors and (saved := _until_sum(calls, vectors))]


def _is_smoothed(names: Sequence[str]) -> bool:
    scaled = sum(name in _ARITHMETIC and name != "aten::neg" for name in names) > 1
    return scaled or any(name in FULL for name in names)


def one_hot_calls(calls: Calls) -> list[int]:
    """Return the calls that may complete one-hot vectors; those that scatter a tensor, not one value, do not."""
    trace = calls.trace
    of_tensor = calls.call_of_work[trace.named("_scatter_gather_internal_kernel", trace.device_work)]
    found: list[int] = np.setdiff1d(
        np.flatnonzero(trace.named(r"^aten::(one_hot|scatter_)$", calls.rows)), of_tensor
    ).tolist()
    return found


def one_hot_vectors(calls: Calls, made: int) -> list[int]:
    """Return the calls that make one-hot vectors, of which a given one is the last; none if it makes none."""
    if calls.names[made] == "aten::one_hot":
        return [made]
    before = np.flatnonzero(calls.tracks[:made][-_LONGEST:] == calls.tracks[made]) + max(made - _LONGEST, 0)
    filled: list[int] = []
    for index in before[::-1].tolist():
        name = calls.names[index]
        if name in _ZEROS or name in FULL:
            filled.append(index)
        elif name not in _FREE or filled:
            break
    return [*filled[::-1], made] if filled else []


def _until_sum(calls: Calls, vectors: list[int]) -> list[int]:
    """Return the calls that are not needed, up to the sum of a product with the vectors; none if there is no sum."""
    saved, has_scores = list(vectors), False
    for index in calls.after(vectors[-1], _LONGEST).tolist():
        name = calls.names[index]
        if name in _SUMS:
            product = next(
                (calls.names[call] for call in saved[::-1] if calls.names[call] != "aten::neg"), ""
            )
            return [*saved, index] if product == "aten::mul" else []
        if name in _SCORES:
            has_scores = True
        elif name in _ARITHMETIC or (name in (*_CASTS, *_VIEWS) and not has_scores):
            saved.append(index)
        elif name not in (*_CASTS, *_VIEWS):
            return []
    return []


RULE = AdviceRule("one-hot-sum", find)
