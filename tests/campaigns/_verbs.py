"""Runs several command lines of tuiprof in one process, one after the other, and says how each ended.

``python _verbs.py DESCRIPTOR SECONDS BYTES`` reads them as JSON from standard input and writes a JSON line for each to
the descriptor. A verb that takes longer than so many seconds ends the process (SIGALRM); memory is limited to so many
bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import traceback

from tuiprof.cli import main

if __name__ == "__main__":
    descriptor, seconds, size = map(int, sys.argv[1:])
    report = os.fdopen(descriptor, "w", buffering=1)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for verb in json.load(sys.stdin):
        signal.alarm(seconds)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status: object = main(verb)
            except BaseException:  # noqa: BLE001 - a verb that raises anything has failed
                status = traceback.format_exc()[-500:]
        texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
        report.write(json.dumps([status, *texts]) + "\n")
