"""Where the host waits in XLA's traces (JAX, torch_xla): awaits of buffers and reads of them.

The runtime writes an await as two marks of about a microsecond. Where the format keeps their numbers, its reader has
made one event of them; in JSON the numbers are gone, and two marks of one name with nothing between them on their
thread are a wait: a thread that stands records nothing.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.analyses.shared.codes import distinct, member
from tuiprof.analyses.shared.waits.kinds import AWAIT, EXECUTE, READ
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import cached_on_trace

_AWAIT: Final = re.compile(r"Buffer::(Await|AwaitReady|BlockHostUntilReady|BlockUntilReady)$|AwaitReady$")
#: ``jax.block_until_ready`` as the Python tracer has it: ``$api.py:3105 block_until_ready``, ``api.py(3105): …``.
_PYTHON_AWAIT: Final = re.compile(r"^\$?(\S*/)?(api|array)\.py(\(\d+\)|:\d+):? block_until_ready$")
#: What the probe leaves around such a call, for which not every runtime leaves a mark (XLA's of GPUs does not).
_MARKED_AWAIT: Final = re.compile(r"^jax\.(?:Array\.)?block_until_ready$")
#: ``jax.device_get``, which starts the copies of all its arrays and then reads them: one wait, as one line made it.
_DEVICE_GET: Final = re.compile(r"^\$?(\S*/)?api\.py(\(\d+\)|:\d+):? device_get$")
_ASARRAY: Final = re.compile(r"^np\.asarray\(jax\.Array\)$")
#: What a read is where the host's own thread makes it. ``tpu::System::TransferFromDevice`` runs in threads of the
#: runtime while the host does something else.
_READ: Final = re.compile(
    r"(?<!tpu::System::)TransferFromDevice$|TransferLiteralFromDevice$|^nrt_tensor_read$"
)
_EXECUTE: Final = "nrt_execute"
_LITERAL: Final = re.compile(r"(Buffer::ToLiteral|ToLiteralSync)$")
Mask = npt.NDArray[np.bool_]
#: A mark is shorter than this.
MARK_NS: Final = 10_000


@cached_on_trace
def calls(trace: Trace) -> tuple[Ints, list[str]]:
    """Return the rows of awaits and reads, in order of start, and the kind of each.

    Of an await that stands as two marks, the row is that of the second.
    """
    # JAX's own read encloses the call that only starts the transfer; torch_xla has but that call.
    reads = (_ASARRAY, _DEVICE_GET, _READ) if "np.asarray(jax.Array)" in trace.names else (_READ, _LITERAL)
    kind_of: dict[int, str] = {}
    for code, name in enumerate(trace.names):
        if any(pattern.search(name) for pattern in (_AWAIT, _PYTHON_AWAIT, _MARKED_AWAIT)):
            kind_of[code] = AWAIT
        elif name == _EXECUTE:
            kind_of[code] = EXECUTE
        elif any(pattern.search(name) for pattern in reads):
            kind_of[code] = READ
    if not kind_of:
        return np.empty(0, dtype=np.int64), []
    host = ("runtime", "driver", "other", "cpu_op", "annotation", "python_function")
    rows = np.flatnonzero(member(trace.name_codes, kind_of) & trace.on_host)
    rows = rows[trace.is_category(*host, rows=rows) & ~np.isin(rows, marks(trace)[1])]
    rows = rows[~_empty_gets(trace, rows)]
    return rows, [kind_of[code] for code in trace.name_codes[rows].tolist()]


@cached_on_trace
def marks(trace: Trace) -> tuple[Ints, Ints]:
    """Return the awaits that stand as two marks: rows of the second ones, ascending, and of the first ones."""
    nothing = np.empty(0, dtype=np.int64)
    codes = [code for code, name in enumerate(trace.names) if _AWAIT.search(name) or _LITERAL.search(name)]
    if trace.info.format == "xplane" or not codes:
        return nothing, nothing
    rows = np.flatnonzero(member(trace.name_codes, codes))
    rows = rows[trace.ends[rows] - trace.starts[rows] < MARK_NS]
    before = trace.nesting.before
    firsts: list[int] = []
    seconds: list[int] = []
    taken: set[int] = set()
    for row in rows.tolist():
        previous = int(before[row])
        if previous in taken or previous < 0 or trace.name_codes[previous] != trace.name_codes[row]:
            continue
        if trace.ends[previous] - trace.starts[previous] < MARK_NS:
            firsts.append(previous)
            seconds.append(row)
            taken |= {previous, row}
    order = np.argsort(seconds)
    return np.array(seconds, dtype=np.int64)[order], np.array(firsts, dtype=np.int64)[order]


def _empty_gets(trace: Trace, rows: Ints) -> Mask:
    """Return which of some calls are of ``device_get`` and read no array: its arguments were on the host already."""
    gets = trace.named(_DEVICE_GET.pattern, rows)
    empty: Mask = np.zeros(len(rows), dtype=bool)
    track = trace.track_codes[rows]
    for one in distinct(track[gets]):
        mine, reads = np.flatnonzero(gets & (track == one)), rows[~gets & (track == one)]
        following = np.searchsorted(trace.starts[reads], trace.starts[rows[mine]], side="left")
        # The earliest end of all reads that begin no sooner than a call; rows ascend with start.
        ends = np.append(np.minimum.accumulate(trace.ends[reads][::-1])[::-1], np.iinfo(np.int64).max)
        empty[mine] = ends[following] > trace.ends[rows[mine]]
    return empty
