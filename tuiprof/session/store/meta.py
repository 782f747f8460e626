"""Contents of ``session.json`` and of the requests to a running script."""

from __future__ import annotations

from typing import Final

import msgspec

from tuiprof.session.log.records import UnixNs, Whole

#: Total size of a session's traces above which a trigger starts no capture, bytes.
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
        visible: Whether the environment of the run (``CUDA_VISIBLE_DEVICES``, …) lets it use this device; None = not
            specified.
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
        steps: Number of steps.
        at: First step; None = as soon as possible.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
        seconds: Duration of a capture by time; None = it is counted in steps.
        after_s: Start of a capture by time, s after the framework was imported.
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
    """A condition that starts captures: the content of ``control/trigger-<id>.json``.

    Exactly one of ``above_ns``, ``times`` and ``every`` is given. A capture profiles the steps after the slow one,
    which is over by then.

    Attributes:
        id: Its name; captures are called ``<id>-1``, ``<id>-2``, ….
        steps: Steps per capture.
        above_ns: After a step longer than this, ns.
        times: After a step longer than this multiple of the median of the steps before it.
        every: At each step whose number is a multiple of this.
        cooldown_s: Minimum time from the end of one capture to the start of the next.
        budget_bytes: Limit of the session's traces in total; no capture is started that would exceed it.
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
    """The script as it was when the session was started (see :mod:`tuiprof.session.run.source`).

    Attributes:
        script: Name of the script's file.
        digests: SHA-256 of it, and of the files that belong to it, by their paths beside it.
        kept: Those whose text is in ``source/``; empty = only the digests were stored.
    """

    script: str
    digests: dict[str, str] = {}
    kept: list[str] = []


class SessionMeta(msgspec.Struct):
    """``session.json``.

    Attributes:
        v: Schema version.
        name: Name of the session.
        argv: The command as given.
        cwd: Working directory.
        unix_ns: Unix time at ``mono_ns``: when the session was made.
        mono_ns: Monotonic time at which the session was made: the origin of session time.
        boot: The kernel's boot id: monotonic times of one boot can be compared.
        host: Host name.
        python: The interpreter that ran the script; empty = the script is not Python.
        scenario: The scenario, if it was one.
        capture: The capture requested at the start, if any.
        devices: Devices that the recorder samples, in the order of the panel.
        absent: Telemetry backends that found no device: name to reason.
        versions: Versions of tuiprof and its Python.
        git: State of the checkout in ``cwd``; None = not a checkout.
        attached: Ids of the processes that tuiprof attached to; empty = it started the command itself.
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
