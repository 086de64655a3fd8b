"""BCPPO, from top to bottom: Algorithm 1 of the paper for R stacked runs at once.

`BCPPO.update` is the loop that the whole PPO family of the paper shares. What sets its members apart is the *cost
signal* (below: `Disagreement`): what is added to the cost advantage, and the critic that is trained for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.algorithms.batch import Batch, take
from bcppo.algorithms.observed import Seen, absorb, normalization, normalized, nothing_seen, policy_normalization
from bcppo.algorithms.ppo import NoSignal
from bcppo.algorithms.repeated import Captured, Metrics, Repeated, total
from bcppo.config import require_same
from bcppo.math.bachelier import disagreement, effective_beta, excess_factor, mean_prediction, reference_level
from bcppo.math.gae import Advantage, gae, td_target
from bcppo.math.pid import PidGains, PidState, PidTerms, pid_start, pid_step
from bcppo.math.surrogate import (
    approximate_kl,
    clip_fraction,
    clipped_surrogate,
    gaussian_log_prob,
    hybrid_advantage,
    masked_td_loss,
)
from bcppo.nets import GaussianPolicy, Stack
from bcppo.queued import Awaited, settled
from bcppo.settings import BCPPOConfig, PPOConfig
from bcppo.streams import Streams


class Disagreement(NoSignal):
    """BCPPO's cost signal: how far M bootstrapped critics of the cost disagree, priced by the Bachelier formula."""

    shared_fields = ("members", "bonus")

    def __init__(
        self, configs: Sequence[BCPPOConfig], widths: tuple[int, int], streams: Sequence[Streams], device: torch.device
    ):
        first = configs[0]
        sizes = (sum(widths), *first.hidden, 1)
        self.members = first.members
        self.bonus = first.bonus
        self.critics = Stack(sizes, self.members, [stream.init for stream in streams], device)
        self.optimizer = Adam(self.critics, [c.learning_rate for c in configs], first.max_grad_norm)
        self._masks = [stream.masks for stream in streams]
        self._keep = np.array([c.keep_probability for c in configs], dtype=np.float32)
        self._floor = _column([c.disagreement_floor for c in configs], device)
        factors = [excess_factor(reference_level(c.alpha, c.kappa)) for c in configs]
        self._factor = _column(factors, device)  # h(c₀)
        betas = [c.beta if c.raw_disagreement else effective_beta(c.alpha, c.beta, c.kappa) for c in configs]
        self._effective_beta = _column(betas, device)  # β_eff, eq:effective_beta

    def shape(self, observation: Tensor, executed: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """(β·R_B of each row [R, B], detached; the predictions it came from [R, M, B], attached; metrics).

        One forward pass serves both: the disagreement the actor sees and the TD loss the critics descend.
        """
        predictions = self.critics(torch.cat([observation, executed], dim=-1)).squeeze(-1)
        detached = predictions.detach()
        sigma = torch.maximum(disagreement(detached, floor=0.0), self._floor)  # eq:sigma
        metrics = {
            "mu_c": mean_prediction(detached).mean(-1),
            "sigma_c": sigma.mean(-1),
            "penalty": (self._factor * sigma).mean(-1),  # R_B, eq:bachelier_simplified
        }
        return self._effective_beta * sigma, predictions, metrics

    def descend(self, predictions: Tensor, target: Tensor, *drawn: Tensor) -> Metrics:
        """Minimise each member's bootstrap-masked TD loss (eq:critic_loss)."""
        (masks,) = drawn
        loss = masked_td_loss(predictions, target, masks)
        self.optimizer.descend(loss)
        return {"loss_critics": loss.detach().mean(-1)}

    def optimizers(self) -> dict[str, Adam]:
        return {"critics": self.optimizer}

    def draw(self, minibatches: int, rows: int) -> tuple[np.ndarray, ...]:
        """z ~ Bernoulli(keep), drawn anew for every member, sample and minibatch. [K, R, M, B]"""
        shape = minibatches, self.members, rows
        draws = [masks.random(shape, dtype=np.float32) < keep for masks, keep in zip(self._masks, self._keep)]
        return (np.stack(draws, axis=1),)


class Rollout(NamedTuple):
    """What the minibatches of an update are taken from; [R, T, …]."""

    observation: Tensor
    executed: Tensor
    action: Tensor
    old_log_prob: Tensor  # log π of the actions under the policy that collected
    reward_advantage: Tensor
    cost_advantage: Tensor
    reward_target: Tensor  # of V_r
    cost_target: Tensor  # of V_c
    target: Tensor  # y of the cost critics, eq:td_target
    multiplier: Tensor  # λ [R]


class BCPPO:
    """The learner: policies π, values V_r and V_c, critics {Q_c}, and the multiplier λ, of R runs."""

    shared_fields = (
        "rollout", "minibatch", "epochs", "hidden", "num_envs", "branch_normalization", "max_grad_norm",
        "normalize_observations",
    )  # fmt: skip
    """Fields that shape the computation, with its signal's: equal for all runs of a stack. All others may differ."""

    def __init__(
        self,
        configs: Sequence[PPOConfig],
        widths: tuple[int, int],
        streams: Sequence[Streams],
        device: torch.device,
        signal: Any = Disagreement,
    ):
        require_same(configs, (*self.shared_fields, *signal.shared_fields))
        first = self.config = configs[0]
        observation, action = widths
        init = [stream.init for stream in streams]
        rates = [c.learning_rate for c in configs]
        log_stds = [c.initial_log_std for c in configs]
        self.policy = GaussianPolicy((observation, *first.hidden, action), log_stds, init, device)
        self.values = Stack((observation, *first.hidden, 1), 2, init, device)  # V_r, V_c
        self.policy_optimizer = Adam(self.policy, rates, first.max_grad_norm)
        self.values_optimizer = Adam(self.values, rates, first.max_grad_norm)
        self.signal = signal(configs, widths, streams, device)
        self.controller: PidState = pid_start(len(configs), device)
        self._minibatches = [stream.minibatches for stream in streams]
        self._look = Captured(self._prepare, device)
        self._minibatch = Repeated(self._descend, self.optimizers, device)
        self._device = device
        self._limit = _vector([c.limit_rate for c in configs], device)
        self._gains = PidGains(
            proportional=_vector([c.proportional_gain for c in configs], device),
            integral=_vector([c.integral_gain for c in configs], device),
            derivative=_vector([c.derivative_gain for c in configs], device),
            ceiling=_vector([c.multiplier_max for c in configs], device),
            anti_windup=torch.tensor([c.anti_windup for c in configs], device=device),
        )
        self._discount = _vector([c.discount for c in configs], device).unsqueeze(1)
        self._trace = _vector([c.trace_decay for c in configs], device).unsqueeze(1)
        self._clip = _column([c.clip for c in configs], device)
        self._entropy_bonus = _vector([c.entropy_bonus for c in configs], device).float()
        self._reward_scale = _vector([c.reward_scale for c in configs], device).unsqueeze(1)
        self._seen: Seen | None = nothing_seen(len(configs), observation) if first.normalize_observations else None

    def update(self, batch: Batch) -> Metrics:
        """One cycle of Algorithm 1 (alg:bcppo). Shapes [R, T, …]. On a GPU some metrics hold until the next."""
        return settled(self.updating(batch))

    def updating(self, batch: Batch) -> Generator[Awaited, None, Metrics]:
        """The same, where others can work while it waits."""
        observed, batch = batch.observation, self._normalized(batch)
        # λ is set before the epochs of the same cycle.
        reward, cost, (target, old_log_prob, mean_cost), controller, terms = self._looked(batch)
        if self.signal.constrained:
            self.controller = controller
        cost = cost._replace(advantage=self.signal.weigh(batch, cost.advantage))

        self._minibatch.begin(
            Rollout(
                batch.observation, batch.executed, batch.action, old_log_prob, reward.advantage, cost.advantage,
                reward.value_target, cost.value_target, target, self.controller.multiplier,
            )
        )  # fmt: skip
        if self._seen:  # for the next cycle; before the minibatches, since it waits for the device
            self._seen = absorb(self._seen, observed, [True] * len(observed))
        seen = yield from self._minibatch.over(self._draw_minibatches(batch.reward.shape[-1]))
        means = {name: total(values) / len(values) for name, values in seen.items()}
        return means | self._controller_metrics(mean_cost, terms)

    def _descend(self, rollout: Rollout, rows: Tensor, *drawn: Tensor) -> Metrics:
        """One minibatch of Algorithm 1: the rows [R, B] of each run's rollout."""
        observation, executed = take(rollout.observation, rows), take(rollout.executed, rows)
        shaping, predictions, seen = self.signal.shape(observation, executed)
        advantage = hybrid_advantage(
            take(rollout.reward_advantage, rows),
            take(rollout.cost_advantage, rows),
            shaping,
            rollout.multiplier,
            bonus=self.signal.bonus,
            normalize=self.config.branch_normalization,
        )
        action, old_log_prob = take(rollout.action, rows), take(rollout.old_log_prob, rows)
        targets = [take(values, rows) for values in (rollout.reward_target, rollout.cost_target, rollout.target)]
        return seen | self._minibatch.beside(
            lambda: self._descend_policy(observation, action, old_log_prob, advantage),
            lambda: self._descend_values(observation, *targets[:2]),
            lambda: self.signal.descend(predictions, targets[2], *drawn),
        )

    def _looked(self, batch: Batch) -> tuple[Advantage, Advantage, Sequence[Tensor], PidState, PidTerms]:
        """What `_prepare` computes, in parts."""
        networks_see = batch.observation, batch.next_observation, batch.action
        signals = batch.reward, batch.cost, batch.terminated, batch.ended
        found = self._look(batch.environments, *networks_see, *signals, *self.controller)
        return Advantage(*found[:2]), Advantage(*found[2:4]), found[4:7], PidState(*found[7:11]), PidTerms(*found[11:])

    @torch.no_grad()
    def _prepare(self, environments: int, *tensors: Tensor) -> list[Tensor]:
        """What is computed once a rollout, from a batch's tensors but for `executed` and the controller's state.

        A_r and its value target, A_c and its, the critics' target y and log π of the actions, all [R, T]; the mean
        cost [R]; the controller's state after this cycle; the terms of its step.
        """
        observation, next_observation, action, rewards, costs, terminated, ended, *controller = tensors
        batch = Batch(observation, next_observation, action, action, rewards, costs, terminated, ended, environments)
        reward, cost, target = self._estimate(batch)
        old_log_prob = gaussian_log_prob(action, self.policy.mean(observation), self.policy.log_std)
        mean_cost = costs.mean(-1)
        after, terms = pid_step(PidState(*controller), mean_cost, self._limit, self._gains)  # eq:pid
        return [*reward, *cost, target, old_log_prob, mean_cost, *after, *terms]

    @torch.no_grad()
    def _estimate(self, batch: Batch) -> tuple[Advantage, Advantage, Tensor]:
        """A_r and A_c by GAE, and the TD target y (eq:td_target), from values taken once a rollout. Each [R, T]."""
        values = [self.values(seen).squeeze(-1) for seen in (batch.observation, batch.next_observation)]  # [R, 2, T]
        signals = torch.stack([batch.reward * self._reward_scale, batch.cost], dim=1)  # [R, 2, T]
        estimates = gae(
            *(batch.trajectories(both.flatten(0, 1)) for both in (signals, *values)),
            *(batch.trajectories(ends.repeat_interleave(2, 0)) for ends in (batch.terminated, batch.ended)),
            discount=self._discount.repeat_interleave(2 * batch.environments, 0),
            trace_decay=self._trace.repeat_interleave(2 * batch.environments, 0),
        )
        apart = (part.float().view_as(signals).transpose(0, 1).contiguous() for part in estimates)
        advantage, target = (part.unbind(0) for part in apart)
        critics_target = td_target(batch.cost, values[1][:, 1], batch.terminated, self._discount)
        return Advantage(advantage[0], target[0]), Advantage(advantage[1], target[1]), critics_target.float()

    def _descend_policy(self, observation: Tensor, action: Tensor, old_log_prob: Tensor, advantage: Tensor) -> Metrics:
        mean, log_std = self.policy.distribution(observation)
        log_ratio = gaussian_log_prob(action, mean, log_std) - old_log_prob
        ratio = log_ratio.exp()
        loss = clipped_surrogate(ratio, advantage, self._clip)  # eq:ppo_loss
        entropy = log_std.sum(-1)  # up to a constant
        self.policy_optimizer.descend(loss - self._entropy_bonus * entropy)
        with torch.no_grad():
            kl, clipped = approximate_kl(log_ratio), clip_fraction(ratio, self._clip)
        return {"loss_policy": loss.detach(), "kl": kl, "clip_fraction": clipped, "log_std": entropy.detach()}

    def _descend_values(self, observation: Tensor, reward_target: Tensor, cost_target: Tensor) -> Metrics:
        error = self.values(observation).squeeze(-1) - torch.stack([reward_target, cost_target], dim=1)  # [R, 2, B]
        loss = error.square().mean(-1)
        self.values_optimizer.descend(loss)
        reward_loss, cost_loss = loss.detach().unbind(1)
        return {"loss_value_reward": reward_loss, "loss_value_cost": cost_loss}

    def _draw_minibatches(self, rows: int) -> Iterator[tuple[Tensor, ...]]:
        """Of epochs × (rows / minibatch) minibatches, the rows [R, B] and what the signal draws for each.

        Every run shuffles with its own stream. All go to the device at once: one by one they would wait for it.
        """
        size = self.config.minibatch
        orders = [np.stack([s.permutation(rows) for s in self._minibatches]) for _ in range(self.config.epochs)]
        chosen = np.stack([order[:, first : first + size] for order in orders for first in range(0, rows, size)])
        columns = chosen, *self.signal.draw(len(chosen), size)
        return zip(*(torch.from_numpy(column).to(self._device).unbind(0) for column in columns))

    def _controller_metrics(self, mean_cost: Tensor, terms: PidTerms) -> Metrics:
        return {
            "mean_cost": mean_cost,
            "multiplier": self.controller.multiplier,
            "multiplier_positive": (self.controller.multiplier > 0).double(),
            "pid_error": terms.error,
            "pid_proportional": terms.proportional,
            "pid_integral": terms.integral,
            "pid_derivative": terms.derivative,
            "integral": self.controller.integral,
        }

    def _normalized(self, batch: Batch) -> Batch:
        """What the networks see; where observations are not normalised, the batch itself."""
        if not self._seen:
            return batch
        both = [normalized(part, *self._normalization()) for part in (batch.observation, batch.next_observation)]
        return replace(batch, observation=both[0], next_observation=both[1])

    def _normalization(self) -> tuple[Tensor, Tensor]:
        assert self._seen is not None
        offset, scale = normalization(self._seen)
        return offset.to(self._device, torch.float32), scale.to(self._device, torch.float32)

    def policy_arrays(self, run: int, stored: Tensor | None = None) -> dict[str, np.ndarray]:
        """What collects and is deployed: the policy, and where it normalises what it sees, how."""
        arrays = self.policy.arrays(run, stored)
        return arrays | policy_normalization(*self._normalization(), run) if self._seen else arrays

    def memory(self) -> dict[str, Tensor]:
        """What it remembers beside weights and optimisers, [R, …] each."""
        return self.controller._asdict() | (self._seen._asdict() if self._seen else {})

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": self.policy_optimizer, "values": self.values_optimizer, **self.signal.optimizers()}


def _vector(numbers: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _column(numbers: Sequence[float], device: torch.device) -> Tensor:
    """[R, 1] float32, to go against [R, B]."""
    return _vector(numbers, device).float().unsqueeze(1)
