"""How figures are named and shown."""

from __future__ import annotations

import pytest

from tuiprof.telemetry.figures import FIGURES, HEADLINE, figure, headline, show


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("power_w", 611.4, "611 W"),
        ("temp_c", 58.0, "58 °C"),
        ("sm_clock_hz", 1.98e9, "1980 MHz"),
        ("util", 0.94, "94.0 %"),
        ("pcie_rx_bytes_per_s", 3 * 2**30, "3.00 GiB/s"),
        ("latency_p50_ns", 95367.4, "95.4 µs"),
        ("flops_per_s", 38.2e12, "38.2 TFLOP/s"),
        ("tree_cpu", 1.12, "112 %"),
        ("power_w", None, "–"),
    ],
)
def test_show(key: str, value: float | None, text: str) -> None:
    assert show(key, value) == text


def test_families_take_their_number() -> None:
    assert figure("core17_util").label == "core 17"
    assert figure("pid4711_mem_used_bytes").kind == "bytes"


def test_unknown_key_is_shown_as_named() -> None:
    assert figure("wafer_temp").label == "wafer temp"
    assert show("wafer_temp", 3.0) == "3.00"


def test_headline_passes_over_what_is_missing() -> None:
    assert headline("nvidia", ["temp_c", "util", "processes"]) == ["util", "temp_c"]
    assert headline("third-party", ["b", "a"]) == ["b", "a"]
    assert all(key in FIGURES for keys in HEADLINE.values() for key in keys)
