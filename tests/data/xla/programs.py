"""Writes ``programs-cpu.zip``: what XLA makes of the gradients of loops and lookups, one ``HloModuleProto`` each.

    python programs.py OUT    # JAX 0.10.2, on a CPU
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

TIMES, BATCH, WIDTH, WORDS = 16, 8, 64, 50


def drawn(*shape: int) -> Any:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def gru(weights: Any, x: Any, *, hoisted: bool, projected: bool = False) -> Any:
    given, kept, last = weights

    def cell(h: Any, now: Any) -> Any:
        if not hoisted:
            now = now @ given  # inputs
        (a, b, c), (d, e, f) = jnp.split(now, 3, -1), jnp.split(h @ kept, 3, -1)
        keep = jax.nn.sigmoid(b + e)
        h = (1 - keep) * jnp.tanh(c + jax.nn.sigmoid(a + d) * f) + keep * h
        return h, (jnp.tanh(h @ last) if projected else h)  # outputs

    return jax.lax.scan(cell, jnp.zeros_like(x[0]), x @ given if hoisted else x)[1]


def lstm(weights: Any, x: Any) -> Any:
    def cell(state: Any, now: Any) -> Any:
        h, c = state
        i, f, o, g = (now @ weights["x"][k] + h @ weights["h"][k] for k in range(4))  # gates
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jax.lax.scan(cell, (jnp.zeros_like(x[0]),) * 2, x)[1]


def joined(weights: Any, x: Any, *, first: bool) -> Any:
    """An LSTM whose cell multiplies its input and its state as one vector."""

    def cell(state: Any, now: Any) -> Any:
        h, c = state
        gates = jnp.concatenate([now, h] if first else [h, now], -1) @ weights  # joined
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[1], weights.shape[1] // 4))
    return jax.lax.scan(cell, (zeros, zeros), x)[1]


def messages(weights: Any, nodes: Any, sent: Any, edges: Any) -> Any:
    """A layer of a graph network: a message for each edge from both of its nodes."""
    up, first, second = weights
    h = nodes @ up
    both = jnp.concatenate([h[sent[0]], h[sent[1]], edges], -1)
    told = jax.nn.silu(both @ first) @ second  # messages
    return jnp.tanh(jax.ops.segment_sum(told, sent[1], len(nodes)) @ second)


def layers(weights: Any, x: Any) -> Any:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x[0], weights)[0]


def blockwise(q: Any, blocks: Any) -> Any:
    """Attention with a running maximum over blocks of keys, to save memory."""

    def block(state: Any, k: Any) -> Any:
        high, total, y = state
        scores = jnp.einsum("bhtd,bhsd->bhts", q, k)
        now = jnp.maximum(high, scores.max(-1))
        part, old = jnp.exp(scores - now[..., None]), jnp.exp(high - now)
        y = y * old[..., None] + jnp.einsum("bhts,bhsd->bhtd", part, k)
        return (now, total * old + part.sum(-1), y), None

    zeros = jnp.zeros(q.shape[:3])
    return jax.lax.scan(block, (zeros - 1e9, zeros, jnp.zeros_like(q)), blocks)[0][2]


def in_parts(table: Any, x: Any) -> Any:
    """A loss over parts of a batch, to save memory."""
    return jax.lax.scan(lambda total, part: (total + jax.nn.logsumexp(part @ table), None), 0.0, x)[0]


def looked_up(table: Any, ids: Any, *, one_hot: bool) -> Any:
    return jax.nn.one_hot(ids, WORDS) @ table if one_hot else table[ids]  # words


def labels(table: Any, ids: Any, x: Any) -> Any:
    return jax.nn.one_hot(ids, WORDS) * jax.nn.log_softmax(x @ table.T)


def masked(q: Any, ids: Any) -> Any:
    scores = jnp.einsum("btd,bsd->bts", q, q)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e9)
    return jax.nn.softmax(scores) * (ids[:, :, None] == ids[:, None]) @ q


def dispatched(weights: Any, x: Any) -> Any:
    """A mixture of experts with room for a few tokens each."""
    experts, room = weights["up"].shape[0], 10
    chances = jax.nn.softmax(x @ weights["router"], -1)
    chosen, gate = jnp.argmax(chances, -1), jnp.max(chances, -1)
    mine = jax.nn.one_hot(chosen, experts, dtype=jnp.int32)
    place = jnp.sum((jnp.cumsum(mine, 1) - 1) * mine, -1)
    sent = jax.nn.one_hot(chosen, experts)[..., None] * jax.nn.one_hot(place, room)[:, :, None]
    y = jnp.einsum("gsec,gsd->gecd", sent, x)  # sent
    y = jax.nn.gelu(jnp.einsum("gecd,edf->gecf", y, weights["up"]))
    return jnp.einsum("gsec,gecd->gsd", sent * gate[..., None, None], y)  # returned


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    x, ids = drawn(TIMES, BATCH, WIDTH), jnp.arange(TIMES * BATCH).reshape(TIMES, BATCH) % WORDS
    cell = (drawn(WIDTH, 3 * WIDTH), drawn(WIDTH, 3 * WIDTH), drawn(WIDTH, WIDTH))
    table, square = drawn(WORDS, WIDTH), drawn(4, WIDTH, WIDTH)
    experts = {"router": drawn(WIDTH, 4), "up": square}
    wide, graph = drawn(24 + WIDTH, 4 * WIDTH), (drawn(12, WIDTH), drawn(2 * WIDTH + 4, 32), drawn(32, 32))
    ends = jnp.stack([jnp.arange(480) * 7 % 40, jnp.arange(480) // 12])
    return {
        "gru_inputs": (lambda w, x: gru(w, x, hoisted=False), (cell, x)),
        "gru_hoisted": (lambda w, x: gru(w, x, hoisted=True), (cell, x)),
        "gru_outputs": (lambda w, x: gru(w, x, hoisted=True, projected=True), (cell, x)),
        "lstm": (lstm, ({"x": [*square], "h": [*square]}, x)),
        "joined": (lambda w, x: joined(w, x, first=True), (wide, x[..., :24])),
        "joined_last": (lambda w, x: joined(w, x, first=False), (wide, x[..., :24])),
        "messages": (messages, (graph, drawn(40, 12), ends, drawn(480, 4))),
        "layers": (layers, (square, x)),
        "blockwise": (blockwise, (drawn(2, 4, 32, 16), drawn(8, 2, 4, 32, 16))),
        "in_parts": (in_parts, (table.T, x)),
        "mapped": (lambda w, x: jax.lax.map(lambda part: jnp.tanh(part @ w), x), (square[0], x)),
        "one_hot": (lambda t, ids: looked_up(t, ids, one_hot=True), (table, ids)),
        "indexed": (lambda t, ids: looked_up(t, ids, one_hot=False), (table, ids)),
        "labels": (labels, (table, ids, x)),
        "masked": (masked, (x, ids)),
        "dispatched": (dispatched, (experts, x)),
    }


def main(out: Path) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, (function, given) in programs().items():

            def run(weights: Any, *rest: Any, function: Any = function) -> Any:
                return jax.grad(lambda w: jnp.sum(jnp.square(function(w, *rest))))(weights)

            run.__name__ = name
            executable = jax.jit(run).lower(*given).compile().runtime_executable()
            (module,) = executable.hlo_modules()
            file.writestr(zipfile.ZipInfo(name), module.as_serialized_hlo_module_proto(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
