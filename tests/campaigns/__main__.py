"""Runs campaigns and says what came out: ``python -m tests.campaigns [NAME…] [--short] [--seed N] [--cases N]``.

``--write docs/reliability.md`` puts the rows into the table of that page; rows of campaigns that did not run stay.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tuiprof import __version__

from .campaign import Options, Outcome, campaigns

_BEGIN, _END = "<!-- campaigns: begin -->", "<!-- campaigns: end -->"
_HEAD = "| campaign | promise | cases | failures | figures | run |\n|---|---|---:|---:|---|---|\n"


def main() -> int:
    """Run the campaigns asked for; the exit status is 1 when one found a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("names", nargs="*", help="campaigns to run; none = all")
    parser.add_argument("--short", action="store_true", help="the short form, as in `make check`")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices (default: 1)")
    parser.add_argument("--cases", type=int, help="number of cases, in place of each campaign's own")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the rows into this page's table")
    chosen = parser.parse_args()
    every = campaigns()
    unknown = set(chosen.names) - {campaign.name for campaign in every}
    if unknown:
        parser.error(
            f"no campaign named {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in every)}"
        )
    failed = 0
    rows = {}
    for campaign in every:
        if chosen.names and campaign.name not in chosen.names:
            continue
        print(f"{campaign.name}: {campaign.promise} (seed {chosen.seed})", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(
            prefix=f"tuiprof-{campaign.name}-", ignore_cleanup_errors=True
        ) as folder:
            outcome = campaign.run(Options(Path(folder), chosen.seed, chosen.short, chosen.cases))
        _print(outcome, time.monotonic() - began)
        failed += len(outcome.failures)
        rows[campaign.name] = _row(campaign.name, campaign.promise, outcome, chosen.seed)
    if chosen.write is not None:
        _write(chosen.write, rows)
    return 1 if failed else 0


def _print(outcome: Outcome, seconds: float) -> None:
    """Print what a campaign found."""
    for line in outcome.failures:
        print(f"  FAILED  {line}")
    for line in outcome.skipped:
        print(f"  not tried  {line}")
    figures = "".join(f", {name} {value}" for name, value in outcome.figures.items())
    print(f"  {outcome.cases} cases, {len(outcome.failures)} failures{figures}, {seconds:.0f} s", flush=True)


def _row(name: str, promise: str, outcome: Outcome, seed: int) -> str:
    """Return a campaign's row of the table."""
    figures = dict(outcome.figures)
    if outcome.skipped:
        figures["not tried"] = str(len(outcome.skipped))
    told = "; ".join(f"{key} {value}" for key, value in figures.items())
    versions = f"tuiprof {__version__} at {_commit()}, Python {platform.python_version()}"
    run = f"{datetime.date.today()}, seed {seed}, {versions}"
    return f"| {name} | {promise} | {outcome.cases} | {len(outcome.failures)} | {told} | {run} |"


def _commit() -> str:
    """Return the commit that is checked out, marked when files differ from it."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "an unknown commit"


def _write(page: Path, rows: dict[str, str]) -> None:
    """Replace the rows of the campaigns that ran."""
    text = page.read_text("utf-8")
    before, rest = text.split(_BEGIN)
    table, after = rest.split(_END)
    kept = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    kept.pop("campaign", None)
    lines = "\n".join(line for _, line in sorted({**kept, **rows}.items()))
    page.write_text(f"{before}{_BEGIN}\n{_HEAD}{lines}\n{_END}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
