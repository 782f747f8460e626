"""The keys of the live screen."""

from __future__ import annotations

from functools import partial

from textual.binding import BindingType

from tuiprof.tui.terminal.keys import key

_run = partial(key, group="Run")
_view = partial(key, group="View")
_time = partial(key, group="Time")
_steps = partial(key, group="Steps")


def live_keys(capture_steps: int) -> list[BindingType]:
    """Return the bindings of the live screen, in the order of the line of keys."""
    capture = f"capture {capture_steps} steps"
    return [
        _run(
            "enter",
            "open_ready",
            "open it",
            "Open the trace of the selected step, or the newest",
            id="live.open_ready",
        ),
        _run("p", "capture", capture, "Capture the next steps with the profiler", id="live.capture"),
        _run("P", "capture_form", "capture …", "Choose what to capture", id="live.capture_form", show=False),
        _run("o", "open_trace", "open trace", "Open a captured trace", id="live.open"),
        _view("space", "pause", "pause", "Pause the display or the replay", id="live.pause"),
        _time("end", "now", "now", "Go to the present, or to the end of the run", id="live.now"),
        _time("left", "seek(-1)", "back", "Show an earlier moment", id="live.back", show=False),
        _time("right", "seek(1)", "on", "Show a later moment", id="live.on", show=False),
        _time("less_than_sign", "speed(-1)", "slower", "Replay slower", id="live.slower"),
        _time("greater_than_sign", "speed(1)", "faster", "Replay faster", id="live.faster"),
        _steps(
            "N,shift+left",
            "step(-1, True)",
            "previous slow step",
            "Select the previous slow step",
            id="live.outlier_before",
            show=False,
        ),
        _steps(
            "n,shift+right",
            "step(1, True)",
            "next slow step",
            "Select the next slow step",
            id="live.outlier_next",
            show=False,
        ),
        _steps(
            "comma",
            "step(-1)",
            "previous step",
            "Select the previous step",
            id="live.step_before",
            show=False,
        ),
        _steps("full_stop", "step(1)", "next step", "Select the next step", id="live.step_next", show=False),
        _run("t", "arm", "arm", "Capture after the next slow step; press again to cancel", id="live.arm"),
        _run(
            "T", "arm_form", "arm …", "Choose when to capture automatically", id="live.arm_form", show=False
        ),
        _run(
            "S", "steps_form", "steps are …", "Choose what counts as a step", id="live.steps_form", show=False
        ),
        _run("s", "stacks", "stacks", "Show the stack of every thread of every rank", id="live.stacks"),
        _view("z", "window", "zoom", "Change the time range", id="live.window"),
        _view("left_square_bracket", "rank(-1)", "rank −", "Show the previous rank", id="live.rank_before"),
        _view("right_square_bracket", "rank(1)", "rank +", "Show the next rank", id="live.rank_next"),
        _view("tab", "run(1)", "next run", "Show the next running run", id="live.run_next"),
        _view(
            "shift+tab", "run(-1)", "previous run", "Show the previous run", id="live.run_before", show=False
        ),
        _view("l", "log", "log", "Show the script's output full screen, or beside the charts", id="live.log"),
        _view(
            "slash",
            "search",
            "search",
            "Search the output",
            id="live.search",
            show=False,
            display="/",
            priority=True,  # before the keys typed after it: they belong to the field
        ),
        _view("a", "alerts", "alerts", "Show alerts and notes", id="live.alerts"),
        _run("m", "note", "note", "Write a note on this run", id="live.note", show=False),
        _run("q", "leave", "leave", "Close this screen; the run continues", id="live.leave"),
        _run(
            "escape",
            "escape",
            "undo",
            "Return to the present, or close this screen",
            id="live.escape",
            show=False,
        ),
        _run("Q", "stop", "stop", "Stop the script (asks first)", id="live.stop"),
    ]
