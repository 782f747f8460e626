"""What depends on what in compiled programs: products in loops, and one-hot vectors. The programs are XLA's own."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from formats import made_hlo
from formats.xspace import chunk

from tuiprof.analyses.shared.instructions import source_of
from tuiprof.analyses.shared.one_hot import one_hot_products
from tuiprof.analyses.shared.scans import LoopProduct, shared_products
from tuiprof.formats.xplane.hlo import read_program
from tuiprof.model.programs import Program

XLA = Path(__file__).parents[1] / "data/xla"
SOURCE = XLA.joinpath("programs.py").read_text(encoding="utf-8").splitlines()


def program(name: str) -> Program:
    with zipfile.ZipFile(XLA / "programs-cpu.zip") as file:
        return read_program(chunk(1, file.read(name)))


def marked(line: str) -> str:
    """Return the comment at the end of the line of a source location."""
    return SOURCE[int(line.rpartition(":")[2]) - 1].rpartition("#")[2].strip()


def shared(name: str) -> list[tuple[str, str, list[str]]]:
    """Return for each product that iterations share its line, when, and when those of its gradients."""
    return [
        (
            marked(source_of(products[0].instruction)),
            products[0].shared,
            [one.shared for one in products[1:]],
        )
        for products in shared_products(program(name))
    ]


def test_the_product_of_a_scans_inputs_is_made_before_it_and_its_gradient_after() -> None:
    assert shared("gru_inputs") == [("inputs", "before", ["after"])]


def test_a_product_that_is_only_returned_is_made_after_the_scan() -> None:
    # The gradient's scan comes to it first: there its inputs are all known, and that of the weights is a sum.
    ((line, when, gradients),) = shared("gru_outputs")
    assert (line, when, sorted(gradients)) == ("outputs", "after", ["after", "before"])


def test_of_products_on_one_line_those_of_the_state_stay() -> None:
    # Each of four gates multiplies the input and the state.
    assert shared("lstm") == [("gates", "before", ["before"] * 3 + ["after"] * 4)]


@pytest.mark.parametrize(
    "name",
    [
        "gru_hoisted",  # only products of the state are left
        "layers",  # each has weights of its own
        "blockwise",  # activations are no weights
        "in_parts",  # there is no state: parts of a batch save memory
        "mapped",
    ],
)
def test_products_that_belong_into_a_loop_are_not_shared(name: str) -> None:
    assert shared(name) == []


LOOP = """
body {{
  state = [] parameter()
  h = f32[8,64] get-tuple-element(state), index=0
  ys = f32[16,8,64] get-tuple-element(state), index=1
  zs = f32[16,8,64] get-tuple-element(state), index=2
  w = f32[64,64] get-tuple-element(state), index=3
  xs = f32[16,8,64] get-tuple-element(state), index=4
  x = f32[8,64] dynamic-slice(xs)
  tanh = f32[8,64] tanh(h)
  {body}
  y = f32[16,8,64] dynamic-update-slice(ys, result)
  z = f32[16,8,64] dynamic-update-slice(zs, {other})
  root = [] tuple({state}, y, z, w, xs)
}}
main {{
  given = [] parameter()
  loop = [] while(given), calls=body
}}
"""
DOT = "f32[8,64] dot({}, w), sums=1x0, site=1"


def looped(body: str, other: str = "x", state: str = "tanh") -> list[list[LoopProduct]]:
    """Return the shared products of a loop that collects ``result`` and another value, and carries a state."""
    text = LOOP.format(body=body, other=other, state=state)
    return list(shared_products(read_program(made_hlo.encode("jit_f", text, ["/home/me/f.py:1 f"]))))


def test_a_buffer_that_the_loop_reads_again_is_no_collected_result() -> None:
    product = f"result = {DOT.format('tanh')}"
    assert len(looped(product)) == 1
    assert looped(product, other="ys") == []


def test_where_one_of_a_lines_products_takes_the_state_all_stay() -> None:
    products = f"dot = {DOT.format('x')}\n  dot.2 = {DOT.format('h')}\n  result = f32[8,64] add(dot, x)"
    assert len(looped(products, other="dot.2")[0]) == 2  # it is only collected
    assert looped(products, state="dot.2") == []


def test_only_what_takes_no_state_leaves_the_loop_with_a_product() -> None:
    ((after,),) = looped(f"result = {DOT.format('tanh')}")
    ((before,),) = looped(f"result = {DOT.format('x')}", other="h")
    assert (after.shared, list(after.slices)) == ("after", [])
    assert (before.shared, list(before.slices)) == ("before", ["x"])


def test_products_with_one_hot_vectors_are_found_with_what_makes_the_vectors() -> None:
    ((forward, gradient), makers) = _one_hot("one_hot")
    assert (marked(forward), marked(gradient)) == ("words", "words")
    assert makers


def test_one_hot_vectors_may_be_multiplied_by_each_other_and_by_weights() -> None:
    products, makers = _one_hot("dispatched")
    assert {marked(line) for line in products} == {"sent", "returned"}
    # There and back, the gradient of what the experts return, and that of the weights, of which little is used.
    assert len(products) == 4
    assert makers


def _one_hot(name: str) -> tuple[list[str], list[str]]:
    (found,) = one_hot_products(program(name))
    return [source_of(one) for one, _ in found.products], [one.name for one in found.makers]


@pytest.mark.parametrize("name", ["indexed", "labels", "masked", "gru_inputs"])
def test_other_comparisons_are_no_one_hot_vectors(name: str) -> None:
    assert list(one_hot_products(program(name))) == []
