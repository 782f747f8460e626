"""The dashboard as the server runs it, once a page: what to show comes as one JSON argument."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any, Final

import msgspec

from tuiprof.errors import TuiprofError
from tuiprof.system.own_process import bound_threads
from tuiprof.tui import Start

_LOOK_S: Final = 0.5
#: How long it may take to close once the server is gone, seconds.
_TO_CLOSE_S: Final = 2.0


def _as(wanted: type, value: Any) -> Any:
    """Turn text into the path it names."""
    return wanted(value)


def _end_with(server: int) -> None:
    """End this process when the server has ended, even if it was killed."""
    while os.getppid() == server:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_TO_CLOSE_S)
    os.killpg(0, signal.SIGKILL)  # with what it started beside the runs


def main() -> int:
    """Show what the argument says, drawn by Textual's driver for the web."""
    threading.Thread(target=_end_with, args=(os.getppid(),), name="end-with-server", daemon=True).start()
    from tuiprof.tui.app.app import run_app

    try:
        run_app(msgspec.convert(json.loads(sys.argv[1]), Start, dec_hook=_as))
    except TuiprofError as error:
        sys.stderr.write(f"tuiprof: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    bound_threads()
    sys.exit(main())
