"""The PPO family: what each member's cost signal is, and what all members share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from test_bcppo import CPU, HIGH_COST, LIMIT, LOW_COST, WIDTHS, batch, state
from tiny_cmdp import TinyCMDP

from bcppo.algorithms import METHODS
from bcppo.algorithms.bcppo import BCPPO, Disagreement
from bcppo.algorithms.cppo import TailWeight, tail_weights
from bcppo.algorithms.ppo import NoSignal, Unconstrained
from bcppo.algorithms.qrppo import QuantileTail
from bcppo.errors import ConfigError
from bcppo.math.quantile import pinball_loss, quantile_levels
from bcppo.policy import NumpyPolicy, load_policy
from bcppo.records import RunFolder
from bcppo.run import Run, Trainer, resume, train
from bcppo.settings import BCPPOConfig, CPPOConfig, PPOConfig, QRPPOConfig
from bcppo.streams import Streams
from bcppo.watch import Watch

SMALL = {"cost_limit_rate": LIMIT, "rollout": 64, "minibatch": 32, "epochs": 2, "hidden": (24, 16)}
FILES = ("progress.parquet", "episodes.parquet", "evaluations.parquet", "checkpoint.safetensors", "policy.safetensors")


def updated(kind: type, signal: type, cost: float = HIGH_COST, **changes) -> BCPPO:
    """A learner after three updates on rollouts of a mean cost."""
    learner = BCPPO([kind(**(SMALL | changes))], WIDTHS, [Streams(0, 1)], CPU, signal=signal)
    for seed in range(3):
        learner.update(batch(seed, cost))
    return learner


def same_policy(one: BCPPO, two: BCPPO) -> bool:
    a, b = state(one, "policy"), state(two, "policy")
    return all(torch.equal(a[name], b[name]) for name in a)


def test_ppo_with_pid_is_bcppo_without_its_penalty() -> None:
    assert same_policy(updated(PPOConfig, NoSignal), updated(BCPPOConfig, Disagreement, beta=0.0))
    assert not same_policy(updated(PPOConfig, NoSignal), updated(BCPPOConfig, Disagreement, beta=50.0))


def test_reward_ppo_ignores_the_cost() -> None:
    unconstrained = updated(PPOConfig, Unconstrained)
    assert unconstrained.controller.multiplier.item() == 0.0
    assert same_policy(unconstrained, updated(PPOConfig, NoSignal, cost_limit_rate=1e6))
    assert not same_policy(unconstrained, updated(PPOConfig, NoSignal))


def test_the_deployed_policy_normalises_as_the_learner_does() -> None:
    learner = BCPPO([PPOConfig(**SMALL, normalize_observations=True)], WIDTHS, [Streams(0, 1)], CPU, signal=NoSignal)
    rollouts = [batch(seed) for seed in range(3)]
    for one in rollouts:
        one.observation = 100.0 * one.observation + 7.0
        learner.update(one)
    observed = torch.cat([one.observation[0] for one in rollouts]).double()
    arrays = learner.policy_arrays(0)
    np.testing.assert_allclose(arrays["offset"], observed.mean(0), rtol=1e-4)
    np.testing.assert_allclose(arrays["scale"], observed.std(0), rtol=1e-4)
    policy = NumpyPolicy(arrays, np.full(WIDTHS[1], -1.0), np.full(WIDTHS[1], 1.0))
    with torch.no_grad():
        expected = learner.policy.mean(learner._normalized(rollouts[0]).observation)[0]
    np.testing.assert_allclose(policy.mean(rollouts[0].observation[0].numpy()), expected, atol=1e-5)
    assert "offset" not in updated(PPOConfig, NoSignal).policy_arrays(0)


# --- CPPO ---


def test_tail_weights_by_hand() -> None:
    """Segments cost 1+2 = 3, 5, 4+0 = 4, 1: at α = 0.5 the quantile is 3, so 3, 5, 4 are in the tail: 1/(1−½) = 2."""
    cost = np.array([[1.0, 2.0, 5.0, 4.0, 0.0, 1.0]])
    ended = np.array([[False, True, True, False, True, False]])
    np.testing.assert_array_equal(tail_weights(cost, ended, 0.5, 10.0), [2, 2, 2, 2, 2, 0])
    # At α = 0.75 the quantile is 4 (three of four segments cost at most that) and the weight 1/(1−¾) = 4, clipped to 3.
    np.testing.assert_array_equal(tail_weights(cost, ended, 0.75, 3.0), [0, 0, 3, 3, 3, 0])


def test_segments_do_not_run_from_one_environment_into_the_next() -> None:
    cost = np.array([[1.0, 1.0], [3.0, 3.0]])
    ended = np.zeros((2, 2), bool)
    np.testing.assert_array_equal(tail_weights(cost, ended, 0.9, 10.0), [0, 0, 10, 10])


def test_one_segment_weighs_every_step_alike() -> None:
    """The known limit of CPPO: with one segment in a batch, branch normalisation leaves PPO with PID."""
    cost = np.random.default_rng(0).random((1, 20))
    assert len(set(tail_weights(cost, np.zeros((1, 20), bool), 0.95, 10.0))) == 1


def test_tail_weight_multiplies_the_cost_advantage_only() -> None:
    signal = TailWeight([CPPOConfig(**SMALL)], WIDTHS, [Streams(0, 1)], CPU)
    rollout = batch(1)
    weighed = signal.weigh(rollout, torch.ones(1, 64))
    expected = tail_weights(rollout.cost.numpy(), rollout.ended.numpy(), 0.95, 10.0)
    np.testing.assert_allclose(weighed[0], expected)
    assert 0 < np.count_nonzero(expected) < 64
    cppo, plain = updated(CPPOConfig, TailWeight), updated(PPOConfig, NoSignal)
    assert not same_policy(cppo, plain)
    values, others = state(cppo, "values"), state(plain, "values")
    assert all(torch.equal(values[name], others[name]) for name in values), "the weight reached a critic's target"


# --- QR PPO ---


def test_quantile_midpoints_and_tail_set() -> None:
    levels = quantile_levels(32)
    assert levels[0].item() == 0.5 / 32
    assert levels[31].item() == 31.5 / 32
    assert np.flatnonzero(levels >= 0.95).tolist() == [30, 31]
    with pytest.raises(ConfigError, match=r"at most 0\.984375"):
        QRPPOConfig(alpha=0.99)


def test_tail_is_the_mean_of_the_quantiles_at_or_above_the_level() -> None:
    signal = QuantileTail([QRPPOConfig(**SMALL, beta=2.0)], WIDTHS, [Streams(0, 1)], CPU)
    rollout = batch(0)
    shaping, quantiles, _ = signal.shape(rollout.observation, rollout.executed)
    torch.testing.assert_close(shaping[0], 2.0 * quantiles.detach()[0, :, 30:].mean(-1))
    assert quantiles.requires_grad
    assert not shaping.requires_grad


def test_pinball_loss_by_hand() -> None:
    """y = 1: q = 0 has u = 1, costing τ; q = 3 has u = −2, costing 2(1 − τ). τ = ¼, ¾: (¼ + ½)/2 = 0.375."""
    loss = pinball_loss(torch.tensor([[[0.0, 3.0]]]), torch.tensor([[1.0]]), torch.tensor([0.25, 0.75]))
    assert loss.item() == pytest.approx(0.375)


def test_quantile_critic_recovers_known_quantiles() -> None:
    """Targets are exponential whatever the input: quantile τ is −log(1 − τ)."""
    settings = QRPPOConfig(**(SMALL | {"learning_rate": 3e-3}), quantiles=8, alpha=0.9)
    signal = QuantileTail([settings], WIDTHS, [Streams(0, 1)], CPU)
    random = np.random.default_rng(0)
    inputs = [torch.from_numpy(random.standard_normal((1, 512, width), dtype=np.float32)) for width in WIDTHS]
    for _ in range(600):
        target = torch.from_numpy(random.exponential(size=(1, 512)).astype(np.float32))
        signal.descend(signal.shape(*inputs)[1], target)
    found = signal.shape(*inputs)[1].detach().mean(1)[0]
    np.testing.assert_allclose(found, -np.log(1 - quantile_levels(8).numpy()), atol=0.12)


@pytest.mark.parametrize("signal", [QuantileTail, Disagreement])
def test_actor_loss_leaves_the_signals_critic_alone(signal: type) -> None:
    """Two learners whose penalty weighs nothing, or a hundred times as much, train the same critics."""
    kind = QRPPOConfig if signal is QuantileTail else BCPPOConfig
    light, heavy = (updated(kind, signal, beta=beta) for beta in (0.0, 100.0))
    assert not same_policy(light, heavy)
    # The critics see the same targets as long as the values and the batch are the same, which no policy changes here.
    a, b = state(light, "critics"), state(heavy, "critics")
    assert all(torch.equal(a[name], b[name]) for name in a)


# --- what every on-policy method shares; tests/test_offpolicy.py has WCSAC's part ---

ON_POLICY = [name for name, method in METHODS.items() if not method.off_policy]


ON_POLICY = [name for name, method in METHODS.items() if not method.off_policy]
"""WCSAC, which learns after every step, has the same tests in test_offpolicy.py."""


def settings_of(method: str, **changes):
    values = {
        "task": "tiny", "steps": 1024, "rollout": 256, "minibatch": 128, "epochs": 2, "hidden": (32, 32),
        "cost_limit_rate": 0.3, "eval_every": 512, "eval_episodes": 3, "checkpoint_every": 256, "tensorboard": False,
    }  # fmt: skip
    return METHODS[method].config(**(values | changes))


@pytest.mark.parametrize("method", ON_POLICY)
def test_every_method_is_deterministic_resumes_and_does_not_mind_company(method: str, tmp_path: Path) -> None:
    first = train(settings_of(method, seed=1), method=method, out=tmp_path / "first", make_env=TinyCMDP)
    expected = {name: (first / name).read_bytes() for name in FILES}

    # In a stack with another run.
    folders = [RunFolder(tmp_path / name) for name in ("beside", "again")]
    configs = [settings_of(method, seed=2, cost_limit_rate=0.1), settings_of(method, seed=1)]
    for folder, settings in zip(folders, configs):
        folder.create(method, settings, "cpu")
    Trainer([Run(method, c, f, TinyCMDP) for f, c in zip(folders, configs)], Watch(bar=False)).train()
    assert {name: (folders[1] / name).read_bytes() for name in FILES} == expected

    # Stopped on the way, and resumed.
    settings = settings_of(method, seed=1)
    with pytest.raises(KeyboardInterrupt):
        train(settings, method=method, out=tmp_path / "half", make_env=TinyCMDP, watch=Stop(bar=False))
    resumed = resume(tmp_path / "half", make_env=TinyCMDP)
    assert {name: (resumed / name).read_bytes() for name in FILES} == expected
    multipliers = resumed.read_rows("progress")["multiplier"]
    assert (max(multipliers) > 0) == (method != "ppo"), "a resumed controller was not put to the test"


def test_what_observations_are_normalised_by_goes_on_with_a_resumed_run(tmp_path: Path) -> None:
    settings = settings_of("bcppo", normalize_observations=True)
    whole = train(settings, out=tmp_path / "whole", make_env=TinyCMDP)
    with pytest.raises(KeyboardInterrupt):
        train(settings, out=tmp_path / "half", make_env=TinyCMDP, watch=Stop(bar=False))
    resumed = resume(tmp_path / "half", make_env=TinyCMDP)
    for name in FILES:
        assert (resumed / name).read_bytes() == (whole / name).read_bytes(), name


class Stop(Watch):
    """Interrupts a run at its third update."""

    def update(self, run: Run) -> None:
        if run.updates == 3:
            raise KeyboardInterrupt


FAMILY = {"learning_rate": 1e-3, "proportional_gain": 0.3, "integral_gain": 0.0, "derivative_gain": 5.0}
# With the cost advantage divided by an episode's length, PPOLag's multiplier would have to climb eight times as far and
# FOCOPS's beyond its ceiling. FOCOPS's policy is let move faster than by default, so that its multiplier, which only
# integrates, swings less; it still swings, so FOCOPS is held to its mean over the last third of training and not to the
# moment it ends (with seeds 0 to 5: 0.267 to 0.291, where the last policies cost 0.216 to 0.307).
OMNISAFE: dict[str, dict] = {
    "ppolag": {"learning_rate": 1e-3, "critic_learning_rate": 1e-3, "cost_advantage_scale": "one"},
    "focops": {
        "steps": 30_000, "learning_rate": 3e-3, "critic_learning_rate": 1e-3, "cost_advantage_scale": "one",
        "temperature": 0.3, "eta": 0.2, "target_kl": 0.2, "multiplier_learning_rate": 0.02,
    },
    "cpo": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Mean cost per step on the tiny CMDP with limit 0.3 (unconstrained: 1): of each method's deterministic policy, of
    FOCOPS late in training."""
    found = {}
    for method in ON_POLICY:
        changes = {"steps": 20_000, "epochs": 4, "initial_log_std": -1.0, "eval_every": 0, "checkpoint_every": 10**6}
        settings = settings_of(method, **(changes | OMNISAFE.get(method, FAMILY)))
        if method == "qrppo":
            settings = dataclasses.replace(settings, beta=0.01)  # its tail holds the mean cost too, as A_c does
        folder = train(settings, method=method, out=tmp_path_factory.mktemp("family") / method, make_env=TinyCMDP)
        action = (load_policy(folder / "policy.safetensors").act(np.eye(2, dtype=np.float32))[:, 0] + 1) / 2
        found[method] = float(np.mean(np.array([0.5, 1.5]) * action))
        if method == "focops":
            costs = folder.read_rows("progress")["mean_cost"]
            found[method] = float(np.mean(costs[-len(costs) // 3 :]))
    return found


@pytest.mark.parametrize("method", [name for name in ON_POLICY if name != "ppo"])
def test_constrained_methods_meet_the_limit(method: str, costs: dict[str, float]) -> None:
    assert costs[method] == pytest.approx(0.3, abs=0.06)


def test_reward_ppo_violates_the_limit(costs: dict[str, float]) -> None:
    assert costs["ppo"] > 0.9


@pytest.mark.parametrize("method", ON_POLICY)
def test_low_cost_rollouts_leave_the_multiplier_at_zero(method: str) -> None:
    learner = METHODS[method].learner()([METHODS[method].config(**SMALL)], WIDTHS, [Streams(0, 1)], CPU)
    metrics = learner.update(batch(0, LOW_COST))
    assert metrics["multiplier"].item() == 0.0
