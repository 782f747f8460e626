"""WGAN-GP with DCGAN networks on 64x64 images: five critic iterations per generator iteration."""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.autograd as autograd
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
parser.add_argument("--steps", type=int, default=0, help="generator iterations, 0 for no limit")
parser.add_argument("--batch_size", type=int, default=4 if SMALL else 64)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--b1", type=float, default=0.0)
parser.add_argument("--b2", type=float, default=0.9)
parser.add_argument("--latent_dim", type=int, default=16 if SMALL else 128)
parser.add_argument("--features", type=int, default=8 if SMALL else 64)
parser.add_argument("--n_critic", type=int, default=5)
parser.add_argument("--lambda_gp", type=float, default=10.0)
parser.add_argument("--log_interval", type=int, default=10)
opt = parser.parse_args()
print(opt)

random.seed(999)
np.random.seed(999)
torch.manual_seed(999)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Faces(Dataset):
    """Cartoon faces: a skin coloured disc with two eyes and a mouth, stored as 80x80 uint8."""

    def __init__(self, n):
        rng = np.random.default_rng(7)
        yy, xx = np.mgrid[0:80, 0:80]
        self.images = np.empty((n, 80, 80, 3), dtype=np.uint8)
        for i in range(n):
            img = np.empty((80, 80, 3))
            img[:] = rng.uniform(0, 255, 3)
            cx, cy = rng.uniform(34, 46, 2)
            r = rng.uniform(20, 28)
            img[(xx - cx) ** 2 + (yy - cy) ** 2 < r**2] = rng.uniform(120, 255, 3)
            for side in (-1, 1):
                img[(xx - cx - side * r / 2.5) ** 2 + (yy - cy + r / 3) ** 2 < rng.uniform(4, 16)] = 20
            img[(np.abs(xx - cx) < r / 2) & (np.abs(yy - cy - r / 2) < rng.uniform(1, 3))] = (180, 30, 30)
            self.images[i] = img

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        img = self.images[index]
        top, left = np.random.randint(0, 17, 2)
        img = img[top : top + 64, left : left + 64]
        if random.random() > 0.5:
            img = np.fliplr(img)
        img = img.astype(np.float32) / 255.0
        img = (img - 0.5) / 0.5
        return torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1)))


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, (nn.BatchNorm2d, nn.InstanceNorm2d)):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.constant_(m.bias, 0)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()

        def block(i, o, k=4, s=2, p=1):
            return [nn.ConvTranspose2d(i, o, k, s, p, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]

        self.main = nn.Sequential(
            *block(nz, ngf * 8, 4, 1, 0),
            *block(ngf * 8, ngf * 4),
            *block(ngf * 4, ngf * 2),
            *block(ngf * 2, ngf),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Critic(nn.Module):
    def __init__(self, ndf):
        super().__init__()

        def block(i, o):
            return [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.InstanceNorm2d(o, affine=True), nn.LeakyReLU(0.2, inplace=True)]

        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            *block(ndf, ndf * 2),
            *block(ndf * 2, ndf * 4),
            *block(ndf * 4, ndf * 8),
            nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).view(-1)


def compute_gradient_penalty(D, real_samples, fake_samples):
    """Calculates the gradient penalty loss for WGAN GP"""
    alpha = torch.Tensor(np.random.random((real_samples.size(0), 1, 1, 1))).to(device)
    interpolates = (alpha * real_samples + ((1 - alpha) * fake_samples)).requires_grad_(True)
    d_interpolates = D(interpolates)
    fake = torch.ones(d_interpolates.size()).to(device)
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=fake,
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def infinite(loader):
    while True:
        for batch in loader:
            yield batch


def main():
    loader = DataLoader(Faces(200 if SMALL else 10_000), batch_size=opt.batch_size, shuffle=True,
                        num_workers=0 if SMALL else 4, drop_last=True)
    data = infinite(loader)

    generator = Generator(opt.latent_dim, opt.features).to(device)
    critic = Critic(opt.features).to(device)
    generator.apply(weights_init)
    critic.apply(weights_init)
    optimizer_G = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))
    optimizer_D = torch.optim.Adam(critic.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))

    ends, t_start, iteration = [], None, 0
    while True:
        # ---------------------
        #  Train the critic
        # ---------------------
        for p in critic.parameters():
            p.requires_grad = True
        for _ in range(opt.n_critic):
            real_imgs = next(data).to(device)
            optimizer_D.zero_grad()
            z = torch.randn(opt.batch_size, opt.latent_dim, 1, 1, device=device)
            fake_imgs = generator(z).detach()
            real_validity = critic(real_imgs)
            fake_validity = critic(fake_imgs)
            gradient_penalty = compute_gradient_penalty(critic, real_imgs, fake_imgs)
            d_loss = -torch.mean(real_validity) + torch.mean(fake_validity) + opt.lambda_gp * gradient_penalty
            d_loss.backward()
            optimizer_D.step()

        # ---------------------
        #  Train the generator
        # ---------------------
        for p in critic.parameters():
            p.requires_grad = False  # to avoid computation
        optimizer_G.zero_grad()
        z = torch.randn(opt.batch_size, opt.latent_dim, 1, 1, device=device)
        g_loss = -torch.mean(critic(generator(z)))
        g_loss.backward()
        optimizer_G.step()

        if iteration % opt.log_interval == 0:
            print(f"[Iter {iteration}] [D loss: {d_loss.item():f}] [G loss: {g_loss.item():f}] "
                  f"[GP: {gradient_penalty.item():f}]")
        iteration += 1

        ends.append(time.perf_counter())
        if iteration == 5:
            t_start = ends[-1]
        if opt.steps and iteration >= opt.steps:
            break
        if not opt.steps and t_start and ends[-1] - t_start > opt.seconds:
            break

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
