"""Which device the figures of a process stand beside."""

from __future__ import annotations

from typing import Any

import pytest

from tuiprof.session.live.fold import Fold
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import Memory, Telemetry, Uses
from tuiprof.session.store.meta import Clock, DeviceMeta, SessionMeta
from tuiprof.tui.live.view import device_views

GPUS = [DeviceMeta(f"gpu{i}", "nvidia", "NVIDIA H200", None, {"uuid": f"GPU-{i}{i}"}) for i in range(4)]
META = SessionMeta(1, "run", [], "/", 0, 0, devices=[DeviceMeta("host", "host", "CPU"), *GPUS])


def shown(others: str, *records: Any) -> dict[str, int]:
    """Return the allocated bytes shown, by device."""
    fold = Fold(Clock(META))
    readings = [Telemetry(1, device.key, {"util": 0.5}) for device in META.devices]
    fold.feed([Batch("recorder", readings), Batch("rank0", [*records])])
    views = device_views(fold, META.devices, fold.lead, frozenset(f"gpu{number}" for number in others))
    assert [view.key for view in views if view.foreign] == [f"gpu{number}" for number in others]
    assert views[-1].foreign or views[-1].key == "host"
    return {view.key: view.allocator[0] for view in views if view.allocator}


@pytest.mark.parametrize(
    ("others", "told", "keys"),
    [
        (
            "012",
            [Uses(1, 0, "33")],
            {
                "gpu3": 100,
            },
        ),
        ("012", [], {"gpu3": 100}),  # one device, one index
        ("", [], {"gpu0": 100}),  # counted as the monitor does, as far as is known
        ("01", [], {}),  # either
        ("", [Uses(1, 0, "22")], {"gpu2": 100}),
        ("", [Uses(1, 0, "of another machine")], {}),
    ],
)
def test_allocator_figures_stand_beside_the_device_they_are_of(
    others: str, told: list[Uses], keys: dict[str, int]
) -> None:
    assert shown(others, Memory(1, 0, 100, 200, 300), *told) == keys
