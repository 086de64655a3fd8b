"""What PPOLag, FOCOPS and CPO share, with OmniSafe 0.5.0's rules: networks, advantages, the constraint's statistic,
observation normalisation, the value networks' descent, and the epochs of a first-order method with its KL stop.

Everything has the axis of runs in front. A run whose KL divergence has stopped it leaves the epochs on its own: from
then on neither its weights nor its optimisers' state nor its random stream move.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.algorithms.batch import Batch, take
from bcppo.algorithms.observed import Seen, absorb, normalization, normalized, nothing_seen, policy_normalization
from bcppo.algorithms.repeated import Metrics, Repeated, total
from bcppo.config import require_same
from bcppo.math.gae import Advantage, gae
from bcppo.math.surrogate import gaussian_log_prob, standardize
from bcppo.math.trust_region import gaussian_kl
from bcppo.nets import GaussianPolicy, Stack
from bcppo.queued import Arriving, Awaited, settled
from bcppo.streams import Streams


class State(NamedTuple):
    """What a learner remembers between updates beside its networks; float64 or int64, one entry a run."""

    multiplier: Tensor  # [R]
    first: Tensor  # [R], Adam's moments of the multiplier
    second: Tensor  # [R]
    updates: Tensor  # [R] int64
    episode_cost: Tensor  # [R, window], summed costs of the last episodes; a ring
    episode_length: Tensor  # [R, window]
    episodes: Tensor  # [R] int64, episodes finished so far
    mean: Tensor  # [R, obs], of the observations so far
    squares: Tensor  # [R, obs], their summed squared distances from the mean
    observations: Tensor  # [R] int64, how many these are


@dataclass
class Sample:
    """A rollout, or a minibatch of it, as the losses need it."""

    observation: Tensor  # [R, B, obs], normalised
    action: Tensor  # [R, B, act]
    log_prob: Tensor  # [R, B], under the policy that collected
    old_mean: Tensor  # [R, B, act], of that policy
    reward_advantage: Tensor  # [R, B], standardised over the rollout
    cost_advantage: Tensor  # [R, B], centred over the rollout, in the units of the statistic
    reward_target: Tensor  # [R, B]
    cost_target: Tensor  # [R, B]
    advantage: Tensor  # [R, B], the two at the multiplier's price, where a method combines them


class Constraint(NamedTuple):
    """The constraint as the last episodes have it, [R] each."""

    excess: Tensor  # statistic − limit, per step or per episode
    episode_cost: Tensor  # mean of the episodes' summed costs, whatever the units
    episode_length: Tensor  # their mean length
    advantage_scale: Tensor  # what the cost advantage is multiplied with


Updating = Generator[Awaited, None, Metrics]
"""An update that hands over what it waits for: a graph's launch, which runs' epochs are over, how a search goes."""

Loss = Callable[[Sample, Tensor], Tensor]
"""(minibatch, log-std [R, act] of the rollout's policy) → a loss a run [R]"""


class OnPolicy:
    """Policies π, values V_r and V_c, and the state above, of R runs. The methods say how a policy improves."""

    shared_fields: tuple[str, ...] = (
        "rollout", "minibatch", "epochs", "hidden", "num_envs", "max_grad_norm", "window"
    )  # fmt: skip
    """Fields that shape the computation: equal for all runs of a stack. All others may differ from run to run."""

    def __init__(
        self,
        configs: Sequence[Any],
        widths: tuple[int, int],
        streams: Sequence[Streams],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        require_same(configs, self.shared_fields)
        first = self.config = configs[0]
        self.configs, self._device, self._dtype = configs, device, dtype
        observation, action = widths
        init = [stream.init for stream in streams]
        log_stds = [c.initial_log_std for c in configs]
        self.policy = GaussianPolicy((observation, *first.hidden, action), log_stds, init, device, dtype)
        self.values = Stack((observation, *first.hidden, 1), 2, init, device, dtype)  # V_r, V_c
        rates = [c.critic_learning_rate for c in configs]
        self.values_optimizer = Adam(self.values, rates, first.max_grad_norm, apart=True)
        # CPO's policy takes steps of its own; the optimiser is then only where its weights are stored.
        rates = [getattr(c, "learning_rate", 0.0) for c in configs]
        self.policy_optimizer = Adam(self.policy, rates, first.max_grad_norm)
        self._minibatches = [stream.minibatches for stream in streams]
        self._repeated: Repeated | None = None
        self.controller = _fresh_state(configs, observation)
        self._discount = self.vector("discount").unsqueeze(1)
        self._trace = self.vector("trace_decay").unsqueeze(1)
        self._penalty = self.vector("critic_penalty").to(dtype).unsqueeze(1)
        self._target_kl = self.vector("target_kl")

    def vector(self, field: str, *, host: bool = False) -> Tensor:
        """A config field of every run, [R] float64, on the learner's device or with the controller on the host."""
        numbers = [getattr(c, field) for c in self.configs]
        return torch.tensor(numbers, dtype=torch.float64, device="cpu" if host else self._device)

    def update(self, batch: Batch) -> Metrics:
        """One cycle: statistic, advantages, policy and values. The observations enter the running statistics, by which
        the next cycle's are normalised."""
        return settled(self.updating(batch))

    def updating(self, batch: Batch) -> Updating:
        """The same, where others can work while numbers come from the device."""
        constraint = self._measure(batch)
        rollout = self._prepare(batch, constraint.advantage_scale)
        self._absorb(batch.observation)
        metrics = yield from self.improve(rollout, constraint.excess)
        self.controller = self.controller._replace(updates=self.controller.updates + 1)
        return metrics | {
            "mean_cost": batch.cost.mean(-1),
            "multiplier": self.controller.multiplier,
            "multiplier_positive": (self.controller.multiplier > 0).double(),
            "constraint_excess": constraint.excess,
            "window_cost": constraint.episode_cost,
            "window_length": constraint.episode_length,
        }

    def improve(self, rollout: Sample, excess: Tensor) -> Updating:
        """Move policy, values and multiplier; each method's own."""
        raise NotImplementedError

    # --- the rollout ---

    def _measure(self, batch: Batch) -> Constraint:
        """Means over the last episodes. Until one has ended, what each environment has collected counts as one."""
        state, window = self.controller, self.config.window
        costs, lengths, finished = state.episode_cost.clone(), state.episode_length.clone(), state.episodes.clone()
        means = []
        for run in range(len(self.configs)):
            for cost, length in batch.episodes[run] if batch.episodes else ():
                place = int(finished[run]) % window
                costs[run, place], lengths[run, place] = cost, length
                finished[run] += 1
            count = min(int(finished[run]), window)
            if count:
                means.append((float(costs[run, :count].mean()), float(lengths[run, :count].mean())))
            else:
                shares = float(batch.cost[run].sum()), batch.cost.shape[1]
                means.append((shares[0] / batch.environments, shares[1] / batch.environments))
        self.controller = state._replace(episode_cost=costs, episode_length=lengths, episodes=finished)
        rows = [self._in_units(config, *mean) for config, mean in zip(self.configs, means)]
        return Constraint(*torch.tensor(rows, dtype=torch.float64).unbind(1))

    @staticmethod
    def _in_units(config: Any, cost: float, length: float) -> tuple[float, float, float, float]:
        if not config.rate_units:
            return cost - config.episode_cost_limit, cost, length, 1.0
        scale = 1.0 / length if config.cost_advantage_scale == "length" else 1.0
        return cost / length - config.limit_rate, cost, length, scale

    @torch.no_grad()
    def _prepare(self, batch: Batch, cost_scale: Tensor) -> Sample:
        observation, following = self._normalized(batch.observation), self._normalized(batch.next_observation)
        action = batch.action.to(self._dtype)
        reward, cost = self._estimate(batch, observation, following)
        old_mean = self.policy.mean(observation)
        centred = cost.advantage - cost.advantage.mean(-1, keepdim=True)
        return Sample(
            observation=observation,
            action=action,
            log_prob=gaussian_log_prob(action, old_mean, self.policy.log_std),
            old_mean=old_mean,
            reward_advantage=standardize(reward.advantage).to(self._dtype),
            cost_advantage=(centred * cost_scale.unsqueeze(1).to(self._device)).to(self._dtype),
            reward_target=reward.value_target.to(self._dtype),
            cost_target=cost.value_target.to(self._dtype),
            advantage=torch.zeros_like(old_mean[..., 0]),
        )

    def _estimate(self, batch: Batch, observation: Tensor, following: Tensor) -> tuple[Advantage, Advantage]:
        """Of rewards and of costs by GAE, from values taken once a rollout; [R, T] float64."""
        value, next_value = self.values(observation).squeeze(-1), self.values(following).squeeze(-1)  # [R, 2, T]
        both = []
        for index, signal in enumerate((batch.reward, batch.cost)):
            estimate = gae(
                batch.trajectories(signal.double()),
                batch.trajectories(value[:, index]),
                batch.trajectories(next_value[:, index]),
                batch.trajectories(batch.terminated),
                batch.trajectories(batch.ended),
                discount=self._discount.repeat_interleave(batch.environments, 0),
                trace_decay=self._trace.repeat_interleave(batch.environments, 0),
            )
            both.append(Advantage(*(part.view_as(signal) for part in estimate)))
        return both[0], both[1]

    # --- observations ---

    def _normalization(self) -> tuple[Tensor, Tensor]:
        """(offset, scale) [R, obs] in the dtype of the networks; 0 and 1 where a run does not normalise, or not yet."""
        offset, scale = normalization(Seen(*self.controller[-3:]))
        return offset.to(self._device, self._dtype), scale.to(self._device, self._dtype)

    def _normalized(self, observation: Tensor) -> Tensor:
        observation = observation.to(self._dtype)
        chosen = torch.tensor([c.normalize_observations for c in self.configs], device=self._device)
        return torch.where(chosen.view(-1, 1, 1), normalized(observation, *self._normalization()), observation)

    def _absorb(self, observation: Tensor) -> None:
        chosen = [c.normalize_observations for c in self.configs]
        self.controller = self.controller._replace(**absorb(Seen(*self.controller[-3:]), observation, chosen)._asdict())

    def policy_arrays(self, run: int, stored: Tensor | None = None) -> dict[str, np.ndarray]:
        """What collects and is deployed: the policy, and how it normalises what it sees."""
        arrays = self.policy.arrays(run, stored)
        if self.configs[run].normalize_observations:
            arrays |= policy_normalization(*self._normalization(), run)
        return arrays

    # --- descent ---

    def ascend_multiplier(self, excess: Tensor, ceiling: Tensor | None = None) -> Tensor:
        """λ ← λ + Adam's step up the excess, then inside [0, ceiling]. [R]"""
        state, (beta1, beta2) = self.controller, (0.9, 0.999)
        steps = state.updates.double() + 1
        first = beta1 * state.first - (1 - beta1) * excess
        second = beta2 * state.second + (1 - beta2) * excess.square()
        scale = (second / (1 - beta2**steps)).sqrt() + 1e-8
        rate = self.vector("multiplier_learning_rate", host=True)
        multiplier = state.multiplier - rate * first / (1 - beta1**steps) / scale
        multiplier = multiplier.clamp(min=0.0)
        if ceiling is not None:
            multiplier = torch.minimum(multiplier, ceiling)
        self.controller = state._replace(multiplier=multiplier, first=first, second=second)
        return multiplier

    def descend_epochs(self, rollout: Sample, multiplier: Tensor, loss: Loss) -> Updating:
        """Epochs over (A_r − λ·A_c) / (1 + λ); a run leaves them once its KL divergence has passed the target."""
        done = self.controller.updates.tolist()
        self.policy_optimizer.rates = [
            c.learning_rate * (max(0.0, 1.0 - updates / c.updates) if c.learning_rate_decay else 1.0)
            for c, updates in zip(self.configs, done)
        ]
        weight = multiplier.to(self._device, self._dtype).unsqueeze(1)
        rollout.advantage = (rollout.reward_advantage - weight * rollout.cost_advantage) / (1.0 + weight)
        old_log_std = self.policy.log_std.clone()
        tally = Tally(len(self.configs), self._device)
        active = [True] * len(self.configs)
        minibatch = self._minibatch(loss)
        minibatch.begin((*vars(rollout).values(), old_log_std))
        epochs, kl = torch.zeros(2, len(self.configs), dtype=torch.float64, device=self._device)
        for _ in range(self.config.epochs):
            for optimizer in self.optimizers().values():
                optimizer.active = active
            tally.add((yield from minibatch.over(self.draw_minibatches(rollout, active))), active)
            going = torch.tensor(active, device=self._device)
            epochs = epochs + going
            kl = torch.where(going, self.divergence(rollout, old_log_std).sum(-1).mean(-1).double(), kl)
            arriving = Arriving({}, going & (kl <= self._target_kl))
            yield arriving
            active = arriving.get()[1][0].tolist()
            if not any(active):
                break
        for optimizer in self.optimizers().values():
            optimizer.active = None
        log_std = self.policy.log_std.sum(-1)
        return tally.means() | {"kl": kl, "epochs": epochs, "log_std": log_std}

    def _minibatch(self, loss: Loss) -> Repeated:
        """A step of the values and one of the policy, repeated."""

        def descend(data: Sequence[Tensor], *inputs: Tensor) -> Metrics:
            *rollout, old_log_std = data
            part = self._part(rollout, inputs)
            seen = self.descend_values(part)
            policy_loss = loss(part, old_log_std)
            self.policy_optimizer.descend(policy_loss)
            return seen | {"loss_policy": policy_loss.detach()}

        if self._repeated is None:
            self._repeated = Repeated(descend, self.optimizers, self._device)
        return self._repeated

    def _part(self, rollout: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sample:
        """A minibatch: gathered already, or by its rows."""
        if len(inputs) > 1:
            return Sample(*inputs)
        return Sample(*(take(values, inputs[0]) for values in rollout))

    @torch.no_grad()
    def divergence(self, rollout: Sample, old_log_std: Tensor) -> Tensor:
        """KL(rollout's policy ‖ policy) on each axis of the action, [R, T, act]."""
        return gaussian_kl(rollout.old_mean, old_log_std, self.policy.mean(rollout.observation), self.policy.log_std)

    def descend_values(self, part: Sample) -> Metrics:
        error = self.values(part.observation).squeeze(-1) - torch.stack([part.reward_target, part.cost_target], dim=1)
        loss = error.square().mean(-1)
        size = torch.linalg.vector_norm(self.values.flat.detach(), dim=-1).square()  # [R, 2]
        self.values_optimizer.descend(loss, self._penalty.unsqueeze(2))
        reward_loss, cost_loss = (loss.detach() + self._penalty * size).unbind(1)
        return {"loss_value_reward": reward_loss, "loss_value_cost": cost_loss}

    def draw_minibatches(self, rollout: Sample, active: Sequence[bool]) -> Iterator[tuple[Tensor, ...]]:
        """The minibatches of an epoch; a run that has stopped draws nothing from its stream, as it would alone.

        On the CPU gathered, all at once, which is cheaper there; on a GPU by their rows, which are less to hand over.
        """
        rows = rollout.log_prob.shape[1]
        orders = [s.permutation(rows) if a else np.arange(rows) for s, a in zip(self._minibatches, active)]
        order = torch.from_numpy(np.stack(orders)).to(self._device)
        fields = [order] if self._device.type == "cuda" else [take(values, order) for values in vars(rollout).values()]
        return zip(*(values.split(self.config.minibatch, dim=1) for values in fields))

    def memory(self) -> dict[str, Tensor]:
        """What it remembers beside weights and optimisers, [R, …] each."""
        return self.controller._asdict()

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": self.policy_optimizer, "values": self.values_optimizer}


class Tally:
    """Means over the minibatches that a run took part in."""

    def __init__(self, runs: int, device: torch.device):
        self._sums: Metrics = {}
        self._counts = torch.zeros(runs, dtype=torch.float64, device=device)

    def add(self, minibatches: Metrics, active: Sequence[bool]) -> None:
        """An epoch's, [K, R]."""
        going = torch.tensor(active, device=self._counts.device)
        for name, values in minibatches.items():
            self._sums[name] = self._sums.get(name, 0.0) + torch.where(going, total(values.double()), 0.0)
        self._counts += going * len(next(iter(minibatches.values())))

    def means(self) -> Metrics:
        return {name: total / self._counts for name, total in self._sums.items()}


def _fresh_state(configs: Sequence[Any], observation: int) -> State:
    """On the host: it is asked number by number, and is small."""
    runs = len(configs)

    def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        # A tensor each: a stored state is put back in place.
        return torch.zeros(runs, *shape, dtype=dtype)

    start = [getattr(config, "multiplier_start", 0.0) for config in configs]
    return State(
        multiplier=torch.tensor(start, dtype=torch.float64),
        first=zeros(),
        second=zeros(),
        updates=zeros(dtype=torch.int64),
        episode_cost=zeros(configs[0].window),
        episode_length=zeros(configs[0].window),
        episodes=zeros(dtype=torch.int64),
        **nothing_seen(runs, observation)._asdict(),
    )
