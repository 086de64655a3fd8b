"""Critics retrained after a region of their data was removed, beside critics that lost as many rows at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from bcppo.diagnostics.measure.checkpoints import Restored, restore_ensembles
from bcppo.diagnostics.measure.retrain import Fit, Policy, Retrained, Schedule, retrain
from bcppo.diagnostics.measure.transitions import Transitions, evaluation_transitions
from bcppo.diagnostics.runs import Found, runs_table
from bcppo.diagnostics.store import Columns, Measured, NotEligible, join
from bcppo.math.bachelier import disagreement, mean_prediction, reference_level, strike
from bcppo.math.gae import td_target

REMOVED_SHARE = 0.2
FITTING_SHARE = 0.7
SCORES = ("norm", "projection")
TARGETS = ("td", "mc")
DIRECTION_SEED = 7
"""Of the fixed random direction; one direction for each width of features."""


class Condition(NamedTuple):
    """One retraining of a policy's critics."""

    score: str  # what the removed region is defined by
    kind: str  # removal or control
    target: str  # td or mc
    noise: float = 0.0  # of the targets, in stds of the clean ones


CONDITIONS = [
    Condition(score, kind, target) for score in SCORES for target in TARGETS for kind in ("removal", "control")
]


@dataclass(frozen=True)
class Prepared:
    """A policy's transitions, split by episode, scored and with targets."""

    index: int  # of the run
    checkpoint: Restored
    policy: Policy
    fitting: np.ndarray  # rows of the transitions
    held_out: np.ndarray
    transitions: Transitions
    scores: dict[str, np.ndarray]  # [T], of all transitions
    targets: dict[str, np.ndarray]  # [T], discounted


def measure(runs: Sequence[Found], device: str = "cpu", max_updates: int = 0) -> Measured:
    return measure_conditions(runs, CONDITIONS, "coverage", device=device, max_updates=max_updates)


def measure_conditions(
    runs: Sequence[Found],
    conditions: Sequence[Condition],
    statistic: str,
    *,
    device: str,
    max_updates: int = 0,
    schedule: Schedule | None = None,
    train: Callable[[Sequence[Policy], Sequence[Fit], Schedule, str], Retrained] = retrain,
) -> Measured:
    """Rows of held-out transitions under every policy × condition; all critics are trained in one stack.

    `train` may do so elsewhere: it gets arrays and hands arrays back.
    """
    restored, not_eligible = restore_ensembles(runs, statistic)
    prepared = []
    for index, checkpoint in restored:
        one = prepare(index, checkpoint)
        if isinstance(one, str):
            not_eligible.append(NotEligible(checkpoint.found.name, statistic, one))
        else:
            prepared.append(one)
    tables: dict[str, Columns] = {"runs": runs_table(runs), "held_out": {}, "curves": {}}
    if not prepared:
        return Measured(tables, not_eligible)
    schedule = schedule or Schedule(members=prepared[0].checkpoint.config.members)
    schedule = replace(schedule, max_updates=max_updates or schedule.max_updates)
    fits = [make_fit(place, one, condition) for place, one in enumerate(prepared) for condition in conditions]
    result = train([one.policy for one in prepared], fits, schedule, device)
    labels = [(one, condition) for one in prepared for condition in conditions]
    tables["held_out"] = join([held_out_rows(*label, result.predictions[i]) for i, label in enumerate(labels)])
    tables["curves"] = _curve_rows(labels, result)
    settings: dict[str, Any] = {"schedule": asdict(schedule), "flattened": result.flattened, "device": device}
    settings["updates"] = int(result.updates[-1]) if len(result.updates) else schedule.max_updates
    return Measured(tables, not_eligible, settings)


def prepare(index: int, checkpoint: Restored) -> Prepared | str:
    """A policy's data; a sentence where it has too few episodes."""
    env = checkpoint.make_env()
    transitions = evaluation_transitions(checkpoint.policy, env)
    env.close()
    random = np.random.default_rng([checkpoint.config.seed, 3])
    episodes = random.permutation(np.unique(transitions.episode))
    fitted = episodes[: round(FITTING_SHARE * len(episodes))]
    fitting = np.flatnonzero(np.isin(transitions.episode, fitted))
    held_out = np.flatnonzero(~np.isin(transitions.episode, fitted))
    if len(fitting) < 100 or len(held_out) < 100:
        return f"its 20 episodes are too short: {len(fitting)} fitting and {len(held_out)} held-out transitions"
    features = np.concatenate([transitions.observation, transitions.action], axis=1)
    policy = Policy(features[fitting], features[held_out], checkpoint.config.seed)
    scores = {
        "norm": np.linalg.norm(transitions.observation.astype(np.float64), axis=1),
        "projection": projection_score(features, fitting),
    }
    targets = {"td": _td_target(checkpoint, transitions), "mc": transitions.cost_to_go(checkpoint.config.discount)}
    return Prepared(index, checkpoint, policy, fitting, held_out, transitions, scores, targets)


def projection_score(features: np.ndarray, fitting: np.ndarray) -> np.ndarray:
    """Features standardised by the fitting rows' mean and std, along one fixed random direction. [T]"""
    values = features.astype(np.float64)
    mean, std = values[fitting].mean(0), values[fitting].std(0)
    direction = np.random.default_rng(DIRECTION_SEED).standard_normal(values.shape[1])
    # A constant feature has nothing to standardise; it says nothing about a row either.
    return ((values - mean) / np.where(std > 0, std, 1.0)) @ (direction / np.linalg.norm(direction))


def _td_target(checkpoint: Restored, transitions: Transitions) -> np.ndarray:
    """y_t with the checkpoint's own V_c, as in training (eq:td_target). [T], discounted."""
    with torch.no_grad():
        following = torch.from_numpy(transitions.next_observation).unsqueeze(0)
        value = checkpoint.learner.values(following)[:, 1, :, 0]
    cost, terminated = (torch.from_numpy(x).unsqueeze(0) for x in (transitions.cost, transitions.terminated))
    return td_target(cost, value, terminated, checkpoint.config.discount)[0].numpy()


def kept_rows(score: np.ndarray, kind: str, random: np.random.Generator) -> np.ndarray:
    """Row numbers that stay: all but the upper 20 % by score, or as many drawn uniformly without replacement."""
    keep = len(score) - round(REMOVED_SHARE * len(score))
    if kind == "removal":
        return np.sort(np.argsort(score, kind="stable")[:keep])
    return np.sort(random.permutation(len(score))[:keep])


def threshold(score: np.ndarray) -> float:
    """The largest score that stays when the upper 20 % are removed."""
    return float(np.sort(score)[len(score) - round(REMOVED_SHARE * len(score)) - 1])


def make_fit(place: int, one: Prepared, condition: Condition) -> Fit:
    """An ensemble's rows and targets. Control rows and noise depend on the policy and the score alone."""
    streams = np.random.default_rng([one.policy.seed, 4, SCORES.index(condition.score)]).spawn(2)
    rows = kept_rows(one.scores[condition.score][one.fitting], condition.kind, streams[0])
    clean = one.targets[condition.target]
    target = clean[one.fitting][rows]
    if condition.noise:
        target = target + condition.noise * target.std() * streams[1].standard_normal(len(rows))
    return Fit(
        policy=place,
        rows=rows,
        target=target.astype(np.float32),
        held_out_target=clean[one.held_out].astype(np.float32),
        watched=condition.kind == "control" and condition.noise == 0.0,
    )


def held_out_rows(one: Prepared, condition: Condition, predictions: np.ndarray) -> Columns:
    """One row a held-out transition; discounted quantities times (1 − γ)."""
    config = one.checkpoint.config
    members = torch.from_numpy(predictions).double().T.unsqueeze(0)  # [1, M, H]
    mean, spread = mean_prediction(members), disagreement(members, floor=config.disagreement_floor)
    above = members >= strike(mean, spread, reference_level(config.alpha, config.kappa)).unsqueeze(1)
    scale, count = 1.0 - config.discount, len(predictions)
    score = one.scores[condition.score]
    limit = threshold(score[one.fitting])
    return {
        "run": np.full(count, one.index),
        "score": np.full(count, condition.score),
        "kind": np.full(count, condition.kind),
        "target": np.full(count, condition.target),
        "noise": np.full(count, condition.noise),
        "omitted": score[one.held_out] > limit,
        "boundary_hit": one.transitions.boundary_hit[one.held_out],
        "mean": scale * mean[0].numpy(),
        "spread": scale * spread[0].numpy(),
        "cost_to_go": scale * one.targets["mc"][one.held_out],
        "members_above_strike": above.sum(1)[0].numpy(),
    }


def _curve_rows(labels: Sequence[tuple[Prepared, Condition]], result: Retrained) -> Columns:
    looks = len(result.updates)
    parts = [
        {
            "run": np.full(looks, one.index),
            **{name: np.full(looks, value) for name, value in condition._asdict().items()},
            "update": result.updates,
            "held_out_loss": result.curves[i],
        }
        for i, (one, condition) in enumerate(labels)
    ]
    return join(parts)
