"""What ``session.json`` and the requests to a running script hold."""

from __future__ import annotations

from typing import Final

import msgspec

from tuiprof.session.log.records import UnixNs, Whole

#: Size of a session's traces beyond which no triggered capture is begun, bytes.
DEFAULT_BUDGET: Final = 500_000_000


class Scenario(msgspec.Struct, frozen=True):
    """Which scenario a session ran.

    Attributes:
        name: Name of the ladder, e.g. ``"metrics"``.
        variant: Its variant, e.g. ``"naive"``.
        preset: ``"smoke"``, ``"paper"``, …
    """

    name: str
    variant: str = ""
    preset: str = ""

    def __str__(self) -> str:
        """Return ``metrics:naive``."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


class Git(msgspec.Struct, frozen=True):
    """State of the checkout the script was started in.

    Attributes:
        commit: Full hash.
        branch: Branch; empty = detached.
        dirty: Tracked files differ from the commit.
    """

    commit: str
    branch: str = ""
    dirty: bool = False


class DeviceMeta(msgspec.Struct, frozen=True):
    """A sampled device as stored (see :class:`tuiprof.telemetry.Device`).

    Attributes:
        visible: The environment that the run was started in lets it use this device; None = it does not say.
    """

    key: str
    kind: str
    name: str
    memory_bytes: Whole | None = None
    details: dict[str, str | float | Whole] = {}
    visible: bool | None = None


class CaptureRequest(msgspec.Struct, frozen=True):
    """One request to profile some steps: the content of ``control/capture-<id>.json``.

    Attributes:
        id: Its name.
        steps: How many steps.
        at: First step; None = as soon as possible.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
        seconds: How long, for a capture by the clock; None = it is one of steps.
        after_s: When that begins, from the import of the framework on.
    """

    id: str
    steps: Whole
    at: Whole | None = None
    stack: bool = False
    shapes: bool = False
    memory: bool = False
    seconds: float | None = None
    after_s: float | None = None


class TriggerRequest(msgspec.Struct, frozen=True):
    """Captures to make again and again: the content of ``control/trigger-<id>.json``.

    Exactly one of ``above_ns``, ``times`` and ``every`` is given. What is profiled are the steps after the slow
    one: a step that is over cannot be profiled any more.

    Attributes:
        id: Its name; captures are called ``<id>-1``, ``<id>-2``, ….
        steps: How many steps a capture profiles.
        above_ns: When a step took longer than this, ns.
        times: When a step took longer than so many times the median of the steps before it.
        every: At each step whose number is a multiple of this.
        cooldown_s: Time from the end of one capture to the next at the earliest.
        budget_bytes: No capture is begun that would bring the session's traces above this.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
    """

    id: str
    steps: Whole = 3
    above_ns: Whole | None = None
    times: float | None = None
    every: Whole | None = None
    cooldown_s: float = 30.0
    budget_bytes: Whole = DEFAULT_BUDGET
    stack: bool = False
    shapes: bool = False
    memory: bool = False


class Source(msgspec.Struct, frozen=True):
    """The script as it was when the session was begun (see :mod:`tuiprof.session.run.source`).

    Attributes:
        script: Name of the script's file.
        digests: SHA-256 of it, and of the files that belong to it, by their paths beside it.
        kept: Those whose text lies in ``source/``; empty = only the digests were kept.
    """

    script: str
    digests: dict[str, str] = {}
    kept: list[str] = []


class SessionMeta(msgspec.Struct):
    """``session.json``.

    Attributes:
        v: Schema version.
        name: What the session is called.
        argv: The command as given.
        cwd: Where it ran.
        unix_ns: Unix time at ``mono_ns``: when the session was made.
        mono_ns: Monotonic time at which the session was made: the origin of session time.
        boot: The kernel's boot identity, whose monotonic clock that is.
        host: Host name.
        python: The interpreter that ran the script; empty = the script is not Python.
        scenario: The scenario, if it was one.
        capture: The capture asked for at the start, if any.
        devices: What the recorder samples, in panel order.
        absent: Telemetry backends that found nothing, by name, and why.
        versions: Versions of tuiprof and its Python.
        git: State of the checkout in ``cwd``; None = not a checkout.
        attached: The processes that were entered while they ran; empty = the command was started for this session.
        source: The script; None = the command runs no Python file, or an earlier tuiprof wrote this.
    """

    v: int
    name: str
    argv: list[str]
    cwd: str
    unix_ns: UnixNs
    mono_ns: Whole
    boot: str = ""
    host: str = ""
    python: str = ""
    scenario: Scenario | None = None
    capture: CaptureRequest | None = None
    devices: list[DeviceMeta] = []
    absent: dict[str, str] = {}
    versions: dict[str, str] = {}
    git: Git | None = None
    attached: list[Whole] = []
    source: Source | None = None
