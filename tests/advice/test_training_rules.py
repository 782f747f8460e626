"""Rules about how a training step is written, each on a tiny trace that has its cause and on one that nearly has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analyses.made import BACKWARD, Made, in_session, with_arguments
from host_ahead import Steps

from tuiprof.advice import advise, losses_of, priorities
from tuiprof.advice.answer import answer
from tuiprof.advice.finding import Evidence
from tuiprof.advice.kernels import optimizer_groups
from tuiprof.advice.pricing import all_of
from tuiprof.advice.question import answer as question
from tuiprof.advice.question import changes
from tuiprof.advice.redundant import key_value_cache
from tuiprof.analyses.shared.calls import calls
from tuiprof.analyses.shared.model_calls import longer_calls, model_calls
from tuiprof.analyses.shared.replay import replayed
from tuiprof.model import Report, Trace, Window
from tuiprof.model.steps import BatchPadding, SampledLine, Weights, WorkerRestarts

AUTOGRAD = "autograd::engine::evaluate_function"
ACCUMULATE = f"{AUTOGRAD}: torch::autograd::AccumulateGrad"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
REDUCE = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, sum_functor>>"
SOFTMAX = "void cunn_SoftMaxForward<8>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"


def finding(trace: Trace, rule: str) -> dict[str, Any] | None:
    report = advise(trace)
    assert isinstance(report, Report)
    assert not [note for note in report.notes if "failed" in note]
    rows = [row for row in report.table("findings").rows.to_dicts() if row["rule"] == rule]
    assert len(rows) <= 1
    return rows[0] if rows else None


def found(trace: Trace, rule: str) -> dict[str, Any]:
    row = finding(trace, rule)
    assert row is not None, rule
    return row


def classified(last: str = "aten::log") -> Trace:
    """Steps that end in a softmax, a sum and another operator."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 900),), sequence=1)
        steps.op("aten::softmax", ((SOFTMAX, 400),), sequence=2)
        steps.op("aten::add", ((ELEMENTWISE, 300),), sequence=3)
        steps.op(last, ((ELEMENTWISE, 300),), sequence=4)
        steps.op(f"{AUTOGRAD}: LogBackward0", ((ELEMENTWISE, 350),), sequence=4, track=BACKWARD)
        steps.op(
            f"{AUTOGRAD}: SoftmaxBackward0", ((ELEMENTWISE, 350), (SOFTMAX, 500)), sequence=2, track=BACKWARD
        )
    return steps.trace()


def test_the_logarithm_of_a_softmax_is_one_pass() -> None:
    row = found(classified(), "log-of-softmax")
    # The sum, the logarithm and its gradient, and the product in the gradient of the softmax, which itself stays.
    assert row["wins_ns"] == pytest.approx((300 + 300 + 350 + 350) * 1000, rel=0.03)
    assert "F.cross_entropy" in row["instead"]
    assert finding(classified("aten::mul"), "log-of-softmax") is None


def cleared(fills: bool, passes: int = 1) -> Trace:
    """Steps whose gradients are added to those that zero_grad has left, in one or several backward passes."""
    steps = Steps()
    for _ in steps.each():
        for first in range(0, 6 * passes, 6):
            for number in range(first, first + 6):
                steps.op("aten::linear", ((GEMM, 100),), sequence=number)
            for number in reversed(range(first, first + 6)):
                steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 100),), sequence=number, track=BACKWARD)
                steps.op(ACCUMULATE, ((ELEMENTWISE, 60),), inside="aten::add_", track=BACKWARD)
        steps.within("Optimizer.step#AdamW.step", ("aten::_fused_adamw_", ((ELEMENTWISE, 100),)))
        fill = (("aten::_foreach_zero_", ((ELEMENTWISE, 90),)),) if fills else ()
        steps.within("Optimizer.zero_grad#AdamW.zero_grad", *fill)
    return steps.trace()


def test_gradients_that_are_set_to_zero_are_added_to() -> None:
    row = found(cleared(fills=True), "zeroed-gradients")
    assert row["wins_ns"] == pytest.approx((6 * 60 + 90) * 1000, rel=0.05)
    assert finding(cleared(fills=False), "zeroed-gradients") is None


def test_of_several_backward_passes_the_later_ones_have_to_add() -> None:
    row = found(cleared(fills=True, passes=3), "zeroed-gradients")
    assert row["wins_ns"] == pytest.approx((6 * 60 + 90) * 1000, rel=0.05)


def trained(added: tuple[bool, ...], graphs: bool = False) -> Trace:
    """Steps with six layers, of which the gradients of some are added to those of the step before."""
    steps = Steps()
    for _ in steps.each():
        for number in range(6):
            steps.op("aten::linear", ((GEMM, 100),), sequence=number)
        for number in reversed(range(6)):
            # The gradient of the input and that of the weight.
            both = ((GEMM, 100), (GEMM, 100))
            steps.op(f"{AUTOGRAD}: MmBackward0", both, sequence=number, track=BACKWARD)
            add = added[number]
            work = ((ELEMENTWISE, 20),) if add else ()
            steps.op(ACCUMULATE, work, inside="aten::add_" if add else "aten::detach", track=BACKWARD)
        steps.within("Optimizer.step#AdamW.step", ("aten::_fused_adamw_", ((ELEMENTWISE, 100),)))
    if graphs:
        steps.made.call("cudaGraphLaunch", 5, 6)
    return steps.trace()


def test_gradients_that_nothing_clears_are_not_needed() -> None:
    # The first four layers are frozen in all but name: the backward pass need not go there at all.
    row = found(trained((True,) * 4 + (False,) * 2), "unneeded-gradients")
    assert row["wins_ns"] == pytest.approx(4 * 220_000, rel=0.03)
    assert "67 %" in row["what"]


def two_optimizers(
    other: str = "Mm", used: bool = True, models: Sequence[str] = ("", ""), us: float = 100
) -> Trace:
    """Steps of two optimizers: the first's backward pass goes on through four layers, as the second's does."""
    steps = Steps()
    both = ((GEMM, us), (GEMM, us))
    for _ in steps.each():
        for first, model in zip((0, 10), models, strict=True):
            steps.within(model or "forward", *[("aten::linear", ((GEMM, us),))] * 4, first=first)
            head = range(first + 4, first + (6 if first == 0 else 4))
            for number in head:
                steps.op("aten::linear", ((GEMM, us),), sequence=number)
            for number in reversed(range(first, head.stop)):
                node = "Mm" if first == 0 else other
                steps.op(f"{AUTOGRAD}: {node}Backward0", both, sequence=number, track=BACKWARD)
                added = number not in head if first == 0 else not used and number == first + 1
                work = ((ELEMENTWISE, 20),) if added else ()
                inside = "aten::add_" if added else "aten::detach"
                steps.op(ACCUMULATE, work, inside=inside, track=BACKWARD)
            steps.within("Optimizer.step#Adam.step", ("aten::_fused_adam_", ((ELEMENTWISE, 100),)))
    return steps.trace()


@pytest.mark.parametrize("models", [("", ""), ("Generator #1", "Generator #1")], ids=["no marks", "marks"])
def test_gradients_of_weights_of_another_optimizer_are_cut_off_where_its_model_ends(
    models: tuple[str, str],
) -> None:
    row = found(two_optimizers(models=models), "unneeded-gradients")
    assert "another optimizer of the step updates" in row["what"]
    assert row["instead"].startswith(".detach()")
    assert row["wins_ns"] == pytest.approx(4 * 220_000, rel=0.03)


def test_the_line_of_the_backward_pass_through_the_other_model_is_named() -> None:
    trace = two_optimizers(us=20)
    lines = SampledLine("gan.py:9", 0.3, "backward"), SampledLine("gan.py:5", 0.5, "forward")
    in_session(trace, (trace.span[1] - trace.span[0]) / 4, lines=lines)
    assert found(trace, "unneeded-gradients")["where"] == "gan.py:9"


@pytest.mark.parametrize(
    "trace",
    [
        two_optimizers("Addmm"),
        two_optimizers(used=False),
        two_optimizers(models=("Teacher #1", "Student #2")),
    ],
    ids=["other layers", "they are added there, too", "another model"],
)
def test_weights_that_no_other_optimizer_is_known_to_update_are_frozen(trace: Trace) -> None:
    row = found(trace, "unneeded-gradients")
    assert "the optimizer does not update" in row["what"]
    assert "requires_grad_(False)" in row["instead"]


def test_what_lies_behind_a_frozen_layer_still_needs_the_gradient_of_its_input() -> None:
    row = found(trained((False, True, True, True, True, False)), "unneeded-gradients")
    assert row["wins_ns"] == pytest.approx(4 * (100_000 + 20_000), rel=0.03)
    assert row["wins_low_ns"] < 4 * 90_000 < row["wins_ns"] < row["wins_high_ns"]


@pytest.mark.parametrize(
    ("node", "kernels", "saved_us"),
    [
        ("AddmmBackward0", ((GEMM, 100), (GEMM, 100), (REDUCE, 30)), 130),
        ("AddmmBackward0", ((GEMM, 100), (GEMM, 100), ("void splitKreduce_kernel<32>", 30)), 115),
        ("NativeLayerNormBackward0", (("layer_norm_grad_input_kernel", 40), ("GammaBetaBackward", 60)), 60),
        ("NativeLayerNormBackward0", (("cudnn_batch_norm_backward", 40),), 0),
    ],
    ids=["bias", "products in parts", "norm", "one kernel for all"],
)
def test_gradients_of_biases_and_norms_are_not_needed_either(
    node: str, kernels: tuple[tuple[str, float], ...], saved_us: float
) -> None:
    steps = Steps()
    for _ in steps.each():
        for number in range(2):
            steps.op("aten::linear", ((GEMM, 100),), sequence=number)
        steps.op(f"{AUTOGRAD}: {node}", kernels, sequence=1, track=BACKWARD)
        steps.op(ACCUMULATE, ((ELEMENTWISE, 20),), inside="aten::add_", track=BACKWARD)
        steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 100),), sequence=0, track=BACKWARD)
        steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
        steps.within("Optimizer.step#AdamW.step", ("aten::_fused_adamw_", ((ELEMENTWISE, 100),)))
    row = found(steps.trace(), "unneeded-gradients")
    assert row["wins_ns"] == pytest.approx((saved_us + 20) * 1000, rel=0.02)


def test_half_of_a_node_is_not_launched_if_the_gradient_of_its_weight_is_not_needed() -> None:
    made = Made()
    for _, at in made.steps(300):
        for name, begin, took, sequence in (
            ("aten::linear", 0, 20, 0),
            ("aten::linear", 20, 20, 1),
            (f"{AUTOGRAD}: MmBackward0", 40, 100, 1),
            (ACCUMULATE, 140, 20, None),
            (f"{AUTOGRAD}: MmBackward0", 160, 50, 0),
            (ACCUMULATE, 210, 20, None),
        ):
            made.op(name, at + begin, at + begin + took, sequence=sequence)
            if name == ACCUMULATE:
                made.op("aten::add_" if begin == 140 else "aten::detach", at + begin + 2, at + begin + 4)
                continue
            for call in range(2 if "Mm" in name else 1):
                launch = at + begin + 5 + 5 * call
                made.launch(GEMM, (launch, launch + 2), (launch + 3, launch + 4))
        made.add("annotation", "Optimizer.step#AdamW.step", at + 240, at + 290)
    # Half of 100 µs, and the accumulation.
    assert found(made.trace(), "unneeded-gradients")["wins_ns"] == pytest.approx(50_000 + 20_000, rel=0.02)


def attacked(clears: bool = True, adds: bool = False, updates: int = 1) -> Trace:
    """Steps with two backward passes for the gradient of the input, which add to those of four layers, and a third."""
    steps = Steps()

    def there_and_back(first: int, adds: bool, of_input: bool) -> None:
        for number in range(first, first + 4):
            steps.op("aten::linear", ((GEMM, 100),), sequence=number)
        for number in reversed(range(first, first + 4)):
            both = (("sm90_xmma_dgrad_bf16", 100), ("sm90_xmma_wgrad_bf16", 150))
            steps.op(f"{AUTOGRAD}: ConvolutionBackward0", both, sequence=number, track=BACKWARD)
            work = ((ELEMENTWISE, 20),) if adds else ()
            steps.op(ACCUMULATE, work, inside="aten::add_" if adds else "aten::detach", track=BACKWARD)
        if of_input:
            steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)

    for _ in steps.each():
        there_and_back(0, adds=True, of_input=True)
        there_and_back(4, adds=True, of_input=True)
        if clears:
            steps.within("Optimizer.zero_grad#SGD.zero_grad")
        there_and_back(8, adds=adds, of_input=False)
        for _ in range(updates):
            steps.within("Optimizer.step#SGD.step", ("aten::_fused_sgd_", ((ELEMENTWISE, 100),)))
    return steps.trace()


def test_gradients_that_are_cleared_before_a_step_are_not_needed() -> None:
    row = found(attacked(), "unneeded-gradients")
    assert "cleared before an optimizer uses them" in row["what"]
    assert "torch.autograd.grad" in row["instead"]
    assert row["wins_ns"] == pytest.approx(2 * 4 * (150_000 + 20_000), rel=0.03)


@pytest.mark.parametrize(
    "trace",
    [attacked(clears=False, adds=True), attacked(clears=False), attacked(updates=2)],
    ids=["they are added up", "they may be those of other weights", "or of another optimizer"],
)
def test_gradients_of_a_first_pass_that_may_be_needed(trace: Trace) -> None:
    assert finding(trace, "unneeded-gradients") is None


def test_gradients_that_are_added_in_a_closure_are_used_by_the_update_after_it() -> None:
    """Lightning accumulates gradients: the second pass, which has one more layer, is in the optimizer's closure."""
    steps = Steps()
    for _ in steps.each():
        for layers in (4, 5):
            begin = steps.now
            if layers == 4:
                steps.within("Optimizer.zero_grad#SGD.zero_grad")
            for number in range(layers):
                steps.op("aten::linear", ((GEMM, 100),), sequence=10 * layers + number)
            for number in reversed(range(layers)):
                both = ((GEMM, 100), (GEMM, 100))
                steps.op(f"{AUTOGRAD}: MmBackward0", both, sequence=10 * layers + number, track=BACKWARD)
                added = layers == 5 and number < 4
                inside = "aten::add_" if added else "aten::detach"
                steps.op(ACCUMULATE, ((ELEMENTWISE, 20),) * added, inside=inside, track=BACKWARD)
        steps.op("aten::_fused_sgd_", ((ELEMENTWISE, 100),))
        steps.made.add("annotation", "Optimizer.step#SGD.step", begin, steps.now)
    assert finding(steps.trace(), "unneeded-gradients") is None


@pytest.mark.parametrize(
    "trace",
    [trained((False,) * 6), trained((True,) * 6), trained((True,) * 4 + (False,) * 2, graphs=True)],
    ids=["all are cleared", "none is cleared", "CUDA graphs"],
)
def test_gradients_that_may_be_needed(trace: Trace) -> None:
    assert finding(trace, "unneeded-gradients") is None


def of_two_losses(
    between: str = "",
    stores: str = "all",
    adds: bool = True,
    known: bool = True,
    other_us: float = 1,
) -> Trace:
    """Steps with a backward pass for each of two heads on the same four layers.

    The first stores the gradients of ``all`` layers, of ``none``, of the ``head`` only, or gives them to
    ``autograd.grad``, which records the nodes that store, but calls nothing in them.
    """
    steps = Steps()
    for _ in range(4):
        steps.op("aten::conv2d", ((GEMM, other_us),))
        for number in range(6):
            steps.op("aten::linear", ((GEMM, 100),), sequence=number)
        for head in (4, 5):
            for number in (head, 3, 2, 1, 0):
                sequence = number if known or number > 2 else None
                steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 150),), sequence=sequence, track=BACKWARD)
                added = head == 5 and number < 4
                if head == 4 and (stores == "none" or (stores == "head" and number < 4)):
                    continue
                inside = "aten::add_" if added and adds else "aten::detach"
                if head == 4 and stores == "autograd.grad":
                    inside = ""
                work = ((ELEMENTWISE, 20),) * (added and adds)
                steps.op(ACCUMULATE, work, inside=inside, track=BACKWARD)
                if number == 2:
                    steps.op("aten::add", ((ELEMENTWISE, 30),), track=BACKWARD)
            if between.startswith("aten::") and head == 4:
                steps.op(between, ((ELEMENTWISE, 10),))
            elif between and head == 4:
                steps.within(between, ("aten::_foreach_mul_", ((ELEMENTWISE, 10),)))
        steps.within("Optimizer.step#SGD.step", ("aten::_fused_sgd_", ((ELEMENTWISE, 100),)))
        steps.end()
    return steps.trace()


def test_a_graph_that_two_losses_go_through() -> None:
    row = found(of_two_losses(), "repeated-backward")
    # Four nodes, the addition of their gradients to those of the first loss, and that of two gradients in between.
    assert row["wins_ns"] == pytest.approx((4 * (150 + 20) + 30) * 1000, rel=0.03)
    assert "backward() once" in row["instead"]
    partly = found(of_two_losses(known=False), "repeated-backward")
    assert partly["wins_ns"] == pytest.approx((150 + 20) * 1000, rel=0.03), "the others have no numbers"
    assert finding(of_two_losses(), "unneeded-gradients") is None, "the optimizer uses the added gradients"


@pytest.mark.parametrize(
    "trace",
    [
        of_two_losses(between="Optimizer.step#Adam.step"),
        of_two_losses(between="Optimizer.zero_grad#SGD.zero_grad"),
        of_two_losses(between="aten::zero_"),
        of_two_losses(stores="none"),
        of_two_losses(stores="autograd.grad"),
        of_two_losses(stores="head"),
        of_two_losses(adds=False),
        of_two_losses(other_us=40_000),
        cleared(fills=False, passes=2),
    ],
    ids=[
        "an update between",
        "gradients of their own",
        "gradients that are set to zero",
        "of autograd.grad",
        "of autograd.grad, which passes the nodes that store",
        "of other weights",
        "that replace others",
        "a small part",
        "two graphs",
    ],
)
def test_a_graph_that_has_to_be_gone_through_again(trace: Trace) -> None:
    assert finding(trace, "repeated-backward") is None


def repeated(cast: bool, layers: int = 6) -> Trace:
    """Steps with a second forward pass that no backward pass follows from, with weights cast anew or not."""
    steps = Steps()
    copy = ("void at::native::vectorized_elementwise_kernel<4, bfloat16_copy>", 10.0)
    for _ in steps.each():
        for number in range(6):
            steps.op("aten::linear", (copy, (GEMM, 100)), sequence=number)
        for _ in range(layers):
            steps.op("aten::linear", (copy, (GEMM, 100)) if cast else ((GEMM, 100),))
        for number in reversed(range(6)):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=number, track=BACKWARD)
    return steps.trace()


def test_the_same_weights_run_twice() -> None:
    row = found(repeated(cast=False), "repeated-forward")
    assert row["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03)
    assert "every step" in row["what"]


@pytest.mark.parametrize(
    "trace", [repeated(cast=True), repeated(cast=False, layers=3)], ids=["other weights", "a few layers"]
)
def test_a_second_forward_pass_may_be_another_models(trace: Trace) -> None:
    assert finding(trace, "repeated-forward") is None


def numbered(*calls: str, layers: int = 6) -> Trace:
    """Steps with calls of models that the probe numbers, on device work that tells nothing of their weights."""
    steps = Steps()
    for _ in steps.each():
        for name in calls:
            steps.within(name, *(("aten::linear", ((GEMM, 100),)) for _ in range(layers)))
    return steps.trace()


def test_a_numbered_model_runs_twice() -> None:
    row = found(numbered("GPT #1, no gradients", "GPT #2, no gradients", "GPT #1"), "repeated-forward")
    assert row["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03), "the reference model stays"
    assert row["where"] == "GPT #1, no gradients"


def guided(*calls: str, between: int = 1, times: int = 3, us: float = 4.0) -> Trace:
    """Steps of a sampler that calls models, and then computes its next image."""
    steps = Steps()
    for _ in steps.each():
        for _ in range(times):
            for name in calls:
                steps.within(name, *(("aten::linear", ((GEMM, us),)) for _ in range(30)))
            for _ in range(between):
                steps.op("aten::add", ((ELEMENTWISE, 2.0),))
    return steps.trace()


def test_a_model_that_is_called_with_and_without_a_condition_takes_both_as_a_batch() -> None:
    row = found(guided("DiT #1, no gradients", "DiT #1, no gradients, same largest input"), "calls-in-a-row")
    assert row["what"] == "a model (DiT) is called twice in a row, 3 times a step, and its kernels are short"
    # Half of the host's time, with little left of what the device does.
    step = replayed(guided("DiT #1, no gradients", "DiT #1, no gradients"))
    assert not isinstance(step, str)
    assert row["wins_ns"] == pytest.approx(step.step_ns / 2, rel=0.1)


@pytest.mark.parametrize(
    "trace",
    [
        guided("DiT #1", "DiT #1"),
        guided("DiT #1, no gradients", "DiT #2, no gradients"),
        guided("DiT #1, no gradients", "DiT #1, no gradients, same inputs"),
        guided("DiT #1, no gradients"),
        guided("DiT #1, no gradients", "DiT #1, no gradients", between=0),
        guided("DiT #1, no gradients", "DiT #1, no gradients", times=1),
        guided("DiT #1, no gradients", "DiT #1, no gradients", us=100.0),
    ],
    ids=["gradients", "two models", "same inputs", "one call", "a loop", "once", "long kernels"],
)
def test_calls_that_cannot_be_a_batch_or_need_not(trace: Trace) -> None:
    assert finding(trace, "calls-in-a-row") is None


@pytest.mark.parametrize(
    ("call", "kept"), [("GPT #1, no gradients", 0.5), ("GPT #1, no gradients, same inputs", 0.0)]
)
def test_a_pass_on_other_tensors_may_be_part_of_the_method(call: str, kept: float) -> None:
    trace = numbered(call, "GPT #1")
    whole_ns, step = found(trace, "repeated-forward")["wins_ns"], replayed(trace)
    assert not isinstance(step, str)
    weights = Weights({"float32": 1})  # the probe that notes them marks calls on the same tensors
    trace = in_session(numbered(call, "GPT #1"), step.step_ns, weights=weights)
    row = found(trace, "repeated-forward")
    assert row["wins_ns"] == pytest.approx((1 - kept) * whole_ns, rel=0.1)
    assert ("other tensors" in row["what"]) == (row["wins_low_ns"] == 0) == bool(kept)


@pytest.mark.parametrize(
    ("learned", "saved_us"), [(("exp", "mul"), 600 + 2 * 50), (("exp", "sum"), 600 + 50), ((), 600)]
)
def test_what_is_computed_alike_from_both_passes_is_computed_once(
    learned: tuple[str, ...], saved_us: float
) -> None:
    steps = Steps()
    for _ in steps.each():
        for name, uses in (("GPT #1, no gradients", ("exp", "mul")), ("GPT #1", learned)):
            steps.within(name, *(("aten::linear", ((GEMM, 100),)) for _ in range(6)))
            for op in uses:
                steps.op(f"aten::{op}", ((ELEMENTWISE, 50),))
        steps.within("Optimizer.step#SGD.step", ("aten::_fused_sgd_", ((ELEMENTWISE, 100),)))
    assert found(steps.trace(), "repeated-forward")["wins_ns"] == pytest.approx(saved_us * 1000, rel=0.02)


@pytest.mark.parametrize(
    ("before", "without_gradients", "learned", "saved_us"),
    [
        ((), ("exp", "of the loader", "mul"), ("exp", "mul"), 600 + 2 * 50),
        (("exp",), (), ("exp",), 600),  # what follows the second pass begins the next step
        ((), ("exp", "other model"), ("exp", "another model"), 600 + 50),
        (
            (),
            ("exp", "backward"),
            ("exp", "backward"),
            600 + 50,
        ),  # as of an auxiliary loss, on a CPU's thread
    ],
)
def test_only_what_the_same_step_computes_from_both_passes_is_computed_once(
    before: tuple[str, ...], without_gradients: tuple[str, ...], learned: tuple[str, ...], saved_us: float
) -> None:
    steps = Steps()
    models = {"other model": "Reward #2, no gradients", "another model": "Value #3, no gradients"}
    layers = [("aten::linear", ((GEMM, 100),))] * 6
    passes = [("GPT #1, no gradients", without_gradients), ("GPT #1", learned)]
    for _ in steps.each():
        for name, uses in [("", before), *(passes[::-1] if before else passes)]:
            if name:
                steps.within(name, *layers)
            for use in uses:
                if use in models:
                    steps.within(models[use], *layers)
                elif use == "of the loader":
                    steps.op("aten::stack", track=BACKWARD)
                elif use == "backward":
                    steps.op(f"{AUTOGRAD}: MulBackward0", ((ELEMENTWISE, 50),))
                else:
                    steps.op(f"aten::{use}", ((ELEMENTWISE, 50),))
    assert found(steps.trace(), "repeated-forward")["wins_ns"] == pytest.approx(saved_us * 1000, rel=0.02)


@pytest.mark.parametrize(
    ("between", "advised"),
    [((), True), (("aten::add_",) * 30, False), ((f"{AUTOGRAD}: MmBackward0",), False)],
)
def test_weights_may_be_changed_between_calls_on_the_same_inputs(
    between: tuple[str, ...], advised: bool
) -> None:
    steps = Steps()
    for _ in steps.each():
        for name in ("GPT #1, no gradients", "GPT #1, no gradients, same inputs"):
            steps.within(name, *(("aten::linear", ((GEMM, 100),)) for _ in range(6)))
            for op in between:
                steps.op(op, ((GEMM, 1),))
    assert (finding(steps.trace(), "repeated-forward") is not None) == advised


TRAINED = ", no gradients, inputs trained on"


def measured(
    mark: str = TRAINED,
    *,
    times: int = 1,
    layers_us: int = 100,
    ended_by_update: bool = True,
    learns: bool = True,
) -> Trace:
    """Steps that run the model again after the update, as for a metric, which the step that begins then has."""
    steps = Steps()
    layers = [("aten::linear", ((GEMM, layers_us),))] * 6
    for number in range(4):
        if number == 0 and ended_by_update:  # its call with gradients was before the capture
            steps.within("GPT #1, no gradients", *layers)
        steps.within("GPT #1", *layers, first=1)
        for sequence in reversed(range(1, 7) if learns else ()):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=sequence, track=BACKWARD)
        if not ended_by_update:
            for _ in range(times):
                steps.within(f"GPT #1{mark}", *layers)
        steps.within("Optimizer.step#SGD.step", ("aten::_fused_sgd_", ((ELEMENTWISE, 100),)))
        if ended_by_update:
            steps.end()
        if ended_by_update and number < 3:
            for _ in range(times):
                steps.within(f"GPT #1{mark}", *layers)
        if not ended_by_update:
            steps.end()
    return steps.trace()


@pytest.mark.parametrize("layers_us", [50, 100, 400])
@pytest.mark.parametrize("ended_by_update", [True, False])
def test_a_pass_for_a_metric_on_the_batch_that_was_trained_on_costs_its_time(
    layers_us: int, ended_by_update: bool
) -> None:
    row = found(measured(layers_us=layers_us, ended_by_update=ended_by_update), "repeated-forward")
    assert row["wins_ns"] == pytest.approx(6 * layers_us * 1000, rel=0.03)
    assert "the inputs that it has just been trained on" in row["what"]
    assert "every step" in row["what"]
    assert "outputs.detach()" in row["instead"]
    # With the weights of after the update the method may need it.
    assert (row["wins_low_ns"] == 0) == ("before the update" in row["instead"]) == ended_by_update


@pytest.mark.parametrize("ended_by_update", [True, False])
def test_a_pass_for_a_metric_may_be_in_the_mode_of_evaluation(ended_by_update: bool) -> None:
    trace = measured(f"{TRAINED} in another mode", ended_by_update=ended_by_update)
    row = found(trace, "repeated-forward")
    assert row["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03)
    assert "in training mode" in row["instead"]
    assert "train() or eval() was called" in row["because"]
    assert row["wins_low_ns"] == 0, "the results differ"


@pytest.mark.parametrize(
    "trace",
    [
        measured(times=3),
        measured(learns=False),
        measured(", no gradients"),
        measured(", no gradients, same largest input"),
    ],
    ids=["a line search", "no backward pass", "other inputs", "one of several inputs"],
)
def test_a_pass_is_not_for_a_metric_if_other_inputs_or_a_search_may_need_it(trace: Trace) -> None:
    row = finding(trace, "repeated-forward")
    assert row is None or "trained on" not in row["what"]


def test_a_model_is_called_again_on_the_same_inputs() -> None:
    row = found(numbered("GPT #1", "GPT #1", "GPT #1, same inputs"), "repeated-forward")
    assert row["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03)
    assert row["where"] == "GPT #1"
    assert "once" in row["instead"]
    assert "every step" in row["what"]


@pytest.mark.parametrize(("first", "layers"), [("GPT #1", 5), ("GPT #2", 6)])
def test_a_model_that_computes_something_else_on_the_same_inputs(first: str, layers: int) -> None:
    steps = Steps()
    for _ in steps.each():
        for name, count in ((first, 6), ("GPT #1, same inputs", layers)):
            steps.within(name, *(("aten::linear", ((GEMM, 100),)) for _ in range(count)))
    assert finding(steps.trace(), "repeated-forward") is None


def test_a_model_that_draws_random_numbers_is_not_the_same_again() -> None:
    steps = Steps()
    for _ in steps.each():
        for name in ("GPT #1", "GPT #1, same inputs"):
            layers = (("aten::linear", ((GEMM, 100),)) for _ in range(6))
            steps.within(name, ("aten::randn_like", ((GEMM, 10),)), *layers)
    assert finding(steps.trace(), "repeated-forward") is None


@pytest.mark.parametrize(
    "calls",
    [
        ("GPT #2, no gradients", "GPT #1"),
        ("GPT #1, no gradients",) * 2,
        ("GPT #1", "GPT #1"),
        (*("GPT #1, no gradients",) * 12, "GPT #1"),  # acts often, and learns once
    ],
)
def test_numbered_models_that_do_not_run_twice(calls: tuple[str, ...]) -> None:
    assert finding(numbered(*calls), "repeated-forward") is None


@pytest.mark.parametrize(
    ("second", "frozen", "advised"),
    [
        ("SAM #1, same largest input", 6, True),
        ("SAM #1", 6, False),  # of another image
        ("SAM #2, same largest input", 6, False),
        ("SAM #1, same largest input", 3, False),  # too small a part
        ("SAM #1, same largest input", 0, False),  # all of it learns, and other inputs differ
    ],
)
def test_a_frozen_part_of_a_model_sees_the_same_image_again(second: str, frozen: int, advised: bool) -> None:
    steps = Steps()
    for _ in steps.each():
        for call, name in enumerate(("SAM #1", second)):
            first = 10 * call + 1
            steps.within(name, *[("aten::linear", ((GEMM, 100),))] * (frozen + 3), first=first)
        for call in (1, 0):
            for number in reversed(range(10 * call + 1 + frozen, 10 * call + 4 + frozen)):
                steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=number, track=BACKWARD)
    row = finding(steps.trace(), "repeated-forward")
    assert (row is not None) == advised
    if row is not None:
        assert "a part of a model" in row["what"]
        assert row["where"] == "SAM #1"
        assert row["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03)


@pytest.mark.parametrize(
    ("again", "between", "advised"),
    [
        (", same inputs", (), True),
        ("", (), False),
        (", same inputs", (f"{AUTOGRAD}: MmBackward0",), False),  # the weights may have changed
        (", same inputs", ("aten::add_",) * 30, False),
        (", same inputs", ("inside", "aten::bernoulli_"), False),
    ],
)
def test_a_module_is_called_again_on_the_same_inputs(
    again: str, between: tuple[str, ...], advised: bool
) -> None:
    steps = Steps()
    for _ in steps.each():
        for turn in range(3):
            inside = between[1:] if between[:1] == ("inside",) else ()
            for op in () if inside else between:
                steps.op(op, ((GEMM, 1),))
            name = f"Linear #3{again if turn else ''}, at /w/train.py:12 Decoder.look"
            ops = [("aten::linear", ((GEMM, 100),)), *((op, ((GEMM, 1),)) for op in inside)]
            steps.within(name, *ops, first=10 * turn + 1)
            steps.op("aten::linear", ((GEMM, 100),))
        for turn in (2, 1, 0):
            begin = steps.now
            steps.op(
                f"{AUTOGRAD}: MmBackward0",
                ((GEMM, 200), (ELEMENTWISE, 30), (ELEMENTWISE, 50)),
                sequence=10 * turn + 1,
                track=BACKWARD,
            )
            for sum_ in (11, 21):  # of the gradients of the weights, and of the larger inputs
                steps.made.op("aten::add_", begin + sum_, begin + sum_ + 7, track=BACKWARD)
    row = finding(steps.trace(), "repeated-forward")
    assert (row is not None) == advised
    if row is not None:
        assert row["wins_ns"] == pytest.approx(2 * (100 + 200 + 30) * 1000, rel=0.03), "a sum for each stays"
        assert row["where"] == "Decoder.look, /w/train.py:12"
        assert "Linear" in row["what"]
        assert "twice" in row["what"] or "2 times" in row["what"]


def test_what_a_module_itself_runs_does_not_lie_between_its_calls() -> None:
    steps = Steps()
    for _ in steps.each():
        for again in ("", ", same inputs"):
            name = f"Sequential #3, no gradients{again}, at /w/train.py:12 look"
            steps.within(name, *[("aten::linear", ((GEMM, 10),))] * 30)
    row = found(steps.trace(), "repeated-forward")
    assert row["wins_ns"] == pytest.approx(30 * 10_000, rel=0.03)


def test_modules_that_a_function_calls_again_are_one_finding() -> None:
    steps = Steps()
    for _ in steps.each():
        for again in ("", ", same inputs"):
            for number, line in ((1, 9), (2, 12)):
                name = f"Linear #{number}, no gradients{again}, at /w/train.py:{line} Decoder.look"
                steps.within(name, ("aten::linear", ((GEMM, 100),)))
    row = found(steps.trace(), "repeated-forward")
    assert row["wins_ns"] == pytest.approx(2 * 100_000, rel=0.03)
    assert row["where"] == "Decoder.look, /w/train.py:9, 12"
    assert "modules (Linear) are" in row["what"]
    assert "gradients" not in row["because"]


def test_a_module_in_a_model_that_is_called_again_is_no_other_finding() -> None:
    steps = Steps()
    for _ in steps.each():
        for again in ("", ", same inputs"):
            begin = steps.now
            steps.within(f"GPT #1{again}", *[("aten::linear", ((GEMM, 100),))] * 6)
            name = f"Linear #1{again}, at /w/train.py:12 look"
            steps.made.add("annotation", name, begin + 0.5, begin + 11)
    assert found(steps.trace(), "repeated-forward")["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03)


def test_the_first_call_of_a_module_may_hold_calls_of_its_parts() -> None:
    steps = Steps()
    for _ in steps.each():
        for index, again in enumerate(("", ", same inputs", ", same inputs")):
            begin, layers = steps.now, [("aten::linear", ((GEMM, 100),))] * 6
            steps.op("aten::view", ())
            name = f"Sequential #1{again}, at /w/train.py:12 look"
            steps.within(
                name if again else "Linear #2, at /w/model.py:7 forward", *layers, first=1 + 10 * index
            )
            if not again:  # the parts of later calls have no marks
                steps.made.add("annotation", name, begin, steps.now + 0.5)
            steps.op("aten::mul", ((ELEMENTWISE, 5),), sequence=9 + 10 * index)
        for number in (29, *range(26, 20, -1), 19, *range(16, 10, -1), 9, *range(6, 0, -1)):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 150),), sequence=number, track=BACKWARD)
    row = found(steps.trace(), "repeated-forward")
    # Two of three calls, forward and backward, less a sum of gradients for each.
    assert row["wins_ns"] == pytest.approx(2 * 6 * (100 + 150) * 1000, rel=0.03)


@pytest.mark.parametrize(
    ("part", "layers", "where"),
    [
        ("GPT #3{}, at /w/train.py:{} step", 6, "step, /w/train.py:20"),
        ("GPT #1{}, at /w/model.py:{} forward", 2, "GPT #1"),
        ("Linear #1{}, at /w/model.py:{} forward", 6, "GPT #1"),
    ],
    ids=["itself", "a part of the same class", "another class"],
)
def test_a_model_that_is_called_again_is_at_the_line_of_its_mark_as_a_module(
    part: str, layers: int, where: str
) -> None:
    steps = Steps()
    for _ in steps.each():
        for again, line in (("", 12), (", same inputs", 20)):
            begin = steps.now
            steps.within(f"GPT #1{again}", *[("aten::linear", ((GEMM, 100),))] * 6)
            steps.made.add("annotation", part.format(again, line), begin + 0.5, begin + 10 * layers + 1)
    assert found(steps.trace(), "repeated-forward")["where"] == where


def adversarial(learns: str, after: tuple[str, ...] = (), part: str = "") -> Trace:
    """Steps of a GAN that generates twice, with a backward pass and an update between that go through one of the two.

    The second generation learns; ``part`` names the line of the calls, if they are of a module.
    """
    steps = Steps()
    for _ in steps.each():
        layers = [("aten::linear", ((GEMM, 100),))] * 6
        steps.within(f"Generator #1{part}", *layers, first=1)
        steps.within("Critic #2", *layers * 5, first=101)
        for number in reversed(range(101, 131) if learns == "Critic" else range(1, 7)):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=number, track=BACKWARD)
            steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
        steps.within("Optimizer.step#SGD.step", *[("aten::add_", ((ELEMENTWISE, 1),))] * 30)
        steps.within(f"Generator #1, same inputs{part}", *layers, first=21)
        for name in after:
            steps.within(name, *layers, first=31)
        for number in reversed(range(31, 37)) if after else ():
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=number, track=BACKWARD)
        for number in reversed(range(21, 27)):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=number, track=BACKWARD)
            steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
    return steps.trace()


@pytest.mark.parametrize("part", ["", ", at /w/train.py:12 step"], ids=["model", "module"])
def test_another_model_may_learn_between_calls_on_the_same_inputs(part: str) -> None:
    row = found(adversarial("Critic", part=part), "repeated-forward")
    # The backward pass stays: none goes through the first call.
    assert row["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03)
    later = found(adversarial("Critic", (f"Generator #1{part}",), part), "repeated-forward")
    assert later["wins_ns"] == pytest.approx(6 * 100_000, rel=0.03), "nor through an earlier one"
    assert finding(adversarial("Generator", part=part), "repeated-forward") is None


def test_workers_that_are_started_again_count_in_the_mean_step() -> None:
    trace = trained((False,) * 6)
    length = float(trace.steps.lengths.mean())
    in_session(trace, length)
    assert finding(trace, "loader-restarts") is None
    assert answer(trace, "").step_is == "median of 40 steps before the capture"
    # Ten times in 120 steps: 60 ms to stop and to start, and 20 ms until the first batch.
    restarts = WorkerRestarts(8, 10, 120, 600_000_000, 200_000_000)
    trace = in_session(trained((False,) * 6), length, restarts=restarts)
    row = found(trace, "loader-restarts")
    assert row["wins_ns"] == pytest.approx((600e6 + 100e6) / 120)
    assert row["wins_low_ns"] < 600e6 / 120 < 800e6 / 120 < row["wins_high_ns"]
    report = advise(trace)
    assert report.fact("step_ns") == pytest.approx(length + row["wins_ns"])
    assert row["share"] == pytest.approx(row["wins_ns"] / (length + row["wins_ns"]))
    assert "every 12 steps" in row["what"]
    assert "60.0 ms" in row["what"]
    assert any("mean step" in note for note in report.notes)
    assert answer(trace, "").step_is == "mean of 40 steps before the capture"
    why = losses_of(trace, Window(), report.table("findings").rows["rule"].to_list().index("loader-restarts"))
    assert isinstance(why, str)
    assert "rare steps" in why


def test_what_if_counts_rare_steps_as_the_findings_do() -> None:
    trace = trained((False,) * 6)
    length = float(trace.steps.lengths.mean())
    in_session(trace, length, restarts=WorkerRestarts(8, 10, 120, 600_000_000, 200_000_000))
    saved = found(trace, "loader-restarts")["wins_ns"]
    asked = changes(trace, without=["loader-restarts", "loader-restarts"], host=0.5)
    told = question(trace, asked)
    assert isinstance(told, Report)
    assert told.fact("step_ns") == advise(trace).fact("step_ns")
    once, twice, host, together = told.table("changes").rows.to_dicts()
    assert once["wins_ns"] == twice["wins_ns"] == pytest.approx(saved)
    assert host["step_ns"] == pytest.approx(length + saved - host["wins_ns"])
    assert together["wins_ns"] == pytest.approx(saved + host["wins_ns"])
    assert together["wins_high_ns"] > saved + host["wins_high_ns"]


@pytest.mark.parametrize("syncs", [0, 2])
def test_what_launches_too_slowly_for_graphs_must_not_wait(syncs: int) -> None:
    made = Made()
    for _, at in made.steps(1000):
        for index in range(60):
            begin = at + 100 + index * 12
            made.launch("add", (begin, begin + 5), (begin + 6, begin + 10))
        for index in range(syncs):
            made.call("cudaStreamSynchronize", at + 900 + 10 * index, at + 905 + 10 * index)
    fix = found(made.trace(), "launch-bound")["instead"]
    assert ("the step's 2 syncs" in fix) == bool(syncs)
    assert "CUDA graphs" in fix
    assert "batches to one size" not in fix


@pytest.mark.parametrize(
    ("sizes", "differ"),
    [
        ((8_000, 9_000, 7_000, 9_500), True),
        ((8_000, 9_000, 8_000, 9_000), False),  # two kinds of steps
        ((8_000, 8_000, 8_000, 7_000), False),  # the last batch of an epoch
        ((8, 9, 7, 6), False),  # lengths, not batches
        ((0, 0, 8_000, 9_000), False),  # too few to tell
    ],
)
def test_a_graph_needs_batches_of_one_size(sizes: tuple[int, ...], differ: bool) -> None:
    assert ("pad batches to one size" in graph_advice(sizes)) == differ


@pytest.mark.parametrize(
    ("optimizers", "named"),
    [(("AdamW",), "AdamW with"), (("RMSprop", "Adam"), "Adam and RMSprop with"), (("SGD", "MyAdam"), "")],
)
def test_a_graph_needs_capturable_optimizers(optimizers: tuple[str, ...], named: str) -> None:
    fix = graph_advice((8_000,) * 4, optimizers)
    assert f"create {named}" in fix if named else "capturable" not in fix


def graph_advice(sizes: tuple[int, ...], optimizers: tuple[str, ...] = ()) -> str:
    """What to do about many launches, in steps with copies of these sizes to the device and these optimizers."""
    made = Made()
    for number, size in enumerate(sizes):
        at = number * 1000
        made.step(number, at, at + 1000)
        if size:
            copy = {"category": "memcpy", "bytes": size}
            made.launch("Memcpy HtoD (Pinned -> Device)", (at, at + 5), (at + 6, at + 10), **copy)
        for index in range(60):
            begin = at + 100 + index * 12
            made.launch("add", (begin, begin + 5), (begin + 6, begin + 10))
        for index, optimizer in enumerate(optimizers):
            made.add(
                "annotation", f"Optimizer.step#{optimizer}.step", at + 900 + 20 * index, at + 910 + 20 * index
            )
    return str(found(made.trace(), "launch-bound")["instead"])


UNALIGNED = (
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(Params)", True),
    (
        "void cutlass::Kernel<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x1_tn_align2>(Params)",
        True,
    ),
    ("cutlass_75_tensorop_h1688gemm_128x64_tn_align1", True),
    ("cutlass_80_tensorop_h16816gemm_64x64_32x6_tn_align4", True),
    ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align1", True),
    ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4", False),
    ("cutlass_tensorop_s1688fprop_optimized_tf32_128x128_32x4_nhwc_align4", False),
    ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8", False),
    ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", False),
    ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", False),
)


@pytest.mark.parametrize(("kernel", "slow"), UNALIGNED)
def test_kernels_that_load_less_than_16_bytes_at_once(kernel: str, slow: bool) -> None:
    steps = Steps()
    for _ in range(4):
        steps.op("aten::linear", ((kernel, 400),)).op("aten::linear", ((GEMM, 600),)).end()
    row = finding(steps.trace(), "unaligned-matmul")
    assert (row is not None) == slow
    if row is not None:
        stays = 0.65 * (0.7 if "cutlass_75" in kernel else 1.0)  # it is not known to be a newer chip
        assert row["wins_ns"] == pytest.approx((1 - stays) * 400_000, rel=0.02)
        assert "40 %" in row["what"]


def looped(
    body: tuple[tuple[str, float], ...],
    times: int = 20,
    *,
    node: str = "",
    trains: bool = True,
    weights: bool = False,
    join: int = 0,
) -> Trace:
    """Steps with a loop of some operators and their backward passes, and with a layer that may be trained."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 900),), sequence=1)
        for number in range(2, times + 2):
            for index, (name, works) in enumerate(body):
                kernel = GEMM if name == "aten::matmul" else ELEMENTWISE
                steps.op(name, ((kernel, works),), sequence=None if index else number)
        if join:
            steps.op("aten::stack", ((ELEMENTWISE, join),))
        for number in reversed(range(2, times + 2)):
            if node:
                steps.op(f"{AUTOGRAD}: {node}", ((ELEMENTWISE, 100),), sequence=number, track=BACKWARD)
            if weights:
                steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
        if trains:
            steps.op(f"{AUTOGRAD}: AddmmBackward0", ((GEMM, 900),), sequence=1, track=BACKWARD)
            steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
    return steps.trace()


DISTANCES = (("aten::matmul", 5.0), ("aten::sub", 5.0), ("aten::topk", 20.0))


def test_products_without_weights_may_be_part_of_a_loop() -> None:
    row = found(looped(DISTANCES), "kernel-loop")
    assert "matmul → sub → topk 20 times" in row["what"]
    assert row["wins_ns"] == pytest.approx(20 * 30_000 * 0.7, rel=0.05)
    weighed = looped(DISTANCES, node="MmBackward0", weights=True)
    assert finding(weighed, "kernel-loop") is None, "these are layers"
    assert finding(looped(DISTANCES, trains=False), "kernel-loop") is None, "these may be layers"


def test_kernels_of_a_loop_may_grow() -> None:
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 900),))
        for number in range(24):
            steps.op("aten::cat", ((ELEMENTWISE, 2.0 + number),))
    assert "cat 24 times" in found(steps.trace(), "kernel-loop")["what"]


def test_gradients_of_parts_are_made_once_without_the_loop() -> None:
    small = (("aten::mul", 2.0),)
    of_parts, of_all = (
        found(looped(small, node=node), "kernel-loop")["wins_ns"]
        for node in ("SelectBackward0", "MulBackward0")
    )
    assert of_all == pytest.approx(20 * (2_000 + 100_000) * 0.7, rel=0.05)
    assert of_parts == pytest.approx(20 * (2_000 * 0.7 + 100_000 * 0.9), rel=0.05)


def test_what_joins_the_results_of_a_loop_is_part_of_it() -> None:
    small = (("aten::mul", 2.0),)
    assert (
        "one call on the whole batch" in found(looped(small, node="MulBackward0"), "kernel-loop")["instead"]
    )
    apart, joined = (found(looped(small, join=join), "kernel-loop")["wins_ns"] for join in (0, 300))
    assert joined - apart == pytest.approx(300_000 * 0.7, rel=0.05)


def judged(same_model: bool) -> Trace:
    """Steps with two calls of a judge, which nothing trains, with a layer between; its gradients are added up."""
    steps = Steps()
    both = (("sm90_xmma_dgrad_bf16", 100), ("sm90_xmma_wgrad_bf16", 150))
    convolutions = [("aten::conv2d", ((GEMM, 100.0),))] * 4
    for _ in steps.each():
        steps.within("Judge #1", *convolutions, first=1)
        steps.op("aten::linear", ((GEMM, 100),), sequence=5)
        steps.within("Judge #1" if same_model else "Judge #2", *convolutions, first=6)
        for number in reversed(range(1, 10)):
            steps.op(f"{AUTOGRAD}: ConvolutionBackward0", both, sequence=number, track=BACKWARD)
            if number == 5:
                steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
            elif number < 5:
                steps.op(ACCUMULATE, ((ELEMENTWISE, 20),), inside="aten::add_", track=BACKWARD)
        steps.within("Optimizer.step#AdamW.step", ("aten::_fused_adamw_", ((ELEMENTWISE, 100),)))
    return steps.trace()


def test_a_frozen_model_that_is_called_twice_has_gradients_of_weights_in_both() -> None:
    once, twice = (found(judged(same), "unneeded-gradients")["wins_ns"] for same in (False, True))
    assert twice - once == pytest.approx(4 * 150_000, rel=0.03)


def of_inputs(
    *nodes: str,
    weights: int = 1,
    updates: bool = True,
    added: bool = False,
    zeroed: bool = False,
    penalty: bool = False,
    us: float = 200,
) -> Trace:
    """Steps whose first convolution computes the gradient of its input, followed by these nodes.

    The gradients of its weights may be added to older ones or to zeros, and those of a penalty may come before.
    """
    steps = Steps()
    both = (("sm90_xmma_dgrad_bf16", us), ("sm90_xmma_wgrad_bf16", 150))
    for _ in steps.each():
        for number in (1, 2):
            steps.op("aten::conv2d", ((GEMM, 100),), sequence=number)
        if zeroed:
            steps.within(
                "Optimizer.zero_grad#AdamW.zero_grad", ("aten::_foreach_zero_", ((ELEMENTWISE, 20),))
            )
        if penalty:
            steps.op(f"{AUTOGRAD}: ConvolutionBackwardBackward0", both, sequence=3, track=BACKWARD)
        for number in (2, 1):
            steps.op(f"{AUTOGRAD}: ConvolutionBackward0", both, sequence=number, track=BACKWARD)
            for _ in range(weights):
                steps.op(ACCUMULATE, (), inside="aten::add_" if added else "aten::detach", track=BACKWARD)
        for node in nodes:
            steps.op(node, ((ELEMENTWISE, 30),) if "ToCopy" in node else (), track=BACKWARD)
        if updates:
            steps.within("Optimizer.step#AdamW.step", ("aten::_fused_adamw_", ((ELEMENTWISE, 100),)))
    return steps.trace()


CAST = f"{AUTOGRAD}: ToCopyBackward0"


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_gradient_of_the_input_is_not_needed(zeroed: bool) -> None:
    row = found(of_inputs(CAST, ACCUMULATE, added=zeroed, zeroed=zeroed), "unneeded-gradients")
    assert "gradient of its input" in row["what"]
    assert row["wins_ns"] == pytest.approx(230_000, rel=0.03)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(of_inputs(), id="of nothing"),
        pytest.param(of_inputs(f"{AUTOGRAD}: EmbeddingBackward0", ACCUMULATE), id="of a table"),
        pytest.param(of_inputs(CAST, ACCUMULATE, weights=0), id="of a frozen model"),
        pytest.param(of_inputs(CAST, ACCUMULATE, updates=False), id="of an attack"),
        pytest.param(of_inputs(CAST, ACCUMULATE, penalty=True), id="of a penalty"),
        pytest.param(of_inputs(CAST, ACCUMULATE, us=1), id="of next to nothing"),
    ],
)
def test_a_gradient_of_the_input_may_be_needed(trace: Trace) -> None:
    assert finding(trace, "unneeded-gradients") is None


def test_the_gradient_of_an_image_that_is_optimized_is_needed_and_those_of_weights_are_not() -> None:
    row = found(of_inputs(CAST, ACCUMULATE, added=True), "unneeded-gradients")
    assert "weights that the optimizer does not update" in row["what"]


def heads(
    joined: int,
    times: int = 6,
    *,
    chained: bool = False,
    weights: bool = True,
    before: tuple[str, float] = ("aten::layer_norm", 900),
    relu_us: float = 4,
    updates: int = 0,
) -> Trace:
    """Steps with layers in a loop, after which that many tensors are joined: the results of all of them, or not.

    Each layer is called on the result of the one before it if chained, else all on the same tensor. The optimizer
    calls that many operators in its step, and to clear the gradients.
    """
    steps = Steps()
    for _ in steps.each():
        name, us = before
        steps.op(name, ((ELEMENTWISE if "relu" in name else SOFTMAX, us),), sequence=0)
        for number in range(1, times + 1):
            steps.op("aten::linear" if weights else "aten::matmul", ((GEMM, 8),), sequence=number)
            steps.op("aten::relu", ((ELEMENTWISE, relu_us),))
        steps.op("aten::cat", ((ELEMENTWISE, 10),), sequence=100)
        begin = steps.now
        steps.op(f"{AUTOGRAD}: CatBackward0", sequence=100, track=BACKWARD)
        for part in range(joined):
            at = begin + 1 + part / 2
            steps.made.op("aten::narrow", at, at + 0.4, track=BACKWARD)
        for number in reversed(range(1, times + 1)):
            used_again = number > 1 if chained else number < times
            inside = "aten::add" if used_again else ""
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 16),), inside, sequence=number, track=BACKWARD)
            if weights or number == 1:
                steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
        if updates:
            steps.within("Optimizer.step#SGD.step", *[("aten::add_", ((ELEMENTWISE, 1),))] * updates)
            steps.within(
                "Optimizer.zero_grad#SGD.zero_grad", *[("aten::zero_", ((ELEMENTWISE, 1),))] * updates
            )
    return steps.trace()


def test_layers_whose_results_are_joined_do_not_build_on_each_other() -> None:
    row = found(heads(joined=6), "kernel-loop")
    assert "linear → relu 6 times" in row["what"]
    assert "one wider layer" in row["instead"]
    # All kernels of the loop and of the join keep 30 %.
    assert row["wins_ns"] == pytest.approx((6 * (8 + 4 + 16) + 10) * 0.7 * 1000, rel=0.05)
    assert finding(heads(joined=2), "kernel-loop") is None, "the last result, and something else"
    assert finding(heads(joined=5), "kernel-loop") is None, "not all of them"
    assert finding(heads(joined=3, times=3), "kernel-loop") is None, "too few"
    assert finding(heads(joined=6, chained=True), "kernel-loop") is None, "each builds on the one before it"
    assert finding(heads(joined=6, relu_us=40), "kernel-loop") is None, "its kernels are long"


def test_a_loop_whose_results_are_joined_may_begin_within_an_iteration() -> None:
    row = found(heads(joined=6, before=("aten::relu", 900)), "kernel-loop")
    assert "linear → relu 6 times" in row["what"], "a relu before that is long"
    row = found(heads(joined=6, before=("aten::relu", 4)), "kernel-loop")
    assert "relu → linear 6 times" in row["what"]


def test_of_a_loop_whose_results_are_joined_one_iteration_stays() -> None:
    row = found(heads(joined=6, before=("aten::layer_norm", 1)), "kernel-loop")
    # The host's time for the loop, the join and their backward passes, up to the next operators.
    assert row["wins_ns"] == pytest.approx((13 * 10 + 12 * 10 - 2) * 1000 * 5 / 6, rel=0.01)


def test_a_loop_whose_results_are_joined_counts_once() -> None:
    assert "loops a step" not in found(heads(joined=14, times=14, weights=False), "kernel-loop")["what"]


@pytest.mark.parametrize(("loops", "said"), [((1, 1, 1, 2), ""), ((2, 2, 1, 2), ", one of 2 loops a step")])
def test_the_number_of_loops_is_that_of_most_steps(loops: tuple[int, ...], said: str) -> None:
    steps = Steps()
    for count in loops:
        for _ in range(count):
            steps.op("aten::layer_norm", ((SOFTMAX, 900),))
            for _ in range(14):
                steps.op("aten::mul", ((ELEMENTWISE, 4),)).op("aten::tanh", ((ELEMENTWISE, 4),))
        steps.end()
    assert found(steps.trace(), "kernel-loop")["what"].endswith(f"14 times in a row{said}")


@pytest.mark.parametrize(("weights", "fewer"), [(True, 5 / 6), (False, 0.0)])
def test_an_optimizer_takes_less_time_for_the_weights_of_a_loop_as_one(weights: bool, fewer: float) -> None:
    with_one, with_many = (
        found(heads(6, before=("aten::layer_norm", 1), weights=weights, updates=updates), "kernel-loop")
        for updates in (1, 21)
    )
    saved = 2 * 20 * 10_000 * fewer
    assert with_many["wins_ns"] - with_one["wins_ns"] == pytest.approx(saved, rel=0.05, abs=2_000)


SIN, TANH = (("aten::mul", "aten::sin"), 14), (("aten::sub", "aten::tanh"), 20)
NORMS, SCALES = (("aten::linalg_vector_norm",), 20), (("aten::mul_",), 20)
ANOTHER = "aten::layer_norm", 900.0


def loops_of(
    *parts: tuple[tuple[str, ...], int] | tuple[str, float],
    functions: tuple[str, ...] = (),
    differentiated: bool = False,
    joined: int = 0,
) -> list[tuple[str, str]]:
    """Return what is said of the loops in steps, and where they are.

    A part of a step is a loop, as what it calls and how often, or an operator with its µs; functions are those of the
    parts. At the end, that many results are joined.
    """
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 900),), sequence=0)
        number = 1
        for index, (part, count) in enumerate(parts):
            begin = steps.now
            if isinstance(part, str):
                steps.op(part, ((SOFTMAX, count),), track=BACKWARD if part.startswith(AUTOGRAD) else 0)
            else:
                for name in part * int(count):
                    steps.op(name, ((ELEMENTWISE, 4),), sequence=number)
                    number += 1
            if functions:
                steps.made.add("python_function", functions[index], begin, steps.now)
        if joined:
            steps.op("aten::stack", ((ELEMENTWISE, 10),), sequence=number)
            begin = steps.now
            steps.op(f"{AUTOGRAD}: StackBackward0", sequence=number, track=BACKWARD)
            for part_ in range(joined):
                at = begin + 1 + part_ / 8
                steps.made.op("aten::select", at, at + 0.1, track=BACKWARD)
        for node in reversed(range(1, number)) if differentiated else ():
            steps.op(f"{AUTOGRAD}: MulBackward0", ((ELEMENTWISE, 4),), sequence=node, track=BACKWARD)
    rows = advise(steps.trace()).table("findings").rows.to_dicts()
    return [(row["what"].partition(", one")[0], row["where"]) for row in rows if row["rule"] == "kernel-loop"]


def test_loops_that_call_something_else_are_findings_of_their_own() -> None:
    assert [what for what, _ in loops_of(SIN, ANOTHER, TANH, ANOTHER, SIN)] == [
        "a loop calls mul → sin 14 times in a row",
        "a loop calls sub → tanh 20 times in a row",
    ]


def test_the_same_calls_in_two_functions_are_findings_of_their_own() -> None:
    functions = "a.py(3): forward", "a.py(30): other", "b.py(5): loss"
    assert sorted(where for _, where in loops_of(SIN, ANOTHER, SIN, functions=functions)) == [
        "a.py forward() from line 3",
        "b.py loss() from line 5",
    ]
    assert len(loops_of(SIN, ANOTHER, SIN, functions=(functions[0],) * 3)) == 1, "as of several blocks"


@pytest.mark.parametrize(
    ("parts", "options", "count"),
    [
        ((NORMS, SCALES), {}, 1),
        ((NORMS, *[("aten::div", 4)] * 8, SCALES), {}, 1),
        ((NORMS, *[("aten::div", 4)] * 9, SCALES), {}, 2),
        ((NORMS, (("aten::mul_",), 21)), {}, 2),
        ((NORMS, SCALES), {"differentiated": True}, 2),
        ((NORMS, (f"{AUTOGRAD}: MulBackward0", 4), SCALES), {}, 2),
        ((NORMS, SCALES), {"functions": ("a.py(3): norms", "a.py(9): scale")}, 2),
        ((NORMS, SCALES), {"functions": ("a.py(3): clip", "a.py(3): clip")}, 1),
    ],
    ids=["next", "soon", "later", "other items", "gradients", "a backward pass", "functions", "one function"],
)
def test_passes_over_the_same_items_are_one_finding(parts: Any, options: dict[str, Any], count: int) -> None:
    assert len(loops_of(*parts, **options)) == count


def test_loops_whose_results_one_call_joins_are_one_finding() -> None:
    assert len(loops_of(SIN, TANH, joined=34)) == 1
    assert len(loops_of(SIN, TANH, joined=20)) == 2, "those of the last one alone"
    assert len(loops_of(SIN, ANOTHER, TANH, joined=34)) == 2, "of something else as well"


def test_loops_of_two_places_save_the_time_of_an_optimizer_for_the_weights_of_both() -> None:
    steps = Steps()
    for _ in steps.each():
        for loop, activation in enumerate(("aten::relu", "aten::tanh")):
            steps.op("aten::layer_norm", ((SOFTMAX, 1),), sequence=100 * loop)
            for number in range(1, 7):
                steps.op("aten::linear", ((GEMM, 1),), sequence=100 * loop + number)
                steps.op(activation, ((ELEMENTWISE, 1),))
            steps.op("aten::cat", ((ELEMENTWISE, 1),), sequence=100 * loop + 50)
        for loop in (1, 0):
            begin = steps.now
            steps.op(f"{AUTOGRAD}: CatBackward0", sequence=100 * loop + 50, track=BACKWARD)
            for part in range(6):
                steps.made.op("aten::narrow", begin + 1 + part, begin + 1.4 + part, track=BACKWARD)
            for number in reversed(range(1, 7)):
                steps.op(
                    f"{AUTOGRAD}: MmBackward0", ((GEMM, 1),), sequence=100 * loop + number, track=BACKWARD
                )
                steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
        steps.within("Optimizer.step#SGD.step", *[("aten::add_", ((ELEMENTWISE, 1),))] * 200)
    found_ = [item for item in priorities(steps.trace()).findings if item.rule == "kernel-loop"]
    # Of the optimizer, ten of twelve weights disappear.
    assert len(found_) == 2
    for item in found_:
        assert item.win is not None
        assert item.win.ns > 200 * 10_000 * 5 / 12
    step = replayed(steps.trace())
    assert not isinstance(step, str)
    together = step.win(*all_of(found_)).ns
    assert together == pytest.approx(sum(item.win.ns for item in found_ if item.win), rel=0.01)


@pytest.mark.parametrize(
    ("product", "layer", "advised"),
    [
        ((ELEMENTWISE, 20), (GEMM, 100), True),
        ((GEMM, 20), (ELEMENTWISE, 100), False),  # only what is the same has products: there are no layers
    ],
)
def test_between_equal_operators_of_layers_lie_products_with_gradients(
    product: tuple[str, float], layer: tuple[str, float], advised: bool
) -> None:
    """An update before the first layer is none of its operators."""
    steps = Steps()
    for _ in steps.each():
        steps.within("Optimizer.step#SGD.step", ("aten::_foreach_add_", ((ELEMENTWISE, 10),)))
        for number in range(3):
            for name, kernel in (
                ("arange", (ELEMENTWISE, 20)),
                ("matmul", product),
                ("gt", (ELEMENTWISE, 20)),
            ):
                steps.op(f"aten::{name}", (kernel,))
            steps.op("aten::linear", (layer,), sequence=number)
        for number in (2, 1, 0):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 200),), sequence=number, track=BACKWARD)
    assert (finding(steps.trace(), "repeated-in-layers") is not None) == advised


def grouped(
    groups: int, *of_group: str, parameters: int = 21, once: tuple[str, ...] = (), outside: int = 0
) -> Trace:
    """Steps with a number of parameters, whose optimizer calls some operators for each of its groups.

    It calls others ``once``, and the script calls some ``outside`` of it.
    """
    steps = Steps()
    for _ in steps.each():
        for number in range(parameters):
            steps.op("aten::linear", ((GEMM, 1),), sequence=number)
        for number in reversed(range(parameters)):
            steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 1),), sequence=number, track=BACKWARD)
            steps.op(ACCUMULATE, (), inside="aten::detach", track=BACKWARD)
        # One in seven has more to do than to start.
        if outside:
            steps.within(
                "averages of the weights", *[("aten::_foreach_lerp_", ((ELEMENTWISE, 1),))] * outside
            )
        each = [[(f"aten::_{name}_", ((f"multi_tensor_apply {name}", 1),)) for name in of_group]] * groups
        each[6::7] = [[(name, ((kernel, 41),)) for name, ((kernel, _),) in one] for one in each[6::7]]
        first = [(name, ((ELEMENTWISE, 1),)) for name in once]
        steps.within("Optimizer.step#AdamW.step", *first, *(call for one in each for call in one))
    return steps.trace()


FUSED_UPDATE = "foreach_add", "fused_adamw"


@pytest.mark.parametrize(
    "of_group", [FUSED_UPDATE, ("foreach_lerp", "foreach_add", "foreach_add")], ids=["fused", "foreach"]
)
def test_a_group_for_each_parameter_is_one_call_for_each(of_group: tuple[str, ...]) -> None:
    row = found(grouped(21, *of_group), "optimizer-groups")
    assert "21 groups" in row["what"]
    # A group for seven parameters remains, and what the optimizer does for each of them.
    host_us = 21 * len(of_group) * 10
    assert row["wins_ns"] == pytest.approx(host_us * 1000 * (21 - 3) / (1.3 * 21), rel=0.1)
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


def test_groups_of_layers_or_few_ones_are_meant() -> None:
    assert finding(grouped(21, *FUSED_UPDATE, parameters=63), "optimizer-groups") is None
    assert finding(grouped(7, *FUSED_UPDATE, parameters=7), "optimizer-groups") is None
    assert finding(grouped(21, "fused_adamw", parameters=0), "optimizer-groups") is None
    assert finding(grouped(1, *FUSED_UPDATE, outside=21), "optimizer-groups") is None
    assert finding(grouped(1, *FUSED_UPDATE, once=("aten::add_",) * 21), "optimizer-groups") is None


def test_what_an_optimizer_calls_once_for_all_groups_is_no_sign_of_one_group() -> None:
    row = found(grouped(21, *FUSED_UPDATE, once=("aten::_foreach_norm",)), "optimizer-groups")
    assert "21 groups" in row["what"]


def test_of_updates_that_are_merged_the_bytes_remain() -> None:
    evidence = Evidence(trace := grouped(21, *FUSED_UPDATE), {})
    (item,) = optimizer_groups.RULE.find(trace, evidence)
    assert item.edit is not None
    left = item.edit.keep * trace.lengths(item.edit.work)
    long = trace.lengths(item.edit.work) > 40_000
    assert left[long] == pytest.approx(np.full(long.sum(), 40_000), rel=0.01)
    assert left[~long] == pytest.approx(np.full((~long).sum(), 1000 / 7), rel=0.01)


WORD = (
    ("aten::embedding", ((ELEMENTWISE, 3),)),
    ("aten::linear", ((GEMM, 400),)),
    ("aten::scaled_dot_product_attention", (("flash_fwd_kernel", 100),)),
    ("aten::mul", ((ELEMENTWISE, 60),)),
    ("aten::linear", ((GEMM, 200),)),
)
LENGTHS = range(512, 517)


def writing(
    lengths: Sequence[int],
    *,
    marks: bool = True,
    copied: int = 0,
    within: Sequence[tuple[str, tuple[tuple[str, float], ...]]] = WORD,
    first: Sequence[tuple[str, tuple[tuple[str, float], ...]]] = (),
) -> Trace:
    """Steps in which a model is called on 64 texts of some lengths; of each word, some bytes may be copied between.

    All other copies are of whole texts.
    """
    steps = Steps()
    for _ in steps.each():
        for name, kernels in (("aten::linear", ((GEMM, 400),)), *first):
            steps.op(name, kernels)
        for before, length in zip((0, *lengths), lengths, strict=False):
            if marks and length == before + 1:
                name = f"tuiprof.longer {length}x64"
                steps.made.add("annotation", name, steps.now - 0.5, steps.now - 0.2)
            steps.within("GPT #1, no gradients" if marks else "write", *within)
            steps.op("aten::argmax", ((REDUCE, 10),)).op("aten::cat", ((ELEMENTWISE, 10),))
            if copied:
                steps.op("aten::to", (("Memcpy HtoD (Pinned -> Device)", 5),))
                steps.made.rows[-1].update(category="memcpy", bytes=64 * copied)
    for row in steps.made.rows:
        if row["name"].startswith("Memcpy") and row["bytes"] is None:
            row.update(category="memcpy", bytes=64 * 8 * 512)
    return steps.trace()


def test_of_a_text_that_grows_word_by_word_only_the_word_is_new() -> None:
    row = found(writing(LENGTHS), "key-value-cache")
    # Products read their weights, attention all keys and values, and no kernel is shorter than 2.5 µs.
    left_us = 400 * 300 / (64 * 514) + 100 * 240 / 514 + 3 * 2.5
    assert row["wins_ns"] == pytest.approx(4 * (763 - left_us) * 1000, rel=0.02)
    assert row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]
    assert "up to 516" in row["what"]
    assert "4 times a step" in row["what"]
    assert row["where"] == "GPT #1"


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        (range(512, 515), {}),  # twice
        ((512, 513, 514, 516, 517, 519, 520), {}),
        ((512,) * 9, {}),  # a window
        (range(1, 10), {"marks": False}),  # with a cache, or not: nobody knows
        (range(512, 518), {"copied": 8 * 512}),  # texts in order of length
    ],
)
def test_what_grows_now_and_then_is_no_text_that_is_written(
    lengths: Sequence[int], options: dict[str, Any]
) -> None:
    assert finding(writing(lengths, **options), "key-value-cache") is None


def test_texts_that_are_copied_before_the_first_word_or_in_the_model_do_not_come_one_by_one() -> None:
    copy = ("aten::to", (("Memcpy HtoD (Pinned -> Device)", 5),))
    assert finding(writing(LENGTHS, first=[copy]), "key-value-cache") is not None
    assert finding(writing(LENGTHS, within=(*WORD, copy)), "key-value-cache") is not None


def test_words_may_come_from_the_host_one_by_one() -> None:
    assert finding(writing(range(512, 518), copied=8), "key-value-cache") is not None
    assert finding(writing(range(512, 522), copied=8 * 512), "key-value-cache") is not None, "or all of them"


@pytest.mark.parametrize(
    ("shape", "advised"), [([64, None], True), ([64, 1], False), (64, False), ([[64, 1]], False)]
)
def test_without_the_probe_the_shapes_of_operators_show_how_a_text_grows(shape: Any, advised: bool) -> None:
    """With a cache, each word is picked alone; a file may say anything."""
    trace = writing(LENGTHS, marks=False)
    picks = np.flatnonzero(trace.named("aten::embedding"))
    lengths = dict(zip(trace.ints("ordinal")[picks].tolist(), [*LENGTHS] * 4, strict=True))

    def arguments(ordinal: int) -> dict[str, Any]:
        rows = [64, lengths[ordinal]] if advised and ordinal in lengths else shape
        return {"Input Dims": [[50_257, 768], rows, [], [], []]}

    row = finding(with_arguments(trace, arguments), "key-value-cache")
    assert (row is not None) == advised
    if row is not None:
        marked = found(writing(LENGTHS), "key-value-cache")
        assert row["wins_ns"] == pytest.approx(marked["wins_ns"], rel=0.01)


def test_of_words_and_positions_each_have_a_table() -> None:
    trace = writing(LENGTHS, marks=False, within=(WORD[0], WORD[0], *WORD[1:]))
    picks = trace.ints("ordinal")[np.flatnonzero(trace.named("aten::embedding"))].tolist()
    of_words = dict(zip(picks[::2], [*LENGTHS] * 4, strict=True))
    of_positions = dict(zip(picks[1::2], [*LENGTHS] * 4, strict=True))

    def arguments(ordinal: int) -> dict[str, Any]:
        if ordinal in of_words:
            return {"Input Dims": [[50_257, 768], [64, of_words[ordinal]], [], [], []]}
        return {"Input Dims": [[1024, 768], [1, of_positions.get(ordinal, 0)], [], [], []]}

    assert finding(with_arguments(trace, arguments), "key-value-cache") is not None


def test_the_mark_of_a_longer_input_is_of_the_next_call_of_its_thread() -> None:
    made = Made().add("annotation", "tuiprof.longer 5x2", 10, 11)
    made.add("annotation", "GPT #2", 12, 20, track=BACKWARD).add("annotation", "GPT #1", 30, 40)
    made.op("aten::mm", 13, 15, track=BACKWARD).op("aten::mm", 32, 35)
    trace = made.trace()
    models = model_calls(calls(trace))
    ((at, length),) = longer_calls(trace, models).items()
    assert (models.names[at][1], length) == ("GPT #1", (5, 2))


def test_on_a_cpu_the_operators_of_a_word_are_shorter() -> None:
    made, at = Made(), 0.0
    for number in range(4):
        begin = at
        for length in range(99, 105):
            if length > 99:
                made.add("annotation", f"tuiprof.longer {length}x4", at, at + 0.1)
            made.add("annotation", "GPT #1, no gradients", at + 1, at + 999)
            made.op("aten::linear", at + 2, at + 802).op("aten::gelu", at + 802, at + 998)
            at += 1_000
        made.step(number, begin, at)
    trace = made.trace()
    (item,) = key_value_cache.RULE.find(trace, Evidence(trace, {}))
    assert item.edit is not None
    assert not len(item.edit.work)
    left = item.edit.host.keep.reshape(-1, 2)
    assert len(left) == 4 * 5, "all but the first call of each text"
    assert left.mean(axis=0) == pytest.approx([10 / (4 * 102), 10 / 196], rel=0.02)


@pytest.mark.parametrize(("loads", "advised"), [(("first",), True), (("first", "each"), False)])
def test_texts_that_a_loader_gives_in_order_of_length_are_not_written(
    loads: tuple[str, ...], advised: bool
) -> None:
    made, at = Made(), 0.0
    for number in range(4):
        begin = at
        for length in range(99, 105):
            if ("first" if length == 99 else "each") in loads:
                made.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 9)
            if length > 99:
                made.add("annotation", f"tuiprof.longer {length}x4", at + 10, at + 10.1)
            made.add("annotation", "GPT #1, no gradients", at + 11, at + 999)
            made.op("aten::linear", at + 12, at + 802)
            at += 1_000
        made.step(number, begin, at)
    assert (finding(made.trace(), "key-value-cache") is not None) == advised


FLASH = "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, bfloat16>>"
COPY = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda>"
#: Half of the columns are used, as 60 and the rounding up of lengths by 4 on average are half of 128.
HALF = BatchPadding(batches=4, width=4 * 128, longest=4 * 64 - 14, masked=4, full=0, least=50, most=70)


def padded(
    *more: tuple[str, tuple[tuple[str, float], ...]],
    attention: str = FLASH,
    seen: BatchPadding | None = HALF,
    calls_per_step: int = 0,
    of_cudnn: bool = False,
) -> Trace:
    """Steps of two layers with attention, whose batches were looked at before the capture."""
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::_foreach_mul_", ((ELEMENTWISE, 300),))  # weights that are averaged
        steps.op("aten::embedding", ((ELEMENTWISE, 40),), sequence=1)
        steps.op("aten::linear", ((COPY, 100), (GEMM, 400)), sequence=2)
        inside = "aten::_scaled_dot_product_cudnn_attention" if of_cudnn else ""
        steps.op("aten::scaled_dot_product_attention", ((attention, 200),), inside=inside, sequence=3)
        for name, work in more:
            steps.op(name, work)
        for _ in range(calls_per_step):
            steps.within("GPT #1, no gradients", ("aten::linear", ((GEMM, 20),)))
        steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 500), (GEMM, 300)), sequence=2, track=BACKWARD)
        steps.op(ACCUMULATE, ((ELEMENTWISE, 100),), inside="aten::add_", track=BACKWARD)
        steps.op("FSDP::post_backward", (("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 250),))
        steps.within("Optimizer.step#SGD.step", ("aten::_fused_sgd_", ((ELEMENTWISE, 350),)))
        steps.op(f"{AUTOGRAD}: EmbeddingBackward0", ((ELEMENTWISE, 60), (ELEMENTWISE, 2)), sequence=1)
        steps.op("aten::linalg_vector_norm", ((REDUCE, 150),))
        steps.within("Optimizer.step#AdamW.step", ("aten::_fused_adamw_", ((ELEMENTWISE, 400),)))
    trace = steps.trace()
    return in_session(trace, float(trace.lengths(trace.device_work).sum()) / 4, padding=seen)


def test_padding_costs_work_by_its_length_and_attention_by_the_square() -> None:
    row = found(padded(), "padded-batches")
    # Copies may be casts of weights; what is done for each weight stays, and so do kernels that are as short as any.
    assert row["wins_ns"] == pytest.approx(
        1e3 * (0.5 * (40 + 400 + 800 + 60) + 0.75 * 200 + 0.25 * 100), rel=0.02
    )
    assert row["wins_low_ns"] < 1e3 * 0.375 * 1_500 < row["wins_ns"] < row["wins_high_ns"]
    assert "padded to 128 tokens, their longest text has 60 on average" in row["what"]
    assert "padding='longest', pad_to_multiple_of=8)" in row["instead"]


def test_attention_that_is_prepared_for_each_length_wants_few_of_them() -> None:
    row = found(padded(of_cudnn=True), "padded-batches")
    assert "pad_to_multiple_of=64)" in row["instead"]
    assert "prepared anew for each length" in row["instead"]
    # Of 128 columns 60.5 are used, and 31.5 more than by the longest text.
    kept = (60.5 + 31.5) / 128
    work = (1 - kept) * (40 + 400 + 800 + 60) + (1 - kept**2) * 200 + (1 - kept) / 2 * 100
    assert row["wins_ns"] == pytest.approx(1e3 * work, rel=0.02)


def test_frames_of_speech_are_padded_like_texts() -> None:
    row = found(padded(seen=replace(HALF, frames=4)), "padded-batches")
    assert "padded to 128 frames, their longest sequence has 60 on average" in row["what"]
    assert "pad_sequence in collate_fn, with frames up to a multiple of 8" in row["instead"]
    assert "as long as their lengths or masks say" in row["because"]
    assert row["wins_ns"] == found(padded(), "padded-batches")["wins_ns"]


@pytest.mark.parametrize(("frames", "advised"), [(4, True), (1, False), (0, False)])
def test_what_is_embedded_beside_frames_is_shorter_text(frames: int, advised: bool) -> None:
    trace = padded(seen=replace(HALF, frames=frames))
    with_arguments(trace, lambda _: {"Input Dims": [[400, 8], [16, 30], [], [], []]})
    assert (finding(trace, "padded-batches") is not None) == advised


@pytest.mark.parametrize(
    "seen",
    [
        None,
        # Three quarters and more of the columns are used.
        BatchPadding(batches=4, width=512, longest=400, masked=4, full=0, least=90, most=110),
        BatchPadding(batches=2, width=256, longest=120, masked=2, full=0, least=50, most=70),
        # The script cuts its batches.
        BatchPadding(batches=4, width=512, longest=240, masked=4, full=0, least=50, most=70, cut=True),
        # Without masks: all batches use the same columns, or one uses all of them.
        BatchPadding(batches=4, width=512, longest=240, masked=0, full=0, least=60, most=60),
        BatchPadding(batches=4, width=512, longest=308, masked=3, full=1, least=60, most=128),
    ],
    ids=["nothing seen", "long texts", "two batches", "cut", "same columns", "one is full"],
)
def test_batches_that_are_not_padded(seen: BatchPadding | None) -> None:
    assert finding(padded(seen=seen), "padded-batches") is None


def test_batches_of_which_some_are_full_are_padded_if_all_have_masks() -> None:
    for masked, least, full in ((4, 50, 1), (0, 50, 0)):
        seen = BatchPadding(4, 512, 308, masked, full, least, 128 if full else 100)
        assert finding(padded(seen=seen), "padded-batches") is not None


def test_a_model_that_leaves_padding_out_does_not_compute_it() -> None:
    plain, without = "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward"
    more = found(padded((plain, ((FLASH, 100),))), "padded-batches")["wins_ns"]
    less = found(padded(), "padded-batches")["wins_ns"]
    assert more - less == pytest.approx(0.75 * 100_000, rel=0.05), "attention, whoever calls it"
    assert finding(padded((without, ((FLASH, 100),))), "padded-batches") is None
    assert finding(padded(("aten::_pack_padded_sequence", ((COPY, 100),))), "padded-batches") is None


@pytest.mark.parametrize(("count", "advised"), [(3, True), (12, False)])
def test_what_a_model_makes_of_a_batch_is_not_padded(count: int, advised: bool) -> None:
    trace = padded(calls_per_step=count)
    assert (finding(trace, "padded-batches") is not None) == advised


@pytest.mark.parametrize(("width", "advised"), [(128, True), (64, False), ("many", True)])
def test_batches_may_be_shortened_before_the_model_sees_them(width: Any, advised: bool) -> None:
    trace = padded()

    with_arguments(trace, lambda _: {"Input Dims": [[400, 8], [16, width], [], [], []]})
    assert (finding(trace, "padded-batches") is not None) == advised


def test_cuda_graphs_have_one_length() -> None:
    trace = padded()
    assert finding(trace, "padded-batches") is not None
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 400),), sequence=1)
        steps.made.call("cudaGraphLaunch", steps.now - 9, steps.now - 8)
        steps.op(f"{AUTOGRAD}: MmBackward0", ((GEMM, 500),), sequence=1, track=BACKWARD)
    graphs = steps.trace()
    graphs.uncaptured = trace.uncaptured
    assert finding(graphs, "padded-batches") is None


def of_gradients(passes: int, *, roots: bool = False, nodes: int = 6, creates: bool = True) -> Trace:
    """Steps on a CPU in which `torch.autograd.grad` is called several times, and then a loss is differentiated.

    Args:
        passes: Calls of `torch.autograd.grad`, 10 µs a node.
        roots: Each begins at a node of its own.
        nodes: Nodes of each pass.
        creates: Each node creates one for gradients of gradients, which takes 20 µs later.
    """
    made, at = Made(), 0.0
    for step in range(3):
        begun, first = at, 1 + 1_000 * step
        for number in range(nodes + roots * passes):
            made.op("aten::tanh", at, at + 100, sequence=first + number)
            at += 100
        created = []
        for one in range(passes):
            numbers = [*([first + nodes + one] if roots else []), *range(first + nodes - 1, first - 1, -1)]
            for number in numbers:
                made.op(f"{AUTOGRAD}: TanhBackward0", at, at + 10, sequence=number)
                made.op("TanhBackward0", at + 1, at + 9, sequence=number)
                if creates:
                    created.append(first + 500 + len(created))
                    made.op("aten::mul", at + 2, at + 8, sequence=created[-1])
                at += 10
            made.op("aten::square", at, at + 5)
            at += 5
        for number in [*reversed(created), *range(first + nodes - 1, first - 1, -1)]:
            made.op(f"{AUTOGRAD}: MulBackward0", at, at + 20, sequence=number)
            at += 20
        made.op(ACCUMULATE, at, at + 10).op("aten::detach", at + 2, at + 4)
        at += 10
        made.step(step, begun, at)
    return made.trace()


@pytest.mark.parametrize(("passes", "creates"), [(3, True), (5, True), (5, False)])
def test_gradients_of_an_output_that_are_asked_for_one_by_one(passes: int, creates: bool) -> None:
    row = found(of_gradients(passes, creates=creates), "repeated-backward")
    assert "torch.autograd.grad(u, (x, t))" in row["instead"]
    # Nodes of all calls but the first, and those that they create; 60 % of that.
    assert row["wins_ns"] == pytest.approx(0.6e3 * (passes - 1) * 6 * (10 + 20 * creates), rel=0.03)
    assert row["wins_low_ns"] == 0


@pytest.mark.parametrize("trace", [of_gradients(1), of_gradients(5, roots=True), of_gradients(5, nodes=3)])
def test_gradients_of_different_outputs(trace: Trace) -> None:
    assert finding(trace, "repeated-backward") is None
