"""σ_c, μ_c and what really happened, at every transition of a policy's 20 evaluation episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bcppo.diagnostics.measure.checkpoints import Restored, restore_ensembles
from bcppo.diagnostics.measure.transitions import evaluation_transitions, perturbed
from bcppo.diagnostics.runs import Found, runs_table
from bcppo.diagnostics.store import Columns, Measured, join
from bcppo.math.bachelier import disagreement, mean_prediction

NOISE_SEED = 0
"""Of the perturbed actions; each policy's stream is spawned from it and the training seed."""


def measure(runs: Sequence[Found], device: str = "cpu") -> Measured:
    restored, not_eligible = restore_ensembles(runs, "calibration")
    parts = [{"run": np.full(len(rows["cost"]), index), **rows} for index, rows in _all_rows(restored)]
    return Measured({"runs": runs_table(runs), "transitions": join(parts)}, not_eligible, {"noise_seed": NOISE_SEED})


def _all_rows(restored: Sequence[tuple[int, Restored]]):
    for index, checkpoint in restored:
        yield index, transition_rows(checkpoint)


def transition_rows(checkpoint: Restored) -> Columns:
    """One row a transition. Discounted quantities are multiplied by (1 − γ): the scale of a cost per step."""
    env = checkpoint.make_env()
    transitions = evaluation_transitions(checkpoint.policy, env)
    env.close()
    random = np.random.default_rng([NOISE_SEED, checkpoint.config.seed])
    moved = perturbed(transitions.action, checkpoint.policy, random)
    scale = 1.0 - checkpoint.config.discount
    mean, spread = _statistics(checkpoint, transitions.observation, transitions.action)
    _, moved_spread = _statistics(checkpoint, transitions.observation, moved)
    return {
        "episode": transitions.episode,
        "cost": transitions.cost,
        "boundary_hit": transitions.boundary_hit,
        "mean": scale * mean,
        "spread": scale * spread,
        "perturbed_spread": scale * moved_spread,
        "cost_to_go": scale * transitions.cost_to_go(checkpoint.config.discount),
    }


def _statistics(checkpoint: Restored, observation: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(μ_c, σ_c), [T] float64, discounted."""
    members = torch.from_numpy(checkpoint.predictions(observation, action)).double().T.unsqueeze(0)
    floor = checkpoint.config.disagreement_floor
    return mean_prediction(members)[0].numpy(), disagreement(members, floor=floor)[0].numpy()
