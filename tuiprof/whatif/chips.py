"""Limits of chips: memory bandwidth, link to the host, and dense arithmetic at nominal clocks.

Figures are the manufacturers', without sparsity, for one chip:

- NVIDIA H100 SXM: "NVIDIA H100 Tensor Core GPU Architecture" (white paper, 2023), table 2; H100 PCIe the same table.
- NVIDIA H200 SXM: "NVIDIA H200 Tensor Core GPU" datasheet (2024), halved where it states figures with sparsity.
- NVIDIA A100 SXM 40 and 80 GB: "NVIDIA A100 Tensor Core GPU" datasheet (2021).
- NVIDIA L4: "NVIDIA L4 Tensor Core GPU" datasheet (2023), halved where it states figures with sparsity.
- NVIDIA A40: "NVIDIA A40" datasheet (2022).
- NVIDIA L40S: "NVIDIA L40S" datasheet (2023).
- NVIDIA V100: "NVIDIA V100 Tensor Core GPU" datasheet (2020). NVIDIA T4: "NVIDIA Tesla T4" product brief (2020).
- AMD MI300X: "AMD Instinct MI300X Accelerator" data sheet (2023).
- Google TPU v5e: cloud.google.com/tpu/docs/v5e; int8 is twice the bfloat16 figure (the page has said 393 and 394).
- AWS Inferentia2: "Inferentia2 Architecture" in the Neuron documentation; one chip is two NeuronCores-v2.

A chip at lower clocks (power, temperature) cannot reach these figures, and no measured chip exceeds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Chip:
    """The limits of one chip."""

    name: str
    bytes_per_s: float  # memory bandwidth
    #: Dense arithmetic operations per second by type; a multiply-add is two. ``"float32"`` is outside matrix units,
    #: ``"tfloat32"``, ``"bfloat16"``, ``"float16"`` (on chips without bfloat16) and ``"int8"`` use them; ``"float64"``
    #: is the faster of both, omitted if it is 1/32 of float32 or less.
    operations_per_s: Mapping[str, float]
    link_bytes_per_s: float  # bandwidth of the host link in one direction


#: One direction of an x16 link, GB/s: half of the datasheets' figure for both.
_PCIE_3, _PCIE_4, _PCIE_5 = 16.0, 32.0, 64.0


def _chip(name: str, gb_per_s: float, link_gb_per_s: float, **tera_per_s: float) -> Chip:
    """Return a chip from GB/s and 10¹² operations per second."""
    rates = {kind: tera * 1e12 for kind, tera in tera_per_s.items()}
    return Chip(name, gb_per_s * 1e9, rates, link_gb_per_s * 1e9)


#: Pattern of the driver's name → chip; the first match counts.
_CHIPS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), chip)
    for pattern, chip in (
        (
            r"\bH200\b(?! NVL)",
            _chip(
                "NVIDIA H200 SXM",
                4800,
                _PCIE_5,
                float64=66.9,
                float32=66.9,
                tfloat32=494.7,
                bfloat16=989.4,
                int8=1978.9,
            ),
        ),
        (
            r"\bH100 PCIe",
            _chip(
                "NVIDIA H100 PCIe",
                2039,
                _PCIE_5,
                float64=51.2,
                float32=51.2,
                tfloat32=378,
                bfloat16=756,
                int8=1513,
            ),
        ),
        (
            r"\bH100\b(?! NVL)",
            _chip(
                "NVIDIA H100 SXM",
                3352,
                _PCIE_5,
                float64=66.9,
                float32=66.9,
                tfloat32=494.7,
                bfloat16=989.4,
                int8=1978.9,
            ),
        ),
        (
            r"\bA100\b.*40GB",
            _chip(
                "NVIDIA A100 40 GB",
                1555,
                _PCIE_4,
                float64=19.5,
                float32=19.5,
                tfloat32=156,
                bfloat16=312,
                int8=624,
            ),
        ),
        (
            r"\bA100 80GB PCIe",
            _chip(
                "NVIDIA A100 PCIe 80 GB",
                1935,
                _PCIE_4,
                float64=19.5,
                float32=19.5,
                tfloat32=156,
                bfloat16=312,
                int8=624,
            ),
        ),
        (
            r"\bA100\b",
            _chip(
                "NVIDIA A100 80 GB",
                2039,
                _PCIE_4,
                float64=19.5,
                float32=19.5,
                tfloat32=156,
                bfloat16=312,
                int8=624,
            ),
        ),
        (
            r"\bL40S\b",
            _chip("NVIDIA L40S", 864, _PCIE_4, float32=91.6, tfloat32=183, bfloat16=362.05, int8=733),
        ),
        (r"\bL4\b", _chip("NVIDIA L4", 300, _PCIE_4, float32=30.3, tfloat32=60, bfloat16=121, int8=242.5)),
        (
            r"\bA40\b",
            _chip("NVIDIA A40", 696, _PCIE_4, float32=37.4, tfloat32=74.8, bfloat16=149.7, int8=299.3),
        ),
        (r"\bV100-PCI", _chip("NVIDIA V100 PCIe", 900, _PCIE_3, float64=7, float32=14, float16=112)),
        (r"\bV100\b", _chip("NVIDIA V100 SXM2", 900, _PCIE_3, float64=7.8, float32=15.7, float16=125)),
        (r"\bT4\b", _chip("NVIDIA T4", 320, _PCIE_3, float32=8.1, float16=65, int8=130)),
        (
            r"\bMI300X\b",
            _chip(
                "AMD Instinct MI300X",
                5300,
                _PCIE_5,
                float64=163.4,
                float32=163.4,
                tfloat32=653.7,
                bfloat16=1307.4,
                int8=2614.9,
            ),
        ),
        (r"\bTPU v5 ?(lite|e)", _chip("Google TPU v5e", 819, _PCIE_4, bfloat16=197, int8=394)),
        (
            r"\binf(erentia)?2\b",
            _chip("AWS Inferentia2", 820 * 1.073741824, _PCIE_4, float32=47.5, bfloat16=190, int8=380),
        ),
    )
)


def find_chip(device: str) -> Chip | None:
    """Return the chip that the driver or the framework calls ``"NVIDIA H200"``, ``"TPU v5 lite"``, …"""
    return next((chip for pattern, chip in _CHIPS if pattern.search(device)), None)


def link_bytes_per_s(device: str) -> float:
    """Return the bandwidth of the host link in one direction; PCIe 4 if the chip is unknown."""
    chip = find_chip(device)
    return chip.link_bytes_per_s if chip is not None else _PCIE_4 * 1e9
