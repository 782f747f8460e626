"""Lightning's manual optimization with two optimizers, after its GAN: one batch is one step."""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
        self.discriminator = nn.Sequential(
            nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid()
        )

    def training_step(self, batch, batch_idx):
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        ones, zeros = torch.ones(len(real), 1).to(real), torch.zeros(len(real), 1).to(real)
        loss_g = nn.functional.binary_cross_entropy(
            self.discriminator(self.generator(torch.randn(len(real), 16, device=self.device))), ones
        )
        optimizer_g.zero_grad()
        self.manual_backward(loss_g)
        optimizer_g.step()
        fake = self.generator(torch.randn(len(real), 16, device=self.device)).detach()
        loss_d = nn.functional.binary_cross_entropy(self.discriminator(real), ones)
        loss_d = (loss_d + nn.functional.binary_cross_entropy(self.discriminator(fake), zeros)) / 2
        optimizer_d.zero_grad()
        self.manual_backward(loss_d)
        optimizer_d.step()
        self.last = loss_d.item()

    def configure_optimizers(self):
        return torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(
            self.discriminator.parameters()
        )


L.seed_everything(0, verbose=False)
gan = GAN()
trainer = L.Trainer(
    max_epochs=2,
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)  # the clock: of_lightning(trainer)
trainer.fit(gan, DataLoader(TensorDataset(torch.randn(1600, 32)), batch_size=16))
print("steps", trainer.global_step // 2)
print("loss", f"{gan.last:.12f}")
