"""BCPPO's update: the paper's mechanism, and agreement with Algorithm 1 written out plainly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from plain_bcppo import PlainBCPPO, learner_weights
from torch import Tensor

from bcppo.adam import Adam
from bcppo.algorithms import bcppo as module
from bcppo.algorithms.batch import Batch
from bcppo.algorithms.bcppo import BCPPO
from bcppo.errors import ConfigError
from bcppo.math.bachelier import effective_beta, excess_factor, reference_level
from bcppo.math.gae import gae
from bcppo.math.pid import PidGains, pid_start, pid_step
from bcppo.math.surrogate import clipped_surrogate, gaussian_log_prob, standardize
from bcppo.nets import GaussianPolicy, Stack
from bcppo.settings import BCPPOConfig
from bcppo.streams import Streams

CPU = torch.device("cpu")
WIDTHS = (7, 3)
"""(observation, action) widths; odd on purpose, so that nothing lines up by luck."""

LOW_COST, HIGH_COST = 0.1, 2.0
LIMIT = 1.0
SPREAD = 500.0
"""Fresh critics agree to about 0.1, and β_eff is 0.002: blown up like this, the penalty weighs as much as a cost."""


def config(**changes) -> BCPPOConfig:
    values = {"cost_limit_rate": LIMIT, "rollout": 64, "minibatch": 32, "epochs": 2, "hidden": (24, 16)}
    return BCPPOConfig(**(values | changes))


def learner(settings: BCPPOConfig, seed: int = 0, critic_spread: float = 1.0) -> BCPPO:
    """A fresh learner; `critic_spread` scales its critics' last layer, and with it their disagreement."""
    fresh = BCPPO([settings], WIDTHS, [Streams(seed, 1)], CPU)
    with torch.no_grad():
        fresh.signal.critics.parameters["weight2"] *= critic_spread
    return fresh


def batch(seed: int = 0, cost: float = HIGH_COST, steps: int = 64, ends: float = 0.1) -> Batch:
    """A rollout of mean cost about `cost`, with terminated and truncated steps at rate `ends` each."""
    random = np.random.default_rng([seed, 77])
    observation, following = random.standard_normal((2, 1, steps, WIDTHS[0]), dtype=np.float32)
    action = 1.5 * random.standard_normal((1, steps, WIDTHS[1]), dtype=np.float32)
    terminated, truncated = random.random((2, 1, steps)) < ends
    truncated[0, 5], terminated[0, 5], terminated[0, 9] = True, False, True  # never none of them
    return Batch(
        observation=torch.from_numpy(observation),
        next_observation=torch.from_numpy(following),
        action=torch.from_numpy(action),
        executed=torch.from_numpy(action).clamp(-1, 1),
        reward=torch.from_numpy(random.standard_normal((1, steps))),
        cost=torch.from_numpy(cost * 2 * random.random((1, steps))),
        terminated=torch.from_numpy(terminated),
        ended=torch.from_numpy(terminated | truncated),
        environments=1,
    )


def state(trained: BCPPO, *groups: str) -> dict[str, Tensor]:
    """Weights and Adam's moments, of some networks or of all."""
    return {
        f"{group}.{name}": tensor.detach().clone()
        for group, optimizer in trained.optimizers().items()
        if not groups or group in groups
        for name, tensor in optimizer.state().items()
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    assert one.keys() == other.keys()
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def trained(settings: BCPPOConfig, batches: list[Batch], seed: int = 0, critic_spread: float = 1.0) -> BCPPO:
    result = learner(settings, seed, critic_spread)
    for one in batches:
        result.update(one)
    return result


# --- Algorithm 1 ---

VARIANTS = {
    "paper": {},
    "strong penalty": {"beta": 30.0},
    "raw disagreement": {"raw_disagreement": True, "beta": 2.0},
    "bonus": {"bonus": True, "beta": 30.0},
    "no branch normalization": {"branch_normalization": False, "beta": 30.0},
    "no anti-windup": {"anti_windup": False},
    "one member": {"members": 1},
    "gradient clipping": {"max_grad_norm": 0.05},
    "entropy bonus": {"entropy_bonus": 0.3},
    "normalised observations": {"normalize_observations": True},
    "scaled rewards, unnormalised branches": {"reward_scale": 0.1, "branch_normalization": False},
    "other gains and discounts": {
        "proportional_gain": 1.0, "integral_gain": 0.3, "derivative_gain": 0.4, "discount": 0.9, "trace_decay": 0.5,
        "clip": 0.05, "learning_rate": 2e-3, "keep_probability": 0.4, "alpha": 0.8, "kappa": 0.0, "multiplier_max": 1.2,
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_algorithm_1_written_out_plainly(variant: str) -> None:
    """Four whole cycles (cost below, above, above, below the limit) end in the same weights as the plain reference's.

    What was learned agrees to 2e-5 of its size (4e-6 is seen) beyond the last bit of each weight, so a missing,
    doubled or misplaced term shows.
    """
    settings = config(**VARIANTS[variant])
    ours = learner(settings, critic_spread=SPREAD)
    plain = PlainBCPPO(settings, ours, Streams(0, 1))
    start = learner_weights(ours)
    for seed, cost in enumerate((LOW_COST, HIGH_COST, 2 * HIGH_COST, LOW_COST)):
        ours.update(batch(seed, cost))
        plain.update(batch(seed, cost))
        assert ours.controller.multiplier.item() == pytest.approx(plain.multiplier, rel=1e-12)
        assert ours.controller.integral.item() == pytest.approx(plain.integral, rel=1e-12, abs=1e-12)
    expected = plain.weights()
    for name, weights in learner_weights(ours).items():
        learned = np.linalg.norm(expected[name] - start[name])
        gap = np.maximum(np.abs(weights - expected[name]) - np.spacing(np.abs(weights)), 0.0)
        assert np.linalg.norm(gap) < 2e-5 * learned, name


def test_the_reference_tells_the_variants_apart() -> None:
    """Otherwise the agreement above would show nothing about the switches."""
    policies = {}
    for variant, changes in VARIANTS.items():
        settings = config(**changes)
        plain = PlainBCPPO(settings, learner(settings, critic_spread=SPREAD), Streams(0, 1))
        for seed, cost in enumerate((LOW_COST, HIGH_COST)):
            plain.update(batch(seed, cost))
        policies[variant] = plain.weights()["policy"]
    start = learner_weights(learner(config()))["policy"]
    for one, other in itertools.combinations(policies, 2):
        learned = np.linalg.norm(policies[one] - start)
        assert np.linalg.norm(policies[one] - policies[other]) > 2e-4 * learned, (one, other)


# --- the paper's mechanism ---


def test_actor_loss_has_exactly_zero_gradient_in_every_critic_and_value_parameter() -> None:
    ours = learner(config(beta=30.0), critic_spread=SPREAD)
    frozen = [ours.values.flat, ours.signal.critics.flat]
    descend, checked = ours.policy_optimizer.descend, []

    def watched(loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss.sum(), frozen, retain_graph=True, allow_unused=True)
        assert all(gradient is None or not gradient.any() for gradient in gradients)
        (own,) = torch.autograd.grad(loss.sum(), ours.policy.flat, retain_graph=True)
        checked.append(all(bool(gradient.any()) for gradient in ours.policy.named(own).values()))
        descend(loss)

    ours.policy_optimizer.descend = watched  # type: ignore[method-assign]
    metrics = ours.update(batch())
    assert checked == [True] * 4
    assert metrics["multiplier"].item() > 0  # so that the penalty does enter the loss


def plain_ppo(settings: BCPPOConfig, batches: list[Batch], *, constrained: bool, seed: int = 0) -> dict[str, Tensor]:
    """PPO on the reward alone or, `constrained`, with a PID multiplier on the cost advantage: no critic in sight.

    The same kernels as BCPPO's (one rounding apart, and bits could not be compared), but a loop of its own.
    """
    streams = Streams(seed, 1)
    policy = GaussianPolicy((WIDTHS[0], *settings.hidden, WIDTHS[1]), [settings.initial_log_std], [streams.init], CPU)
    values = Stack((WIDTHS[0], *settings.hidden, 1), 2, [streams.init], CPU)
    adam, values_adam = (Adam(nets, [settings.learning_rate]) for nets in (policy, values))
    gains = PidGains(
        settings.proportional_gain, settings.integral_gain, settings.derivative_gain, settings.multiplier_max, True
    )
    controller = pid_start(1)
    for one in batches:
        with torch.no_grad():
            value, following = values(one.observation).squeeze(-1), values(one.next_observation).squeeze(-1)
            old = gaussian_log_prob(one.action, policy.mean(one.observation), policy.log_std)
        factors = {"discount": settings.discount, "trace_decay": settings.trace_decay}
        reward, cost = (
            gae(signal, value[:, i], following[:, i], one.terminated, one.ended, **factors)
            for i, signal in enumerate((one.reward, one.cost))
        )
        controller, _ = pid_step(controller, one.cost.mean(-1), settings.limit_rate, gains)
        for rows in minibatches(streams.minibatches, settings):
            advantage = standardize(reward.advantage.float()[:, rows])
            if constrained:
                multiplier = controller.multiplier.float()
                advantage = advantage - multiplier * standardize(cost.advantage.float()[:, rows])
            log_prob = gaussian_log_prob(one.action[:, rows], *policy.distribution(one.observation[:, rows]))
            adam.descend(clipped_surrogate((log_prob - old[:, rows]).exp(), advantage, settings.clip))
            error = values(one.observation[:, rows]).squeeze(-1) - torch.stack(
                [reward.value_target.float()[:, rows], cost.value_target.float()[:, rows]], dim=1
            )
            values_adam.descend(error.square().mean(-1))
    return {f"policy.{name}": tensor.detach() for name, tensor in adam.state().items()}


def minibatches(stream: np.random.Generator, settings: BCPPOConfig) -> Iterator[Tensor]:
    for _ in range(settings.epochs):
        yield from torch.from_numpy(stream.permutation(settings.rollout)).split(settings.minibatch)


@pytest.mark.parametrize("critic_spread", [1.0, 1e6, 1e30])
def test_multiplier_zero_is_reward_ppo_bit_for_bit(critic_spread: float) -> None:
    """Whatever the cost branch holds: at the largest spread its numbers overflow."""
    settings = config(cost_limit_rate=1e9, beta=30.0)
    batches = [batch(seed) for seed in range(3)]
    ours = trained(settings, batches, critic_spread=critic_spread)
    assert ours.controller.multiplier.item() == 0.0
    assert same(state(ours, "policy"), plain_ppo(settings, batches, constrained=False))


@pytest.mark.parametrize("critic_spread", [1.0, 1e6])
def test_beta_zero_is_ppo_with_pid_bit_for_bit(critic_spread: float) -> None:
    batches = [batch(seed) for seed in range(3)]
    ours = trained(config(beta=0.0), batches, critic_spread=critic_spread)
    assert ours.controller.multiplier.item() > 0.0
    expected = plain_ppo(config(beta=0.0), batches, constrained=True)
    assert same(state(ours, "policy"), expected)
    assert not same(state(trained(config(), batches, critic_spread=critic_spread), "policy"), expected)
    assert not same(plain_ppo(config(), batches, constrained=False), expected)


@pytest.mark.parametrize("floor", [1e-6, 0.25, 1e-9])
def test_one_member_leaves_disagreement_at_its_floor(floor: float) -> None:
    ours = learner(config(members=1, disagreement_floor=floor), critic_spread=SPREAD)
    for seed in range(3):
        metrics = ours.update(batch(seed))
        assert metrics["sigma_c"].item() == np.float32(floor)
    assert learner(config(members=2)).update(batch())["sigma_c"].item() > 1e-3


def masks_drawn(monkeypatch: pytest.MonkeyPatch, runs: int = 1, **changes) -> np.ndarray:
    """The masks that reach the critics' loss in one update, [minibatches, R, M, B]."""
    seen, loss = [], module.masked_td_loss

    def watched(predictions: Tensor, target: Tensor, masks: Tensor) -> Tensor:
        seen.append(masks.numpy().copy())
        return loss(predictions, target, masks)

    monkeypatch.setattr(module, "masked_td_loss", watched)
    settings = config(rollout=1024, minibatch=64, epochs=3, hidden=(8,), **changes)
    stacked = BCPPO([settings] * runs, WIDTHS, [Streams(seed, 1) for seed in range(runs)], CPU)
    fields = {name: value for name, value in vars(batch(steps=1024)).items() if isinstance(value, Tensor)}
    several = {name: value.repeat(runs, *[1] * (value.dim() - 1)) for name, value in fields.items()}
    stacked.update(Batch(**several, environments=1))
    return np.stack(seen)


@pytest.mark.parametrize("keep", [0.8, 0.3])
def test_masks_are_bernoulli_and_independent_per_member_sample_and_minibatch(keep, monkeypatch) -> None:
    masks = masks_drawn(monkeypatch, runs=2, keep_probability=keep)
    minibatch_count, runs, members, rows = masks.shape
    assert (minibatch_count, runs, members, rows) == (48, 2, 5, 64)

    def within(draws: np.ndarray, expected: float) -> bool:
        """The mean of independent 0/1 draws lies within 4 standard errors of its expectation."""
        return abs(draws.mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / draws.size)

    assert within(masks, keep)
    for member in range(members):
        assert within(masks[:, :, member], keep)
    both = keep**2  # how often two independent masks both keep
    assert all(within(masks[:, :, i] & masks[:, :, j], both) for i, j in itertools.combinations(range(members), 2))
    assert within(masks[1:] & masks[:-1], both)  # one minibatch and the next
    assert within(masks[16:] & masks[:-16], both)  # one epoch and the next
    assert within(masks[..., 1:] & masks[..., :-1], both)  # one sample and the next
    assert within(masks[:, 0] & masks[:, 1], both)  # one run and another
    assert len({minibatch.tobytes() for minibatch in masks.reshape(-1, rows)}) == minibatch_count * runs * members


def test_keep_probability_one_keeps_every_sample(monkeypatch) -> None:
    assert masks_drawn(monkeypatch, keep_probability=1.0).all()


def equal_effective_beta(beta_eff: float, alpha: float) -> BCPPOConfig:
    """A setting of this alpha whose float beta_eff is exactly the given one."""
    for kappa in np.linspace(0.0, 1.0, 50).tolist():
        guess = beta_eff / excess_factor(reference_level(alpha, kappa))
        for beta in (guess, math.nextafter(guess, 0.0), math.nextafter(guess, math.inf)):
            if effective_beta(alpha, beta, kappa) == beta_eff:
                return config(alpha=alpha, beta=beta, kappa=kappa)
    raise AssertionError("no such setting was found")


def test_settings_with_equal_effective_beta_give_bit_equal_updates() -> None:
    first = config()
    beta_eff = effective_beta(first.alpha, first.beta, first.kappa)
    others = [equal_effective_beta(beta_eff, alpha) for alpha in (0.6, 0.9, 0.99)]
    batches = [batch(seed) for seed in range(3)]
    expected = state(trained(first, batches, critic_spread=SPREAD))
    for other in others:
        assert (other.alpha, other.beta, other.kappa) != (first.alpha, first.beta, first.kappa)
        assert same(state(trained(other, batches, critic_spread=SPREAD)), expected)
    assert not same(state(trained(config(beta=0.16), batches, critic_spread=SPREAD)), expected)


# --- ablation switches: each changes what it should and nothing else ---

UP_AND_DOWN = [batch(seed, cost) for seed, cost in enumerate((LOW_COST, LOW_COST, HIGH_COST, HIGH_COST))]


@pytest.mark.parametrize(
    "changes",
    [{"raw_disagreement": True}, {"bonus": True}, {"branch_normalization": False}, {"beta": 0.0}, {"kappa": 2.0}],
)
def test_an_ablation_of_the_advantage_changes_the_policy_alone(changes) -> None:
    base, ablated = (trained(config(**c), UP_AND_DOWN, critic_spread=SPREAD) for c in ({}, changes))
    assert not same(state(base, "policy"), state(ablated, "policy"))
    assert same(state(base, "values", "critics"), state(ablated, "values", "critics"))
    assert all(torch.equal(a, b) for a, b in zip(base.controller, ablated.controller))


def test_raw_disagreement_drops_the_factor_h_and_nothing_else() -> None:
    """beta sigma_c of a raw run is the penalty of an ordinary run whose beta_eff is that beta."""
    ordinary = equal_effective_beta(0.15, 0.95)
    raw = config(raw_disagreement=True, beta=0.15)
    batches = [batch(seed) for seed in range(3)]
    assert same(*(state(trained(c, batches, critic_spread=SPREAD)) for c in (ordinary, raw)))


def test_bonus_acts_even_where_the_multiplier_is_zero() -> None:
    """It sits in the reward branch, so the controller does not gate it; the penalty, in the cost branch, is gated."""
    batches = [batch(seed, LOW_COST) for seed in range(2)]
    policies = {
        (bonus, beta): state(trained(config(bonus=bonus, beta=beta), batches, critic_spread=SPREAD), "policy")
        for bonus in (False, True)
        for beta in (0.0, 5.0)
    }
    assert same(policies[False, 0.0], policies[False, 5.0])
    assert same(policies[True, 0.0], policies[False, 0.0])
    assert not same(policies[True, 5.0], policies[True, 0.0])


def test_no_branch_normalization_follows_the_scale_of_the_reward() -> None:
    """norm() makes the update blind to the reward's unit; without it the unit weighs reward against cost."""

    def after(scale: float, *, normalized: bool) -> dict[str, Tensor]:
        one = batch()
        one.reward *= scale
        ours = learner(config(branch_normalization=normalized, discount=0.0, learning_rate=1e-2))
        with torch.no_grad():  # V = 0, so that the advantage is the reward itself
            for parameter in ours.values.parameters.values():
                parameter.zero_()
        ours.update(one)
        return {name: tensor.detach() for name, tensor in ours.policy.parameters.items()}

    def distance(normalized: bool) -> float:
        one, other = after(1.0, normalized=normalized), after(1024.0, normalized=normalized)
        return max(float((one[name] - other[name]).abs().max()) for name in one)

    assert distance(normalized=True) < 1e-5
    assert distance(normalized=False) > 1e-2


def test_no_anti_windup_winds_up_and_then_reacts_late() -> None:
    """Four cheap rollouts, then dear ones: frozen, the integral is still 0 when the cost rises; wound up, it is not."""
    multipliers, integrals = {}, {}
    for anti_windup in (True, False):
        ours = learner(config(anti_windup=anti_windup, integral_gain=0.1))
        for seed in range(4):
            ours.update(batch(seed, LOW_COST))
        integrals[anti_windup] = ours.controller.integral.item()
        before = state(ours)
        ours.update(batch(9, HIGH_COST))
        multipliers[anti_windup] = ours.controller.multiplier.item()
        if anti_windup:
            frozen_before = before
    assert integrals[True] == 0.0
    assert integrals[False] == pytest.approx(4 * (LOW_COST - LIMIT), rel=0.05)
    assert multipliers[True] > multipliers[False] >= 0.0
    assert same(before, frozen_before)  # while both multipliers are 0, nothing else differs


# --- targets, entropy, gradient norm, guards ---


def test_termination_cuts_the_bootstrap_and_truncation_does_not() -> None:
    one = batch()
    terminated, truncated = one.terminated[0], one.ended[0] & ~one.terminated[0]
    expected = state(trained(config(), [one]))
    for rows, matters in ((terminated, False), (truncated, True), (~one.ended[0], True)):
        changed = batch()
        changed.next_observation[0, rows] += 1.0
        assert same(state(trained(config(), [changed])), expected) != matters


def test_value_targets_are_worked_out_from_the_next_observation() -> None:
    """With trace decay 0 the error of a value network is δ = r + γ(1 − terminated)·V(s′) − V(s), by hand."""
    settings = config(trace_decay=0.0, minibatch=64, epochs=1)
    ours, one = learner(settings), batch()
    values = ours.values.arrays(0)

    def value(index: int, observation: Tensor) -> np.ndarray:
        hidden = observation[0].double().numpy()
        for layer in range(3):
            hidden = hidden @ values[f"weight{layer}"][index] + values[f"bias{layer}"][index]
            hidden = np.tanh(hidden) if layer < 2 else hidden
        return hidden[:, 0]

    metrics = ours.update(one)
    for index, (name, signal) in enumerate((("reward", one.reward), ("cost", one.cost))):
        goes_on = 1.0 - one.terminated[0].double().numpy()
        delta = signal[0].numpy() + 0.99 * goes_on * value(index, one.next_observation) - value(index, one.observation)
        assert metrics[f"loss_value_{name}"].item() == pytest.approx(np.mean(delta**2), rel=1e-5)


def test_several_environments_do_not_leak_into_each_other() -> None:
    """Two environments' rollouts in one batch: the trace of the first does not run on into the second."""
    settings = config(minibatch=64, epochs=1)

    def cost_loss(environments: int, change: float) -> float:
        one = batch()
        one.ended[0, 31] = one.terminated[0, 31] = False
        one.reward[0, 32:] += change
        one.environments = environments
        first_half: list[Tensor] = []
        ours = learner(settings)
        ours._descend_values = lambda o, r, c: first_half.append(r) or {}  # type: ignore[method-assign,func-returns-value]
        everything = torch.arange(64)[None], torch.ones(1, settings.members, 64, dtype=torch.bool)
        ours._draw_minibatches = lambda rows: iter([everything])  # type: ignore[method-assign]
        ours.update(one)
        return float(first_half[0][0, :32].sum())

    assert cost_loss(2, change=5.0) == cost_loss(2, change=0.0)
    assert cost_loss(1, change=5.0) != cost_loss(1, change=0.0)


def test_entropy_bonus_pushes_the_log_std_up_and_nothing_else() -> None:
    """With equal rewards and no binding cost, the entropy is all there is: Adam's first step is one learning rate."""
    one = batch(cost=LOW_COST)
    one.reward[:] = 0.0
    after = {}
    for weight in (0.0, 0.5):
        ours = learner(config(entropy_bonus=weight, minibatch=64, epochs=1, discount=0.0))
        with torch.no_grad():
            for parameter in ours.values.parameters.values():
                parameter.zero_()
        before = ours.policy.arrays(0)
        ours.update(one)
        after[weight] = {name: array - before[name] for name, array in ours.policy.arrays(0).items()}
    assert not any(change.any() for change in after[0.0].values())
    np.testing.assert_allclose(after[0.5].pop("log_std"), 3e-4, rtol=1e-4)
    assert not any(change.any() for change in after[0.5].values())


def test_a_long_gradient_is_scaled_down_to_the_maximum_norm_of_each_run() -> None:
    """Of the gradients (3, 4) and (0.3, 0.4), maximum 1, the first is scaled to (0.6, 0.8), the second left alone."""
    stack = Stack((1, 1), 1, [Streams(seed, 1).init for seed in range(2)], CPU)
    slopes = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    adam = Adam(stack, [0.1, 0.1], max_grad_norm=1.0)
    adam.descend((stack.flat[:, 0, :2] * slopes).sum(-1))
    np.testing.assert_allclose(adam.first[:, 0, :2].numpy() / 0.1, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-5)


def test_max_grad_norm_reaches_every_network() -> None:
    ours = learner(config(max_grad_norm=1e-3))
    steps = {name: [] for name in ours.optimizers()}
    for name, optimizer in ours.optimizers().items():
        inner = optimizer._step

        def watched(gradient, name=name, inner=inner):
            steps[name].append(float(gradient.square().sum().sqrt()))
            inner(gradient)

        optimizer._step = watched
    ours.update(batch())
    assert {name: len(norms) for name, norms in steps.items()} == {"policy": 4, "values": 4, "critics": 4}
    assert all(norm <= 1.0001e-3 for norms in steps.values() for norm in norms)


def test_runs_of_one_stack_must_agree_on_what_shapes_the_computation() -> None:
    for changes in ({"minibatch": 16}, {"members": 3}, {"hidden": (8,)}, {"bonus": True}):
        with pytest.raises(ConfigError, match="agree on"):
            BCPPO([config(), config(**changes)], WIDTHS, [Streams(0, 1), Streams(1, 1)], CPU)
