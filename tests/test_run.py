"""A run from config to folder: same seed, same bytes; everything in its place; one protocol of evaluation."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tiny_cmdp import HORIZON, TinyCMDP

import bcppo
from bcppo.errors import BcppoError, ConfigError
from bcppo.evaluation import evaluate, evaluate_policy, summarize
from bcppo.math.cvar import conditional_value_at_risk
from bcppo.records import RunFolder
from bcppo.remote import RemoteCollector
from bcppo.run import Run, make_config, resume, train
from bcppo.settings import BCPPOConfig

RESULTS = (
    "progress.parquet", "episodes.parquet", "evaluations.parquet", "progress.sum", "episodes.sum", "evaluations.sum",
    "policy.safetensors", "checkpoint.safetensors", "checkpoint.previous.safetensors", "config.json", "provenance.json",
    "status.json",
)  # fmt: skip
"""Every file of a run but its timings and curves."""

HOPPER = {
    "task": "hopper", "steps": 1280, "rollout": 256, "minibatch": 64, "epochs": 2, "hidden": (32, 32),
    "eval_every": 512, "eval_episodes": 3, "checkpoint_every": 512, "log_every": 256, "cost_limit_rate": 0.005,
}  # fmt: skip
TINY = {
    "steps": 128, "rollout": 64, "minibatch": 32, "epochs": 1, "hidden": (8,), "eval_episodes": 2,
    "cost_limit_rate": 0.3, "tensorboard": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(out=tmp_path_factory.mktemp("run") / "hopper", **HOPPER)


def results(folder: RunFolder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RESULTS}


# --- determinism ---


def test_same_seed_same_bytes(hopper: RunFolder, tmp_path: Path) -> None:
    again = train(out=tmp_path / "again", **HOPPER)
    for name, payload in results(again).items():
        assert payload == (hopper / name).read_bytes(), name


def test_another_seed_is_another_run(hopper: RunFolder, tmp_path: Path) -> None:
    other = train(out=tmp_path / "other", **HOPPER, seed=1)
    unlike = {name for name, payload in results(other).items() if payload != (hopper / name).read_bytes()}
    assert unlike == set(RESULTS) - {"provenance.json", "status.json"}


def test_global_generators_play_no_part(hopper: RunFolder, tmp_path: Path) -> None:
    import random

    import torch

    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    again = train(out=tmp_path / "again", **HOPPER | {"tensorboard": False, "log_every": 99})
    assert (again / "policy.safetensors").exists()
    for name in ("progress.parquet", "episodes.parquet", "evaluations.parquet"):
        assert (again / name).read_bytes() == (hopper / name).read_bytes()


def test_evaluations_and_checkpoints_on_the_way_change_nothing_learned(hopper: RunFolder, tmp_path: Path) -> None:
    bare = train(out=tmp_path / "bare", **HOPPER | {"eval_every": 0, "checkpoint_every": 10**6})
    for name in ("progress.parquet", "episodes.parquet"):
        assert (bare / name).read_bytes() == (hopper / name).read_bytes()


# --- the folder ---


def test_the_folder_holds_what_it_should(hopper: RunFolder) -> None:
    names = {path.name for path in hopper.path.iterdir()}
    assert names == {*RESULTS, "timings.parquet", "timings.sum", "tensorboard"}
    assert hopper.status() == {"state": "finished", "message": ""}


def test_tensorboard_reads_the_curves(hopper: RunFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(hopper / "tensorboard"))
    curves.Reload()
    rows = hopper.read_rows("progress")
    assert {"episode_return", "mean_cost", "cost_cvar95", "multiplier", "kl"} <= set(curves.Tags()["scalars"])
    for name in ("mean_cost", "multiplier", "sigma_c"):
        points = curves.Scalars(name)
        assert [point.step for point in points] == rows["step"]
        np.testing.assert_allclose([point.value for point in points], rows[name], rtol=1e-6)


def test_progress_has_a_row_an_update_with_everything_to_watch(hopper: RunFolder) -> None:
    rows = hopper.read_rows("progress")
    assert set(rows) == {
        "update", "step", "episode_return", "episode_cost_rate", "episode_length", "cost_cvar95", "cumulative_cost",
        "native_cost_rate", "multiplier_positive_share", "mean_cost", "multiplier", "multiplier_positive", "pid_error",
        "pid_proportional", "pid_integral", "pid_derivative", "integral", "mu_c", "sigma_c", "penalty", "kl",
        "clip_fraction", "log_std", "loss_policy", "loss_value_reward", "loss_value_cost", "loss_critics",
    }  # fmt: skip
    assert rows["update"] == [1, 2, 3, 4, 5]
    assert rows["step"] == [256, 512, 768, 1024, 1280]
    assert all(np.isfinite(values).all() for values in rows.values())


def test_progress_agrees_with_the_episodes_and_with_itself(hopper: RunFolder) -> None:
    rows, episodes = hopper.read_rows("progress"), hopper.read_rows("episodes")
    seen = [i for i, step in enumerate(episodes["step"]) if step <= 768][-100:]
    rates = [episodes["cost_rate"][i] for i in seen]
    assert rows["episode_return"][2] == pytest.approx(np.mean([episodes["episode_return"][i] for i in seen]))
    assert rows["episode_length"][2] == pytest.approx(np.mean([episodes["length"][i] for i in seen]))
    assert rows["episode_cost_rate"][2] == pytest.approx(np.mean(rates))
    assert rows["cost_cvar95"][2] == pytest.approx(conditional_value_at_risk(rates, 0.95))
    np.testing.assert_allclose(rows["cumulative_cost"], 256 * np.cumsum(rows["mean_cost"]))
    np.testing.assert_allclose(rows["pid_error"], np.array(rows["mean_cost"]) - 0.005)
    np.testing.assert_allclose(rows["penalty"], 0.014462 * np.array(rows["sigma_c"]), rtol=1e-4)  # h at the defaults
    positive = np.array(rows["multiplier"]) > 0
    np.testing.assert_allclose(rows["multiplier_positive_share"], np.cumsum(positive) / np.arange(1, 6))
    assert positive.any()


def test_evaluations_come_when_they_should(hopper: RunFolder) -> None:
    rows = hopper.read_rows("evaluations")
    assert list(zip(rows["step"], rows["final"])) == [(512, False)] * 3 + [(1024, False)] * 3 + [(1280, True)] * 3
    assert rows["episode_seed"] == [10_000, 10_001, 10_002] * 3


def test_timings_are_by_phase(hopper: RunFolder) -> None:
    rows = hopper.read_rows("timings")
    assert set(rows) == {"update_index", "step", "collect", "act", "simulate", "update", "evaluate", "checkpoint"}
    assert rows["step"] == [256, 512, 768, 1024, 1280]
    assert all(a + s <= c for a, s, c in zip(rows["act"], rows["simulate"], rows["collect"]))


def test_a_finished_run_is_left_as_it_is(hopper: RunFolder) -> None:
    before = results(hopper)
    assert resume(hopper.path).path == hopper.path
    assert results(hopper) == before


def test_episodes_run_on_across_rollouts(tmp_path: Path) -> None:
    """Rollouts of 20 steps, episodes of 8: were they cut at the end of a rollout, some would be shorter."""
    folder = train(out=tmp_path / "run", make_env=TinyCMDP, **TINY | {"steps": 100, "rollout": 20, "minibatch": 10})
    episodes = folder.read_rows("episodes")
    assert episodes["length"] == [HORIZON] * (100 // HORIZON)
    assert episodes["step"] == [HORIZON * (i + 1) for i in range(100 // HORIZON)]


def test_steps_are_rounded_up_to_a_whole_rollout(tmp_path: Path) -> None:
    folder = train(out=tmp_path / "run", make_env=TinyCMDP, **TINY | {"steps": 65})
    assert folder.read_rows("progress")["step"] == [64, 128]


# --- evaluation ---


def test_evaluating_the_folder_gives_the_rows_the_run_recorded(hopper: RunFolder) -> None:
    rows = hopper.read_rows("evaluations")
    recorded = [{k: rows[k][i] for k in rows if k not in ("step", "final", "stochastic")} for i in range(6, 9)]
    assert bcppo.evaluate(hopper.path, episodes=3) == recorded
    assert bcppo.evaluate(hopper.path, episodes=5)[:3] == recorded


def test_stochastic_evaluation_is_another_and_repeats(hopper: RunFolder) -> None:
    once, again = (evaluate(hopper.path, episodes=2, stochastic=True) for _ in range(2))
    assert once == again
    assert once != evaluate(hopper.path, episodes=2)


def test_evaluation_does_not_depend_on_what_its_environment_did_before() -> None:
    """An evaluation episode depends on its seed alone."""
    fresh, used = (bcppo.make_task("goal1") for _ in range(2))
    used.reset(seed=5)
    evaluate_policy(None, used, [10_003])
    assert evaluate_policy(None, used, [10_000]) == evaluate_policy(None, fresh, [10_000])


def test_summary_follows_the_protocol() -> None:
    """20 episodes with cost rates 0.05, 0.10 … 1.00 and limit 0.8: CVaR@95 of 20 is the largest, 16 of 20 are safe."""
    episodes = [
        {"episode_return": float(i), "cost_rate": (i + 1) / 20, "native_cost": 2.0, "length": 10.0} for i in range(20)
    ]
    assert summarize(episodes, 0.8) == pytest.approx(
        {"return": 9.5, "cost_rate": 0.525, "cvar95": 1.0, "safety_rate": 0.8, "worst_gap": 0.2, "native_cost": 2.0,
         "length": 10.0}
    )  # fmt: skip


def test_random_policy_is_evaluated_on_the_same_seeds() -> None:
    once, again = (evaluate_policy(None, bcppo.make_task("hopper"), range(10_000, 10_003)) for _ in range(2))
    assert once == again
    assert [episode["episode_seed"] for episode in once] == [10_000, 10_001, 10_002]


# --- several environments ---


def test_two_environments_are_deterministic_and_record_both(hopper: RunFolder, tmp_path: Path) -> None:
    one, other = (train(out=tmp_path / str(i), **HOPPER | {"num_envs": 2}) for i in range(2))
    assert results(one) == results(other)
    assert (one / "progress.parquet").read_bytes() != (hopper / "progress.parquet").read_bytes()
    episodes = one.read_rows("episodes")
    assert set(episodes["environment"]) == {0, 1}
    assert episodes["step"] == sorted(episodes["step"])
    assert one.read_rows("progress")["step"] == [256, 512, 768, 1024, 1280]


def test_environment_processes_import_no_torch(tmp_path: Path) -> None:
    run = Run("bcppo", BCPPOConfig(**HOPPER | {"num_envs": 2}), RunFolder(tmp_path), None)
    try:
        assert len(run.collectors) == 2
        for collector in run.collectors:
            assert isinstance(collector, RemoteCollector)
            assert collector.spaces[0] == 11  # so it is made by now
            loaded = Path(f"/proc/{collector.worker.pid}/maps").read_text()
            assert "libmujoco" in loaded
            assert "torch" not in loaded
    finally:
        run.close()
    assert not any(collector.worker.alive for collector in run.collectors)


def test_an_environment_of_ones_own_runs_in_processes_by_name(tmp_path: Path) -> None:
    folder = train(out=tmp_path / "run", task="tiny_cmdp:make", **TINY | {"num_envs": 2})
    assert set(folder.read_rows("episodes")["length"]) == {HORIZON}
    assert evaluate(folder.path, episodes=2)


# --- environments of one's own ---


class Float32Rewards(gymnasium.Wrapper):
    """Many environments return NumPy numbers."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        info["cost"] = np.float32(info["cost"])
        return observation, np.float32(reward), np.bool_(terminated), np.bool_(truncated), info


@pytest.mark.parametrize(
    "make_env",
    [
        TinyCMDP,
        lambda: Float32Rewards(TinyCMDP()),
        lambda: bcppo.make_task(TinyCMDP(), cost_limit_rate=0.3),
        lambda: gymnasium.wrappers.TimeLimit(bcppo.make_task(TinyCMDP(), cost_limit_rate=0.3), 5),
        lambda: bcppo.make_task("Pendulum-v1", cost=lambda o, a: abs(o[2]), cost_limit_rate=0.3, max_episode_steps=9),
    ],
    ids=["plain", "NumPy numbers", "make_task", "wrapped again", "cost function"],
)
def test_environments_of_ones_own_train_and_evaluate(make_env, tmp_path: Path) -> None:
    folder = train(out=tmp_path / "run", make_env=make_env, **TINY)
    assert folder.status()["state"] == "finished"
    rows = folder.read_rows("evaluations")
    again = evaluate(folder.path, episodes=2, make_env=make_env)
    assert [episode["episode_return"] for episode in again] == rows["episode_return"]
    assert json.loads((folder / "config.json").read_text())["config"]["task"] == "own"


def test_an_own_environment_is_asked_for_again(tmp_path: Path) -> None:
    folder = train(out=tmp_path / "run", make_env=TinyCMDP, **TINY)
    with pytest.raises(ConfigError, match="make_env"):
        evaluate(folder.path)
    folder.set_status("running")
    with pytest.raises(ConfigError, match="make_env"):
        resume(folder.path)
    assert resume(folder.path, make_env=TinyCMDP).status()["state"] == "finished"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"make_env": TinyCMDP}, "cost_limit_rate"),
        ({"make_env": TinyCMDP, "task": "goal1", "cost_limit_rate": 0.3}, "task of the paper's"),
        ({"make_env": TinyCMDP, "num_envs": 2, "cost_limit_rate": 0.3}, "module:function"),
        ({"task": "gaol1"}, "Did you mean 'goal1'"),
        ({"task": "no_such_module:make", "cost_limit_rate": 0.3}, "no_such_module"),
        ({"task": "tiny_cmdp:no_such_function", "cost_limit_rate": 0.3}, "no_such_function"),
        ({"task": "own", "cost_limit_rate": 0.3}, "make_env"),
        ({"config": BCPPOConfig(), "seed": 3}, "config or settings"),
        ({"device": "cuda"}, "cuda"),
    ],
    ids=lambda value: None if isinstance(value, str) else ", ".join(value),
)
def test_a_run_that_cannot_be_meant_is_refused_before_its_folder_is_made(settings, sentence, tmp_path: Path) -> None:
    import torch

    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(BcppoError, match=sentence):
        train(out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


# --- memory, and the examples ---


def test_a_run_with_the_papers_networks_stays_under_a_gigabyte(tmp_path: Path) -> None:
    """Goal1 with the paper's settings, two updates and an evaluation: peak resident memory of the whole process.

    From /proc: what getrusage gives a child begins with its parent's, and this one has the whole test run in memory.
    """
    code = (
        "import sys, bcppo;"
        "bcppo.train(task='goal1', steps=2048, eval_episodes=1, checkpoint_every=1024, out=sys.argv[1]);"
        "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 1e9


@pytest.mark.parametrize("name", ["bcppo", "bcppo.run", "bcppo.tasks"])
def test_the_examples_in_the_documentation_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_importing_the_package_imports_no_torch() -> None:
    subprocess.run([sys.executable, "-c", "import sys, bcppo; sys.exit('torch' in sys.modules)"], check=True)


def test_make_config_starts_from_the_papers_preset() -> None:
    assert make_config("bcppo", "push1", beta=0.3) == BCPPOConfig(
        task="push1", rollout=256, minibatch=64, epochs=4, beta=0.3
    )
