"""XSpace protobufs (``*.xplane.pb``) that JAX, TensorFlow and PyTorch/XLA write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import TraceError
from tuiprof.formats.registry import Format, Options
from tuiprof.formats.source import Damaged as DamagedStream
from tuiprof.formats.source import Source

if TYPE_CHECKING:
    from tuiprof.model import Trace

_PLANE_NAMES = re.compile(rb"/(?:host|device):[A-Z]|/host:[a-z]|Task Environment")


def _sniff(head: bytes, path: Path) -> bool:
    # Field 1 of an XSpace, a plane; then either a plane's name comes early or the name of the file must do.
    return head[:1] == b"\x0a" and (
        path.name.endswith((".xplane.pb", ".xspace.pb")) or bool(_PLANE_NAMES.search(head))
    )


def _open(source: Source, options: Options) -> Trace:
    from tuiprof.formats.xplane.build import Builder
    from tuiprof.formats.xplane.protobuf import PADDING, Damaged
    from tuiprof.formats.xplane.space import decode

    try:
        data = source.whole(PADDING)
        trace = Builder(decode(data), source.path).build()
    except Damaged as damage:
        cause = (
            "it was processed as text (its bytes EF BF BD replace lost ones)"
            if data.count(b"\xef\xbf\xbd") > len(data) // 1000
            else "it is truncated or damaged"
        )
        raise TraceError(
            f"{source.path} is not a readable XSpace: {damage}; {cause}", "copy or record the file again"
        ) from damage
    except DamagedStream as damage:
        raise TraceError(
            f"{source.path} is a damaged {source.wrapping} file: {damage}", "copy or record it again"
        ) from damage
    if options.progress is not None:
        options.progress(source.size, source.size)
    return trace


FORMAT = Format("xplane", "XLA profile (xplane.pb)", _sniff, _open, order=20)
