"""Limits of chips: memory bandwidth, link to the host, and dense arithmetic at nominal clocks.

Figures are the manufacturers', without sparsity, for one device as the system shows it:

- NVIDIA H100 SXM and PCIe: "NVIDIA H100 Tensor Core GPU Architecture" (white paper, 2023), table 2. H100 NVL: "NVIDIA
  H100 Tensor Core GPU" datasheet (2024). H200 SXM and NVL: "NVIDIA H200 Tensor Core GPU" datasheet (2024). GH200:
  "NVIDIA GH200 Grace Hopper Superchip" datasheet (2023); it computes like an H100 SXM. H20: as sellers state it.
- NVIDIA B200 and GB200: "NVIDIA Blackwell" datasheet (2024), per GPU; an HGX B200 has 62 TB/s for eight.
- NVIDIA A100 SXM 40 and 80 GB, A100 PCIe: "NVIDIA A100 Tensor Core GPU" datasheet (2021). A30, A10, A40, RTX A6000:
  their datasheets (2021 and 2022). A10G: its datasheet, which Amazon publishes for the G5 instances.
- NVIDIA L4, L40S: their datasheets (2023). RTX 6000 Ada, RTX 4090: "NVIDIA Ada GPU Architecture" (white paper, 2023).
  RTX 3090: "NVIDIA Ampere GA102 GPU Architecture" (white paper, 2021). RTX 5090: "NVIDIA RTX Blackwell GPU
  Architecture" (white paper, 2025). bfloat16 accumulates in float32, which is half as fast on GeForce.
- NVIDIA V100: "NVIDIA V100 Tensor Core GPU" datasheet (2020). T4: "NVIDIA Tesla T4" product brief (2020).
- AMD MI250X: data sheet (2021); a device is one of its two dies. MI300X and MI325X: data sheets (2023 and 2024).
- Google TPU v4, v5e, v5p, v6e: docs.cloud.google.com/tpu; int8 on v5e is twice the bfloat16 figure (its page has said
  393 and 394), and on v4 the same as bfloat16.
- AWS Inferentia2 and Trainium: their architecture pages in the Neuron documentation; a chip is two NeuronCores-v2.

Datasheets that state figures with sparsity are halved. A chip at lower clocks (power, temperature) cannot reach these
figures, and no measured chip exceeds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Pattern of the name that the driver or the framework gives (the first match counts), name, memory bandwidth and
#: one direction of the link to the host in GB/s (x16 links of PCIe 3, 4 and 5: 16, 32 and 64), and 10¹² operations per
#: second by type; a multiply-add is two. float32 is without matrix units. float64 is the faster of both, and absent
#: where it is 1/32 of float32 or less. float16 stands for bfloat16 on chips that have none.
_TABLE: Final = r"""
pattern                 name                    memory  link  float64  float32  tfloat32  bfloat16  float16    int8
H200 NVL                NVIDIA H200 NVL           4800    64       60       60     417.5     835.5        -  1670.5
GH200 480GB             NVIDIA GH200              4000   450     66.9     66.9     494.7     989.4        -  1978.9
GH200\b                 NVIDIA GH200 HBM3e        4900   450     66.9     66.9     494.7     989.4        -  1978.9
H200\b                  NVIDIA H200 SXM           4800    64     66.9     66.9     494.7     989.4        -  1978.9
H100 NVL                NVIDIA H100 NVL           3900    64       60       60     417.5     835.5        -  1670.5
H100 PCIe               NVIDIA H100 PCIe          2039    64     51.2     51.2       378       756        -    1513
H100\b                  NVIDIA H100 SXM           3352    64     66.9     66.9     494.7     989.4        -  1978.9
H20\b                   NVIDIA H20                4000    64        -       44        74       148        -     296
GB200\b                 NVIDIA GB200              8000   450       40       80      1250      2500        -    5000
B200\b                  NVIDIA B200               7700    64       37       75      1100      2250        -    4500
A100\b.*40GB            NVIDIA A100 40 GB         1555    32     19.5     19.5       156       312        -     624
A100 80GB PCIe          NVIDIA A100 PCIe 80 GB    1935    32     19.5     19.5       156       312        -     624
A100\b                  NVIDIA A100 80 GB         2039    32     19.5     19.5       156       312        -     624
A30\b                   NVIDIA A30                 933    32     10.3     10.3        82       165        -     330
A40\b                   NVIDIA A40                 696    32        -     37.4      74.8     149.7        -   299.3
A10G\b                  NVIDIA A10G                600    32        -     31.5        35        70        -     140
A10\b                   NVIDIA A10                 600    32        -     31.2      62.5       125        -     250
RTX A6000\b             NVIDIA RTX A6000           768    32        -     38.7      77.4     154.8        -   309.7
L40S\b                  NVIDIA L40S                864    32        -     91.6       183    362.05        -     733
L4\b                    NVIDIA L4                  300    32        -     30.3        60       121        -   242.5
RTX 6000 Ada\b          NVIDIA RTX 6000 Ada        960    32        -     91.1     182.1     364.2        -   728.5
RTX 3090\b(?! Ti)       NVIDIA RTX 3090            936    32        -     35.6      35.6        71        -     284
RTX 4090\b(?!.*Laptop)  NVIDIA RTX 4090           1008    32        -     82.6      82.6     165.2        -   660.6
RTX 5090\b(?!.*Laptop)  NVIDIA RTX 5090           1792    64        -    104.8     104.8     209.5        -     838
V100-PCI                NVIDIA V100 PCIe           900    16        7       14         -         -      112       -
V100\b                  NVIDIA V100 SXM2           900    16      7.8     15.7         -         -      125       -
T4\b                    NVIDIA T4                  320    16        -      8.1         -         -       65     130
MI250X\b                AMD Instinct MI250X       1638    32     47.9     23.9         -     191.5        -   191.5
MI300X\b                AMD Instinct MI300X       5300    64    163.4    163.4     653.7    1307.4        -  2614.9
MI325X\b                AMD Instinct MI325X       6000    64    163.4    163.4     653.7    1307.4        -  2614.9
TPU v4\b                Google TPU v4             1200    16        -        -         -       275        -     275
TPU v5 ?(lite|e)        Google TPU v5e             819    32        -        -         -       197        -     394
TPU v5                  Google TPU v5p            2765    32        -        -         -       459        -     918
TPU v6 ?(lite|e)        Google TPU v6e            1638    64        -        -         -       918        -    1836
inf(erentia)?2\b        AWS Inferentia2         880.47    32        -     47.5         -       190        -     380
Trainium\b(?! ?[23])    AWS Trainium            880.47    32        -     47.5         -       190        -     380
"""
#: Where the chip is unknown: PCIe 4.
_UNKNOWN_LINK_BYTES_PER_S: Final = 32e9


@dataclass(frozen=True)
class Chip:
    """The limits of one chip."""

    name: str
    bytes_per_s: float  # memory bandwidth
    operations_per_s: Mapping[str, float]  # by type, as in the table above
    link_bytes_per_s: float  # bandwidth of the host link in one direction


def _read_table() -> list[tuple[re.Pattern[str], Chip]]:
    """Return each row's pattern and chip."""
    head, *rows = [re.split(r" {2,}", line) for line in _TABLE.strip().splitlines()]
    chips = []
    for pattern, name, memory, link, *figures in rows:
        rates = {
            kind: float(tera) * 1e12 for kind, tera in zip(head[4:], figures, strict=True) if tera != "-"
        }
        chip = Chip(name, float(memory) * 1e9, rates, float(link) * 1e9)
        chips.append((re.compile(rf"\b{pattern}", re.IGNORECASE), chip))
    return chips


_CHIPS: Final = _read_table()


def find_chip(device: str) -> Chip | None:
    """Return the chip that the driver or the framework calls ``"NVIDIA H200"``, ``"TPU v5 lite"``, …"""
    return next((chip for pattern, chip in _CHIPS if pattern.search(device)), None)


def link_bytes_per_s(device: str) -> float:
    """Return the bandwidth of the host link in one direction; PCIe 4 if the chip is unknown."""
    chip = find_chip(device)
    return chip.link_bytes_per_s if chip is not None else _UNKNOWN_LINK_BYTES_PER_S
