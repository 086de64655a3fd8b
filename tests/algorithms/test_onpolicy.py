"""What PPOLag, FOCOPS and CPO share: the KL stop, the constraint's statistic and units, observation normalisation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from test_bcppo import CPU, HIGH_COST, LIMIT, WIDTHS, batch, same, state
from torch import Tensor

from bcppo.algorithms.batch import Batch
from bcppo.algorithms.cpo import CPO
from bcppo.algorithms.focops import FOCOPS
from bcppo.algorithms.onpolicy import OnPolicy, Sample
from bcppo.algorithms.ppolag import PPOLag
from bcppo.errors import ConfigError
from bcppo.policy import NumpyPolicy
from bcppo.settings import CPOConfig, FOCOPSConfig, LagrangeConfig, OmniConfig, PPOLagConfig
from bcppo.streams import Streams

SMALL: dict[str, Any] = {
    "cost_limit_rate": LIMIT, "rollout": 64, "minibatch": 32, "epochs": 4, "hidden": (24, 16), "steps": 6400,
}  # fmt: skip
FIRST_ORDER = [(PPOLag, PPOLagConfig), (FOCOPS, FOCOPSConfig)]
KINDS = ("parameter", "first", "second")
ALL = [*FIRST_ORDER, (CPO, CPOConfig)]


def make(kind: Any, *configs: OmniConfig, dtype: torch.dtype = torch.float32) -> Any:
    return kind(list(configs), WIDTHS, [Streams(seed, 1) for seed in range(len(configs))], CPU, dtype=dtype)


def twice(one: Batch) -> Batch:
    """The same rollout for two runs."""
    fields = {name: value for name, value in vars(one).items() if isinstance(value, Tensor)}
    tensors = {name: torch.cat([value, value]) for name, value in fields.items()}
    return Batch(**tensors, environments=1, episodes=[*one.episodes] * 2)


# --- the KL stop ---


@pytest.mark.parametrize(("kind", "config"), FIRST_ORDER)
def test_a_stopped_run_stays_put_while_the_other_goes_on(kind: Any, config: type[LagrangeConfig]) -> None:
    settings = config(**SMALL, learning_rate=3e-2)
    patient = dataclasses.replace(settings, target_kl=1e6)
    both = make(kind, dataclasses.replace(settings, target_kl=1e-9), patient)
    metrics = both.update(twice(batch()))
    assert metrics["epochs"].tolist() == [1.0, 4.0]
    assert both.policy_optimizer.steps == both.values_optimizer.steps == [2, 8]

    one_epoch = make(kind, dataclasses.replace(patient, epochs=1), dataclasses.replace(patient, epochs=1))
    expected = one_epoch.update(twice(batch()))
    stopped, after_one = state(both), state(one_epoch)
    assert all(torch.equal(stopped[name][0], after_one[name][0]) for name in stopped)  # weights and Adam's moments
    assert not any(
        torch.equal(stopped[f"policy.{kind}.bias0"][1], after_one[f"policy.{kind}.bias0"][1]) for kind in KINDS
    )
    for name in ("kl", "loss_policy", "loss_value_cost"):
        assert metrics[name][0] == expected[name][0]


@pytest.mark.parametrize(("kind", "config"), FIRST_ORDER)
def test_a_stopped_run_is_as_it_would_be_alone_an_update_later(kind: Any, config: type[LagrangeConfig]) -> None:
    """Its Adam has taken fewer steps and its stream fewer draws than its neighbour's."""
    settings = [config(**SMALL, learning_rate=3e-2, target_kl=kl) for kl in (0.05, 1e6)]
    both, alone = make(kind, *settings), make(kind, settings[0])
    for seed in range(3):
        both.update(twice(batch(seed)))
        alone.update(batch(seed))
    assert len(set(both.policy_optimizer.steps)) == 2
    stacked, single = state(both), state(alone)
    assert all(torch.equal(stacked[name][:1], single[name]) for name in single)


@pytest.mark.parametrize(("kind", "config"), ALL)
def test_the_papers_sizes_are_bit_equal_in_a_stack(kind: Any, config: type[OmniConfig]) -> None:
    sizes = {"rollout": 512, "minibatch": 256, "epochs": 2, "hidden": (64, 64)}
    configs = [config(**(SMALL | sizes | {"cost_limit_rate": limit})) for limit in (0.5, 1.0, 3.0)]
    together, alone = make(kind, *configs), make(kind, configs[0])
    for seed in range(2):
        rollouts = [batch(10 * run + seed, steps=512) for run in range(3)]
        fields = [name for name, value in vars(rollouts[0]).items() if isinstance(value, Tensor)]
        joined = {name: torch.cat([getattr(one, name) for one in rollouts]) for name in fields}
        together.update(Batch(**joined, environments=1))
        alone.update(rollouts[0])
    stacked, single = state(together), state(alone)
    assert all(torch.equal(stacked[name][:1], single[name]) for name in single)
    for ours, own in zip(together.controller, alone.controller):
        assert torch.equal(ours[:1], own)


@pytest.mark.parametrize(("kind", "config"), ALL)
def test_updates_that_wait_for_the_device_let_others_go_on_and_come_out_the_same(
    kind: Any, config: type[OmniConfig]
) -> None:
    """Where an update has to look at a number, a fleet turns to another stack; here, to another learner."""
    more = {"target_kl": 2.0} if kind is CPO else {}  # so far that the first length is not the one
    settings = [config(**(SMALL | {"cost_limit_rate": limit} | own)) for limit, own in ((0.5, more), (3.0, {}))]
    ours, plain = [make(kind, one) for one in settings], [make(kind, one) for one in settings]
    for seed in range(2):
        works = [one.updating(batch(10 * index + seed)) for index, one in enumerate(ours)]
        waits, metrics = [0, 0], [{}, {}]
        while not all(metrics):
            for index, work in enumerate(works):
                try:
                    waits[index] += next(work).ready()
                except StopIteration as end:
                    metrics[index] = metrics[index] or end.value
        for index, one in enumerate(plain):
            assert same(one.update(batch(10 * index + seed)), metrics[index])
        if kind is CPO:
            assert waits == [int(own["accepted_step"]) or settings[0].search_steps for own in metrics]
        else:
            assert waits == [int(own["epochs"]) for own in metrics]
        assert max(waits) > 1
    for one, other in zip(ours, plain):
        assert same(state(one), state(other))


def test_learning_rate_reaches_zero_with_the_end() -> None:
    settings = PPOLagConfig(**(SMALL | {"steps": 4 * 64}), target_kl=1e6)
    learner, constant = make(PPOLag, settings), make(PPOLag, dataclasses.replace(settings, learning_rate_decay=False))
    rates = []
    for seed in range(5):
        for one in (learner, constant):
            one.update(batch(seed))
        rates.append(learner.policy_optimizer.rates[0])
    np.testing.assert_allclose(rates, [3e-4, 2.25e-4, 1.5e-4, 0.75e-4, 0.0], atol=1e-19)
    assert constant.policy_optimizer.rates == [3e-4]
    assert learner.values_optimizer.rates == [3e-4]


# --- the constraint ---


def with_episodes(*episodes: tuple[float, float]) -> Batch:
    one = batch()
    one.episodes = [list(episodes)]
    return one


def test_statistic_is_the_mean_of_the_last_episodes_in_the_units_asked_for() -> None:
    """Window 2: of costs 9, 4, 6 over 1, 2, 8 steps it holds 4 and 6, so 5 an episode of 5 steps, or 1 a step."""
    rollout = with_episodes((9.0, 1.0), (4.0, 2.0), (6.0, 8.0))
    settings = PPOLagConfig(**(SMALL | {"cost_limit_rate": 0.25}), window=2)
    found = make(PPOLag, settings)._measure(rollout)
    assert [part.item() for part in found] == [0.75, 5.0, 5.0, 0.2]
    assert make(PPOLag, dataclasses.replace(settings, cost_advantage_scale="one"))._measure(rollout)[3].item() == 1.0
    episodic = make(PPOLag, dataclasses.replace(settings, rate_units=False, episode_cost_limit=3.0))
    assert [part.item() for part in episodic._measure(rollout)] == [2.0, 5.0, 5.0, 1.0]


def test_statistic_carries_on_over_rollouts_and_rollouts_count_until_an_episode_ends() -> None:
    learner = make(PPOLag, PPOLagConfig(**SMALL, window=2))
    before = learner._measure(with_episodes())
    assert before.excess.item() == pytest.approx(batch().cost.mean().item() - LIMIT)
    assert before.episode_length.item() == 64
    learner._measure(with_episodes((1.0, 10.0)))
    assert learner._measure(with_episodes()).episode_cost.item() == 1.0
    assert learner._measure(with_episodes((3.0, 10.0))).episode_cost.item() == 2.0
    assert learner._measure(with_episodes((7.0, 10.0))).episode_cost.item() == 5.0


def test_dividing_the_cost_advantage_divides_its_weight() -> None:
    """PPOLag's advantage is then A_r − λ·A_c / length: a λ larger by the length gives the same policy."""
    settings = PPOLagConfig(**(SMALL | {"multiplier_learning_rate": 1e-9}), multiplier_start=10.0, max_grad_norm=0.0)
    rollout = with_episodes((20.0, 10.0))
    learner = make(PPOLag, settings)
    prepared = learner._prepare(rollout, learner._measure(rollout).advantage_scale)
    whole = learner._prepare(rollout, torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(10.0 * prepared.cost_advantage, whole.cost_advantage)
    assert torch.equal(prepared.reward_advantage, whole.reward_advantage)
    assert whole.cost_advantage.mean().abs() < 1e-6
    assert not np.isclose(whole.cost_advantage.std().item(), 1.0)  # centred, not standardised


@pytest.mark.parametrize(("kind", "config"), FIRST_ORDER)
def test_multiplier_climbs_above_the_limit_and_falls_below_it(kind: Any, config: type[LagrangeConfig]) -> None:
    learner = make(kind, config(**SMALL))
    up = [learner.update(with_episodes((cost, 1.0)))["multiplier"].item() for cost in (2.0,) * 5]
    assert up[0] == pytest.approx(0.036, rel=1e-6)  # Adam's first step is its learning rate
    assert up == sorted(up)
    down = [learner.update(with_episodes(*[(0.0, 1.0)] * 50))["multiplier"].item() for _ in range(40)]
    assert down[-1] == 0.0


def test_focops_multiplier_has_a_ceiling() -> None:
    learner = make(FOCOPS, FOCOPSConfig(**SMALL, multiplier_max=0.05))
    assert [learner.update(batch(0, HIGH_COST))["multiplier"].item() for _ in range(3)][-1] == 0.05


# --- FOCOPS ---


@pytest.mark.parametrize("broadcast", [False, True])
def test_focops_loss_by_pairs_and_by_samples(broadcast: bool) -> None:
    """The release's loss is the mean of a [B, B] table, the published one that of its diagonal."""
    learner = make(FOCOPS, FOCOPSConfig(**SMALL, eta=0.3, broadcast_kl=broadcast), dtype=torch.float64)
    rollout = learner._prepare(batch(), torch.ones(1, dtype=torch.float64))
    random = np.random.default_rng(0)
    shifted = rollout.old_mean + torch.from_numpy(0.4 * random.standard_normal(rollout.old_mean.shape))
    advantage = rollout.reward_advantage
    part = Sample(**(vars(rollout) | {"old_mean": shifted, "advantage": advantage}))
    kl = ((rollout.old_mean - shifted) ** 2 / 2).sum(-1)[0]  # both standard deviations are 1
    assert 5 < int((kl <= 0.3).sum()) < 59
    table = (kl[:, None] - advantage[0] / 1.5) * (kl[:, None] <= 0.3)
    expected = table.mean() if broadcast else table.diagonal().mean()
    loss = learner._loss(part, learner.policy.log_std)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)


# --- CPO ---


def test_policy_stays_where_no_step_is_good() -> None:
    """Every step is taken to leave the trust region: only the values move."""
    learner = make(CPO, CPOConfig(**SMALL, search_steps=1, target_kl=1e-2))
    before, before_policy = state(learner), state(learner, "policy")
    learner.divergence = lambda *_: torch.full((1, 64, 3), 1.0)
    metrics = learner.update(batch())
    assert metrics["accepted_step"].item() == 0.0
    after = state(learner)
    assert same(before_policy, state(learner, "policy"))
    assert not torch.equal(before["values.parameter.bias0"], after["values.parameter.bias0"])


def test_runs_of_a_stack_take_steps_of_their_own() -> None:
    """One far below its limit, one far above: different cases in one stack, each as alone."""
    settings = [CPOConfig(**(SMALL | {"cost_limit_rate": limit})) for limit in (100.0, 0.0)]
    both = make(CPO, *settings)
    metrics = both.update(twice(batch()))
    assert metrics["case"].tolist() == [3.0, 0.0]
    alone = make(CPO, settings[0])
    alone.update(batch())
    stacked, single = state(both), state(alone)
    assert all(torch.equal(stacked[name][:1], single[name]) for name in single)


# --- observations ---


@pytest.mark.parametrize(("kind", "config"), ALL)
def test_the_deployed_policy_normalises_as_the_learner_does(kind: Any, config: type[OmniConfig]) -> None:
    learner: OnPolicy = make(kind, config(**SMALL))
    rollouts = [batch(seed) for seed in range(3)]
    for one in rollouts:
        one.observation = 100.0 * one.observation + 7.0
        learner.update(one)
    seen = torch.cat([one.observation[0] for one in rollouts]).double()
    arrays = learner.policy_arrays(0)
    np.testing.assert_allclose(arrays["offset"], seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(arrays["scale"], seen.std(0), rtol=1e-4)
    policy = NumpyPolicy(arrays, np.full(3, -1.0), np.full(3, 1.0))
    with torch.no_grad():
        expected = learner.policy.mean(learner._normalized(rollouts[0].observation))[0]
    np.testing.assert_allclose(policy.mean(rollouts[0].observation[0].numpy()), expected, atol=1e-5)
    far = np.full(7, 1e9, np.float32)
    np.testing.assert_array_equal(policy.mean(far), policy.mean(2 * far))  # clipped


def test_without_normalisation_nothing_is_stored_of_it() -> None:
    learner = make(PPOLag, PPOLagConfig(**SMALL, normalize_observations=False))
    learner.update(batch())
    assert "offset" not in learner.policy_arrays(0)
    assert learner.controller.observations.item() == 0


# --- configs ---


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (PPOLagConfig, {"clip": 0.0}),
        (PPOLagConfig, {"minibatch": 100}),
        (PPOLagConfig, {"cost_advantage_scale": "two"}),
        (PPOLagConfig, {"window": 0}),
        (PPOLagConfig, {"multiplier_start": -1.0}),
        (FOCOPSConfig, {"temperature": 0.0}),
        (FOCOPSConfig, {"eta": -0.1}),
        (CPOConfig, {"target_kl": 0.0}),
        (CPOConfig, {"damping": -1.0}),
        (CPOConfig, {"search_steps": 0}),
    ],
)
def test_impossible_settings_are_refused(config: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        config(**changes)


def test_defaults_are_the_papers_and_omnisafes() -> None:
    for config in (PPOLagConfig(), FOCOPSConfig(), CPOConfig()):
        assert (config.rollout, config.minibatch, config.hidden, config.updates) == (2048, 256, (64, 64), 488)
        assert (config.max_grad_norm, config.critic_penalty, config.initial_log_std) == (40.0, 1e-3, 0.0)
    assert [(c.epochs, c.target_kl) for c in (PPOLagConfig(), CPOConfig())] == [(20, 0.02), (10, 0.01)]


def test_stacks_agree_on_what_shapes_the_computation() -> None:
    for kind, first, second in (
        (PPOLag, PPOLagConfig(**SMALL), PPOLagConfig(**(SMALL | {"epochs": 3}))),
        (CPO, CPOConfig(**SMALL), CPOConfig(**SMALL, search_steps=3)),
    ):
        with pytest.raises(ConfigError, match="agree on"):
            make(kind, first, second)


def test_gradient_norms_of_the_two_values_are_taken_apart() -> None:
    """A cost a thousand times the reward does not scale down the reward value's gradient."""
    after: list[Tensor] = []
    for factor in (1.0, 1000.0):
        learner = make(PPOLag, PPOLagConfig(**SMALL, max_grad_norm=0.5))
        rollout = batch()
        rollout.cost = rollout.cost * factor
        learner.update(rollout)
        after.append(learner.values.parameters["weight0"][:, 0].detach().clone())
    assert torch.equal(*after)
