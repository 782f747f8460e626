"""Proximal policy optimization in one file, after CleanRL: rollouts, then epochs over minibatches."""

import torch
from torch import nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, x, action=None):
        distribution = Categorical(logits=self.actor(x))
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(x).squeeze(-1)


torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
observation = torch.randn(8, 4)
steps = 0
for _update in range(8):
    rollout = []
    for _ in range(64):
        with torch.no_grad():
            action, log_prob, _, value = agent(observation)
        after = torch.randn(8, 4) + 0.1 * action[:, None]
        rollout.append((observation, action, log_prob, value, after.sum(1)))
        observation = after
    observations, actions, log_probs, values, rewards = (torch.cat(one) for one in zip(*rollout, strict=True))
    advantages = rewards - values
    for _epoch in range(4):
        for indices in torch.randperm(512).split(64):
            _, log_prob, entropy, value = agent(observations[indices], actions[indices])
            ratio = (log_prob - log_probs[indices]).exp()
            gain = torch.min(ratio * advantages[indices], ratio.clamp(0.8, 1.2) * advantages[indices])
            loss = -gain.mean() + 0.5 * (value - rewards[indices]).square().mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.12f}")
