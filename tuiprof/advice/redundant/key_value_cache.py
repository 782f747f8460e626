"""A text grows word by word, and the model runs on all of it again for each word."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.idle import DATA_LOADING
from tuiprof.analyses.shared.model_calls import longer_calls, model_calls
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import Edit, EditRange

#: Minimum number of calls in a row, each on an input that is longer by one than that before. Where inputs come from the
#: host between them, they may be batches of texts in order of length.
_IN_A_ROW, _IN_A_ROW_FROM_HOST = 3, 8
#: Products with weights: below so many rows they take as long as reading the weights, at any number of them. Peak rate
#: over bandwidth of an H100 (300), and the range over chips and types; of a core. Likely, least and most helpful.
_PRODUCTS: Final = r"^aten::(linear|addmm|mm|conv1d)$"
_ROWS, _ROWS_ON_CPU = (300, 600, 100), (10, 40, 4)
#: Attention of one word reads the keys and values of all words, which takes so much over the length of the time of all,
#: and more if both are copied to add a word.
_ATTENTION: Final = r"^aten::(scaled_dot_product_attention|_?\w*attention\w*|matmul|bmm|baddbmm)$"
_READING, _READING_ON_CPU = (240, 600, 120), (8, 20, 4)
#: No kernel is shorter, ns, and on a CPU no operator.
_SHORTEST_NS: Final = (2_500, 4_000, 1_500)
_SHORTEST_ON_CPU_NS: Final = 10_000
#: Bytes of a word, an int64.
_WORD_BYTES: Final = 8
#: Operators that pick the rows of words, and how many of them are inspected in a trace with shapes.
_WORDS: Final = r"^aten::embedding$"
_LOOKED_AT: Final = 2_000


class _Call(NamedTuple):
    """A call of a model on an input that is longer by one than that of the call before."""

    of: Any  # the model
    calls: Ints  # in it, as indices
    length: int
    many: int  # inputs of that length


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls without gradients on inputs that are longer by one each time, as the probe marks them.

    Without the probe, the shapes of operators show it, if they were recorded.
    """
    calls = evidence.calls
    runs = [
        run
        for run in _in_a_row(_marked(calls) or _by_shapes(calls))
        if not _loaded(calls, run)
        and len(run) >= (_IN_A_ROW_FROM_HOST if _from_host(calls, run) else _IN_A_ROW)
    ]
    found = [call for run in runs for call in run]
    if not found:
        return
    rows, reading = (_ROWS, _READING) if trace.device_indices else (_ROWS_ON_CPU, _READING_ON_CPU)
    parts = zip(rows, reading, _SHORTEST_NS, strict=True)
    longest = max(call.length for call in found)
    first = int(calls.rows[found[0].calls[0]])
    yield Finding(
        f"a model runs again on all of an input that grows by one each time (up to {longest}), "
        f"{evidence.how_often(len(found))}",
        evidence.function_of(first) or (found[0].of if isinstance(found[0].of, str) else ""),
        "keep keys and values and pass only what is new (use_cache=True, past_key_values) if each word sees only those "
        "before it; of a recurrent model, keep the state",
        "medium",
        "without gradients, the same model is called on inputs that are longer by one each time",
        *EditRange(*(_of_one(calls, found, *each) for each in parts)),
        event=first,
    )


def _marked(calls: Calls) -> list[_Call]:
    models = model_calls(calls)
    if not (longer := longer_calls(calls.trace, models)):
        return []
    inside = models.split(np.arange(len(calls.rows)))
    return [
        _Call(models.names[at][1], inside[at], *longer.get(at, (0, 0)))
        for at in np.argsort(calls.trace.starts[models.rows], kind="stable").tolist()
        if len(inside[at])
    ]


def _by_shapes(calls: Calls) -> list[_Call]:
    """Return what follows each choice of the rows of words up to the last product before the next one."""
    picks = np.flatnonzero(calls.trace.named(_WORDS, calls.rows) & ~calls.backward & ~calls.differentiated)
    picks = picks[:_LOOKED_AT]
    if len(picks) < _IN_A_ROW or not any(arguments(calls.trace, calls.rows[picks[:1]])):
        return []
    given = dict(arguments(calls.trace, calls.rows[picks]))
    tables: dict[Any, list[tuple[int, list[int]]]] = {}
    for pick, row in zip(picks.tolist(), calls.rows[picks].tolist(), strict=True):
        dims = given[row].dims[:2] if row in given else []
        if len(dims) == 2 and all(_is_shape(shape) for shape in dims):
            tables.setdefault((int(calls.tracks[pick]), *dims[0]), []).append((pick, dims[1]))
    products = np.flatnonzero(calls.trace.named(_PRODUCTS, calls.rows))
    found = [_of_table(calls, table, picked, products) for table, picked in tables.items()]
    return max(found, key=lambda each: sum(call.length > 0 for call in each), default=[])


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(isinstance(size, int) for size in shape)


def _of_table(calls: Calls, table: Any, picked: list[tuple[int, list[int]]], products: Ints) -> list[_Call]:
    found, before = list[_Call](), list[int]()
    for (pick, shape), (after, _) in zip(picked, [*picked[1:], (len(calls.rows), [])], strict=True):
        mine = products[np.searchsorted(products, pick) : np.searchsorted(products, after)]
        mine = mine[calls.steps[mine] == calls.steps[pick]]
        inside = calls.between(pick, int(mine.max(initial=pick)))
        found.append(_Call(table, inside, *_longer(before, shape)))
        before = shape
    return found


def _longer(before: list[int], now: list[int]) -> tuple[int, int]:
    """Return the length and the number of inputs that are longer by one than those before; 0 = they are not."""
    other = [at for at, (old, new) in enumerate(zip(before, now, strict=False)) if old != new]
    if len(before) != len(now) or len(other) != 1 or now[other[0]] != before[other[0]] + 1:
        return 0, 0
    return now[other[0]], prod(now[: other[0]])


def _in_a_row(every: list[_Call]) -> Iterator[list[_Call]]:
    """Yield the calls of one model that follow each other, each on an input that is longer by one."""
    of_model: dict[Any, list[_Call]] = {}
    for call in every:
        of_model.setdefault(call.of, []).append(call)
    for mine in of_model.values():
        run = list[_Call]()
        for call in mine:
            if run and call.length != run[-1].length + 1:
                yield run
                run = []
            if call.length:
                run.append(call)
        if run:
            yield run


def _loaded(calls: Calls, run: list[_Call]) -> bool:
    """Return whether a loader gives each input, as of texts in order of length."""
    trace = calls.trace
    first, last = (trace.starts[calls.rows[int(call.calls[0])]] for call in (run[0], run[-1]))
    loads = trace.starts[outermost(trace, trace.host_events(DATA_LOADING))]
    return int(np.count_nonzero((loads > first) & (loads < last))) >= max(len(run) - 1, 1)


def _from_host(calls: Calls, run: list[_Call]) -> bool:
    """Return whether more than a word of each input is copied to the device between calls of a model."""
    trace, work = calls.trace, calls.trace.device_work
    first, last = int(run[0].calls[0]), int(run[-1].calls[0])
    inside = calls.mask(*(call.calls for call in run))
    copies = trace.is_category("memcpy", rows=work) & trace.named("HtoD", work)
    copies &= trace.ints("bytes", work) > _WORD_BYTES * run[0].many
    copies &= (calls.call_of_work > first) & (calls.call_of_work < last)
    return bool((copies & ~calls.launched_by(inside)).any())


def _of_one(calls: Calls, found: list[_Call], rows: int, reading: int, shortest_ns: int) -> Edit:
    """Return the edit in which calls work on the last of their inputs only; all operators are called."""
    trace = calls.trace
    length, many = np.ones((2, len(calls.rows)))
    for call in found:
        length[call.calls], many[call.calls] = call.length, call.many
    products, attention = (trace.named(pattern, calls.rows) for pattern in (_PRODUCTS, _ATTENTION))
    part = np.select(
        [length == 1, products, attention],
        [1.0, np.maximum(many, rows) / (many * length), reading / length],
        1 / length,
    )
    part = np.minimum(part, 1.0)
    if not trace.device_indices:
        ours = part < 1
        took = np.maximum(trace.lengths(calls.rows), 1)
        return calls.edit(ours, np.minimum(np.maximum(part, _SHORTEST_ON_CPU_NS / took), 1.0))
    chosen = np.flatnonzero(calls.launched_by(part < 1))
    work = trace.device_work[chosen]
    shortest = shortest_ns / np.maximum(trace.lengths(work), 1)
    return Edit(work=work, keep=np.minimum(np.maximum(part[calls.call_of_work[chosen]], shortest), 1.0))


RULE = AdviceRule("key-value-cache", find)
