"""DistributedDataParallel copies averaged gradients out of its buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.whatif import EditRange

_COPY: Final = r"^torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$"
_VIEWED: Final = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
#: Host time that remains, as each gradient is then set to its part of the bucket: likely, least, most.
_KEEP_HOST: Final = (0.5, 1.0, 0.0)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for the copies that PyTorch marks; without them, gradients are views of the buckets."""
    rows = trace.host_events(_COPY)
    if not len(rows):
        return
    yield Finding(
        f"DistributedDataParallel copies averaged gradients out of its buckets, {evidence.how_often(len(rows))}",
        "",
        f"{evidence.write('bucket-view', _VIEWED)}, which saves the memory of the copies too",
        "medium",
        "each gradient exists twice, in its bucket and by itself",
        *EditRange(*(evidence.without_operators(rows, keep_host=keep) for keep in _KEEP_HOST)),
        event=int(rows[0]),
    )


RULE = AdviceRule("bucket-copies", find)
