"""The keys of the live screen."""

from __future__ import annotations

from textual.binding import BindingType

from tuiprof.tui.keys import key


def live_keys(capture_steps: int) -> list[BindingType]:
    """Return the bindings of the live screen, in the order of the line of keys.

    Args:
        capture_steps: Steps of a capture asked for with one key.
    """
    capture = f"capture {capture_steps} steps"
    return [
        key(
            "enter",
            "open_ready",
            "open it",
            "Open the trace just captured",
            id="live.open_ready",
            group="Run",
        ),
        key("p", "capture", capture, "Profile the next steps", id="live.capture", group="Run"),
        key(
            "P",
            "capture_form",
            "capture …",
            "Choose what to profile",
            id="live.capture_form",
            group="Run",
            show=False,
        ),
        key("o", "open_trace", "open trace", "Open a captured trace", id="live.open", group="Run"),
        key(
            "space",
            "pause",
            "pause",
            "Hold the picture still; the run goes on",
            id="live.pause",
            group="View",
        ),
        key("less_than_sign", "speed(-1)", "slower", "Replay slower", id="live.slower", group="Replay"),
        key("greater_than_sign", "speed(1)", "faster", "Replay faster", id="live.faster", group="Replay"),
        key("left", "seek(-1)", "−5 s", "Back by five seconds", id="live.back", group="Replay"),
        key("right", "seek(1)", "+5 s", "On by five seconds", id="live.on", group="Replay"),
        key("z", "window", "zoom", "Another width of the time axis", id="live.window", group="View"),
        key(
            "left_square_bracket",
            "rank(-1)",
            "rank −",
            "The rank before",
            id="live.rank_before",
            group="View",
        ),
        key("right_square_bracket", "rank(1)", "rank +", "The next rank", id="live.rank_next", group="View"),
        key("l", "log", "log", "The script's output alone, or beside the rest", id="live.log", group="View"),
        key(
            "q,escape",
            "leave",
            "leave",
            "Leave the screen; the run goes on",
            id="live.leave",
            group="Run",
            display="q",
        ),
        key("Q", "stop", "stop", "Stop the script (asks first)", id="live.stop", group="Run"),
    ]
