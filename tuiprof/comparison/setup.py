"""How a run was set up, in words: what two runs that are compared may differ in besides their script."""

from __future__ import annotations

import shlex

from tuiprof.model import Trace
from tuiprof.session.store.folders import Session


def trace_setup(trace: Trace) -> dict[str, str]:
    """Return what a trace says of the run that it is of, by what it is about; what it does not say is left out."""
    info = trace.info
    said = {
        "device": ", ".join(dict.fromkeys(device.name for device in info.devices if device.name)),
        "framework": info.framework,
        "world size": str(info.world_size or ""),
    }
    return {what: how for what, how in said.items() if how}


def session_setup(session: Session) -> dict[str, str]:
    """Return how a session's run was set up, by what it is about; what is not known is left out."""
    meta = session.meta
    scenario, git = meta.scenario, meta.git
    said = {
        "command": shlex.join(meta.argv),
        "variant": scenario.variant if scenario else "",
        "preset": scenario.preset if scenario else "",
        "host": meta.host,
        "devices": ", ".join(dict.fromkeys(d.name for d in meta.devices if d.kind not in ("host", "cpu"))),
        "python": meta.python,
        "commit": f"{git.commit[:10]}{' (changed)' if git.dirty else ''}" if git else "",
        "tuiprof": meta.versions.get("tuiprof", ""),
    }
    return {what: how for what, how in said.items() if how}
