"""Measures, on a machine with an accelerator that few have, every variant that only such a machine can run.

``python -m tests.hardware neuron`` or ``python -m tests.hardware tpu`` runs the ladders of :data:`TARGETS`, one after
another, and writes a page for each and a summary, in the form of ``docs/results``. A ladder that fails is named in the
summary with what it said, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

#: Target → ladder → variants; none = all of them. Baselines are added by ``tuiprof ladder``.
TARGETS: dict[str, dict[str, tuple[str, ...]]] = {
    "neuron": {
        "giou-kernel": ("neuron-eager", "nki", "neuron-cpp", "nki-simulated", "nki-numpy", "neuron-cpp-host"),
        "neuron-training": (),
    },
    "tpu": {
        "nms": ("jax-cpu", "jax", "pallas"),
        "giou-kernel": ("jax", "jax-jit", "pallas"),
        "matmul-int8": ("xla-bf16", "xla-int8", "pallas-bf16", "pallas-int8"),
        "pallas-attention": (),
    },
}


#: Exit status of ``tuiprof ladder``.
NOTHING_CAN_RUN = 5


@dataclass(frozen=True)
class Ran:
    """One ladder that was run."""

    ladder: str  # its name
    command: tuple[str, ...]  # what was run
    status: int  # exit status of ``tuiprof ladder``
    rows: list[dict[str, Any]]  # the rows of its table, as JSON has them
    said: str  # the last line on stderr


def commands(target: str, options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the command of every ladder of a target, without where it writes."""
    more = ["--once"] if options.once else ["--trials", str(options.trials)]
    more += ["--preset", options.preset] if options.preset else []
    more += ["--price", str(options.price)] if options.price else []
    more += ["--python", options.python] if options.python else []
    return {
        ladder: ("tuiprof", "ladder", ladder, *more, *(["--variants", ",".join(names)] if names else []))
        for ladder, names in TARGETS[target].items()
        if not options.only or ladder in options.only
    }


def measure(ladder: str, command: Sequence[str], out: Path) -> Ran:
    """Run one ladder; its page and its JSON are written into a folder."""
    page = out / f"{ladder}.md"
    argv = [sys.executable, "-m", *command, "-o", str(page)]
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    rows: list[dict[str, Any]] = []
    if page.exists():
        # Where nothing could be run nothing was kept either: the same command says it again at once.
        kept = (
            ("tuiprof", "ladder", ladder, "--show", "last") if done.returncode != NOTHING_CAN_RUN else command
        )
        shown = [sys.executable, "-m", *kept, "--quiet", "-f", "json"]
        again = subprocess.run(shown, capture_output=True, text=True, check=False)
        if again.stdout.startswith("{"):
            tables = json.loads(again.stdout)["reports"][0]["tables"]
            rows = next(table["rows"] for table in tables if table["key"] == "rungs")
            (out / f"{ladder}.json").write_text(again.stdout, encoding="utf-8")
        text = page.read_text(encoding="utf-8")
        page.write_text(
            f"{date.today()}\n\n```console\n$ {shlex.join(command)}\n```\n\n{text}", encoding="utf-8"
        )
    said = (done.stderr.strip().splitlines() or [""])[-1]
    return Ran(ladder, tuple(command), done.returncode, rows, said)


def summary(target: str, ran: Sequence[Ran]) -> str:
    """Return the results table: a line a variant, and what could not be run with the reason."""
    lines = [f"# Results on {target}, {date.today()}", ""]
    heads = ("ladder", "variant", "verdict", "step", "95 % interval of the ratio", "published", "why not")
    lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for one in ran:
        for row in one.rows:
            step = f"{row['step_ns'] / 1e6:.4g} ms" if row.get("step_ns") else ""
            cells = (one.ladder, row["variant"], row["verdict"], step, row.get("change_interval") or "",
                     row.get("published") or "", row.get("why") or "")  # fmt: skip
            lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
        if not one.rows:
            lines.append(f"| {one.ladder} | – | nothing was measured | | | | {one.said} |")
    lines += ["", "Commands:", "", "```console"]
    lines += [f"$ {shlex.join(one.command)}  # status {one.status}" for one in ran]
    return "\n".join([*lines, "```", ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a target; return 0 if every ladder ended with 0, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.hardware", description=__doc__)
    parser.add_argument("target", choices=list(TARGETS))
    parser.add_argument("--out", type=Path, help="folder for the pages (default: results-TARGET)")
    parser.add_argument("--only", action="append", metavar="LADDER", help="only this ladder; may be repeated")
    parser.add_argument("--trials", type=int, default=3, metavar="N", help="timing trials a variant")
    parser.add_argument(
        "--once", action="store_true", help="one process a variant, no verdicts: try it first"
    )
    parser.add_argument("--preset", metavar="SIZE", help="size instead of what fits the machine")
    parser.add_argument("--price", type=float, metavar="USD", help="dollars an hour of the machine")
    parser.add_argument("--python", metavar="FILE", help="interpreter of the accelerator's software")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    options = parser.parse_args(argv)
    wanted = commands(options.target, options)
    if options.dry_run:
        print("\n".join(shlex.join(command) for command in wanted.values()))
        return 0
    out = options.out or Path(f"results-{options.target}")
    out.mkdir(parents=True, exist_ok=True)
    ran: list[Ran] = []
    for ladder, command in wanted.items():
        ran.append(measure(ladder, command, out))
        (out / "README.md").write_text(
            summary(options.target, ran), encoding="utf-8"
        )  # kept if the next one ends it
    print(f"wrote {out / 'README.md'}")
    return int(any(one.status for one in ran))


if __name__ == "__main__":
    raise SystemExit(main())
