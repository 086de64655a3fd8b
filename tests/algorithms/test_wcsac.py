"""WCSAC's learner: against a plain reference, on chains with a closed form, in stacks, and as a deployed policy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_wcsac import PlainWCSAC, mlp
from torch.nn.functional import softplus

from bcppo.algorithms.wcsac import WCSAC, transition_width
from bcppo.errors import ConfigError
from bcppo.fused import compiled_kernels
from bcppo.nets import head_parts
from bcppo.policy import NumpyPolicy, UniformPolicy, load_policy, save_policy
from bcppo.settings import WCSACConfig
from bcppo.streams import Streams

CPU, WIDTHS = torch.device("cpu"), (5, 3)
SMALL = {"cost_limit_rate": 0.3, "minibatch": 32, "hidden": (24, 16), "buffer": 500, "steps": 500}


def config(**changes) -> WCSACConfig:
    return WCSACConfig(**(SMALL | changes))


def learner(*configs: WCSACConfig, dtype: torch.dtype = torch.float32) -> WCSAC:
    return WCSAC(configs, WIDTHS, [Streams(c.seed, 1) for c in configs], CPU, dtype)


def transitions(seed: int, count: int, scale: float = 1.0) -> np.ndarray:
    """[count, width]: random observations, actions, rewards and costs, one in ten terminal."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((count, transition_width(WIDTHS))).astype(np.float32)
    rows[:, 5:8] = np.tanh(rows[:, 5:8])
    rows[:, -2] = scale * rows[:, -2] ** 2
    rows[:, -1] = random.random(count) < 0.1
    return rows


def fill(one: WCSAC, *seeds: int, count: int = 200) -> None:
    own = [transitions(seed, count) for seed in seeds]
    for rows in zip(*own):
        one.store(np.stack(rows))


DIFFERENT = (
    {"seed": 0},
    {"seed": 1, "learning_rate": 3e-3, "alpha": 0.5, "damp": 1.0, "release_variance_target": True},
    {"seed": 2, "discount": 0.9, "cost_limit_rate": 0.01, "horizon": 20, "target_entropy": -0.5,
     "multiplier_rate_factor": 5.0},
)  # fmt: skip


def test_updates_are_those_of_the_plain_reference() -> None:
    """Three unlike runs in one stack, 20 updates in float64: every weight, target, α and β, to rounding."""
    configs = [config(**changes, polyak=0.9) for changes in DIFFERENT]
    stack = learner(*configs, dtype=torch.float64)
    fill(stack, 10, 11, 12)
    plain = [
        PlainWCSAC(stack.policy.arrays(run), stack.critics.arrays(run), c, c.discounted_limit)
        for run, c in enumerate(configs)
    ]
    for _ in range(20):
        draws = stack.draw()
        for run, reference in enumerate(plain):
            rows = torch.from_numpy(transitions(10 + run, 200)).double()[draws.rows[run]]
            reference.update(*rows.split([5, 3, 5, 3], dim=-1), draws.noise[run])
        stack.step(draws)
    for run, reference in enumerate(plain):
        critics = stack.critics.arrays(run)
        behind = {
            name.removeprefix("target."): t[run, ..., :1] if name.endswith("2") else t[run]
            for name, t in stack.memory().items()
        }
        for index, net in enumerate((reference.q1, reference.q2, reference.qc, reference.v)):
            assert same(mlp(critics, index), net)
            assert same(mlp(behind, index), reference.behind[index])
        policy = {name: array[None] for name, array in stack.policy.arrays(run).items() if name != "log_std_bounds"}
        assert same(mlp(policy, 0), reference.actor)
        metrics = stack.metrics()
        assert metrics["temperature"][run].item() == pytest.approx(softplus(reference.x_alpha).item(), rel=1e-9)
        assert metrics["multiplier"][run].item() == pytest.approx(softplus(reference.x_beta).item(), rel=1e-9)


def same(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    return all(torch.allclose(p, q, rtol=1e-8, atol=1e-10) for p, q in zip(one.parameters(), two.parameters()))


@pytest.mark.parametrize("hidden", [(24, 16), (256, 256)])
def test_a_run_in_a_stack_is_bit_equal_to_itself_alone(hidden: tuple[int, ...]) -> None:
    count = 256 if hidden[0] == 256 else 32
    configs = [config(**changes, hidden=hidden, minibatch=count) for changes in DIFFERENT]
    stack, alone = learner(*configs), [learner(c) for c in configs]
    fill(stack, 10, 11, 12)
    for run, one in enumerate(alone):
        fill(one, 10 + run)
    for _ in range(4):
        stack.update()
        for one in alone:
            one.update()
    together = stack.metrics()
    for run, one in enumerate(alone):
        for name, optimizer in stack.optimizers().items():
            for key, tensor in optimizer.state().items():
                assert torch.equal(tensor[run], one.optimizers()[name].state()[key][0]), (run, name, key)
        for name, tensor in stack.memory().items():
            assert torch.equal(tensor[run], one.memory()[name][0]), name
        for name, values in one.metrics().items():
            assert values[0] == together[name][run], name


def test_runs_that_cannot_share_a_stack_are_refused() -> None:
    with pytest.raises(ConfigError, match="must agree on minibatch"):
        learner(config(), config(minibatch=16))


def test_the_computation_of_an_update_asks_nothing_of_the_host() -> None:
    """On the meta device a tensor has no numbers, so reading one (which on CUDA waits, and breaks a graph's capture)
    raises, as does mixing devices."""
    meta = torch.device("meta")
    one = WCSAC([config(), config(seed=1)], WIDTHS, [Streams(0, 1), Streams(1, 1)], meta)
    fill(one, 0, 1, count=5)
    kept = [id(t) for o in one.optimizers().values() for t in (o.stack.flat, o.first, o.second)]
    one.step(one.draw())
    assert kept == [id(t) for o in one.optimizers().values() for t in (o.stack.flat, o.first, o.second)]
    assert all(value.device == meta for value in one.metrics().values())


# --- the safety critics ---


SYMMETRIC = [(0, 0.5, 1, False), (0, 0.5, 1, False), (1, 1.0, 1, True), (1, -1.0, 1, True)]
SKEWED = [(0, 0.0, 0, True), (0, 2.0, 0, True)] * 2
CHAINS = {"symmetric": (SYMMETRIC, False), "as released": (SYMMETRIC, True), "skewed": (SKEWED, False)}
"""Rows (state, cost, next state, terminated), all equally likely, whatever the action; release_variance_target."""


@pytest.fixture(scope="module")
def chains() -> WCSAC:
    """The three chains as three runs of one stack, at γ = 0.8."""
    configs = [
        config(
            hidden=(32, 32), minibatch=64, learning_rate=3e-3, discount=0.8, polyak=0.9, release_variance_target=flag
        )
        for _, flag in CHAINS.values()
    ]
    one = WCSAC(configs, (2, 1), [Streams(seed, 1) for seed in range(3)], CPU)
    random, one_hot = np.random.default_rng(0), np.eye(2)
    for index in range(400):
        action = random.uniform(-1, 1, 1)
        stored = []
        for rows, _ in CHAINS.values():
            state, cost, following, over = rows[index % 4]
            stored.append(np.concatenate([one_hot[state], action, one_hot[following], [0.0, cost, over]]))
        one.store(np.array(stored, np.float32))
    for _ in range(800):
        one.update()
    return one


def moments(one: WCSAC, name: str, state: int) -> tuple[float, float]:
    """(Q_c, V) of a state, averaged over actions."""
    actions = torch.linspace(-0.9, 0.9, 7).unsqueeze(1)
    seen = torch.cat([torch.eye(2)[state].expand(7, 2), actions], dim=1).expand(3, 7, 3)
    with torch.no_grad():
        predicted = one.critics(seen)[list(CHAINS).index(name), :, :, 0].mean(-1)
    return predicted[2].item(), softplus(predicted[3]).item()


def test_safety_critics_recover_mean_and_variance_of_a_chain(chains: WCSAC) -> None:
    """0 → 1 → end; state 0 costs ½, state 1 costs ±1. So from 1 on the cost has mean 0 and variance 1, from 0 on mean
    ½ + γ·0 and variance γ²·1 = 0.64."""
    assert moments(chains, "symmetric", 1) == (pytest.approx(0.0, abs=0.12), pytest.approx(1.0, abs=0.12))
    assert moments(chains, "symmetric", 0) == (pytest.approx(0.5, abs=0.12), pytest.approx(0.64, abs=0.12))


def test_the_public_codes_variance_target_counts_a_future_after_the_end(chains: WCSAC) -> None:
    """Without (1 − d), V = 1 + γ²V at state 1, whose successor is itself: V = 1 / (1 − 0.64) = 2.78 in place of 1."""
    assert moments(chains, "as released", 1)[1] == pytest.approx(1 / 0.36, abs=0.4)


def test_variance_is_underestimated_where_costs_are_skewed(chains: WCSAC) -> None:
    """A cost of 0 or 2 has mean and variance 1. The targets are 0 − 1 (clipped to 0) and 4 − 1, and the loss is least
    at V = (E√y)² = (√3 / 2)² = 0.75: the method's own loss, not the mean of its targets."""
    assert moments(chains, "skewed", 0) == (pytest.approx(1.0, abs=0.12), pytest.approx(0.75, abs=0.1))


# --- stored transitions ---


def test_the_oldest_transitions_make_room() -> None:
    one = learner(config(buffer=32, steps=100))
    rows = transitions(0, 50)
    for row in rows:
        one.store(row[None])
    kept = {tuple(row) for row in one._buffer[0].numpy()}
    assert kept == {tuple(row) for row in rows[-32:]}
    again = learner(config(buffer=32, steps=100))
    again.load_transitions(0, 0, rows[:45])
    again.load_transitions(0, 45, rows[45:])
    assert torch.equal(again._buffer, one._buffer)
    one.stored = 50
    assert one.draw().rows.max() < 32


def test_rows_are_drawn_from_what_is_stored() -> None:
    one = learner(config())
    fill(one, 0, count=3)
    assert set(one.draw().rows.flatten().tolist()) == {0, 1, 2}


# --- the deployed policy ---

LOW, HIGH = np.array([-1.0, 0.0, -2.0], np.float32), np.array([1.0, 4.0, 0.5], np.float32)


def trained() -> WCSAC:
    one = learner(config(learning_rate=1e-2))
    fill(one, 0)
    for _ in range(20):
        one.update()
    return one


def test_the_deployed_policy_is_the_learners(tmp_path: Path) -> None:
    one = trained()
    save_policy(tmp_path / "policy.safetensors", NumpyPolicy(one.policy_arrays(0), LOW, HIGH), "wcsac", config())
    deployed = load_policy(tmp_path / "policy.safetensors")
    seen = np.random.default_rng(1).standard_normal((50, 5)).astype(np.float32)
    noise = np.random.default_rng(2).standard_normal((50, 3)).astype(np.float32)
    with torch.no_grad():
        mean, log_std = head_parts(one.policy(torch.from_numpy(seen)[None]).squeeze(1))
        sampled, _ = one._act(torch.from_numpy(seen)[None], torch.from_numpy(noise)[None])
    assert log_std.std() > 0.01

    def stretched(unit: torch.Tensor) -> np.ndarray:
        return LOW + (HIGH - LOW) * (unit[0].numpy() + 1) / 2

    np.testing.assert_allclose(deployed.act(seen), stretched(mean.tanh()), atol=2e-6)
    np.testing.assert_array_equal(sampled[0, :, :5], seen)  # the critics' input: the observation, then the action
    np.testing.assert_allclose(deployed.sample(seen, noise), stretched(sampled[..., 5:]), atol=2e-6)
    np.testing.assert_allclose(deployed.act(seen[0]), deployed.act(seen)[0], atol=1e-6)


def test_actions_stay_inside_the_action_space_however_far_the_mean() -> None:
    arrays = trained().policy_arrays(0)
    arrays["bias2"] = np.array([1e4, -1e4, 1e4, 100.0, -100.0, 0.0], np.float32)
    policy = NumpyPolicy(arrays, LOW, HIGH)
    seen = np.zeros(5, np.float32)
    np.testing.assert_array_equal(policy.act(seen), [HIGH[0], LOW[1], HIGH[2]])
    action = policy.sample(seen, np.array([-1e4, 1e4, 3.0], np.float32))
    assert ((action >= LOW) & (action <= HIGH)).all()


def test_random_actions_are_uniform_in_the_action_space() -> None:
    policy, random = UniformPolicy(LOW, HIGH), np.random.default_rng(0)
    drawn = np.stack([policy.sample(np.zeros(5), random.standard_normal(3, dtype=np.float32)) for _ in range(4000)])
    share = np.sort((drawn - LOW) / (HIGH - LOW), axis=0)
    even = (np.arange(4000) + 0.5)[:, None] / 4000
    assert np.abs(share - even).max() < 1.63 / math.sqrt(4000)  # Kolmogorov and Smirnov, 1 %
    assert drawn.dtype == np.float32


def test_a_compiled_update_differs_by_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch.compile's tracer, for as many widths as the paper has tasks; no compiler is needed for that."""
    made, compile_as_is = [], torch.compile

    def traced(function, **how):
        made.append(function)
        return compile_as_is(function, backend="aot_eager", **how)

    monkeypatch.setattr(torch, "compile", traced)
    for width in range(5, 10):
        plain, compiled = (WCSAC([config()], (width, 3), [Streams(0, 1)], torch.device("cpu")) for _ in range(2))
        rows = np.random.default_rng(0).standard_normal((200, transition_width((width, 3)))).astype(np.float32)
        rows[:, -1] = 0.0
        for one in (plain, compiled):
            for row in rows:
                one.store(row[None])
        untouched = [tensor.clone() for tensor in compiled.changing()]
        draws = [plain.draw() for _ in range(3)]
        for one in draws:
            plain.step(one)
        with compiled_kernels(True):
            for one in draws:
                compiled.step(one)
        for was, one, other in zip(untouched, plain.changing(), compiled.changing()):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
            assert not torch.equal(other, was)
    assert len(made) == 8  # once each, and really
