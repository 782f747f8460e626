"""What the probe switches in a trial of ``tuiprof fix --try``, and what it leaves as the script has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from probe_runs import Run

pytest.importorskip("torch")

LOADER = """
import json, torch, tuiprof
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Items(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((2,), float(i))

class Stream(IterableDataset):
    def __iter__(self): return iter(range(4))

made = {
    "default": DataLoader(Items(), 4),
    "by position": DataLoader(Items(), 4, False, None, None, 0),
    "given": DataLoader(Items(), batch_size=4, num_workers=1),
    "stream": DataLoader(Stream()),
}
read = [batch.sum().item() for batch in made["default"]]
tuiprof.step()
tuiprof.step()
print(json.dumps({"workers": {name: loader.num_workers for name, loader in made.items()}, "read": read,
                  "pinned": made["default"].pin_memory}))
"""

OPTIMIZERS = """
import json, torch, tuiprof
weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
made = {
    "adamw": torch.optim.AdamW(w for w in weights),
    "loop": torch.optim.Adam(weights, foreach=False),
    "given": torch.optim.AdamW(weights, fused=False),
    "not fusible": torch.optim.AdamW(torch.nn.Parameter(torch.empty(3, device="meta")) for _ in range(2)),
    "none": torch.optim.RMSprop(weights),
    "grouped": torch.optim.SGD([{"params": (w for w in weights), "lr": 0.1}]),
}
sum((w * 2).sum() for w in weights).backward()
made["adamw"].step()
tuiprof.step()
tuiprof.step()
print(json.dumps({name: made[name].defaults.get("fused") for name in made}
                 | {"groups": len(made["adamw"].param_groups[0]["params"]), "moved": weights[0].tolist()[0] < 1,
                    "precision": torch.get_float32_matmul_precision()}))
"""

METRICS = """
import json, torch, torchmetrics, tuiprof
from torchmetrics import SumMetric
made = {"mean": torchmetrics.MeanMetric(), "warn": SumMetric("warn"), "imputed": SumMetric(0.0)}
for metric in made.values():
    metric.update(torch.tensor([1.0, 2.0]))
tuiprof.step()
tuiprof.step()
print(json.dumps({name: [metric.nan_strategy, metric.compute().item()] for name, metric in made.items()}))
"""


def said(run: Run) -> dict[str, Any]:
    assert run.code == 0, run.err
    result: dict[str, Any] = json.loads(run.out.splitlines()[-1])
    return result


def notes(run: Run) -> list[str]:
    from tuiprof.session.log import records

    return sorted(note.text for note in run.of(records.Note))


def test_loader_workers(run: Callable[..., Run]) -> None:
    trial = run(LOADER, TUIPROF_TRY="loader_workers=2")
    ordinary = run(LOADER)
    assert said(trial)["workers"] == {"default": 2, "by position": 2, "given": 1, "stream": 0}
    assert said(ordinary)["workers"] == {"default": 0, "by position": 0, "given": 1, "stream": 0}
    assert said(trial)["read"] == said(ordinary)["read"]
    assert "trial: DataLoader(num_workers=2)" in notes(trial)
    assert not any(note.startswith("trial") for note in notes(ordinary))


def test_memory_is_pinned_only_for_a_device(run: Callable[..., Run]) -> None:
    import torch

    trial = run(LOADER, TUIPROF_TRY="pin_memory=1")
    assert said(trial)["pinned"] == torch.cuda.is_available()
    assert any(note.startswith("trial") for note in notes(trial)) == torch.cuda.is_available()


def test_fused_optimizers_and_precision(run: Callable[..., Run]) -> None:
    trial = run(OPTIMIZERS, TUIPROF_TRY="fused_optimizer=1,matmul_precision=high")
    fused = {"adamw": True, "loop": True, "given": False, "not fusible": None, "none": None, "grouped": True}
    assert said(trial) == fused | {"groups": 2, "moved": True, "precision": "high"}
    assert {"trial: Adam(fused=True)", "trial: AdamW(fused=True)"} <= set(notes(trial))
    ordinary = run(OPTIMIZERS)
    assert said(ordinary)["adamw"] is None
    assert said(ordinary)["precision"] == "highest"


def test_metrics_without_their_check(run: Callable[..., Run]) -> None:
    pytest.importorskip("torchmetrics")
    trial = run(METRICS, TUIPROF_TRY="nan_strategy=disable")
    assert said(trial) == {"mean": ["disable", 1.5], "warn": ["disable", 3.0], "imputed": [0.0, 3.0]}
    assert said(run(METRICS)) == {"mean": ["warn", 1.5], "warn": ["warn", 3.0], "imputed": [0.0, 3.0]}
    assert 'trial: MeanMetric(nan_strategy="disable")' in notes(trial)
