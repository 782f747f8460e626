"""REINFORCE on CartPole, after PyTorch's examples: an episode is played by the model, then one optimizer step."""

import gymnasium
import torch
from torch import nn
from torch.distributions import Categorical

env = gymnasium.make("CartPole-v1")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(543)
policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2), nn.Softmax(dim=-1))
policy.to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
episodes = 80
for episode in range(episodes):
    state, _ = env.reset(seed=episode)
    log_probs, rewards, done = [], [], False
    while not done:
        action = Categorical(policy(torch.from_numpy(state).float().unsqueeze(0).to(device)))
        choice = action.sample()
        log_probs.append(action.log_prob(choice))
        state, reward, terminated, truncated, _ = env.step(choice.item())
        rewards.append(reward)
        done = terminated or truncated
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns, device=device)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    optimizer.zero_grad()
    loss = -(torch.cat(log_probs) * returns).sum()
    loss.backward()
    optimizer.step()  # the clock: tick()
print("steps", episodes)
print("loss", f"{loss.item():.9f}")
