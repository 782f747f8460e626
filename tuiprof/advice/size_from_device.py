"""The host needs a size that only the device knows."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.analyses._wait_kinds import SIZE_KINDS
from tuiprof.model import Trace


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for nonzero, boolean masks, unique and repeat_interleave in the step."""
    for row in evidence.rows("sync_events", "groups").iter_rows(named=True):
        if row["kind"] in SIZE_KINDS and evidence.often(row):
            yield Finding(
                f"the size of a result must come from the device first ({row['through']})",
                evidence.place(row),
                "keep shapes fixed: torch.where or a product with the mask instead of x[mask], padding instead of "
                "unique, repeat_interleave(…, output_size=n)",
                evidence.cost(row, "can_win_ns"),
                "high" if row["found"] == "line" else "medium",
                "such operators wait for the device to learn how large their result is",
                "",
                row["event"],
            )


RULE = AdviceRule("size-from-device", find)
