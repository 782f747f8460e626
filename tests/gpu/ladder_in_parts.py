"""Measures a ladder on a machine that can be used for minutes at a time: each call goes on where the last one stopped.

::

    python tests/gpu/ladder_in_parts.py --seconds 170 cpu-training -- --preset paper --steps 8 --trials 3

begins the ladder, or resumes it if the store holds one that was begun with the same arguments. When the time is up it
stops after the trial that runs; what is measured so far is written to ``$OUT`` (or ``--out``) as Markdown and JSON.
Exit status 0 = complete, 3 = call it again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

AGAIN = 3
STOPPED = 130


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ladder")
    parser.add_argument("more", nargs="*", help="arguments of tuiprof ladder, after --")
    parser.add_argument("--seconds", type=float, default=170, help="stop after this time")
    parser.add_argument(
        "--store", type=Path, default=Path("build/ladders"), help="where sessions stay between calls"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/out")))
    options = parser.parse_args()
    asked = hashlib.sha256(repr([options.ladder, *options.more]).encode()).hexdigest()[:12]
    store = options.store / f"{options.ladder}-{asked}"
    begun = store.is_dir() and any(store.iterdir())
    store.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    tuiprof = [sys.executable, "-m", "tuiprof", "--sessions", str(store), "ladder"]
    # A machine that was given back keeps neither its name nor its inodes: its own ladders are to be trusted here.
    what = ["--resume", "last", "--trust"] if begun else [options.ladder, *options.more]
    with subprocess.Popen([*tuiprof, *what, "-o", str(options.out / f"{options.ladder}.md")]) as running:
        try:
            status = running.wait(options.seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # after this trial
            try:
                status = running.wait(60)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGINT)  # now; it is repeated
                status = running.wait()
    show = [
        *tuiprof,
        "--show",
        "last",
        "--quiet",
        "-f",
        "json",
        "-o",
        str(options.out / f"{options.ladder}.json"),
    ]
    subprocess.run(show, check=False)
    if status == STOPPED:
        print("not through yet: the same call goes on")
        return AGAIN
    return status


if __name__ == "__main__":
    raise SystemExit(main())
