"""One update of the actor alone, by the learner's own steps: so that what is tested is what trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.algorithms.batch import Batch, stack_rollouts, take
from bcppo.diagnostics.measure.checkpoints import Restored
from bcppo.math.surrogate import gaussian_log_prob, hybrid_advantage
from bcppo.rollout import Collector, Rollout


def collect_rollouts(checkpoint: Restored, count: int, steps: int, seed: int) -> list[Rollout]:
    """Independent rollouts of the checkpoint's stochastic policy, each in an environment of its own."""
    rollouts = []
    for child in np.random.SeedSequence([seed, checkpoint.config.seed]).spawn(count):
        collector = Collector(checkpoint.make_env, *map(np.random.default_rng, child.spawn(2)))
        rollouts.append(collector.collect(checkpoint.policy, steps))
        collector.close()
    return rollouts


def make_batch(checkpoint: Restored, rollouts: Sequence[Rollout]) -> Batch:
    """A batch with one rollout a run of the stack."""
    policy = checkpoint.policy
    return stack_rollouts([[rollout] for rollout in rollouts], policy.low, policy.high, torch.device("cpu"))


def update_actor(learner: Any, batch: Batch, rows: Tensor) -> None:
    """Algorithm 1's epochs on `rows` [R, n] of the batch, with the saved λ, a new Adam for the actor, and critics,
    values and multiplier held fixed."""
    config = learner.config
    reward, cost, _ = learner._estimate(batch)
    with torch.no_grad():
        old = gaussian_log_prob(batch.action, learner.policy.mean(batch.observation), learner.policy.log_std)
    learner.policy_optimizer = Adam(learner.policy, learner.policy_optimizer.rates, config.max_grad_norm)
    multiplier = learner.controller.multiplier
    for chosen in _minibatches(learner, rows.shape[1]):
        own = rows.gather(1, chosen)
        observation, executed, action = (take(x, own) for x in (batch.observation, batch.executed, batch.action))
        shaping, _, _ = learner.signal.shape(observation, executed)
        advantage = hybrid_advantage(
            take(reward.advantage, own),
            take(cost.advantage, own),
            shaping,
            multiplier,
            bonus=learner.signal.bonus,
            normalize=config.branch_normalization,
        )
        learner._descend_policy(observation, action, take(old, own), advantage)


def _minibatches(learner: Any, rows: int) -> Iterator[Tensor]:
    """Algorithm 1's, of a part of a rollout: the last of an epoch may be smaller than the others."""
    for _ in range(learner.config.epochs):
        order = torch.from_numpy(np.stack([stream.permutation(rows) for stream in learner._minibatches]))
        yield from order.split(learner.config.minibatch, dim=1)


def parameter_difference(learner: Any, first: int, second: int) -> float:
    """The largest difference between two runs' policy parameters; exactly 0 where they are the same bits."""
    return max(float((p[first] - p[second]).detach().abs().max()) for p in learner.policy.parameters.values())
