"""tuiprof: a terminal dashboard that profiles model training.

Two things may be imported in a training script without cost: :func:`step` and :func:`phase`. They speak to
the probe when the script was launched by ``tuiprof run`` or ``tuiprof record`` and do nothing otherwise.

For notebooks and scripts, :func:`open_trace` reads a profiler trace into the model every screen and report uses,
:mod:`tuiprof.analyses` answers questions about it, and :func:`compare` says what changed between two::

    >>> import tuiprof
    >>> from tuiprof.resources import shipped
    >>> trace = tuiprof.open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    >>> trace.events.select("ts", "dur", "name", "category").height
    23982
    >>> syncs = tuiprof.analyses.run("sync_events", trace)
    >>> syncs.fact("syncs_per_step")
    2.0
    >>> syncs.table("groups").rows["where"].to_list()
    ['torchmetrics/aggregation.py:93']

An analysis answers with a :class:`~tuiprof.model.Report` or, where the trace cannot tell, with
:class:`~tuiprof.model.Unavailable` and the reason; what goes wrong is a :class:`~tuiprof.errors.TuiprofError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tuiprof.probe.api import phase, step

if TYPE_CHECKING:
    from tuiprof import analyses, errors, model
    from tuiprof.comparison.sides import compare
    from tuiprof.formats.open import open_trace

__version__ = "0.1.0"
__all__ = ["__version__", "analyses", "compare", "errors", "model", "open_trace", "phase", "step"]

#: Where they are. Loaded on first use: a training script that marks its steps pays for none of them.
_LAZY = {
    "analyses": "tuiprof.analyses",
    "compare": "tuiprof.comparison.sides:compare",
    "errors": "tuiprof.errors",
    "model": "tuiprof.model",
    "open_trace": "tuiprof.formats.open:open_trace",
}


def __dir__() -> list[str]:
    """Return what there is, loaded or not: notebooks complete names from it."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load a part of the library on first use."""
    if name in _LAZY:
        module, _, attribute = _LAZY[name].partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found
    raise AttributeError(f"module 'tuiprof' has no attribute {name!r}")
