"""Configs: impossible values are refused in one sentence, presets are the paper's, identifiers mean what they say."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcppo.config import LATER, digest, from_json, identity, protocol_id, to_json
from bcppo.errors import ConfigError
from bcppo.run import make_config
from bcppo.settings import BCPPOConfig, paper_preset
from bcppo.tasks.table import TASKS

NAN, INF = math.nan, math.inf

IMPOSSIBLE = {
    "alpha": [0.0, 1.0, -0.1, 1.5, NAN, INF],
    "beta": [-0.1, NAN, INF],
    "kappa": [-1e-9, NAN, INF],
    "keep_probability": [0.0, 1.1, -0.2, NAN],
    "disagreement_floor": [0.0, -1e-6, NAN, INF],
    "members": [0, -1, 1.5, NAN],
    "rollout": [0, 1, -1024, NAN],
    "minibatch": [0, -1, 2048, 1000, 3, NAN],  # beyond the rollout's 1024, or no divisor of it
    "epochs": [0, -3, NAN],
    "learning_rate": [0.0, -1e-3, NAN, INF],
    "hidden": [(), (0,), (64, -1), (NAN,), "64", 64],
    "discount": [-0.1, 1.01, NAN],
    "trace_decay": [-0.1, 1.01, NAN],
    "clip": [0.0, -0.2, NAN, INF],
    "initial_log_std": [NAN, -INF, 50.0],
    "max_grad_norm": [-1.0, NAN, INF],
    "entropy_bonus": [-0.01, NAN],
    "normalize_observations": [1, None],
    "reward_scale": [0.0, -1.0, NAN, INF],
    "proportional_gain": [-0.2, NAN, INF],
    "integral_gain": [-0.02, NAN],
    "derivative_gain": [-0.05, NAN],
    "multiplier_max": [0.0, -1.0, NAN, INF],
    "anti_windup": [1, "yes", None],
    "branch_normalization": [0, NAN],
    "raw_disagreement": [1.0],
    "bonus": ["no"],
    "task": [None, 3],
    "seed": [-1, 0.5, NAN, "0", True, None],
    "steps": [0, -5, NAN, INF, 10.5, "many"],
    "cost_limit_rate": [-0.1, NAN, INF, "0.3"],
    "clip_actions": [0, None],
    "num_envs": [0, -2, 3, 5000, NAN],  # 3 does not divide 1024
    "eval_every": [-1, NAN],
    "eval_episodes": [0, -1, NAN],
    "checkpoint_every": [0, -1, NAN],
    "log_every": [0, NAN],
    "tensorboard": [None],
    "device": ["gpu", "", None],
}


def test_every_field_has_impossible_values_to_try() -> None:
    assert set(IMPOSSIBLE) == {field.name for field in dataclasses.fields(BCPPOConfig)}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_value_is_refused_in_one_sentence(name: str) -> None:
    for value in IMPOSSIBLE[name]:
        with pytest.raises(ConfigError) as caught:
            BCPPOConfig(**{name: value})
        sentence = str(caught.value)
        assert sentence.startswith(f"{name} must be"), sentence
        assert f"but {value!r} was given." in sentence or name == "hidden"
        assert sentence.endswith(".")
        assert "\n" not in sentence


def test_a_config_cannot_be_changed_after_its_check() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BCPPOConfig().alpha = 2.0  # type: ignore[misc]
    with pytest.raises(ConfigError):
        dataclasses.replace(BCPPOConfig(), alpha=2.0)


def test_numbers_may_be_written_in_any_type_that_holds_them() -> None:
    config = BCPPOConfig(steps=1e6, seed=np.int64(3), beta=0, hidden=[64, np.int32(64)], alpha=np.float64(0.9))
    assert config == BCPPOConfig(steps=1_000_000, seed=3, beta=0.0, hidden=(64, 64), alpha=0.9)
    assert [type(v) for v in (config.steps, config.seed, config.beta, config.alpha)] == [int, int, float, float]
    assert protocol_id("bcppo", config) == protocol_id("bcppo", dataclasses.replace(config, beta=0.0, steps=1_000_000))
    json.dumps(to_json(config))


# --- presets ---


@pytest.mark.parametrize("task", TASKS)
def test_the_preset_is_the_papers(task: str) -> None:
    config = paper_preset(BCPPOConfig, task)
    assert isinstance(config, BCPPOConfig)
    expected = (256, 64, 4) if task in ("button1", "push1") else (1024, 512, 3)
    assert (config.rollout, config.minibatch, config.epochs) == expected
    assert (config.alpha, config.beta, config.kappa, config.members) == (0.95, 0.15, 0.15, 5)
    assert (config.proportional_gain, config.integral_gain, config.derivative_gain) == (0.2, 0.02, 0.05)
    assert (config.multiplier_max, config.keep_probability, config.disagreement_floor) == (50.0, 0.8, 1e-6)
    assert (config.learning_rate, config.hidden, config.discount, config.trace_decay) == (3e-4, (256, 256), 0.99, 0.95)
    assert (config.clip, config.initial_log_std, config.num_envs) == (0.2, -0.5, 1)
    assert (config.max_grad_norm, config.entropy_bonus, config.reward_scale) == (0.0, 0.0, 1.0)
    assert not config.normalize_observations
    assert config.anti_windup
    assert config.branch_normalization
    assert not config.raw_disagreement
    assert not config.bonus
    assert config.limit_rate == {"hopper": 0.015898692, "ant": 3.4}.get(task, 0.65)
    assert (config.steps, config.eval_episodes, list(config.eval_seeds)) == (1_000_000, 20, list(range(10_000, 10_020)))
    assert make_config("bcppo", task) == config


@pytest.mark.parametrize("task", TASKS)
def test_the_quick_preset_is_the_papers_but_for_what_it_names(task: str) -> None:
    config = make_config("bcppo", task, preset="quick", seed=3)
    changed = {
        "steps": 100_000, "rollout": 1024, "minibatch": 256, "epochs": 3, "learning_rate": 5e-4, "multiplier_max": 1.0,
        "proportional_gain": 0.02, "integral_gain": 0.0, "derivative_gain": 0.0,
    }  # fmt: skip
    assert config == dataclasses.replace(paper_preset(BCPPOConfig, task), seed=3, **changed)
    assert protocol_id("bcppo", config) != protocol_id("bcppo", paper_preset(BCPPOConfig, task))


def test_a_preset_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no preset named 'quik'.*Did you mean 'quick'\?"):
        make_config("bcppo", preset="quik")
    with pytest.raises(ConfigError, match="'quick' is for the PPO family; 'cpo' has the preset 'paper' only"):
        make_config("cpo", preset="quick")


def test_a_limit_of_ones_own_goes_before_the_tasks() -> None:
    assert BCPPOConfig(task="hopper", cost_limit_rate=0.5).limit_rate == 0.5
    with pytest.raises(ConfigError, match="give a cost_limit_rate"):
        _ = BCPPOConfig(task="Pendulum-v1").limit_rate


def test_unknown_settings_and_methods_are_named_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"no setting named 'learning_rat'.*Did you mean 'learning_rate'\?"):
        make_config("bcppo", learning_rat=1.0)
    with pytest.raises(ConfigError, match=r"no method named 'bcpo'.*Did you mean 'bcppo'\?"):
        make_config("bcpo")


# --- identifiers ---


def test_protocol_identifier_ignores_what_tells_runs_of_one_protocol_apart() -> None:
    identifier = protocol_id("bcppo", BCPPOConfig())
    same = {"seed": 4, "eval_every": 7, "checkpoint_every": 9, "log_every": 1, "tensorboard": False, "device": "auto"}
    for name, value in same.items():
        assert protocol_id("bcppo", BCPPOConfig(**{name: value})) == identifier, name
    assert protocol_id("bcppo", BCPPOConfig(cost_limit_rate=0.65)) == identifier  # Goal1's own limit


@pytest.mark.parametrize(
    "change",
    [{"beta": 0.2}, {"steps": 500_000}, {"task": "push1"}, {"cost_limit_rate": 0.6}, {"rollout": 512}, {"bonus": True},
     {"hidden": (64, 64)}, {"num_envs": 2}, {"eval_episodes": 100}, {"keep_probability": 0.9}, {"clip_actions": False}],
    ids=str,
)  # fmt: skip
def test_protocol_identifier_knows_every_setting_that_changes_a_result(change: dict) -> None:
    assert protocol_id("bcppo", BCPPOConfig(**change)) != protocol_id("bcppo", BCPPOConfig())


def test_protocol_identifier_knows_the_method() -> None:
    assert protocol_id("bcppo", BCPPOConfig()) != protocol_id("cppo", BCPPOConfig())


# --- JSON ---

positive = st.floats(1e-9, 1e6)
configs = st.builds(
    BCPPOConfig,
    task=st.sampled_from(sorted(TASKS)) | st.text(max_size=20),
    seed=st.integers(0, 2**64),
    steps=st.integers(1, 10**9),
    cost_limit_rate=st.none() | st.floats(0, 1e6),
    rollout=st.sampled_from([64, 256, 1024]),
    minibatch=st.sampled_from([1, 16, 64]),
    num_envs=st.sampled_from([1, 2, 16]),
    hidden=st.lists(st.integers(1, 512), min_size=1, max_size=4).map(tuple),
    alpha=st.floats(0, 1, exclude_min=True, exclude_max=True),
    beta=st.floats(0, 1e6),
    kappa=st.floats(0, 1e6),
    learning_rate=positive,
    discount=st.floats(0, 1),
    keep_probability=st.floats(0, 1, exclude_min=True),
    multiplier_max=positive,
    anti_windup=st.booleans(),
    bonus=st.booleans(),
    device=st.sampled_from(["cpu", "cuda", "auto"]),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(configs)
def test_a_config_survives_json_unchanged(config: BCPPOConfig) -> None:
    assert from_json(BCPPOConfig, json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize("spoil", [lambda v: v.pop("alpha"), lambda v: v.update(gamma=1.0)], ids=["missing", "unknown"])
def test_a_stored_config_of_another_version_is_refused(spoil) -> None:
    values = to_json(BCPPOConfig())
    spoil(values)
    with pytest.raises(ConfigError, match="does not fit this version"):
        from_json(BCPPOConfig, values)


def test_a_config_stored_before_there_was_a_field_is_read_as_what_was_done_then() -> None:
    values = to_json(BCPPOConfig())
    for name in LATER:
        del values[name]
    assert from_json(BCPPOConfig, values) == BCPPOConfig(**LATER)
    assert digest(identity(BCPPOConfig(**LATER))) == digest(values | {"hidden": (256, 256)})
    assert protocol_id("bcppo", BCPPOConfig()) == "9cd423aedb94"  # of runs from before clip_actions


def test_a_stored_config_is_checked_like_any_other() -> None:
    for name, value in (("alpha", 2.0), ("steps", "many"), ("hidden", None), ("minibatch", 7)):
        with pytest.raises(ConfigError, match=f"{name} must be"):
            from_json(BCPPOConfig, to_json(BCPPOConfig()) | {name: value})
    with pytest.raises(ConfigError):
        from_json(BCPPOConfig, [])  # type: ignore[arg-type]
