"""WCSAC with Gaussian safety critics, for R stacked runs at once: soft actor-critic on stored transitions.

An update follows every step of the environments. Its computation, `WCSAC.step`, reads stored transitions and the random
numbers handed to it, and changes tensors in place: it never waits for the device and draws nothing itself, so that a
CUDA graph can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bcppo.adam import Adam
from bcppo.algorithms.overlap import Overlapped
from bcppo.config import require_same
from bcppo.fused import fusible
from bcppo.math.cvar import gaussian_tail_mean
from bcppo.math.wcsac import (
    constraint_weight,
    cost_target,
    gaussian_risk,
    multiplier_gradient,
    policy_loss,
    reward_target,
    squashed_log_prob,
    temperature_gradient,
    variance_loss,
    variance_of,
    variance_target,
)
from bcppo.nets import Scalar, SquashedPolicy, Stack, capture, head_parts, run_by_run
from bcppo.queued import Aside
from bcppo.settings import WCSACConfig
from bcppo.streams import Streams

AVERAGED = (
    "loss_policy", "loss_value_reward", "loss_value_cost", "loss_value_variance", "entropy", "value_reward", "mu_c",
    "cost_std", "risk", "constraint_weight", "multiplier_positive",
)  # fmt: skip
"""Metrics that are means over the updates of a window. Γ is `risk`, √V is `cost_std`: discounted costs."""

_COST, _VARIANCE = 2, 3
"""Which of a run's critics is which; 0 and 1 are the twin values of the reward."""


class Draws(NamedTuple):
    """What an update is handed beside the stored transitions."""

    rows: Tensor  # [R, B] int64, which transitions
    noise: Tensor  # [R, 2, B, act] standard normal, of the actions drawn in s and in s'
    schedule: Tensor  # [4, 1 + R], of the optimisers in the order of `optimizers`


class Between(NamedTuple):
    """What the first piece of an update leaves to the second."""

    batch: Tensor  # [R, B, width], stored transitions
    alpha: Tensor  # [R, 1]
    predicted: Tensor  # [R, 4, B], of the critics at the stored actions, with their gradients
    stored_risk: Tensor  # [R, B]
    weight: Tensor  # [R, 1], of the constraint
    log_prob: Tensor  # [R, B], of the policy as it was
    loss: Tensor  # [R], of the policy as it was


class WCSAC:
    """The learner: policy π, twin values Q, safety critics Q_c and V with targets, α and β, of R runs.

    Actions are in [−1, 1] here; whoever stores and deploys them stretches that to the action space.
    """

    shared_fields = ("minibatch", "buffer", "random_steps", "hidden", "polyak", "window", "num_envs")
    """Fields that shape the computation: equal for all runs of a stack. All others may differ from run to run."""

    def __init__(
        self,
        configs: Sequence[WCSACConfig],
        widths: tuple[int, int],
        streams: Sequence[Streams],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        require_same(configs, self.shared_fields)
        first = self.config = configs[0]
        self.widths, self.runs, self.device, self.dtype = widths, len(configs), device, dtype
        init = [stream.init for stream in streams]
        self.policy = SquashedPolicy((widths[0], *first.hidden, widths[1]), init, device, dtype)
        self.critics = Stack((sum(widths), *first.hidden, 1), 4, init, device, dtype, relu=True)  # Q, Q, Q_c, V
        self._behind = self.critics.flat.detach().clone()  # the targets' parameters
        rates = [c.learning_rate for c in configs]
        self._policy_optimizer = Adam(self.policy, rates)
        self._critics_optimizer = Adam(self.critics, rates)
        scalars = [Scalar(self.runs, device, dtype) for _ in range(2)]
        self._temperature, self._multiplier = (scalar.flat.squeeze(1) for scalar in scalars)  # α, β = softplus of these
        self._temperature_optimizer = Adam(scalars[0], rates)
        factors = [c.learning_rate * c.multiplier_rate_factor for c in configs]
        self._multiplier_optimizer = Adam(scalars[1], factors)
        self._discount = self._column([c.discount for c in configs])
        self._tail_mean = self._column([gaussian_tail_mean(c.alpha) for c in configs])  # k
        self._limit = self._column([c.discounted_limit for c in configs])  # D
        self._damp = self._column([c.damp for c in configs])
        self._target_entropy = self._column([c.target_entropy * widths[1] for c in configs])
        # What of d the variance's target knows: all of it, or, as in the public code, nothing.
        self._ends_variance = self._column([0.0 if c.release_variance_target else 1.0 for c in configs])
        # On the CPU, pages of the buffer that nothing was written to yet take no memory.
        self.capacity = min(first.buffer, max(c.steps for c in configs))
        self._buffer = torch.empty(self.runs, self.capacity, transition_width(widths), dtype=dtype, device=device)
        self._offsets = torch.arange(self.runs, device=device).unsqueeze(1) * self.capacity
        self._minibatches = [stream.minibatches for stream in streams]
        self.stored = 0
        self._totals = torch.zeros(len(AVERAGED), self.runs, dtype=torch.float64, device=device)
        self._counted = 0
        self._aside = Aside(device)
        if device.type == "cuda":  # an update's kernels are too small to fill it one by one
            self.policy.aside, self.critics.aside = Aside(device), Aside(device)
        self._update_graph: Any = None
        self._acting_graph: Any = None

    def _column(self, numbers: Sequence[float]) -> Tensor:
        """[R, 1], to go against [R, B]."""
        return torch.tensor(numbers, dtype=self.dtype, device=self.device).unsqueeze(1)

    # --- transitions ---

    def store(self, transitions: np.ndarray) -> None:
        """One transition a run, [R, width]: observation, action, next observation, reward, cost, terminated."""
        self._buffer[:, self.stored % self.capacity] = torch.from_numpy(transitions)
        self.stored += 1

    def put(self, position: Tensor, transitions: Tensor) -> None:
        """The same at a position [1] that is on the device; `stored` is for the caller to count."""
        self._buffer.flatten(0, 1).index_copy_(0, self._offsets.flatten() + position, transitions)

    def load_transitions(self, run: int, first: int, transitions: np.ndarray) -> None:
        """Put a run's transitions number `first` and following [n, width] back; `stored` is for the caller to set."""
        first, transitions = first + max(0, len(transitions) - self.capacity), transitions[-self.capacity :]
        positions = torch.arange(first, first + len(transitions), device=self.device) % self.capacity
        self._buffer[run, positions] = torch.from_numpy(transitions).to(self._buffer)

    def draw(self) -> Draws:
        """The next update's random numbers, each run's from its own stream, and its place in Adam's schedule."""
        batch = self.config.minibatch
        rows = np.empty((self.runs, batch), np.int64)
        noise = np.empty((self.runs, 2, batch, self.widths[1]), np.float32)
        schedule = np.empty((len(self.optimizers()), 1 + self.runs))
        self.draw_into(rows, noise, schedule, self.stored)
        return Draws(
            torch.from_numpy(rows).to(self.device),
            torch.from_numpy(noise).to(self.device, self.dtype),
            torch.from_numpy(schedule).to(self.device, self.dtype),
        )

    def draw_into(self, rows: np.ndarray, noise: np.ndarray, schedule: np.ndarray, stored: int) -> None:
        """The same into arrays shaped like Draws, for an update that finds so many transitions stored."""
        size, batch, shape = min(stored, self.capacity), self.config.minibatch, noise.shape[1:]
        for run, stream in enumerate(self._minibatches):
            rows[run] = stream.integers(size, size=batch)
            noise[run] = stream.standard_normal(shape, dtype=np.float32)
        schedule[:] = [optimizer.schedule() for optimizer in self.optimizers().values()]

    # --- the update ---

    def update(self) -> None:
        """One update of every run; on CUDA as a graph, since its small kernels take longer to launch than to run."""
        draws = self.draw()
        if self.device.type == "cuda":
            if self._update_graph is None:
                self._draws = draws
                self._update_graph = capture(lambda: self.step(self._draws), self.changing())
            for kept, new in zip(self._draws, draws):
                kept.copy_(new)
            self._update_graph.replay()
        else:
            self.step(draws)
        self._counted += 1

    def overlapped(self) -> Overlapped:
        """Updates that run while environments step."""
        return Overlapped(self)

    def count_update(self) -> None:
        """An update that began by storing a transition of each run was made by other means than `update`."""
        self.stored += 1
        self._counted += 1

    def changing(self) -> list[Tensor]:
        """Every tensor that an update changes."""
        of_optimizers = [t for o in self.optimizers().values() for t in (o.stack.flat.detach(), o.first, o.second)]
        return [*of_optimizers, self._behind, self._totals]

    def heads(self, observation: np.ndarray) -> np.ndarray:
        """The policies' last layer, mean and unclipped log-std, for one observation a run. [R, obs] → [R, 2·act]"""
        if self.device.type != "cuda":
            return self.last_layer(torch.from_numpy(observation).to(self.device, self.dtype)).cpu().numpy()
        if self._acting_graph is None:
            self._seen = torch.zeros(self.runs, self.widths[0], dtype=self.dtype, device=self.device)
            self._heads = torch.zeros(self.runs, 2 * self.widths[1], dtype=self.dtype, device=self.device)
            self._acting_graph = capture(lambda: self._heads.copy_(self.last_layer(self._seen)), [])
        self._seen.copy_(torch.from_numpy(observation))
        self._acting_graph.replay()
        return self._heads.cpu().numpy()

    @torch.no_grad()
    def last_layer(self, observation: Tensor) -> Tensor:
        """[R, obs] → [R, 2·act]"""
        return self.policy(observation.unsqueeze(1))[:, 0, 0]

    def step(self, draws: Draws) -> None:
        """Policy, then critics and targets, and beside these α and β. See the module's note on what it may not do."""
        self.complete(draws, self.begin(draws))

    def begin(self, draws: Draws) -> Between:
        """The policy's part of an update: all that the next action depends on."""
        width, of_action = self.widths
        batch = self._buffer.flatten(0, 1).index_select(0, (draws.rows + self._offsets).flatten())
        batch = batch.unflatten(0, draws.rows.shape)
        alpha = _softplus(self._temperature)[:, :1]
        predicted = self.critics(batch[..., : width + of_action]).squeeze(-1)  # [R, 4, B] at the stored actions
        stored_risk, weight = _constraint(
            predicted.detach(), self._multiplier, self._limit, self._damp, self._tail_mean
        )
        log_prob, loss = self._descend_policy(batch[..., :width], draws, alpha, weight)
        return Between(batch, alpha, predicted, stored_risk, weight, log_prob, loss)

    def complete(self, draws: Draws, between: Between) -> None:
        """The rest of an update."""
        batch, alpha, predicted, stored_risk, weight, log_prob, loss = between
        with self._aside.entered():  # nothing below waits for these
            gradient = _temperature_gradient(self._temperature, log_prob, self._target_entropy)
            self._temperature_optimizer.step_on_schedule(gradient.unsqueeze(1), draws.schedule[2])
            gradient = _multiplier_gradient(self._multiplier, stored_risk, self._limit)
            self._multiplier_optimizer.step_on_schedule(gradient.unsqueeze(1), draws.schedule[3])
        with torch.no_grad():
            state, next_log_prob = self._act(batch[..., sum(self.widths) : -3], draws.noise[:, 1])
            behind = self.critics(state, self._behind).squeeze(-1)
        losses = _critic_losses(
            predicted, behind, next_log_prob, batch[..., -3:],
            alpha=alpha, discount=self._discount, ends_variance=self._ends_variance,
        )  # fmt: skip
        with self._aside.entered():
            seen = torch.cat([loss.unsqueeze(1), losses.detach()], dim=1)
            _tally(self._totals, seen, log_prob, (predicted.detach(), stored_risk, weight))
        self._critics_optimizer.step_on_schedule(_gradient(losses, self.critics), draws.schedule[1])
        self._behind.lerp_(self.critics.flat.detach(), 1.0 - self.config.polyak)
        self._aside.join()

    def _act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(observation and action in [−1, 1] [R, B, obs + act], the action's log π [R, B])"""
        return _drawn(observation, self.policy(observation).squeeze(1), noise)

    def _descend_policy(
        self, observation: Tensor, draws: Draws, alpha: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(log π of the actions drawn [R, B], loss [R]), both of the policy as it was."""
        state, log_prob = self._act(observation, draws.noise[:, 0])
        predicted = self.critics(state, self.critics.flat.detach()).squeeze(-1)
        loss = _policy_loss(predicted, log_prob, alpha, weight, self._tail_mean)
        self._policy_optimizer.step_on_schedule(_gradient(loss, self.policy), draws.schedule[0])
        return log_prob.detach(), loss.detach()

    # --- what the runner asks for ---

    def metrics(self) -> dict[str, Tensor]:
        """Means over the updates since it was last asked, NaN where there were none, and where α and β are. [R] each"""
        count = self._counted
        means = self._totals / count if count else torch.full_like(self._totals, torch.nan)
        seen = dict(zip(AVERAGED, means.unbind()))
        if not count:
            seen["multiplier_positive"] = torch.zeros_like(self._totals[0])
        self._totals.zero_()
        self._counted = 0
        return seen | {
            "multiplier": _softplus(self._multiplier)[:, 0],
            "temperature": _softplus(self._temperature)[:, 0],
            "discounted_limit": self._limit[:, 0],
            "gradient_steps": torch.tensor(self._policy_optimizer.steps, device=self.device),
        }

    def policy_arrays(self, run: int, stored: Tensor | None = None) -> dict[str, np.ndarray]:
        """What collects and is deployed."""
        return self.policy.arrays(run, stored)

    def optimizers(self) -> dict[str, Adam]:
        """In the order of a `schedule`."""
        return {
            "policy": self._policy_optimizer,
            "critics": self._critics_optimizer,
            "temperature": self._temperature_optimizer,
            "multiplier": self._multiplier_optimizer,
        }

    def memory(self) -> dict[str, Tensor]:
        """What it remembers beside weights and optimisers: the target networks."""
        return {f"target.{name}": tensor for name, tensor in self.critics.named(self._behind).items()}


def transition_width(widths: tuple[int, int]) -> int:
    """Numbers in a stored transition."""
    observation, action = widths
    return 2 * observation + action + 3


# --- an update's arithmetic between its networks: the critics' predictions are [R, 4, B] ---


@run_by_run
@fusible
def _constraint(
    predicted: Tensor, multiplier: Tensor, limit: Tensor, damp: Tensor, tail_mean: Tensor
) -> tuple[Tensor, Tensor]:
    """(Γ of the stored actions [R, B], weight of the constraint [R, 1])"""
    risk = _risk(predicted, tail_mean)
    return risk, constraint_weight(softplus(multiplier)[:, :1], risk, limit, damp)


@run_by_run
@fusible
def _drawn(observation: Tensor, heads: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(observation and action in [−1, 1] [R, B, obs + act], the action's log π [R, B])"""
    mean, log_std = head_parts(heads)
    drawn = mean + log_std.exp() * noise
    return torch.cat([observation, drawn.tanh()], dim=-1), squashed_log_prob(noise, drawn, log_std)


@run_by_run
@fusible
def _policy_loss(predicted: Tensor, log_prob: Tensor, alpha: Tensor, weight: Tensor, tail_mean: Tensor) -> Tensor:
    """[R]"""
    value = torch.minimum(predicted[:, 0], predicted[:, 1])
    return policy_loss(log_prob, value, _risk(predicted, tail_mean), alpha, weight)


@run_by_run
@fusible
def _critic_losses(
    predicted: Tensor,
    behind: Tensor,
    next_log_prob: Tensor,
    outcome: Tensor,
    *,
    alpha: Tensor,
    discount: Tensor,
    ends_variance: Tensor,
) -> Tensor:
    """Of predictions at stored actions, given the targets' at the next; outcome is (reward, cost, d). [R, 4]"""
    reward, cost, terminated = outcome.unbind(-1)
    value = torch.minimum(behind[:, 0], behind[:, 1])
    mean, variance = behind[:, _COST], variance_of(behind[:, _VARIANCE])
    ends = terminated * ends_variance
    of_reward = reward_target(reward, terminated, value, next_log_prob, temperature=alpha, discount=discount)
    of_cost = cost_target(cost, terminated, mean, discount=discount)
    own_mean = predicted[:, _COST].detach()
    of_variance = variance_target(cost, ends, mean, variance, own_mean, discount=discount)
    wanted = torch.stack([of_reward, of_reward, of_cost], dim=1)
    squared = 0.5 * (predicted[:, :_VARIANCE] - wanted).square().mean(-1)
    spread = variance_loss(variance_of(predicted[:, _VARIANCE]), of_variance)
    return torch.cat([squared, spread.unsqueeze(1)], dim=1)


@fusible
def _tally(totals: Tensor, losses: Tensor, log_prob: Tensor, stored: tuple[Tensor, Tensor, Tensor]) -> None:
    """Add to the sums of AVERAGED; losses [R, 5] of the policy and the critics. `stored` is what the critics predict at
    stored actions, Γ of that and the weight of the constraint."""
    policy, one, two, cost, variance = losses.unbind(1)
    predicted, risk, weight = stored
    means = predicted.mean(-1)
    spread = variance_of(predicted[:, _VARIANCE]).sqrt().mean(-1)
    price = weight[:, 0]
    seen = [
        policy, one + two, cost, variance, -log_prob.mean(-1), means[:, 0], means[:, _COST], spread, risk.mean(-1),
        price, (price > 0).to(price.dtype),
    ]  # fmt: skip
    totals += torch.stack(seen)


_softplus = run_by_run(softplus)
_temperature_gradient = run_by_run(fusible(temperature_gradient))
_multiplier_gradient = run_by_run(fusible(multiplier_gradient))


def _risk(predictions: Tensor, tail_mean: Tensor) -> Tensor:
    """Γ. [R, B]"""
    return gaussian_risk(predictions[:, _COST], variance_of(predictions[:, _VARIANCE]), tail_mean)


def _gradient(loss: Tensor, stack: Stack) -> Tensor:
    return torch.autograd.grad(loss.sum(), stack.flat)[0]
