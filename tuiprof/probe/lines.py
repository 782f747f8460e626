"""Tuples to JSON lines, with the fields of ``tuiprof/session/log.py``."""

from __future__ import annotations

import math
from json import dumps
from typing import Any

from . import steps as kind

#: Kind of a tuple whose second item holds all fields of the line, ``t`` and ``at`` included.
RECORD = "r"

_FORMS: dict[tuple[str, ...], str] = {}  # names of the phases of a step -> its line
_MOST_FORMS = 1000


def step_line(
    n: int, at: int, dur: int, phases: dict[str, int], metrics: dict[str, float] | None, captured: bool
) -> str:
    """Return the JSON line of a step, newline included."""
    names = tuple(phases)
    form = _FORMS.get(names) or _form(names)
    text = form % (n, at, dur, *phases.values())
    if metrics:
        text += f',"v":{dumps(metrics)}'
    return text + (',"cap":true}\n' if captured else "}\n")


def _form(names: tuple[str, ...]) -> str:
    """Return the line of a step with these phases, numbers left open; nearly all steps of a script have the same."""
    form = '{"t":"step","n":%d,"at":%d,"dur":%d'
    if names:
        form += ',"ph":{' + ",".join([dumps(str(name)).replace("%", "%%") + ":%d" for name in names]) + "}"
    if len(_FORMS) < _MOST_FORMS:
        _FORMS[names] = form
    return form


def line(item: tuple[Any, ...]) -> str:
    """Return the JSON line of one tuple, newline included.

    Args:
        item: Kind first: ``DEVICE, n, dur, every`` · ``MEMORY, at, device, allocated, reserved, peak`` ·
            ``USES, at, device, uuid, pci`` · ``COST, at, steps, ns, flush_ns`` · ``SLOWER, at, slowdown`` ·
            ``CAPTURE, fields`` ·
            ``RECORD, fields`` · ``NOTE, at, level, text``. Times in ns, sizes in bytes.
    """
    what = item[0]
    if what == kind.DEVICE:
        every = f',"every":{item[3]}' if item[3] > 1 else ""
        return f'{{"t":"dev","n":{item[1]},"dur":{item[2]}{every}}}\n'
    if what == kind.MEMORY:
        _, at, device, allocated, reserved, peak = item
        return f'{{"t":"mem","at":{at},"dev":{device},"alloc":{allocated},"reserved":{reserved},"peak":{peak}}}\n'
    if what == kind.COST:
        _, at, steps, ns, flush_ns = item
        return f'{{"t":"cost","at":{at},"steps":{steps},"ns":{ns},"flush_ns":{flush_ns}}}\n'
    if what == kind.SLOWER:
        _, at, found = item
        steps = {"first": found.first, "last": found.last}
        times = {"before": round(found.before_ns), "after": round(found.after_ns)}
        return dumps({"t": "slower", "at": at, **steps, **times}) + "\n"
    if what == kind.LINES:
        _, at, samples, seen, ns = item
        top, doing = [entry[:3] for entry in seen], [entry[3] for entry in seen]
        return (
            dumps({"t": "lines", "at": at, "samples": samples, "top": top, "doing": doing, "ns": ns}) + "\n"
        )
    if what == kind.USES:
        _, at, device, uuid, pci = item
        return dumps({"t": "uses", "at": at, "dev": device, "uuid": uuid, "pci": pci}) + "\n"
    if what == kind.CAPTURE:
        return dumps({"t": "capture", **item[1]}) + "\n"
    if what == RECORD:
        return dumps(item[1]) + "\n"
    _, at, level, text = item
    return dumps({"t": "note", "at": at, "level": level, "text": text}) + "\n"


def plain_numbers(metrics: dict[str, Any]) -> tuple[dict[str, float] | None, list[tuple[str, str]]]:
    """Return the metrics that can be written, and name and reason of the others.

    A device tensor is never read: that would make the host wait for the device.

    Args:
        metrics: What the script gave to ``tuiprof.step``.
    """
    good: dict[str, float] = {}
    bad: list[tuple[str, str]] = []
    for name, value in metrics.items():
        if type(value) is not float and type(value) is not int:
            device = getattr(value, "device", None)
            if device is not None and getattr(device, "type", device) != "cpu":
                bad.append((name, "it is on a device, and reading it would block the host"))
                continue
            try:
                value = float(value)
            except (TypeError, ValueError, RuntimeError):
                bad.append((name, f"a {type(value).__name__} is not a number"))
                continue
        if math.isfinite(value):
            good[name] = value
        else:
            bad.append((name, f"it is {value}"))
    return good or None, bad
