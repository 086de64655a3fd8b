"""Algorithm 1 of the paper once more, as plainly as it can be written: ordinary torch.nn layers and optimizers, one
network at a time, loops over steps and members, no stacks. Nothing of `bcppo` is used but the initial weights and the
random streams.

It is slow and for tests only: what it and `bcppo.algorithms.bcppo` agree on is not an accident of either.
"""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn

from bcppo.algorithms.batch import Batch
from bcppo.algorithms.bcppo import BCPPO
from bcppo.settings import BCPPOConfig
from bcppo.streams import Streams

STANDARD_NORMAL = NormalDist()


def network(arrays: dict[str, np.ndarray], index: int | None = None) -> nn.Sequential:
    """tanh layers with given weights [in, out] (of network `index`, where the arrays hold several)."""
    layers: list[nn.Module] = []
    for layer in range(sum(name.startswith("weight") for name in arrays)):
        weight, bias = arrays[f"weight{layer}"], arrays[f"bias{layer}"]
        if index is not None:
            weight, bias = weight[index], bias[index]
        linear = nn.Linear(*weight.shape)
        linear.weight.data = torch.tensor(weight.T.copy())
        linear.bias.data = torch.tensor(bias.copy())
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class PlainBCPPO:
    """One run, begun from the weights of a learner that has not been updated yet."""

    def __init__(self, config: BCPPOConfig, learner: BCPPO, streams: Streams) -> None:
        self.config = config
        self.minibatch_stream, self.mask_stream = streams.minibatches, streams.masks
        policy = learner.policy.arrays(0)
        self.log_std = nn.Parameter(torch.tensor(policy.pop("log_std")))
        self.mean = network(policy)
        self.value_reward, self.value_cost = (network(learner.values.arrays(0), i) for i in range(2))
        self.critics = [network(learner.signal.critics.arrays(0), i) for i in range(config.members)]
        self.actor_parameters = [*self.mean.parameters(), self.log_std]
        self.value_parameters = [*self.value_reward.parameters(), *self.value_cost.parameters()]
        self.critic_parameters = [p for critic in self.critics for p in critic.parameters()]
        self.adams = {
            id(group): torch.optim.Adam(group, lr=config.learning_rate)
            for group in (self.actor_parameters, self.value_parameters, self.critic_parameters)
        }
        self.multiplier = self.integral = 0.0
        self.previous_error: float | None = None
        self.seen: list[np.ndarray] = []

    # --- before anything: what the networks see ---

    def look(self, rows: Tensor) -> Tensor:
        """Observations by mean and sample standard deviation of all rollouts before this one."""
        if not (self.config.normalize_observations and self.seen):
            return rows
        past = np.concatenate(self.seen).astype(np.float64)
        scale = np.maximum(past.std(axis=0, ddof=1), 0.01)
        return torch.tensor(np.clip((rows.double().numpy() - past.mean(axis=0)) / scale, -5.0, 5.0)).float()

    # --- line 3: advantages and targets ---

    def advantages(self, signal: list[float], values: list[float], following: list[float], batch: Batch) -> np.ndarray:
        c = self.config
        terminated, ended = batch.terminated[0].tolist(), batch.ended[0].tolist()
        advantages, later = [0.0] * len(signal), 0.0
        for t in reversed(range(len(signal))):
            bootstrap = 0.0 if terminated[t] else c.discount * following[t]
            delta = signal[t] + bootstrap - values[t]
            later = delta + (0.0 if ended[t] else c.discount * c.trace_decay * later)
            advantages[t] = later
        return np.array(advantages)

    # --- line 4: the multiplier ---

    def control(self, mean_cost: float) -> float:
        c = self.config
        error = mean_cost - c.limit_rate
        if c.anti_windup:
            if self.multiplier == 0.0 and error > 0 and self.integral < 0:
                self.integral = 0.0
            if self.multiplier == c.multiplier_max and error < 0 and self.integral > 0:
                self.integral = 0.0
        integral = self.integral + error
        change = 0.0 if self.previous_error is None else error - self.previous_error
        candidate = (
            self.multiplier + c.proportional_gain * error + c.integral_gain * integral + c.derivative_gain * change
        )
        outward = (candidate < 0 and error < 0) or (candidate > c.multiplier_max and error > 0)
        if not (c.anti_windup and outward):
            self.integral = integral
        self.previous_error = error
        self.multiplier = min(max(candidate, 0.0), c.multiplier_max)
        return self.multiplier

    # --- lines 6 and 7: the penalty, by the unsimplified formula ---

    def penalty(self, predictions: Tensor) -> Tensor:
        """R_B of each row, from the members' predictions [M, B]."""
        c = self.config
        values = predictions.detach().double()
        mu = values.mean(0)
        sigma = ((values - mu) ** 2).mean(0).sqrt().clamp(min=c.disagreement_floor)
        if c.raw_disagreement:
            return sigma
        strike = mu + (STANDARD_NORMAL.inv_cdf(c.alpha) + c.kappa) * sigma
        d = ((mu - strike) / sigma).tolist()
        below = torch.tensor([STANDARD_NORMAL.cdf(x) for x in d], dtype=torch.float64)
        density = torch.tensor([STANDARD_NORMAL.pdf(x) for x in d], dtype=torch.float64)
        return (mu - strike) * below + sigma * density

    def hybrid(self, reward_advantage: Tensor, cost_advantage: Tensor, penalty: Tensor) -> Tensor:
        c = self.config

        def norm(x: Tensor) -> Tensor:
            return (x - x.mean()) / (x.std(correction=0) + 1e-8) if c.branch_normalization else x

        if c.bonus:
            return norm(reward_advantage + c.beta * penalty) - self.multiplier * norm(cost_advantage)
        return norm(reward_advantage) - self.multiplier * norm(cost_advantage + c.beta * penalty)

    # --- lines 8 to 11: gradient steps ---

    def log_prob(self, observation: Tensor, action: Tensor) -> Tensor:
        return torch.distributions.Normal(self.mean(observation), self.log_std.exp()).log_prob(action).sum(-1)

    def descend(self, loss: Tensor, group: list[nn.Parameter]) -> None:
        adam = self.adams[id(group)]
        adam.zero_grad()
        loss.backward()
        if self.config.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(group, self.config.max_grad_norm)
        adam.step()

    def update(self, batch: Batch) -> None:
        c = self.config
        observation, following = self.look(batch.observation[0]), self.look(batch.next_observation[0])
        self.seen.append(batch.observation[0].numpy())
        action, executed = batch.action[0], batch.executed[0]
        with torch.no_grad():
            values = [net(observation)[:, 0].tolist() for net in (self.value_reward, self.value_cost)]
            next_values = [net(following)[:, 0].tolist() for net in (self.value_reward, self.value_cost)]
            old_log_prob = self.log_prob(observation, action)
        costs, ends = batch.cost[0].tolist(), batch.terminated[0].tolist()
        rewards = (c.reward_scale * batch.reward[0]).tolist()
        reward_advantage = self.advantages(rewards, values[0], next_values[0], batch)
        cost_advantage = self.advantages(costs, values[1], next_values[1], batch)
        targets = [torch.tensor(a + v) for a, v in zip((reward_advantage, cost_advantage), values)]
        y = torch.tensor([cost + c.discount * (not end) * v for cost, end, v in zip(costs, ends, next_values[1])])
        self.control(sum(costs) / len(costs))

        rows_count = len(costs)
        for _ in range(c.epochs):
            order = self.minibatch_stream.permutation(rows_count)
            for start, stop in itertools.pairwise(range(0, rows_count + 1, c.minibatch)):
                rows = torch.from_numpy(order[start:stop])
                seen = torch.cat([observation[rows], executed[rows]], dim=1)
                predictions = torch.stack([critic(seen)[:, 0] for critic in self.critics])
                advantage = self.hybrid(
                    torch.tensor(reward_advantage)[rows], torch.tensor(cost_advantage)[rows], self.penalty(predictions)
                )
                ratio = torch.exp(self.log_prob(observation[rows], action[rows]) - old_log_prob[rows])
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - c.clip, 1 + c.clip) * advantage)
                entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
                self.descend(-surrogate.mean() - c.entropy_bonus * entropy, self.actor_parameters)

                errors = [
                    net(observation[rows])[:, 0] - target[rows]
                    for net, target in zip((self.value_reward, self.value_cost), targets)
                ]
                self.descend(errors[0].square().mean() + errors[1].square().mean(), self.value_parameters)

                masks = self.mask_stream.random((c.members, c.minibatch), dtype=np.float32) < c.keep_probability
                losses = []
                for member in range(c.members):
                    kept = torch.from_numpy(masks[member])
                    losses.append(((predictions[member] - y[rows])[kept] ** 2).sum() / max(1, int(kept.sum())))
                self.descend(sum(losses), self.critic_parameters)  # type: ignore[arg-type]

    def weights(self) -> dict[str, np.ndarray]:
        """Every weight, flat, by group."""
        groups = {"policy": self.actor_parameters, "values": self.value_parameters, "critics": self.critic_parameters}
        return {name: np.concatenate([p.detach().numpy().T.ravel() for p in g]) for name, g in groups.items()}


def learner_weights(learner: BCPPO) -> dict[str, np.ndarray]:
    """The learner's weights in the order of `PlainBCPPO.weights`."""
    policy, values, critics = learner.policy.arrays(0), learner.values.arrays(0), learner.signal.critics.arrays(0)
    names = [name for name in values if name != "log_std"]

    def flat(arrays: dict[str, np.ndarray], count: int) -> np.ndarray:
        return np.concatenate([arrays[name][i].ravel() for i in range(count) for name in names])

    return {
        "policy": np.concatenate([policy[name].ravel() for name in [*names, "log_std"]]),
        "values": flat(values, 2),
        "critics": flat(critics, critics["weight0"].shape[0]),
    }
