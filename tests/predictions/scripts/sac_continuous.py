"""Soft actor-critic in one file, after CleanRL, on a small planar arm written in NumPy (no gym)."""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

SMALL = os.environ.get("SMALL") == "1"


class ReachEnv:
    """A six-joint planar arm that reaches for a target: 20 observations, 6 torques, 200 steps, 5 substeps each."""

    obs_dim, act_dim = 20, 6

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.lengths = np.full(6, 0.2)

    def _tip(self):
        angles = np.cumsum(self.q)
        return np.array([np.sum(self.lengths * np.cos(angles)), np.sum(self.lengths * np.sin(angles))])

    def _obs(self):
        return np.concatenate([np.cos(self.q), np.sin(self.q), self.dq * 0.1, self.goal]).astype(np.float32)

    def reset(self):
        self.q = self.rng.uniform(-1, 1, 6)
        self.dq = np.zeros(6)
        radius, angle = self.rng.uniform(0.3, 1.0), self.rng.uniform(-np.pi, np.pi)
        self.goal = radius * np.array([np.cos(angle), np.sin(angle)])
        self.t, self.ret = 0, 0.0
        return self._obs()

    def step(self, action):
        action = np.clip(action, -1.0, 1.0)
        for _ in range(5):
            inertia = 0.1 + 0.05 * np.cos(np.subtract.outer(self.q, self.q)) + 0.2 * np.eye(6)
            coriolis = 0.02 * np.sin(np.subtract.outer(self.q, self.q)) @ (self.dq**2)
            ddq = np.linalg.solve(inertia, 2.0 * action - 0.3 * self.dq - coriolis)
            self.dq = self.dq + 0.01 * ddq
            self.q = self.q + 0.01 * self.dq
        reward = -np.linalg.norm(self._tip() - self.goal) - 0.01 * np.sum(action**2)
        self.t += 1
        self.ret += reward
        truncated = self.t >= 200
        info = {"episode": {"r": self.ret, "l": self.t}} if truncated else {}
        return self._obs(), reward, False, truncated, info


class ReplayBuffer:
    def __init__(self, size, obs_dim, act_dim, device):
        self.size, self.device, self.pos, self.full = size, device, 0, False
        self.observations = np.zeros((size, obs_dim), dtype=np.float32)
        self.next_observations = np.zeros((size, obs_dim), dtype=np.float32)
        self.actions = np.zeros((size, act_dim), dtype=np.float32)
        self.rewards = np.zeros((size, 1), dtype=np.float32)
        self.dones = np.zeros((size, 1), dtype=np.float32)

    def add(self, obs, next_obs, action, reward, done):
        self.observations[self.pos] = obs
        self.next_observations[self.pos] = next_obs
        self.actions[self.pos] = action
        self.rewards[self.pos] = reward
        self.dones[self.pos] = done
        self.pos += 1
        if self.pos == self.size:
            self.full, self.pos = True, 0

    def sample(self, batch_size):
        inds = np.random.randint(0, self.size if self.full else self.pos, size=batch_size)
        data = (self.observations, self.actions, self.next_observations, self.dones, self.rewards)
        return tuple(map(self.to_torch, (array[inds] for array in data)))

    def to_torch(self, array):
        return torch.tensor(array, device=self.device)


class SoftQNetwork(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=256):
        super().__init__()
        self.fc1 = nn.Linear(obs_dim + act_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 1)

    def forward(self, x, a):
        x = torch.cat([x, a], 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


LOG_STD_MAX = 2
LOG_STD_MIN = -5


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=256):
        super().__init__()
        self.fc1 = nn.Linear(obs_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc_mean = nn.Linear(hidden, act_dim)
        self.fc_logstd = nn.Linear(hidden, act_dim)
        # action rescaling
        self.register_buffer("action_scale", torch.ones(act_dim))
        self.register_buffer("action_bias", torch.zeros(act_dim))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        mean = self.fc_mean(x)
        log_std = self.fc_logstd(x)
        log_std = torch.tanh(log_std)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)  # From SpinUp / Denis Yarats
        return mean, log_std

    def get_action(self, x):
        mean, log_std = self(x)
        std = log_std.exp()
        normal = torch.distributions.Normal(mean, std)
        x_t = normal.rsample()  # for reparameterization trick (mean + std * N(0,1))
        y_t = torch.tanh(x_t)
        action = y_t * self.action_scale + self.action_bias
        log_prob = normal.log_prob(x_t)
        # Enforcing Action Bound
        log_prob -= torch.log(self.action_scale * (1 - y_t.pow(2)) + 1e-6)
        log_prob = log_prob.sum(1, keepdim=True)
        mean = torch.tanh(mean) * self.action_scale + self.action_bias
        return action, log_prob, mean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many updates")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=1_000_000)
    parser.add_argument("--buffer-size", type=int, default=10_000 if SMALL else 1_000_000)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--tau", type=float, default=0.005)
    parser.add_argument("--batch-size", type=int, default=32 if SMALL else 256)
    parser.add_argument("--learning-starts", type=int, default=100 if SMALL else 5_000)
    parser.add_argument("--policy-lr", type=float, default=3e-4)
    parser.add_argument("--q-lr", type=float, default=1e-3)
    parser.add_argument("--policy-frequency", type=int, default=1)
    parser.add_argument("--target-network-frequency", type=int, default=1)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    env = ReachEnv(args.seed)
    obs_dim, act_dim = env.obs_dim, env.act_dim
    actor = Actor(obs_dim, act_dim).to(device)
    qf1 = SoftQNetwork(obs_dim, act_dim).to(device)
    qf2 = SoftQNetwork(obs_dim, act_dim).to(device)
    qf1_target = SoftQNetwork(obs_dim, act_dim).to(device)
    qf2_target = SoftQNetwork(obs_dim, act_dim).to(device)
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=args.q_lr)
    actor_optimizer = optim.Adam(list(actor.parameters()), lr=args.policy_lr)

    # Automatic entropy tuning
    target_entropy = -float(act_dim)
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    alpha = log_alpha.exp().item()
    a_optimizer = optim.Adam([log_alpha], lr=args.q_lr)

    rb = ReplayBuffer(args.buffer_size, obs_dim, act_dim, device)
    start_time = time.time()
    ends, t_start = [], None

    obs = env.reset()
    for global_step in range(args.total_timesteps):
        # ALGO LOGIC: put action logic here
        if global_step < args.learning_starts:
            actions = np.random.uniform(-1, 1, (1, act_dim))
        else:
            actions, _, _ = actor.get_action(torch.Tensor(obs[None]).to(device))
            actions = actions.detach().cpu().numpy()

        # TRY NOT TO MODIFY: execute the game and log data.
        next_obs, reward, terminated, truncated, info = env.step(actions[0])
        rb.add(obs, next_obs, actions[0], reward, terminated)
        obs = next_obs
        if terminated or truncated:
            if global_step % 1000 < 200:
                print(f"global_step={global_step}, episodic_return={info['episode']['r']:.2f}")
            obs = env.reset()

        # ALGO LOGIC: training.
        if global_step < args.learning_starts:
            continue
        observations, actions_b, next_observations, dones, rewards = rb.sample(args.batch_size)
        with torch.no_grad():
            next_state_actions, next_state_log_pi, _ = actor.get_action(next_observations)
            qf1_next_target = qf1_target(next_observations, next_state_actions)
            qf2_next_target = qf2_target(next_observations, next_state_actions)
            min_qf_next_target = torch.min(qf1_next_target, qf2_next_target) - alpha * next_state_log_pi
            next_q_value = rewards.flatten() + (1 - dones.flatten()) * args.gamma * (min_qf_next_target).view(-1)

        qf1_a_values = qf1(observations, actions_b).view(-1)
        qf2_a_values = qf2(observations, actions_b).view(-1)
        qf1_loss = F.mse_loss(qf1_a_values, next_q_value)
        qf2_loss = F.mse_loss(qf2_a_values, next_q_value)
        qf_loss = qf1_loss + qf2_loss

        # optimize the model
        q_optimizer.zero_grad()
        qf_loss.backward()
        q_optimizer.step()

        if global_step % args.policy_frequency == 0:  # TD 3 Delayed update support
            for _ in range(args.policy_frequency):  # compensate for the delay by doing 'actor_update_interval' instead of 1
                pi, log_pi, _ = actor.get_action(observations)
                qf1_pi = qf1(observations, pi)
                qf2_pi = qf2(observations, pi)
                min_qf_pi = torch.min(qf1_pi, qf2_pi)
                actor_loss = ((alpha * log_pi) - min_qf_pi).mean()

                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()

                with torch.no_grad():
                    _, log_pi, _ = actor.get_action(observations)
                alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()

                a_optimizer.zero_grad()
                alpha_loss.backward()
                a_optimizer.step()
                alpha = log_alpha.exp().item()

        # update the target networks
        if global_step % args.target_network_frequency == 0:
            for param, target_param in zip(qf1.parameters(), qf1_target.parameters()):
                target_param.data.copy_(args.tau * param.data + (1 - args.tau) * target_param.data)
            for param, target_param in zip(qf2.parameters(), qf2_target.parameters()):
                target_param.data.copy_(args.tau * param.data + (1 - args.tau) * target_param.data)

        if global_step % 100 == 0:
            print(
                f"step {global_step} qf1_values={qf1_a_values.mean().item():.3f} "
                f"qf2_values={qf2_a_values.mean().item():.3f} qf1_loss={qf1_loss.item():.4f} "
                f"qf2_loss={qf2_loss.item():.4f} qf_loss={qf_loss.item() / 2.0:.4f} "
                f"actor_loss={actor_loss.item():.4f} alpha={alpha:.4f} alpha_loss={alpha_loss.item():.4f} "
                f"SPS={int(global_step / (time.time() - start_time))}"
            )

        ends.append(time.perf_counter())
        if len(ends) == 5:
            t_start = ends[-1]
        if args.steps and len(ends) >= args.steps:
            break
        if not args.steps and t_start and ends[-1] - t_start > args.seconds:
            break

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
