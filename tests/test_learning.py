"""BCPPO finds the constrained optimum of a problem that can be solved by hand.

The gains are not the paper's: its multiplier adds K_I times the integral of the error on top of itself, so the paper's
K_I = 0.02 integrates twice, and on a problem that a policy solves in seconds the multiplier swings for long. Here K_P
plays the integral part and K_D the proportional one.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tiny_cmdp import HORIZON, TinyCMDP, optimum

from bcppo.evaluation import evaluate
from bcppo.policy import load_policy
from bcppo.records import RunFolder
from bcppo.run import Run, Trainer
from bcppo.settings import BCPPOConfig
from bcppo.watch import Watch

PROBLEMS: dict[str, tuple[tuple[float, float], float]] = {
    "dear and cheap": ((0.5, 1.5), 0.4),
    "equal costs": ((1.0, 1.0), 0.3),
    "inactive limit": ((0.5, 1.5), 5.0),
}
"""Costs per unit of action in the two contexts, and the limit on the mean cost per step."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RunFolder]]:
    """Two seeds of each problem, trained as one stack of six runs (a run comes out the same alone)."""
    runs = []
    for name, (costs, limit) in PROBLEMS.items():
        for seed in range(2):
            config = BCPPOConfig(
                task="own", seed=seed, steps=20_000, cost_limit_rate=limit, rollout=256, minibatch=128, epochs=4,
                hidden=(32, 32), learning_rate=1e-3, initial_log_std=-1.0, proportional_gain=0.3, integral_gain=0.0,
                derivative_gain=5.0, eval_every=0, checkpoint_every=1_000_000, tensorboard=False,
            )  # fmt: skip
            folder = RunFolder(tmp_path_factory.mktemp("learning") / f"{name} {seed}")
            folder.create("bcppo", config, "cpu")
            runs.append(Run("bcppo", config, folder, functools.partial(TinyCMDP, costs)))
    Trainer(runs, Watch(bar=False)).train()
    found = [run.folder for run in runs]
    return {name: found[2 * i : 2 * i + 2] for i, name in enumerate(PROBLEMS)}


def learned(folder: RunFolder) -> np.ndarray:
    """The deterministic policy's a in each context."""
    return (load_policy(folder / "policy.safetensors").act(np.eye(2, dtype=np.float32))[:, 0] + 1) / 2


def late(folder: RunFolder, name: str) -> float:
    """Mean over the last third of training."""
    values = folder.read_rows("progress")[name]
    return float(np.mean(values[-len(values) // 3 :]))


@pytest.mark.parametrize("name", ["dear and cheap", "equal costs"])
def test_reaches_the_constrained_optimum(name: str, folders: dict[str, list[RunFolder]]) -> None:
    """Actions within 0.12 of the best ones, cost within 0.05 of the limit, reward within 0.06 of the best."""
    costs, limit = PROBLEMS[name]
    best, best_reward = optimum(limit, costs)
    for folder in folders[name]:
        action = learned(folder)
        np.testing.assert_allclose(action, best, atol=0.12)
        assert np.mean(np.array(costs) * action) == pytest.approx(limit, abs=0.05)
        assert np.mean(1 - (1 - action) ** 2) == pytest.approx(best_reward, abs=0.06)
        assert late(folder, "mean_cost") == pytest.approx(limit, abs=0.03)
        assert late(folder, "multiplier") > 0.1


def test_spends_its_budget_where_it_is_cheap(folders: dict[str, list[RunFolder]]) -> None:
    """Better than the best policy that does not look at the context: a = 0.4 in both, reward 1 − 0.6² = 0.64 a step."""
    for folder in folders["dear and cheap"]:
        cheap, dear = learned(folder)
        assert cheap > dear + 0.3
        assert late(folder, "episode_return") / HORIZON > 0.66


def test_inactive_limit_gives_the_unconstrained_optimum(folders: dict[str, list[RunFolder]]) -> None:
    for folder in folders["inactive limit"]:
        assert np.mean(1 - (1 - learned(folder)) ** 2) > 0.98
        assert max(folder.read_rows("progress")["multiplier"]) == 0.0


def test_evaluation_agrees_with_the_closed_form(folders: dict[str, list[RunFolder]]) -> None:
    """Recorded evaluation episodes have the return and cost that the policy's two actions imply, given the contexts."""
    (folder, _), costs = folders["dear and cheap"], PROBLEMS["dear and cheap"][0]
    action = learned(folder)
    rewards = 1 - (1 - action) ** 2
    for episode in evaluate(folder.path, episodes=50, make_env=TinyCMDP):
        cheap = (episode["cost_rate"] - costs[1] * action[1]) / (costs[0] * action[0] - costs[1] * action[1])
        assert episode["episode_return"] == pytest.approx(HORIZON * (cheap * rewards[0] + (1 - cheap) * rewards[1]))
        assert HORIZON * cheap == pytest.approx(round(HORIZON * cheap), abs=1e-4)
