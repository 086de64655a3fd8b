"""Two clones of a checkpoint's actor take the same update, one with the penalty and one without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcppo.algorithms.batch import Batch
from bcppo.diagnostics.measure.actor import collect_rollouts, make_batch, parameter_difference, take, update_actor
from bcppo.diagnostics.measure.checkpoints import NO_REWARD_VALUE, Restored, restore_ensembles
from bcppo.diagnostics.runs import Found, runs_table
from bcppo.diagnostics.store import Columns, Measured, NotEligible, join
from bcppo.math.bachelier import disagreement, excess_factor, mean_prediction, reference_level
from bcppo.math.surrogate import gaussian_log_prob

ROLLOUTS, STEPS, UPDATE_SHARE, CANDIDATES = 8, 1024, 0.75, 16
SEED = 11
"""Of rollouts, splits and candidate actions."""
TREATMENT, CONTROL, SECOND_CONTROL = 0, 1, 2


def measure(runs: Sequence[Found], device: str = "cpu") -> Measured:
    return measure_with(runs)


def measure_with(runs: Sequence[Found], rollouts: int = ROLLOUTS, steps: int = STEPS) -> Measured:
    restored, not_eligible = restore_ensembles(runs, "actor intervention")
    parts: dict[str, list[Columns]] = {"pairs": [], "candidates": [], "update_actions": []}
    for index, checkpoint in restored:
        if checkpoint.lacks_reward_value:
            not_eligible.append(NotEligible(checkpoint.found.name, "actor intervention", NO_REWARD_VALUE))
            continue
        if checkpoint.multiplier == 0.0:
            reason = "the saved λ is 0: the pair is a negative control and has no direction"
            not_eligible.append(NotEligible(checkpoint.found.name, "steering direction", reason))
        for name, rows in intervene(checkpoint, rollouts, steps).items():
            parts[name].append({"run": np.full(len(rows["rollout"]), index), **rows})
    tables = {"runs": runs_table(runs), **{name: join(own) for name, own in parts.items()}}
    settings = {
        "rollouts": rollouts,
        "steps": steps,
        "update_share": UPDATE_SHARE,
        "candidates": CANDIDATES,
        "seed": SEED,
    }
    return Measured(tables, not_eligible, settings)


def intervene(checkpoint: Restored, rollouts: int, steps: int) -> dict[str, Columns]:
    """All rollouts of a checkpoint as one stack: run 3k treats rollout k, runs 3k + 1 and 3k + 2 are its controls."""
    collected = collect_rollouts(checkpoint, rollouts, steps, SEED)
    batch = make_batch(checkpoint, [rollout for rollout in collected for _ in range(3)])
    off = replace(checkpoint.config, beta=0.0)
    seeds = [SEED + k for k in range(rollouts) for _ in range(3)]
    learner = checkpoint.copies([checkpoint.config, off, off] * rollouts, seeds)
    random = np.random.default_rng([SEED, checkpoint.config.seed])
    update_rows, held_out_rows = _split(random, rollouts, steps)
    candidates = _sample(
        learner, take(batch.observation, held_out_rows), _noise(random, rollouts, held_out_rows, learner)
    )
    before = _frozen(learner)
    update_actor(learner, batch, update_rows)
    if _frozen(learner) != before:
        raise AssertionError("the critics or the multiplier moved in an update of the actor alone")
    sampling = _noise(random, rollouts, held_out_rows, learner)
    after = _sample(learner, take(batch.observation, held_out_rows), sampling)
    pairs = _pair_rows(learner, checkpoint, batch, held_out_rows, after)
    if checkpoint.multiplier == 0.0:
        return {"pairs": pairs}
    return {
        "pairs": pairs,
        "candidates": _candidate_rows(learner, checkpoint, batch, held_out_rows, candidates),
        "update_actions": _update_rows(learner, checkpoint, batch, update_rows),
    }


def _split(random: np.random.Generator, rollouts: int, steps: int) -> tuple[Tensor, Tensor]:
    """75 % of a rollout's rows to update on, the rest to measure on; the same for the three runs of a rollout."""
    cut = round(UPDATE_SHARE * steps)
    orders = np.repeat(np.stack([random.permutation(steps) for _ in range(rollouts)]), 3, axis=0)
    return torch.from_numpy(orders[:, :cut].copy()), torch.from_numpy(orders[:, cut:].copy())


def _noise(random: np.random.Generator, rollouts: int, rows: Tensor, learner: Any) -> Tensor:
    """Standard normal draws [R, states × 16, act]: the same for the three runs of a rollout."""
    shape = (rollouts, rows.shape[1] * CANDIDATES, learner.policy.sizes[-1])
    return torch.from_numpy(random.standard_normal(shape, dtype=np.float32)).repeat_interleave(3, dim=0)


@torch.no_grad()
def _sample(learner: Any, observation: Tensor, noise: Tensor) -> Tensor:
    """16 actions for each state [R, states × 16, act], unclipped."""
    mean = learner.policy.mean(observation).repeat_interleave(CANDIDATES, dim=1)
    return mean + learner.policy.log_std.exp().unsqueeze(1) * noise


def _frozen(learner: Any) -> list[float]:
    """What the update must leave as it is."""
    sums = [float(p.detach().double().sum()) for p in learner.signal.critics.parameters.values()]
    return [*sums, *learner.controller.multiplier.tolist()]


@torch.no_grad()
def _judge(learner: Any, checkpoint: Restored, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """(Q̂_c = μ_c, σ_c) by the frozen ensembles of unclipped actions, [R, rows], discounted."""
    policy = checkpoint.policy
    executed = torch.minimum(torch.maximum(action, torch.from_numpy(policy.low)), torch.from_numpy(policy.high))
    members = learner.signal.critics(torch.cat([observation, executed], dim=-1)).squeeze(-1).double()
    return mean_prediction(members), disagreement(members, floor=checkpoint.config.disagreement_floor)


@torch.no_grad()
def _change(learner: Any, observation: Tensor, action: Tensor) -> Tensor:
    """Δ log π = log π_treatment − log π_control of the treatments' rows, [rollouts, rows]."""
    log_prob = gaussian_log_prob(action, learner.policy.mean(observation), learner.policy.log_std).double()
    return log_prob[TREATMENT::3] - log_prob[CONTROL::3]


def _penalty(checkpoint: Restored, spread: Tensor) -> Tensor:
    """R_B = h(c₀)·σ_c."""
    return excess_factor(reference_level(checkpoint.config.alpha, checkpoint.config.kappa)) * spread


def _candidate_rows(learner: Any, checkpoint: Restored, batch: Batch, rows: Tensor, actions: Tensor) -> Columns:
    observation = take(batch.observation, rows).repeat_interleave(CANDIDATES, dim=1)
    mean, spread = (x[TREATMENT::3] for x in _judge(learner, checkpoint, observation, actions))
    rollouts, count = mean.shape
    return {
        "rollout": np.repeat(np.arange(rollouts), count),
        "state": np.tile(np.repeat(np.arange(rows.shape[1]), CANDIDATES), rollouts),
        "mean": mean.flatten().numpy(),
        "penalty": _penalty(checkpoint, spread).flatten().numpy(),
        "change": _change(learner, observation, actions).flatten().numpy(),
    }


def _update_rows(learner: Any, checkpoint: Restored, batch: Batch, rows: Tensor) -> Columns:
    observation, action = take(batch.observation, rows), take(batch.action, rows)
    _, spread = _judge(learner, checkpoint, observation, action)
    rollouts, count = spread[TREATMENT::3].shape
    return {
        "rollout": np.repeat(np.arange(rollouts), count),
        "penalty": _penalty(checkpoint, spread[TREATMENT::3]).flatten().numpy(),
        "change": _change(learner, observation, action).flatten().numpy(),
    }


def _pair_rows(learner: Any, checkpoint: Restored, batch: Batch, rows: Tensor, after: Tensor) -> Columns:
    """One row a rollout: parameter differences, and what σ_c the updated actors' own actions have."""
    observation = take(batch.observation, rows).repeat_interleave(CANDIDATES, dim=1)
    _, spread = _judge(learner, checkpoint, observation, after)
    average = spread.mean(1)
    rollouts = range(len(average) // 3)
    return {
        "rollout": np.array(rollouts),
        "multiplier": np.full(len(rollouts), checkpoint.multiplier),
        "treatment_difference": np.array([parameter_difference(learner, 3 * k, 3 * k + CONTROL) for k in rollouts]),
        "control_difference": np.array(
            [parameter_difference(learner, 3 * k + CONTROL, 3 * k + SECOND_CONTROL) for k in rollouts]
        ),
        "treatment_spread": average[TREATMENT::3].numpy(),
        "control_spread": average[CONTROL::3].numpy(),
    }
