"""What two sessions kept of their scripts, side by side."""

from __future__ import annotations

from tuiprof.analyses.compare.script import script_change
from tuiprof.model.report import Table
from tuiprof.session.run.source import texts
from tuiprof.session.store.folders import Session


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
