"""What a run that went wrong left behind, read: stacks, collectives, the allocator's snapshot, its last steps.

Everything returns a :class:`tuiprof.model.Report`; nothing here asks the running script (see
:mod:`tuiprof.session.asking`).
"""

from tuiprof.blackbox.dumps import collectives, load_plain
from tuiprof.blackbox.stacks import Process, group, stacks_report

__all__ = ["Process", "collectives", "group", "load_plain", "stacks_report"]
