"""What the probe switches in a trial of ``tuiprof fix --try``, and what it leaves as the script has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from installed import needs
from probe_runs import Run

from tuiprof.session import log as records

needs("torch")

#: Everything that a trial may switch, in one script: most of what a case takes is the import of PyTorch.
SCRIPT = """
import importlib.util, json, torch, tuiprof
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Items(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((2,), float(i))

class Stream(IterableDataset):
    def __iter__(self): return iter(range(4))

loaders = {
    "default": DataLoader(Items(), 4),
    "by position": DataLoader(Items(), 4, False, None, None, 0),
    "given": DataLoader(Items(), batch_size=4, num_workers=1),
    "stream": DataLoader(Stream()),
}
read = [batch.sum().item() for batch in loaders["default"]]

weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
optimizers = {
    "adamw": torch.optim.AdamW(w for w in weights),
    "loop": torch.optim.Adam(weights, foreach=False),
    "given": torch.optim.AdamW(weights, fused=False),
    "not fusible": torch.optim.AdamW(torch.nn.Parameter(torch.empty(3, device="meta")) for _ in range(2)),
    "none": torch.optim.RMSprop(weights),
    "grouped": torch.optim.SGD([{"params": (w for w in weights), "lr": 0.1}]),
}
sum((w * 2).sum() for w in weights).backward()
optimizers["adamw"].step()

metrics = {}
if importlib.util.find_spec("torchmetrics"):
    from torchmetrics import MeanMetric, SumMetric
    metrics = {"mean": MeanMetric(), "warn": SumMetric("warn"), "imputed": SumMetric(0.0)}
    for metric in metrics.values():
        metric.update(torch.tensor([1.0, 2.0]))

tuiprof.step()
tuiprof.step()
print(json.dumps({
    "workers": {name: loader.num_workers for name, loader in loaders.items()},
    "read": read,
    "pinned": loaders["default"].pin_memory,
    "fused": {name: optimizer.defaults.get("fused") for name, optimizer in optimizers.items()},
    "groups": len(optimizers["adamw"].param_groups[0]["params"]),
    "moved": weights[0].tolist()[0] < 1,
    "precision": torch.get_float32_matmul_precision(),
    "metrics": {name: [metric.nan_strategy, metric.compute().item()] for name, metric in metrics.items()},
}))
"""
SWITCHES = "loader_workers=2,pin_memory=1,fused_optimizer=1,matmul_precision=high,nan_strategy=disable"


def test_a_trial_switches_what_the_script_leaves_open(run_forked: Callable[..., Run]) -> None:
    import torch

    (trial, noted), (ordinary, nothing) = (
        _printed(run_forked(SCRIPT, TUIPROF_TRY=it)) for it in (SWITCHES, "")
    )
    assert not nothing
    assert trial["workers"] == {"default": 2, "by position": 2, "given": 1, "stream": 0}
    assert ordinary["workers"] == {"default": 0, "by position": 0, "given": 1, "stream": 0}
    assert trial["read"] == ordinary["read"]
    assert any(note.startswith("trial: DataLoader(num_workers=2") for note in noted)

    fused = {"adamw": True, "loop": True, "given": False, "not fusible": None, "none": None, "grouped": True}
    assert trial["fused"] == fused
    assert ordinary["fused"]["adamw"] is None
    assert (trial["groups"], trial["moved"]) == (2, True)
    assert {"trial: Adam(fused=True)", "trial: AdamW(fused=True)"} <= noted
    assert (trial["precision"], ordinary["precision"]) == ("high", "highest")

    assert trial["pinned"] == torch.cuda.is_available(), "memory is pinned for a device only"
    assert any("pin_memory" in note for note in noted) == torch.cuda.is_available()

    if ordinary["metrics"]:
        assert ordinary["metrics"] == {"mean": ["warn", 1.5], "warn": ["warn", 3.0], "imputed": [0.0, 3.0]}
        assert trial["metrics"] == {
            "mean": ["disable", 1.5],
            "warn": ["disable", 3.0],
            "imputed": [0.0, 3.0],
        }
        assert 'trial: MeanMetric(nan_strategy="disable")' in noted


def _printed(run: Run) -> tuple[dict[str, Any], set[str]]:
    """Return what the script printed, and the notes of what was switched."""
    notes = {note.text for note in run.of(records.Note)}
    return json.loads(run.out.splitlines()[-1]), {text for text in notes if text.startswith("trial")}
