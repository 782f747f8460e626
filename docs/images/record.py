"""Makes the pictures of the documentation: ``tuiprof.gif`` and those of the trace, a run, a comparison and the library.

Everything in the picture is what the program wrote into a real terminal; only waiting is shortened. Run from the
repository, in the environment of ``make setup``::

    python docs/images/record.py
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
COLUMNS, LINES = 116, 34
CELL = (8, 17)
TRACE = "traces/metrics-naive.pt.trace.json.gz"
#: A step of a scene: wait until the screen holds a text, then show it for so many ms, then press a key.
Step = tuple[str, int, str]
SCENES: tuple[tuple[str, tuple[Step, ...]], ...] = (
    ("tuiprof record metrics:naive --preset smoke", (("step", 1500, ""), ("", 3000, ""))),
    (f"tuiprof why {TRACE}", (("", 5000, ""),)),
    (
        f"tuiprof open {TRACE}",
        (
            ("lost to this finding", 3500, "]"),
            ("2 of 4", 600, "]"),
            ("3 of 4", 3500, "p"),
            ("with this finding's fix", 4500, "p"),
            ("lost to this finding", 1500, "q"),
        ),
    ),
)
#: What is kept as a picture of its own: the file, by the text that was waited for.
STILLS = {"3 of 4": "trace.png"}
#: The other pictures: the file, the command, and the steps to what it shows.
PICTURES: tuple[tuple[str, str, tuple[Step, ...]], ...] = (
    ("live.png", "tuiprof open traces/session-metrics-naive", (("saves about", 0, ""),)),
    (
        "compare.png",
        f"tuiprof open {TRACE.replace('naive', 'no-nan-check')} --against {TRACE}",
        (("launches a step", 0, ""),),
    ),
    # The first look around is closed, then the ladder `metrics` is chosen.
    (
        "library.png",
        "tuiprof",
        (("1 of 5", 0, "\x1b"), ("/ filter" + " " * 16, 0, "\x1b[B" * 10), ("explicit-weight", 0, "")),
    ),
)
_PATIENCE_S = 90.0
_NAMED = {
    "black": "0f1216",
    "red": "ef7e7e",
    "green": "7cc48a",
    "brown": "e8b45a",
    "blue": "6ea8fe",
    "magenta": "b79ae8",
    "cyan": "7cc4c4",
    "white": "d5dae2",
}
_FOREGROUND, _BACKGROUND = "d5dae2", "0f1216"


def font(bold: bool) -> ImageFont.FreeTypeFont:
    """Return the font that the cells are drawn with (Debian: fonts-dejavu-core)."""
    return ImageFont.truetype(f"DejaVuSansMono{'-Bold' if bold else ''}.ttf", 13)


def draw(screen: pyte.Screen, fonts: tuple[ImageFont.FreeTypeFont, ImageFont.FreeTypeFont]) -> Image.Image:
    """Draw a terminal's screen."""
    width, height = CELL
    image = Image.new("RGB", (COLUMNS * width, LINES * height), f"#{_BACKGROUND}")
    pen = ImageDraw.Draw(image)
    for y in range(LINES):
        for x in range(COLUMNS):
            cell = screen.buffer[y][x]
            fore, back = _colour(cell.fg, _FOREGROUND), _colour(cell.bg, _BACKGROUND)
            if cell.reverse:
                fore, back = back, fore
            if back != _BACKGROUND:
                pen.rectangle((x * width, y * height, (x + 1) * width - 1, (y + 1) * height - 1), f"#{back}")
            if "\u2800" < cell.data < "\u2900":
                _braille(pen, x * width, y * height, ord(cell.data) - 0x2800, f"#{fore}")
            elif cell.data.strip():
                pen.text((x * width, y * height), cell.data, f"#{fore}", fonts[cell.bold])
    return image


def _braille(pen: ImageDraw.ImageDraw, left: int, top: int, dots: int, colour: str) -> None:
    """Draw what the font lacks."""
    for bit, (column, row) in enumerate(((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))):
        if dots >> bit & 1:
            x, y = left + 1 + 4 * column, top + 2 + 4 * row
            pen.rectangle((x, y, x + 1, y + 1), colour)


def _colour(name: str, otherwise: str) -> str:
    value = _NAMED.get(name, name)
    return value if len(value) == 6 and value != "default" else otherwise


class Terminal:
    """A program in a pseudo-terminal, and what its screen shows."""

    def __init__(self, screen: pyte.Screen, command: list[str]) -> None:
        self._screen, self._stream = screen, pyte.ByteStream(screen)
        self._pid, self._fd = pty.fork()
        if not self._pid:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", TUIPROF_THEME="dark")
            os.execvp(command[0], command)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    def until(self, text: str) -> None:
        """Follow the program until its screen holds a text and nothing changes; with no text, until it ends.

        Raises:
            TimeoutError: The text never came.
        """
        began = quiet = time.monotonic()
        while time.monotonic() - began < _PATIENCE_S:
            if select.select([self._fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self._fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    return
                self._stream.feed(data)
                quiet = time.monotonic()
            there = bool(text) and any(text in line for line in self._screen.display)
            if there and time.monotonic() - quiet > 0.4:
                return
        raise TimeoutError(f"{text!r} never came:\n" + "\n".join(self._screen.display))

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._fd, key.encode())

    def end(self) -> None:
        """End the program."""
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)


def play(screen: pyte.Screen, command: str, steps: tuple[Step, ...]) -> list[tuple[Image.Image, int]]:
    """Run a program through the steps of a scene, and return what was shown and for how many ms."""
    fonts, frames = (font(bold=False), font(bold=True)), list[tuple[Image.Image, int]]()
    terminal = Terminal(screen, command.split())
    for text, hold_ms, key in steps:
        terminal.until(text)
        if hold_ms:
            frames.append((draw(screen, fonts), hold_ms))
        if text in STILLS:
            frames[-1][0].save(HERE / STILLS[text], optimize=True)
        if key:
            terminal.press(key)
    terminal.end()
    return frames


def main() -> None:
    """Play all scenes and write the picture."""
    fonts, frames = (font(bold=False), font(bold=True)), list[tuple[Image.Image, int]]()
    sessions = tempfile.mkdtemp()
    for name in ("TUIPROF_SESSIONS", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        os.environ[name] = sessions
    for command, steps in SCENES:
        screen = pyte.Screen(COLUMNS, LINES)
        stream = pyte.Stream(screen)
        stream.feed("\x1b[32m$\x1b[0m ")
        for end in range(0, len(command) + 1, 8):
            stream.feed(command[end : end + 8])
            frames.append((draw(screen, fonts), 90))
        frames[-1] = (frames[-1][0], 700)
        stream.feed("\r\n")
        frames += play(screen, command, steps)
    for name, command, steps in PICTURES:
        screen = pyte.Screen(COLUMNS, LINES)
        play(screen, command, steps)
        draw(screen, fonts).save(HERE / name, optimize=True)
    shutil.rmtree(sessions)
    # One palette for all: what does not change from frame to frame takes no bytes.
    sheet = Image.new("RGB", (COLUMNS * CELL[0], LINES * CELL[1] * len(frames)))
    for place, (image, _) in enumerate(frames):
        sheet.paste(image, (0, place * image.height))
    palette = sheet.quantize(96)
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image, _ in frames]
    target = HERE / "tuiprof.gif"
    first.save(
        target, save_all=True, append_images=others, duration=[ms for _, ms in frames], loop=0, optimize=True
    )
    sys.stdout.write(f"{target}: {target.stat().st_size / 1e6:.2f} MB, {len(frames)} frames\n")


if __name__ == "__main__":
    main()
