"""How runs were set up: what each says of itself, and what changed in the script between two sessions."""

from __future__ import annotations

import shlex

from tuiprof.analyses.compare.script import script_change
from tuiprof.model import Trace
from tuiprof.model.report import Table
from tuiprof.session.run.source import texts
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


def compare_scripts(before: Session, after: Session) -> tuple[Table, str]:
    """Say what changed in the script between two sessions.

    Returns:
        The lines that differ, or why they are not known; and how many, in words (empty = unknown).
    """
    old, new = before.meta.source, after.meta.source
    if old is None or new is None:
        which = "neither session has" if old is new else f"{(before if old is None else after).id} has not"
        why = f"{which} kept its script: it runs no Python file, or an earlier tuiprof recorded it"
        return script_change({}, {}, empty=why)
    kept = texts(before), texts(after)
    if old.script in kept[0] and new.script in kept[1]:
        changed = {name for name, digest in old.digests.items() if new.digests.get(name, digest) != digest}
        unseen = sorted(changed - (kept[0].keys() & kept[1].keys()) - {old.script})
        note = f"Changed as well, and too large to be kept: {', '.join(unseen)}." if unseen else ""
        return script_change(*kept, note=note)
    if old.digests.get(old.script) == new.digests.get(new.script):
        return script_change({}, {})[0], "the same"
    return script_change(
        {}, {}, empty="the script changed; its text was not kept, so the lines are not known"
    )
