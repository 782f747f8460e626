"""The table of a ladder's variants in the library: published and measured figures, and what can run."""

from __future__ import annotations

from functools import partial
from typing import Final

from tuiprof.model.units import format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.library.items import LadderItem, VariantItem
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.choices import Choice
from tuiprof.tui.widgets.lines import Row, row_width

#: What the reason of a variant that cannot run keeps before a published figure in words gets more room.
_REASON: Final = 30


def variants(ladder: LadderItem) -> list[Choice]:
    """Return the table of variants: one line each below a heading.

    Args:
        ladder: The ladder.
    """
    rows = [Choice("", partial(_variant_head, ladder))]
    rows.extend(Choice(variant.name, partial(_variant_line, ladder, variant)) for variant in ladder.variants)
    return rows


def _columns(ladder: LadderItem, width: int) -> tuple[int, int, int, int, int]:
    """Return widths of variant, published, here, change and syncs; a column that has no room is 0."""
    name = min(max(len(sanitize(variant.name)) for variant in ladder.variants), 28)
    here, change, can = 10, 15, 9
    # A ladder that no trace was captured of needs no column for what traces tell.
    syncs = 12 if any(variant.trace is not None for variant in ladder.variants) else 0
    wanted = max(9, *(len(_published(variant)) for variant in ladder.variants))
    room = width - name - here - can
    if room < change + syncs:
        syncs = 0
    if room >= change + syncs + 11:
        left = room - change - syncs - 2
        return name, min(wanted, left, max(26, left - _REASON)), here, change, syncs
    if room >= change:
        return name, 0, here, change, syncs
    return min(name, width - here - can), 0, here, 0, 0


def _published(variant: VariantItem) -> str:
    """Return the publication's figure without what is said about it; the note says it all."""
    return sanitize(variant.published.partition(" (")[0].partition(", ")[0].partition(" · ")[0])


def _variant_head(ladder: LadderItem, width: int) -> Row:
    name, published, here, change, syncs = _columns(ladder, width)
    row: Row = [("variant".ljust(name), "dim")]
    if published:
        row.append((f"  {'published':<{published}}", "dim"))
    if here:
        row.append((f"{'here':>{here}}", "dim"))
    if change:
        row.append((f"{'vs ' + sanitize(ladder.baseline):>{change}}"[:change], "dim"))
    if syncs:
        row.append(("syncs/step".rjust(syncs), "dim"))
    row.append(("  can run", "dim"))
    return row


def _variant_line(ladder: LadderItem, variant: VariantItem, width: int) -> Row:
    name, published, here, change, syncs = _columns(ladder, width)
    row: Row = [
        (_cell(variant.name, name), "text" if variant.runnable is not False else "dim"),
    ]
    if published:
        row.append(("  " + _cell(_published(variant) or glyphs.NONE, published), "dim"))
    if here:
        row.append((f"{format_ns(variant.here_ns):>{here}}", "strong" if variant.here_ns else "dim"))
    if change:
        row.append(_change(ladder, variant, change))
    if syncs:
        row.append((_syncs(variant).rjust(syncs), "text"))
    if variant.runnable is None:
        row.append((f"  {glyphs.ELLIPSIS}", "dim"))
    elif variant.runnable:
        row.append((f"  {glyphs.DONE}", "good"))
    else:
        row.append((f"  {glyphs.FAILED} ", "warn"))
        # A word cut in two says nothing; the note below the table says it all.
        if width - row_width(row) >= 16:
            row.append((sanitize(variant.why), "dim"))
    return row


def _cell(text: str, width: int) -> str:
    text = sanitize(text)
    return text.ljust(width) if len(text) <= width else text[: width - 1] + glyphs.ELLIPSIS


def _change(ladder: LadderItem, variant: VariantItem, width: int) -> tuple[str, str]:
    """Return how a variant compares with the baseline, in words and a sign."""
    if variant.name == ladder.baseline or variant.change is None:
        return glyphs.NONE.rjust(width), "dim"
    if abs(variant.change) < 0.005:
        return "same".rjust(width), "text"
    word = "slower" if variant.change > 0 else "faster"
    return f"{abs(variant.change) * 100:.1f} % {word}".rjust(width), "warn" if variant.change > 0 else "good"


def _syncs(variant: VariantItem) -> str:
    if variant.syncs_per_step is None:
        return glyphs.NONE
    return format_count(round(variant.syncs_per_step, 2))
