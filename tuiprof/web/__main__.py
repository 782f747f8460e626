"""The dashboard as the server runs it, once a page: what to show comes as one JSON argument."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from tuiprof.errors import TuiprofError
from tuiprof.threads import bound_threads
from tuiprof.tui.start import Start


def _as(wanted: type, value: Any) -> Any:
    """Turn text into the path it stands for."""
    return wanted(value)


def main() -> int:
    """Show what the argument says, drawn by Textual's driver for the web."""
    from tuiprof.tui.app import run_app

    try:
        run_app(msgspec.json.decode(sys.argv[1], type=Start, dec_hook=_as))
    except TuiprofError as error:
        sys.stderr.write(f"tuiprof: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    bound_threads()
    sys.exit(main())
