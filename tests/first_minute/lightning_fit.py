"""Lightning's autoencoder of "Lightning in 15 minutes", with validation and so with its two sanity-check batches."""

import argparse
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--profiler", default=None)
options = parser.parse_args()
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        x = x.view(x.size(0), -1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        x = x.view(x.size(0), -1)
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


L.seed_everything(0, verbose=False)
data = TensorDataset(torch.rand(1600, 1, 28, 28))
trainer = L.Trainer(
    max_epochs=options.epochs,
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    profiler=options.profiler,
)  # the clock: of_lightning(trainer)
trainer.fit(LitAutoEncoder(), DataLoader(data, batch_size=16), DataLoader(data, batch_size=80))
print("steps", trainer.global_step)
print("loss", f"{trainer.callback_metrics['train_loss'].item():.12f}")
if options.profiler == "simple":  # what Lightning itself measured, as shares of its epochs
    took = {key.rpartition(".")[2]: sum(times) for key, times in trainer.profiler.recorded_durations.items()}
    for phase, action in (
        ("data", "train_dataloader_next"),
        ("forward", "training_step"),
        ("backward", "backward"),
    ):
        print("phase", phase, f"{took[action] / took['run_training_epoch']:.4f}")
