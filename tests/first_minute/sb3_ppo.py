"""Stable-Baselines3's quick start, PPO on CartPole: a step is an optimizer step on a minibatch, between rollouts."""

import torch
from stable_baselines3 import PPO

torch.set_num_threads(1)
model = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=256, batch_size=32, n_epochs=4, seed=0, device="cpu", verbose=0
)  # the clock: of_optimizer(model.policy.optimizer)
model.learn(total_timesteps=1024)
print("steps", model._n_updates * (256 // 32))
print("loss", f"{sum(p.sum().item() for p in model.policy.parameters()):.9f}")
