"""Run folder, or kept run → learner: what it holds, put back into one stack or into several copies of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bcppo.algorithms import METHODS
from bcppo.diagnostics.measure.networks import put_networks
from bcppo.diagnostics.runs import Found
from bcppo.diagnostics.store import NotEligible
from bcppo.errors import BcppoError
from bcppo.kept import is_kept, read_networks
from bcppo.policy import NumpyPolicy
from bcppo.rollout import MakeEnv
from bcppo.settings import PPOConfig
from bcppo.streams import Streams
from bcppo.training import load_learner
from bcppo.worker import run_environment

NO_REWARD_VALUE = "V_r was left out when the run was kept, and an update of the actor needs it"


@dataclass(frozen=True)
class Restored:
    """A run's checkpoint, or what is kept of it, ready to use."""

    found: Found
    learner: Any
    """The method's learner, a stack of one run."""
    policy: NumpyPolicy
    make_env: MakeEnv
    widths: tuple[int, int]
    put: Callable[[Any, int], None]
    """Puts the checkpoint into a place of a learner's stack."""
    lacks_reward_value: bool = False
    """V_r was left out of a kept run: its actor cannot take an update."""

    @property
    def config(self) -> Any:
        return self.found.config

    @property
    def multiplier(self) -> float:
        """λ as saved."""
        return float(self.learner.controller.multiplier[0])

    def copies(self, configs: Sequence[PPOConfig], seeds: Sequence[int]) -> Any:
        """A stack of learners that all start from this checkpoint, each with settings and random streams of its own."""
        if self.lacks_reward_value:
            raise BcppoError(NO_REWARD_VALUE)
        learner = METHODS[self.found.method].learner()(
            configs, self.widths, [Streams(seed, 1) for seed in seeds], torch.device("cpu")
        )
        for index in range(len(configs)):
            self.put(learner, index)
        return learner

    def predictions(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """The members' discounted costs of state-action pairs, [rows, M] float32."""
        rows = torch.from_numpy(np.concatenate([observation, action], axis=1, dtype=np.float32))
        with torch.no_grad():
            parts = [self.learner.signal.critics(part.unsqueeze(0))[0, ..., 0] for part in rows.split(4096)]
        return torch.cat(parts, dim=1).T.contiguous().numpy()


def restore(found: Found) -> Restored:
    """A run's newest whole checkpoint; a BcppoError says why there is none."""
    put, lacks_reward_value = _source(found)
    make_env = run_environment(found.config)
    env: Any = make_env()
    widths = env.observation_space.shape[0], env.action_space.shape[0]
    bounds = env.action_space.low, env.action_space.high
    env.close()
    device = torch.device("cpu")
    torch.set_num_threads(1)
    learner = METHODS[found.method].learner()([found.config], widths, [Streams(found.config.seed, 1)], device)
    put(learner, 0)
    policy = NumpyPolicy(learner.policy_arrays(0), *bounds)
    return Restored(found, learner, policy, make_env, widths, put, lacks_reward_value)


def _source(found: Found) -> tuple[Callable[[Any, int], None], bool]:
    """(what puts the run's state into a learner, whether V_r is missing from it)"""
    if is_kept(found.folder.path):
        networks, notes = read_networks(found.folder.path)
        whole = notes.get("reward_value") != "left out"
        return partial(put_networks, tensors=networks, reward_value=whole), not whole
    loaded = found.folder.load_checkpoint(lambda sentence: None)
    if loaded is None:
        raise BcppoError(f"the run has left no checkpoint ({found.folder.status()['state']})")
    return partial(load_learner, tensors=loaded[0]), False


def restore_ensembles(runs: Sequence[Found], statistic: str) -> tuple[list[tuple[int, Restored]], list[NotEligible]]:
    """(place in `runs`, checkpoint) of those with an ensemble of cost critics, and why the others have none."""
    restored, not_eligible = [], []
    for index, found in enumerate(runs):
        if found.method != "bcppo":
            reason = f"{found.method} has no ensemble of cost critics"
            not_eligible.append(NotEligible(found.name, statistic, reason))
            continue
        if getattr(found.config, "normalize_observations", False):
            reason = "its critics see normalised observations, which the diagnostics do not know yet"
            not_eligible.append(NotEligible(found.name, statistic, reason))
            continue
        try:
            restored.append((index, restore(found)))
        except BcppoError as error:
            not_eligible.append(NotEligible(found.name, statistic, str(error)))
    return restored, not_eligible
