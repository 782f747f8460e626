"""A product with one-hot vectors picks rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.redundant.one_hot_sum import FULL, one_hot_calls, one_hot_vectors
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.compiled.instructions import carried_out, source_of
from tuiprof.analyses.shared.compiled.one_hot import one_hot_products
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

_CASTS: Final = ("aten::to", "aten::_to_copy", "aten::type", "aten::reshape", "aten::view", "aten::flatten")
_PRODUCTS: Final = ("aten::matmul", "aten::mm", "aten::bmm", "aten::linear", "aten::addmm")
_TRANSPOSED: Final = ("aten::t", "aten::transpose", "aten::permute")
_COUNTS: Final = ("aten::sum", "aten::mean")
#: Maximum number of operators from the vectors to the first product, and from it to others with the same vectors.
_TO_PRODUCT: Final = 5
_LONGEST: Final = 16
#: Time of looking up the rows, and of their gradient, relative to all of that: likely, least and most helpful.
_KEEP: Final = (0.05, 0.3, 0.01)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for one-hot vectors that are used directly in a product."""
    yield from _called(evidence)
    yield from _compiled(trace, evidence)


def _compiled(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for them in compiled programs. On a TPU, a product is often faster than picking rows."""
    if not trace.device_indices or "TPU" in trace.info.device_name:
        return
    done = carried_out(trace)
    products, makers, by_line = list[Ints](), list[Ints](), dict[str, Ints]()
    for program in done.programs:
        rows_of = done.rows_of(program)
        for found in one_hot_products(program):
            for product, carrier in found.products:
                if (rows := rows_of.get(carrier.name)) is not None:
                    products.append(rows)
                    line = source_of(product)
                    by_line[line] = np.concatenate([by_line.get(line, rows[:0]), rows])
            makers += (rows_of[one.name] for one in found.makers if one.name in rows_of)
    if not products:
        return
    where = max(by_line, key=lambda line: int(trace.lengths(by_line[line]).sum()))
    all_products, made = np.concatenate(products), Edit.of_work(np.concatenate([*makers, products[0][:0]]))
    share = evidence.share_of_device_time(np.concatenate([all_products, made.work]))
    yield Finding(
        "one-hot vectors are multiplied by a matrix just to select its rows: "
        f"{format_rough_share(share)} of device time",
        where,
        "table[ids], whose gradient adds rows (in Flax, nnx.Embed or nn.Embed), without one-hot vectors",
        "high",
        "the compiled program compares indices with all numbers of rows, and multiplies the result",
        *EditRange(*(Edit.of_work(all_products, keep) | made for keep in _KEEP)),
        event=int(trace.longest(by_line[where])),
    )


def _called(evidence: Evidence) -> Iterator[Finding]:
    """Look for them among PyTorch's operators."""
    calls = evidence.calls
    found, chosen = [], []
    summed = False
    for made in one_hot_calls(calls):
        vectors = one_hot_vectors(calls, made)
        product = _product(calls, made) if vectors else []
        if product and not any(calls.names[index] in FULL for index in vectors):
            sums = _sums(calls, product[-1])
            chosen += [vectors, product, sums]
            summed |= bool(sums)
            found.append(vectors[0])
    if not found:
        return
    event = int(calls.rows[found[0]])
    sure = calls.names[found[0]] == "aten::one_hot"
    whole = calls.with_backward(calls.mask(*chosen))
    yield Finding(
        "one-hot vectors are multiplied by a matrix just to select its rows, "
        f"{evidence.how_often(len(found))}",
        evidence.function_of(event),
        "F.embedding(ids, table) or table[ids] (for nn.Linear: its transposed weight), without one-hot vectors"
        + ("" if sure else " (F.embedding_bag if a row has several ids)")
        + (
            "; torch.bincount(ids) counts them, and zeros.index_add_(0, ids, x) sums x by id"
            if summed
            else ""
        ),
        "high" if sure else "medium",
        "a one_hot result is cast and multiplied right away"
        if sure
        else "a value scattered into zeros is multiplied right away",
        *EditRange(*(calls.edit(whole, keep, keep) for keep in _KEEP)),
        event=event,
    )


def _product(calls: Calls, made: int) -> list[int]:
    """Return the calls after the one that makes the vectors, up to their product; none if there is no product."""
    mine = calls.after(made, _TO_PRODUCT)
    for position, index in enumerate(mine.tolist()):
        if calls.names[index] in _PRODUCTS:
            until: list[int] = mine[: position + 1].tolist()
            return until
        if calls.names[index] not in _CASTS:
            return []
    return []


def _sums(calls: Calls, product: int) -> list[int]:
    """Return the calls that count the vectors and sum rows by them: a product with their transpose, and sums beside.

    Without sums beside, it is a product of something else, such as attention scores.
    """
    mine = calls.after(product, _LONGEST)
    names = calls.names_of(mine)
    second = next((at for at, name in enumerate(names) if name in _PRODUCTS), 0)
    if second < 1 or names[second - 1] not in _TRANSPOSED or names[second] == "aten::linear":
        return []
    until = second + 1
    while until < len(names) and names[until] in _COUNTS:
        until += 1
    beside = [at for at in range(until) if names[at] in _COUNTS]
    found: list[int] = mine[sorted([*beside, second - 1, second])].tolist() if beside else []
    return found


RULE = AdviceRule("one-hot-product", find)
