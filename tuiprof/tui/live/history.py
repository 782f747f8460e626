"""What earlier runs say: how a variant did here before, and what the baseline of its ladder took."""

from __future__ import annotations

from pathlib import Path

from tuiprof.session.store.folders import Session


def baseline_of(session: Session) -> tuple[str, float] | None:
    """Return the baseline to compare a run with: the newest finished one of its ladder and preset.

    Args:
        session: The run. Only runs under the same folder and on the same host are compared.

    Returns:
        Name of the baseline variant and its median step time in ns; None = there is none, or this is one.
    """
    from tuiprof.ladder.scenarios import ladders
    from tuiprof.session.store.glance import glance

    scenario = session.meta.scenario
    if scenario is None:
        return None
    ladder = next((found for found in ladders(()) if found.name == scenario.name), None)
    if ladder is None or not ladder.baseline or ladder.baseline == scenario.variant:
        return None
    for other in newest_first(session.path.parent):
        meta = other.meta
        if (
            meta.scenario is not None
            and (meta.scenario.name, meta.scenario.variant, meta.scenario.preset)
            == (scenario.name, ladder.baseline, scenario.preset)
            and meta.host == session.meta.host
            and other.status().state == "finished"
        ):
            median_ns = glance(other).median_ns
            if median_ns:
                return ladder.baseline, median_ns
    return None


def newest_first(root: Path) -> list[Session]:
    """Return the readable sessions of a folder, the newest first.

    Args:
        root: The folder.
    """
    from tuiprof.errors import SessionError
    from tuiprof.session.store.folders import session_dirs

    found = []
    for path in session_dirs(root):
        try:
            found.append(Session(path))
        except SessionError:  # the list shows it as unreadable; nothing can be learnt from it here
            continue
    return sorted(found, key=lambda session: -session.meta.unix_ns)
