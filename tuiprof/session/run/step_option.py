"""The options that say where steps end, and the environment variables that pass them to the probe."""

from __future__ import annotations

from pathlib import Path

from tuiprof.errors import UsageProblem

#: Variables of the script's environment that the probe reads.
STEP_AT, STEP_FUNCTION = "TUIPROF_STEP_AT", "TUIPROF_STEP_FUNCTION"


def step_environment(at: str | None, function: str | None, option: str = "--step-{}") -> dict[str, str]:
    """Return the environment variables for the probe.

    Args:
        at: ``FILE:LINE``; None = not so.
        function: ``MODULE:NAME``, where the script itself is ``__main__``; None = not so.
        option: What the user typed before them, ``{}`` for ``at`` and ``function``.

    Raises:
        UsageProblem: It cannot be read, there is no such file, or both are given.
    """
    step_at, step_function = option.format("at"), option.format("function")
    if at and function:
        raise UsageProblem(f"{step_at} cannot be used with {step_function}", "use one of them")
    if at:
        file, _, line = at.rpartition(":")
        if not file or not line.isdecimal() or not int(line):
            raise UsageProblem(f"{step_at} {at!r} is not FILE:LINE", "for example train.py:88")
        path = Path(file)
        if not path.is_file():
            raise UsageProblem(
                f"{step_at}: there is no file {file}", "its path is relative to the current directory"
            )
        lines = path.read_bytes().count(b"\n") + 1
        if int(line) > lines:
            raise UsageProblem(f"{step_at}: {file} has {lines} lines", f"it has no line {line}")
        return {STEP_AT: f"{path.resolve()}:{int(line)}"}
    if function:
        module, _, name = function.partition(":")
        if not module or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise UsageProblem(
                f"{step_function} {function!r} is not MODULE:NAME", "for example __main__:train_step"
            )
        return {STEP_FUNCTION: function}
    return {}
