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
            "Open the trace of the selected step, else the newest",
            id="live.open_ready",
        ),
        _run("p", "capture", capture, "Profile the next steps", id="live.capture"),
        _run("P", "capture_form", "capture …", "Choose what to profile", id="live.capture_form", show=False),
        _run("o", "open_trace", "open trace", "Open a captured trace", id="live.open"),
        _view("space", "pause", "pause", "Hold the picture, or the clock of a replay", id="live.pause"),
        _time("end", "now", "now", "Return to the present, or to the end", id="live.now"),
        _time("left", "seek(-1)", "back", "Show an earlier moment", id="live.back", show=False),
        _time("right", "seek(1)", "on", "Show a later moment", id="live.on", show=False),
        _time("less_than_sign", "speed(-1)", "slower", "Replay slower", id="live.slower"),
        _time("greater_than_sign", "speed(1)", "faster", "Replay faster", id="live.faster"),
        _steps(
            "N,shift+left",
            "step(-1, True)",
            "slow step before",
            "Select the outlier before",
            id="live.outlier_before",
            show=False,
        ),
        _steps(
            "n,shift+right",
            "step(1, True)",
            "slow step after",
            "Select the outlier after",
            id="live.outlier_next",
            show=False,
        ),
        _steps(
            "comma", "step(-1)", "step before", "Select the step before", id="live.step_before", show=False
        ),
        _steps(
            "full_stop", "step(1)", "step after", "Select the step after", id="live.step_next", show=False
        ),
        _run("t", "arm", "arm", "Capture after the next slow step, or no more", id="live.arm"),
        _run("T", "arm_form", "arm …", "Choose when to capture by itself", id="live.arm_form", show=False),
        _run(
            "S", "steps_form", "steps are …", "Let something else be a step", id="live.steps_form", show=False
        ),
        _run("s", "stacks", "stacks", "Where every thread of every rank is", id="live.stacks"),
        _view("z", "window", "zoom", "Another width of the time axis", id="live.window"),
        _view("left_square_bracket", "rank(-1)", "rank −", "The rank before", id="live.rank_before"),
        _view("right_square_bracket", "rank(1)", "rank +", "The next rank", id="live.rank_next"),
        _view("tab", "run(1)", "next run", "The next of the runs that go on", id="live.run_next"),
        _view("shift+tab", "run(-1)", "run before", "The run before", id="live.run_before", show=False),
        _view("l", "log", "log", "The script's output alone, or beside the rest", id="live.log"),
        _view(
            "slash",
            "search",
            "search",
            "Find a text in the output",
            id="live.search",
            show=False,
            display="/",
            priority=True,  # before the keys typed after it: they belong to the field
        ),
        _view("a", "alerts", "alerts", "What goes wrong by which rule, and the notes", id="live.alerts"),
        _run("m", "note", "note", "Write a note on this run", id="live.note", show=False),
        _run("q", "leave", "leave", "Leave the screen; the run goes on", id="live.leave"),
        _run("escape", "escape", "undo", "Back to the present; else leave", id="live.escape", show=False),
        _run("Q", "stop", "stop", "Stop the script (asks first)", id="live.stop"),
    ]
