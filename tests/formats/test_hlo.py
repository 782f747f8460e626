"""Compiled programs of XSpace files: real ones, and what only made ones show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from analyses.made import report
from formats import made_hlo, xspace
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import real_traces
from tuiprof import analyses
from tuiprof.analyses.shared.compiled.instructions import carried_out, place_of, source_line
from tuiprof.formats import open_trace
from tuiprof.formats.xplane.hlo import read_program
from tuiprof.formats.xplane.protobuf import PADDING, Damaged
from tuiprof.formats.xplane.space import decode
from tuiprof.model import Report, Trace

XLA = Path(__file__).parents[1] / "data/xla"
US = 1_000_000  # ps
LINES = ("/home/me/train.py:9 main", "/home/me/model.py:31 Model.<locals>.cell", "/home/me/model.py:32 cell")
BODY = """
body {
  state = [] parameter()
  x = f32[4,8] get-tuple-element(state), index=1
  w = f32[8,8] get-tuple-element(state), index=2
  custom-call.1 = f32[4,8] custom-call(x, w), target="__cublas$gemm", op="jit(f)/while/body/dot_general", site=2
  loop_fusion.4 = f32[4,8] fusion(custom-call.1), alike="loop_fusion.2", site=3
  custom-call.2 = f32[4,8] custom-call(loop_fusion.4, w), target="__cublas$gemm", op="jit(f)/while/body/tanh", site=3
  result = [] tuple(state, custom-call.2, w)
}
other {
  start = [] parameter()
  y = f32[4,8] get-tuple-element(start), index=1
  custom-call.3 = f32[4,8] custom-call(y), target="__cublas$gemm", site=1
  loop_fusion.2 = f32[4,8] fusion(custom-call.3), alike="loop_fusion.2", site=1
  end = [] tuple(start, loop_fusion.2)
}
main {
  given = f32[4,8] parameter()
  wrapped_add = f32[4,8] fusion(given), site=1
  first = [] while(wrapped_add), calls=other
  second = [] while(first), calls=body
}
"""


def recorded(tmp_path: Path, proto: bytes, kernels: list[tuple[str, str, int]]) -> Trace:
    """Return a trace of kernels: name, operation, and the number of the instruction that runs it."""
    device = xspace.Plane("/device:GPU:0")
    stream = device.line("Stream #7(Compute)", 1000)
    for at, (name, operation, instruction) in enumerate(kernels):
        stats = {
            "hlo_op": operation,
            "program_id": 1,
            "kernel_details": "regs:1",
            "correlation_id": at // 4 + 1,
        }
        if instruction:
            stats["unique_hlo_op_id"] = instruction
        stream.event(name, at * 10 * US, 5 * US, **stats)
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(xspace.encode(device, made_hlo.plane(jit_f=proto)))
    return open_trace(path)


def instructions(trace: Trace) -> list[str]:
    done = carried_out(trace)
    return [done.places[code].instruction.name if code >= 0 else "" for code in done.code.tolist()]


def test_the_program_of_a_cpu_trace_is_read_with_its_lines() -> None:
    trace = open_trace(real_traces.path("selfgen-jax0102-cpu.xplane.pb"))
    assert trace.programs is not None
    program = trace.programs.program(6)
    assert program is not None
    assert program.name == "jit_step"
    dot = program.by_name["dot.3"]
    assert (dot.opcode, dot.dtype, dot.shape, dot.summed) == ("dot", "f32", (256, 256), ((0,), (0,)))
    assert dot.frames == ("/tmp/corpus_work/jaxgen.py:4 step", "/tmp/corpus_work/jaxgen.py:8 <module>")
    entry = program.computations[program.entry]
    assert [entry.instructions[one].opcode for one in dot.operands] == ["parameter", "fusion"]
    row = int(np.flatnonzero(trace.named(r"^dot\.3$"))[0])
    assert source_line(trace, row) == "step, …/tmp/corpus_work/jaxgen.py:4"


@pytest.mark.parametrize(
    "name", ["tracelens-jax-te-fused-attn", "tracelens-jax08-mi300-gemm", "xprof-tpu-inference"]
)
def test_device_work_has_its_instruction(name: str) -> None:
    trace = open_trace(real_traces.path(f"{name}.xplane.pb"))
    done = carried_out(trace)
    unknown = done.rows[done.code < 0]
    assert all("copyBuffer" in trace.name(row) for row in unknown.tolist())
    assert len(unknown) < len(done.rows) / 4


def test_a_tpu_operation_is_that_of_its_own_program() -> None:
    trace = open_trace(real_traces.path("xprof-tpu-inference.xplane.pb"))
    row = int(trace.device_work[trace.named("^all-reduce", trace.device_work)][0])
    place = place_of(trace, row)
    assert place is not None
    assert (place.program.name, place.instruction.opcode) == ("jit__psum", "all-reduce")


def test_kernels_of_a_graph_are_the_instructions_in_their_order(tmp_path: Path) -> None:
    proto = made_hlo.encode("jit_f", BODY, LINES)
    graph = [("Memset 0", "command_buffer_3"), ("gemm_a", "command_buffer_3")]
    graph += [("loop_fusion_2", "command_buffer_3"), ("gemm_b", "command_buffer_3")]
    kernels = [("wrapped_add", "wrapped_add", 0)] * 4 + [(*each, 0) for each in graph]
    trace = recorded(tmp_path, proto, kernels)
    assert instructions(trace) == ["wrapped_add"] * 4 + [
        "",
        "custom-call.1",
        "loop_fusion.4",
        "custom-call.2",
    ]
    assert source_line(trace, int(trace.device_work[5])) == "cell, …/home/me/model.py:31"


def test_of_computations_that_match_alike_the_one_that_the_events_name_is_taken(tmp_path: Path) -> None:
    proto = made_hlo.encode("jit_f", BODY, LINES)
    graph = [("gemm", "command_buffer_3"), ("loop_fusion_2", "command_buffer_3")] * 2
    first, second = (3 << 32) + 2, (3 << 32) + 3  # the loops of the third computation
    for loop, expected in ((first, "loop_fusion.2"), (second, "loop_fusion.4")):
        trace = recorded(tmp_path, proto, [(*each, loop) for each in graph[:2]])
        assert instructions(trace)[1] == expected


def test_the_kernel_table_has_the_line_with_most_of_the_time(tmp_path: Path) -> None:
    proto = made_hlo.encode("jit_f", BODY, LINES)
    kernels = [("gemm", "custom-call.1", 0)] * 3
    kernels += [("gemm", "loop_fusion.4", 0), *[("gemm", "custom-call.2", 0)] * 3]
    found = report("kernels", recorded(tmp_path, proto, kernels))
    assert found.table("kernels").rows["line"].to_list() == ["model.py:32 +1"]
    assert found.table("kernels").rows["operation"].to_list() == ["jit(f)/while/body/tanh"]


def test_what_xla_has_fused_has_the_kind_of_its_instructions() -> None:
    found = report("kernels", open_trace(XLA / "gru-h200.xplane.pb.gz"))
    kinds = dict(found.table("kernels").rows.select("short", "kind").iter_rows())
    assert "other" not in kinds.values()
    assert kinds["loop_add_fusion_4"] == "reduction"  # it adds up the parts of a product
    assert kinds["loop_subtract_fusion_2"] == "elementwise"
    assert kinds["loop_broadcast_fusion_2"] == "copy"


def test_a_kernel_of_a_library_is_of_no_kind_that_its_call_would_tell(tmp_path: Path) -> None:
    proto = made_hlo.encode("jit_f", BODY, LINES)
    kernels = [("attended", "custom-call.1", 0), ("loop_fusion_4", "loop_fusion.4", 0)]
    found = report("kernels", recorded(tmp_path, proto, kernels))
    kinds = dict(found.table("kernels").rows.select("short", "kind").iter_rows())
    assert kinds["attended"] == "other"


def test_a_trace_without_programs_has_no_column_of_lines() -> None:
    found = report("kernels", open_trace(real_traces.path("hta-alexnet-a100-cuda-sync.json.gz")))
    hidden = {column.key: column.hidden for column in found.table("kernels").columns}
    assert hidden["line"]
    assert not hidden["tensor_cores"]


def test_a_damaged_program_leaves_the_trace_readable(tmp_path: Path) -> None:
    proto = made_hlo.encode("jit_f", BODY, LINES)
    trace = recorded(tmp_path, proto[: len(proto) // 2], [("gemm", "custom-call.1", 0)])
    assert trace.programs is not None
    assert trace.programs.program(1) is None
    assert instructions(trace) == [""]
    assert isinstance(analyses.run("kernels", trace), Report)


def test_what_is_no_shape_damages_a_program() -> None:
    text = "main {{\n  x = f32[{}] parameter()\n}}"
    assert read_program(made_hlo.encode("jit_f", text.format(1 << 40))).by_name["x"].elements == 1 << 40
    with pytest.raises(Damaged):
        read_program(made_hlo.encode("jit_f", text.format(1 << 41)))


def _largest_proto() -> bytes:
    space = decode(real_traces.path("selfgen-jax0102-cpu.xplane.pb").read_bytes() + PADDING)
    found = [
        space.metadata_values(plane, metadata).get("Hlo Proto")
        for plane in space.planes
        for metadata in plane.events.values()
    ]
    return max((proto for proto in found if isinstance(proto, bytes)), key=len)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_garbled_programs_are_read_or_rejected(data: st.DataObject) -> None:
    proto = bytearray(_largest_proto())
    places = st.integers(0, len(proto) - 1)
    for at, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=20)):
        proto[at] = value
    try:
        program = read_program(bytes(proto[: data.draw(st.integers(1, len(proto)))]))
    except Damaged:
        return
    for one in program.by_name.values():
        assert all(isinstance(line, str) for line in one.frames)
