"""What depends on what in compiled programs: products in loops, and one-hot vectors. The programs are XLA's own."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from formats import made_hlo
from formats.xspace import chunk

from tuiprof.analyses.shared.compiled.gathers import GatheredProducts, gathered_products
from tuiprof.analyses.shared.compiled.instructions import CarriedOut, Place, source_of
from tuiprof.analyses.shared.compiled.one_hot import one_hot_products
from tuiprof.analyses.shared.compiled.recurrences import recurrences
from tuiprof.analyses.shared.compiled.scans import LoopProduct, shared_products
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


@pytest.mark.parametrize("name", ["joined", "joined_last"])
def test_of_an_input_that_is_joined_with_the_state_the_inputs_part_leaves_the_loop(name: str) -> None:
    ((forward, weights),) = shared_products(program(name))
    assert [(one.shared, one.backward) for one in (forward, weights)] == [("before", False), ("after", True)]
    # 24 of 88 rows of the weights; the gradient of the input is not needed.
    assert forward.moves == weights.moves == weights.sums_move == 24 / 88
    # The product before the loop reads the input, and writes a result as large as that of both.
    assert forward.moves * forward.bytes == pytest.approx(4 * (8 * 24 + 8 * 256))
    assert forward.joins == (), "what is joined is kept for the gradient, too"


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
  n = {counter} get-tuple-element(state), index=5
  x = f32[8,64] dynamic-slice(xs)
  tanh = f32[8,64] tanh(h)
  {body}
  y = f32[16,8,64] dynamic-update-slice(ys, result)
  z = f32[16,8,64] dynamic-update-slice(zs, {other})
  next = {counter} negate(n)
  root = [] tuple({state}, y, z, w, xs, next)
}}
main {{
  given = [] parameter()
  loop = [] while(given), calls=body
}}
"""
DOT = "f32[8,64] dot({}, w), sums=1x0, site=1"


def looped(
    body: str, other: str = "x", state: str = "tanh", counter: str = "s32[]", more: str = ""
) -> list[list[LoopProduct]]:
    """Return the shared products of a loop that collects ``result`` and another value, and carries a state.

    It carries ``n`` too, whose next value depends on nothing else. ``more`` are computations before its body.
    """
    text = more + LOOP.format(body=body, other=other, state=state, counter=counter)
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


PARTS = "known = f32[8,16] slice({}), site=1\n  own = f32[8,48] slice({}), site=1\n"
PADS = "zero = f32[] constant()\n  left = f32[8,64] pad(known, zero)\n  right = f32[8,64] pad(own, zero)\n"


@pytest.mark.parametrize(
    ("joined", "moves"),
    [
        (PARTS.format("x", "h") + "  both = f32[8,64] concatenate(known, own)", 0.25),
        (PARTS.format("x", "h") + f"  {PADS}  both = f32[8,64] maximum(left, right)", 0.25),
        (
            PARTS.format("h", "x")
            + f"  {PADS}  sum = f32[8,64] add(left, right)\n  both = f32[8,64] copy(sum)",
            0.75,
        ),
        # Both parts take the state, rows are joined, or values of which none is zero are added.
        (PARTS.format("h", "h") + "  both = f32[8,64] concatenate(known, own)", 0),
        (
            "known = f32[4,64] slice(x)\n  own = f32[4,64] slice(h)\n  both = f32[8,64] concatenate(known, own)",
            0,
        ),
        ("both = f32[8,64] add(x, h)", 0),
    ],
)
def test_a_part_that_is_joined_with_the_state_is_multiplied_before_the_loop(
    joined: str, moves: float
) -> None:
    body = f"{joined}\n  gates = {DOT.format('both')}\n  result = f32[8,64] tanh(gates)"
    found = looped(body, other="h", state="gates")
    assert [one.moves for same in found for one in same] == ([moves] if moves else [])


@pytest.mark.parametrize(
    ("counter", "when"),
    # Of what counts, the values of all iterations are known; a state may be of numbers that depend on themselves, too.
    [("s32[]", "before"), ("s32[8]", "after"), ("f32[]", "after")],
)
def test_only_one_whole_number_counts_iterations(counter: str, when: str) -> None:
    body = f"rows = f32[8,64] broadcast(n)\n  result = {DOT.format('rows')}"
    ((product,),) = looped(body, counter=counter)
    assert product.shared == when


def test_of_a_fusion_with_two_results_the_one_that_is_taken_counts() -> None:
    fused = """
two {
  a = f32[8,64] parameter(), index=0
  b = f32[8,64] parameter(), index=1
  c = f32[8,64] negate(b)
  both = [] tuple(a, c)
}
"""
    pair = "pair = [] fusion(tanh, x), calls=two\n  part = f32[8,64] get-tuple-element(pair), index={}\n  result = "
    for index, when in ((0, "after"), (1, "before")):
        ((product,),) = looped(pair.format(index) + DOT.format("part"), more=fused)
        assert product.shared == when


def test_products_of_activations_are_not_made_after_the_loop() -> None:
    assert looped("result = f32[8,8] dot(tanh, x), sums=1x1, site=1") == []


GRADIENT = DOT.replace(", site", ', op="jit(f)/transpose(jvp(f))/while/body/dot_general", site')


def test_a_gradient_that_takes_the_state_stays_in_the_loop() -> None:
    ((only,),) = looped(f"result = {DOT.format('x')}\n  back = {GRADIENT.format('h')}", state="back")
    assert not only.backward


def test_a_loop_of_gradients_needs_no_state() -> None:
    gradients = f"""
backwards {{
  state = [] parameter()
  gs = f32[16,8,64] get-tuple-element(state), index=0
  w = f32[64,64] get-tuple-element(state), index=1
  xs = f32[16,8,64] get-tuple-element(state), index=2
  x = f32[8,64] dynamic-slice(xs)
  back = {GRADIENT.format("x")}
  g = f32[16,8,64] dynamic-update-slice(gs, back)
  root = [] tuple(g, w, xs)
}}
"""
    text = gradients + LOOP.format(
        body=f"result = {DOT.format('x')}", other="h", state="tanh", counter="s32[]"
    ).replace("  loop = ", "  later = [] while(given), calls=backwards\n  loop = ")
    ((forward, backward),) = shared_products(
        read_program(made_hlo.encode("jit_f", text, ["/home/me/f.py:1 f"]))
    )
    assert (forward.backward, backward.backward) == (False, True)


VECTORS = """
fused {{
  ids.2 = s32[64] parameter(), index=0
  table.2 = f32[50,8] parameter(), index=1
  numbers.2 = s32[64,50] iota()
  spread.2 = s32[64,50] broadcast(ids.2)
  hot.2 = pred[64,50] compare(spread.2, numbers.2), direction="EQ"
  picked = f32[64,8] dot(hot.2, table.2), sums=1x0
}}
main {{
  ids = s32[64] parameter(), index=0
  table = f32[50,8] parameter(), index=1
  other = f32[64,50] parameter(), index=2
  zero = f32[] constant(), value=0
  one = f32[] constant(), value=1
  numbers = s32[64,50] iota()
  spread = s32[64,50] {spread}
  hot = pred[64,50] compare(spread, numbers), direction="{direction}"
  vectors = f32[64,50] {vectors}
  dot = f32[64,8] {dot}
  {result}
}}
"""


def vectors_of(
    spread: str = "broadcast(ids)",
    direction: str = "EQ",
    vectors: str = "convert(hot)",
    dot: str = "dot(vectors, table), sums=1x0",
    result: str = "result = [] tuple(dot)",
) -> tuple[list[str], list[str]]:
    """Return the products with one-hot vectors of a program, and what makes the vectors, by name."""
    text = VECTORS.format(spread=spread, direction=direction, vectors=vectors, dot=dot, result=result)
    found = list(one_hot_products(read_program(made_hlo.encode("jit_f", text))))
    products = [product.name for each in found for product, _ in each.products]
    return sorted(products), sorted(one.name for each in found for one in each.makers)


def test_vectors_that_are_compared_or_selected_are_one_hot() -> None:
    assert vectors_of() == (["dot"], ["hot", "vectors"])
    for masked in ("select(hot, other, zero)", "multiply(other, hot)", "and(other, hot)"):
        assert vectors_of(vectors=masked)[0] == ["dot"], masked


@pytest.mark.parametrize(
    "given",
    [
        {"direction": "LT"},  # a mask up to a length
        {"spread": "iota()"},  # a unit matrix
        {"spread": "constant(), value=3"},  # a single row
        {"vectors": "select(hot, other, one)"},
        {"dot": 'custom-call(other, table, vectors), target="__cublas$gemm"'},  # it is added to the product
    ],
    ids=lambda given: next(iter(given.values())),
)
def test_vectors_that_are_not_one_hot_or_not_multiplied(given: dict[str, str]) -> None:
    assert vectors_of(**given) == ([], [])


@pytest.mark.parametrize("form", ["dot", "copy"])
def test_a_product_that_is_the_result_is_used_as_a_whole(form: str) -> None:
    product = "f32[64,50] dot(other, table), sums=1x1"
    masked = f"whole = {product}\n  masked = f32[64,50] multiply(whole, hot)\n  "
    result = f"result = {product}" if form == "dot" else f"{masked}result = f32[64,50] copy(whole)"
    assert vectors_of(result=result)[0] == ["dot"]


def test_vectors_that_are_needed_otherwise_are_still_made() -> None:
    assert vectors_of(result="result = [] tuple(dot, vectors)") == (["dot"], [])
    # What is launched for a product is no maker, though it makes vectors too.
    chained = "first = f32[64,8] fusion(ids, table), calls=fused\n  "
    chained += "second = f32[50,8] dot(vectors, first), sums=0x0\n  result = [] tuple(dot, second)"
    assert vectors_of(result=chained) == (["dot", "picked", "second"], ["hot", "vectors"])


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


def test_products_of_gathered_rows_are_found_with_their_gradients() -> None:
    (found,) = gathered_products(program("messages"))
    assert {marked(source_of(one)) for one, _, _ in found.products} == {"messages"}
    # 64 values of 132 from each of both nodes of an edge; there are 12 edges for each node.
    assert [one.keep(1) for _, _, one in found.products] == [pytest.approx((128 / 12 + 4) / 132)] * 3
    assert (found.repeats, found.joined, found.others) == (12, True, False)
    opcodes = [program("messages").by_name[name].opcode for name in found.moved]
    assert sorted(opcodes) == ["concatenate", "fusion", "fusion", "fusion", "fusion"]
    # The layer makes 32 values, half of what is added up for each node now.
    assert sorted(found.moved.values()) == [*[32 * 4 / (2 * 132)] * 3, 32 / 64, 32 / 64]


GATHERED = """
main {{
  x = f32[40,64] parameter(), index=0
  at = s32[480,1] parameter(), index=1
  y = f32[480,64] parameter(), index=2
  w = f32[64,32] parameter(), index=3
  ws = f32[128,32] parameter(), index=4
  nan = f32[] constant()
  {body}
}}
"""
TAKEN, MULTIPLIED = "rows = f32[480,64] gather(x, at)", "dot = f32[480,32] dot({}, w), sums=1x0, site=1"
FILLED = "many = f32[480,64] broadcast(nan)\n  valid = pred[480,64] broadcast(at)\n  "


def gathered(*body: str) -> list[GatheredProducts]:
    """Return the products of gathered rows of a program."""
    text = GATHERED.format(body="\n  ".join(body))
    return list(gathered_products(read_program(made_hlo.encode("jit_f", text, ["/home/me/f.py:1 f"]))))


@pytest.mark.parametrize(
    ("body", "keep"),
    [
        ((TAKEN, MULTIPLIED.format("rows")), 1 / 12),
        ((TAKEN, f"{FILLED}some = f32[480,64] select(valid, rows, many)", MULTIPLIED.format("some")), 1 / 12),
        ((TAKEN, "some = bf16[480,64] convert(rows)", MULTIPLIED.format("some")), 1 / 12),
        (
            (TAKEN, "both = f32[480,128] concatenate(rows, y)", "dot = f32[480,32] dot(both, ws), sums=1x0"),
            (1 / 12 + 1) / 2,
        ),
        ((TAKEN, "turned = f32[32,480] dot(w, rows), sums=0x1, site=1"), 1 / 12),
    ],
    ids=["gathered", "filled where out of bounds", "in another type", "joined with others", "from the right"],
)
def test_each_row_of_a_product_takes_one_that_was_gathered(body: tuple[str, ...], keep: float) -> None:
    (found,) = gathered(*body)
    assert [each.keep(1) for _, _, each in found.products] == [pytest.approx(keep)]


@pytest.mark.parametrize(
    "body",
    [
        (TAKEN, "some = f32[480,64] multiply(rows, y)", MULTIPLIED.format("some")),
        (
            "few = s32[44,1] slice(at)",
            "rows = f32[44,64] gather(x, few)",
            "dot = f32[44,32] dot(rows, w), sums=1x0",
        ),
        ("all = s32[480,64,2] broadcast(at)", "rows = f32[480,64] gather(x, all)", MULTIPLIED.format("rows")),
        (TAKEN, "own = f32[480,64,32] broadcast(w)", "dot = f32[480,32] dot(rows, own), sums=1x1"),
        (TAKEN, "summed = f32[64,64] dot(rows, y), sums=0x0"),
        (TAKEN, MULTIPLIED.format("rows"), "dot.2 = f32[480,32] dot(y, w), sums=1x0, site=1"),
        (TAKEN, "both = f32[960,64] concatenate(rows, y)", "dot = f32[960,32] dot(both, w), sums=1x0"),
    ],
    ids=[
        *("changed row by row", "hardly more rows", "values by themselves", "a matrix for each row"),
        *("summed over rows", "not all of a line", "rows are joined"),
    ],
)
def test_products_that_do_not_take_gathered_rows_stay(body: tuple[str, ...]) -> None:
    assert gathered(*body) == []


@pytest.mark.parametrize(("use", "others"), [("tuple(dot)", False), ("tuple(dot, rows)", True)])
def test_rows_that_are_used_otherwise_are_still_gathered(use: str, others: bool) -> None:
    (found,) = gathered(TAKEN, MULTIPLIED.format("rows"), f"result = [] {use}")
    assert (found.others, found.moved) == (others, {"rows": 0.5})


def test_events_belong_to_the_instruction_of_their_own_program() -> None:
    programs = [read_program(made_hlo.encode(name, "main {\n  x = f32[4] parameter()\n}")) for name in "ab"]
    places = [Place(one, one.computations[one.entry], one.by_name["x"]) for one in programs]
    done = CarriedOut(np.array([3, 5, 9]), np.array([1, 0, 1]), places)
    assert [done.rows_of(one)["x"].tolist() for one in programs] == [[5], [3, 9]]
    assert done.of(np.array([9, 4, 5, 10])).tolist() == [1, -1, 0, -1]


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("gru_hoisted", ["in turn", "in turn"]),
        ("lstm", ["in turn", "in turn"]),
        ("blockwise", ["in turn", "in turn"]),  # a running maximum
        ("in_parts", ["apart", "apart"]),
        ("mapped", ["apart", "apart"]),
        ("one_hot", []),
    ],
)
def test_how_the_iterations_of_a_loop_depend_on_each_other(name: str, forms: list[str]) -> None:
    assert [one.form for one in recurrences(program(name))] == forms


RECURRENCE = """
other {{
  value = f32[8,64] parameter(), index=0
  turned = f32[8,64] negate(value)
}}
body {{
  state = [] parameter()
  h = f32[8,64] get-tuple-element(state), index=0
  c = f32[8,64] get-tuple-element(state), index=1
  ys = f32[16,8,64] get-tuple-element(state), index=2
  xs = f32[16,8,64] get-tuple-element(state), index=3
  n = s32[] get-tuple-element(state), index=4
  one = s32[] constant()
  a = f32[8,64] dynamic-slice(xs, n)
  b = f32[8,64] exponential(a)
  p = pred[8,64] compare(a, b)
  ah = f32[8,64] multiply(a, h)
  {next}
  y = f32[16,8,64] dynamic-update-slice(ys, {y}, n)
  count = s32[] add(n, one)
  root = [] tuple(next, {companion}, y, xs, count)
}}
main {{
  given = [] parameter()
  loop = [] while(given), calls=body, config="{{'known_trip_count':{{'n':'16'}}}}"
}}
"""


@pytest.mark.parametrize(
    ("following", "companion", "form"),
    [
        ("next = f32[8,64] add(ah, b)", "c", "linear"),
        ("sum = f32[8,64] subtract(b, ah)\n  next = f32[8,64] divide(sum, a)", "c", "linear"),
        ("next = f32[8,64] select(p, ah, b)", "c", "linear"),
        ("minus = f32[8,64] fusion(ah), calls=other\n  next = f32[8,64] add(minus, b)", "c", "linear"),
        (
            "ac = f32[8,64] multiply(b, c)\n  next = f32[8,64] add(ah, ac)",
            "ah",
            "linear",
        ),  # of two, as complex
        ("next = f32[8,64] add(ah, c)", "a", "linear"),  # the companion is of the last iteration
        ("next = f32[8,64] add(h, b)", "c", "linear"),  # a sum whose values are collected
        ("next = f32[8,64] add(a, b)", "c", "apart"),  # the last iteration's input
        ("next = f32[8,64] tanh(ah)", "c", "in turn"),
        ("next = f32[8,64] multiply(ah, h)", "c", "in turn"),
        ("next = f32[8,64] multiply(ah, c)", "ah", "in turn"),
        ("next = f32[8,64] divide(b, ah)", "c", "in turn"),
        ("q = pred[8,64] compare(h, b)\n  next = f32[8,64] select(q, ah, b)", "c", "in turn"),
        ("next = f32[8,64] maximum(h, b)", "c", "in turn"),
        ("turned = f32[8,64] reverse(ah)\n  next = f32[8,64] add(turned, b)", "c", "in turn"),
        ("w = f32[64,64] constant()\n  next = f32[8,64] dot(h, w), sums=1x0", "c", "in turn"),
    ],
)
def test_only_a_state_that_is_scaled_and_added_to_makes_a_loop_linear(
    following: str, companion: str, form: str
) -> None:
    text = RECURRENCE.format(next=following, companion=companion, y="next")
    (found,) = recurrences(read_program(made_hlo.encode("jit_f", text).replace(b"'", b'"')))
    assert (found.form, found.trips) == (form, 16)


@pytest.mark.parametrize(("collected", "form"), [("b", "apart"), ("next", "linear")])
def test_a_sum_is_a_state_only_if_it_is_used_while_it_grows(collected: str, form: str) -> None:
    text = RECURRENCE.format(next="next = f32[8,64] add(h, b)", companion="c", y=collected)
    text = text.replace("multiply(a, h)", "multiply(a, b)")  # which would use it, too
    (found,) = recurrences(read_program(made_hlo.encode("jit_f", text).replace(b"'", b'"')))
    assert found.form == form


def test_what_a_loop_launches_is_for_its_state_or_beside_it() -> None:
    product = "w = f32[64,64] constant()\n  dot = f32[8,64] dot(h, w), sums=1x0\n  next = f32[8,64] tanh(dot)"
    text = RECURRENCE.format(next=product, companion="c", y="ah")
    (found,) = recurrences(read_program(made_hlo.encode("jit_f", text).replace(b"'", b'"')))
    assert found.launched == {
        **dict.fromkeys(("a", "b", "p", "ah", "y", "count"), "beside"),
        "dot": "whole",
        "next": "state",
    }
