"""Which GPUs the environment of a run names."""

from __future__ import annotations

import pytest

from tuiprof.telemetry import Device, visible

UUIDS = ("GPU-0593d0f2-fa2c", "GPU-93127c69-b820", "GPU-93ff0000-1111", "GPU-aa000000-2222")


def nvidia(*names: str, **details: str) -> list[Device]:
    """Return GPUs in the monitor's order, whose PCI addresses run the other way."""
    return [
        Device(
            f"gpu{i}", "nvidia", name, None, {"uuid": UUIDS[i], "pci": f"0000:{0x90 - i:02x}:00", **details}
        )
        for i, name in enumerate(names)
    ]


ALIKE = nvidia(*["NVIDIA H200"] * 4)


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ("0", "gpu3"),
        ("3,2", "gpu0 gpu1"),
        (" 1 , 0", "gpu2 gpu3"),
        ("GPU-0593", "gpu0"),
        ("gpu-AA", "gpu3"),
        ("GPU-0593d0f2-fa2c,0", "gpu0 gpu3"),
        ("", ""),
        ("-1", ""),
        ("0,-1,1", "gpu3"),
        ("0,9,1", "gpu3"),
        ("0," + "1" * 5000, "gpu3"),  # longer than any number that Python reads
        ("0" * 5000 + "1", "gpu2"),
        ("GPU-93", ""),  # two begin like this
        ("MIG-GPU-0593d0f2-fa2c/1/0", "gpu0"),
    ],
)
def test_cuda_counts_by_pci_address_and_ends_at_what_fits_none(wanted: str, keys: str) -> None:
    assert visible(ALIKE, {"CUDA_VISIBLE_DEVICES": wanted}) == set(keys.split())


def test_nothing_set_tells_nothing() -> None:
    assert visible(ALIKE, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) is None
    assert visible([Device("host", "host", "CPU")], {"CUDA_VISIBLE_DEVICES": "0"}) is None


def test_among_different_gpus_a_number_tells_only_in_the_order_of_the_bus() -> None:
    mixed = nvidia("NVIDIA H200", "NVIDIA T4")
    assert visible(mixed, {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert visible(mixed, {"CUDA_VISIBLE_DEVICES": UUIDS[1]}) == {"gpu1"}
    in_order = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible(mixed, in_order) == {"gpu1"}


def test_instances_of_a_divided_gpu_are_named_and_not_counted() -> None:
    divided = nvidia("NVIDIA H200", "NVIDIA H200", mig="on")
    divided[1].details["mig_uuids"] = "MIG-1111,MIG-2222"  # type: ignore[index]
    assert visible(divided, {"CUDA_VISIBLE_DEVICES": "MIG-2222"}) == {"gpu1"}
    assert visible(divided, {"CUDA_VISIBLE_DEVICES": "0"}) is None


@pytest.mark.parametrize(
    ("env", "keys"),
    [
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, "amd1 amd2"),
        ({"HIP_VISIBLE_DEVICES": "2"}, "amd2"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "amd0"),
        ({"ROCR_VISIBLE_DEVICES": "2,GPU-abc1", "HIP_VISIBLE_DEVICES": "1"}, "amd1"),
    ],
)
def test_rocm_counts_what_its_runtime_left(env: dict[str, str], keys: str) -> None:
    gpus = [Device(f"amd{i}", "amd", "MI300X", None, {"uuid": f"GPU-abc{i}"}) for i in range(3)]
    assert visible(gpus, env) == set(keys.split())
