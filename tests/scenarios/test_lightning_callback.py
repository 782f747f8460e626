"""The callback that readers paste into their own training: with Lightning itself."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from forked import ForkedPython
from scripts import SCENARIOS

pytestmark = pytest.mark.timeout(300)

TRAINING = """
import json, sys, warnings
warnings.simplefilter("ignore")
import lightning.pytorch as pl, torch
from lightning_callback import NaNCapture
from torch import nn

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.losses, self.inputs = [], []
    def training_step(self, batch, index):
        x, divisor = batch
        self.inputs.append(x.clone())
        logits = self.net(x)
        loss = logits.square().mean() * divisor[0] / divisor[0]  # 0 / 0 in one batch
        self.losses.append(float(logits.detach().sum()))
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)

def trainer(callback):
    return pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False,
                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)

torch.manual_seed(0)
x, divisor = torch.randn(48, 4), torch.ones(48)
divisor[20:24] = 0  # the sixth batch of four
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, divisor), batch_size=4)
first, module = NaNCapture("nan.pt"), Module()
trainer(first).fit(module, loader)
saved = torch.load("nan.pt", weights_only=True)

other = Module()
torch.manual_seed(99)
second = NaNCapture("again.pt", replay="nan.pt")
trainer(second).fit(other, loader)
print(json.dumps({
    "found": [first.found, second.found],
    "steps": [len(module.losses), len(other.losses)],
    "same logits": module.losses[5] == other.losses[0],
    "same batch": torch.equal(other.inputs[0], x[20:24]),
    "sound weights": all(bool(value.isfinite().all()) for value in saved["model"].values()),
    "weights kept": all(bool(value.isfinite().all()) for value in module.state_dict().values()
                        if value.is_floating_point() and value.dim() == 2),
}))
"""


def test_a_nan_is_captured_and_comes_back_in_the_first_step_of_a_second_run(
    tmp_path: Path, forked: ForkedPython
) -> None:
    for package in ("torch", "lightning", "numpy"):
        pytest.importorskip(package)
    shutil.copy(SCENARIOS / "nan_capture/lightning_callback.py", tmp_path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "training.py").write_text(TRAINING)
    status, out, err = forked.run(tmp_path / "training.py", env=environment, cwd=tmp_path)
    assert status == 0, err
    assert "batch 5: a gradient is NaN; the step is in nan.pt" in out
    assert json.loads(out.splitlines()[-1]) == {
        "found": [5, 0],
        "steps": [6, 1],
        "same logits": True,
        "same batch": True,
        "sound weights": True,
        "weights kept": True,
    }
