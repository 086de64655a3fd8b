"""Runs that learn from stored transitions: the folder, resuming, damage, and what is stored."""

from __future__ import annotations

import functools
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from test_kill import Killed, compare, results
from tiny_cmdp import BrokenAfter, TinyCMDP, optimum

from bcppo.errors import BcppoError, ConfigError, Diverged
from bcppo.evaluation import evaluate
from bcppo.policy import load_policy
from bcppo.records import FolderError, RunFolder
from bcppo.replay import ReplayFile
from bcppo.run import Run, Trainer, make_config, resume, train
from bcppo.settings import WCSACConfig
from bcppo.streams import Streams
from bcppo.watch import Watch

TINY = {
    "method": "wcsac", "steps": 50, "random_steps": 20, "window": 10, "minibatch": 16, "hidden": (8,), "buffer": 32,
    "cost_limit_rate": 0.3, "horizon": 8, "eval_every": 20, "eval_episodes": 1, "checkpoint_every": 10,
    "tensorboard": False,
}  # fmt: skip
"""The buffer overflows after 32 steps; the last window is as long as the others."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(out=tmp_path_factory.mktemp("offpolicy") / "whole", make_env=TinyCMDP, **TINY)


def interrupt(folder: Path, after: int, make_env=TinyCMDP, **changes) -> None:
    """Train until the environment falls over in a step."""

    def crash(result: list) -> None:
        raise RuntimeError("the simulator fell over")

    with pytest.raises(RuntimeError, match="fell over"):
        train(out=folder, make_env=lambda: BrokenAfter(make_env(), after, crash), **TINY | changes)


# --- the folder ---


def test_same_seed_same_bytes(whole: RunFolder, tmp_path: Path) -> None:
    again = train(out=tmp_path / "again", make_env=TinyCMDP, **TINY)
    assert results(again.path) == results(whole.path)
    other = train(out=tmp_path / "other", make_env=TinyCMDP, **TINY, seed=1)
    assert results(other.path)["policy.safetensors"] != results(whole.path)["policy.safetensors"]


def test_rows_of_progress(whole: RunFolder) -> None:
    rows = whole.read_rows("progress")
    assert rows["step"] == [10, 20, 30, 40, 50]
    assert rows["gradient_steps"] == [0, 0, 10, 20, 30]
    assert np.isnan(rows["loss_policy"][:2]).all()
    for name, values in rows.items():
        assert np.isfinite(values[2:]).all(), name
    assert rows["multiplier"][:2] == [pytest.approx(np.log(2))] * 2
    assert rows["discounted_limit"][0] == pytest.approx(0.3 * (1 - 0.99**8) / 0.01)
    assert all(0 <= share <= 1 for share in rows["multiplier_positive_share"])
    assert rows["cumulative_cost"][-1] == pytest.approx(10 * sum(rows["mean_cost"]))
    assert sorted(set(whole.read_rows("evaluations")["step"])) == [20, 40, 50]
    assert whole.read_rows("episodes")["step"] == [8, 16, 24, 32, 40, 48]


def test_steps_are_exact_and_the_last_window_may_be_shorter(tmp_path: Path) -> None:
    rows = train(out=tmp_path / "run", make_env=TinyCMDP, **TINY | {"steps": 27}).read_rows("progress")
    assert rows["step"] == [10, 20, 27]
    assert rows["gradient_steps"][-1] == 7


def test_a_finished_run_keeps_no_transitions(whole: RunFolder, tmp_path: Path) -> None:
    assert not (whole / "replay.bin").exists()
    interrupt(tmp_path / "run", after=34)
    assert (tmp_path / "run" / "replay.bin").stat().st_size == 30 * 4 * (2 + 1 + 2 + 3)


def test_evaluation_of_the_folder_gives_the_rows_the_run_recorded(whole: RunFolder) -> None:
    (again,) = evaluate(whole.path, episodes=1, make_env=TinyCMDP)
    assert again["episode_return"] == whole.read_rows("evaluations")["episode_return"][-1]


# --- what is stored ---


@pytest.mark.parametrize("truncate", [False, True])
def test_only_termination_is_stored_as_an_end(truncate: bool, tmp_path: Path) -> None:
    """Episodes of 8 steps; a time limit leaves a future to bootstrap from."""
    interrupt(tmp_path / "run", after=34, make_env=functools.partial(TinyCMDP, truncate=truncate))
    stored = np.fromfile(tmp_path / "run" / "replay.bin", "<f4").reshape(-1, 8)
    ends = np.arange(1, 31) % 8 == 0
    np.testing.assert_array_equal(stored[:, 7], ends * (not truncate))
    np.testing.assert_array_equal(stored[:-1][~ends[:-1], 3:5], stored[1:][~ends[:-1], :2])  # s' is the next s
    a, costs = (stored[:, 2] + 1) / 2, stored[:, :2] @ [0.5, 1.5]
    np.testing.assert_allclose(stored[:, 5], 1 - (1 - a) ** 2, atol=1e-6)
    np.testing.assert_allclose(stored[:, 6], costs * a, atol=1e-6)


def test_the_first_actions_are_uniform_from_the_runs_own_stream(tmp_path: Path) -> None:
    from scipy.special import ndtr

    interrupt(tmp_path / "run", after=34)
    stored = np.fromfile(tmp_path / "run" / "replay.bin", "<f4").reshape(-1, 8)
    noise = np.concatenate([Streams(0, 1).noise[0].standard_normal(20, dtype=np.float32)])
    np.testing.assert_allclose(stored[:20, 2], 2 * ndtr(noise) - 1, atol=1e-6)
    assert not np.allclose(stored[20, 2], 2 * ndtr(Streams(0, 1).noise[0].standard_normal(21, np.float32))[20] - 1)


# --- resuming ---


def test_a_run_ended_at_every_checkpoint_ends_with_the_same_bytes(
    whole: RunFolder, tmp_path: Path, monkeypatch
) -> None:
    """Ended in turn after a checkpoint, and between the transitions it covers and the checkpoint itself."""
    save, lives = RunFolder.save_checkpoint, 0

    def save_and_die(self: RunFolder, *arguments) -> None:
        if lives % 2:
            save(self, *arguments)
        raise Killed

    monkeypatch.setattr(RunFolder, "save_checkpoint", save_and_die)
    folder = RunFolder(tmp_path / "killed")
    with pytest.raises(Killed):
        train(out=folder.path, make_env=TinyCMDP, **TINY)
    while folder.status()["state"] != "finished":
        lives += 1
        try:
            resume(folder.path, make_env=TinyCMDP)
        except Killed:
            continue
    assert lives == 10
    assert results(folder.path) == results(whole.path)


def test_killed_when_its_transitions_are_gone_but_it_is_not_yet_finished(whole: RunFolder, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(RunFolder, "set_status", die_when_finished(RunFolder.set_status))
    with pytest.raises(Killed):
        train(out=tmp_path / "run", make_env=TinyCMDP, **TINY)
    assert not (tmp_path / "run" / "replay.bin").exists()
    monkeypatch.undo()
    assert results(resume(tmp_path / "run", make_env=TinyCMDP).path) == results(whole.path)


def die_when_finished(set_status):
    def guarded(self: RunFolder, state: str, message: str = "") -> None:
        if state == "finished":
            raise Killed
        set_status(self, state, message)

    return guarded


@pytest.mark.full
def test_killed_by_the_system_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    settings = {
        "method": "wcsac", "task": "hopper", "steps": 1200, "random_steps": 100, "window": 50, "minibatch": 32,
        "hidden": (16, 16), "checkpoint_every": 50, "eval_every": 400, "eval_episodes": 1, "tensorboard": False,
    }  # fmt: skip
    compare(settings, kills=3, tmp_path=tmp_path, seed=3)


# --- damage ---


def flip(path: Path) -> None:
    payload = bytearray(path.read_bytes())
    payload[100] ^= 1
    path.write_bytes(payload)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (flip, "damaged and the run cannot go on: its checksum"),
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "it holds 28 of the 30 transitions so far"),
        (Path.unlink, "cannot be read: No such file or directory"),
    ],
    ids=["changed", "cut", "lost"],
)
def test_damaged_transitions_are_reported_in_one_sentence(damage, sentence: str, tmp_path: Path) -> None:
    interrupt(tmp_path / "run", after=34)
    damage(tmp_path / "run" / "replay.bin")
    with pytest.raises(FolderError, match=sentence) as error:
        resume(tmp_path / "run", make_env=TinyCMDP)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_transitions_that_cannot_be_written_stop_the_run_in_one_sentence(tmp_path: Path) -> None:
    file = ReplayFile(tmp_path / "replay.bin", 3)
    file.add(np.zeros(3, np.float32))
    (tmp_path / "replay.bin").mkdir()
    with pytest.raises(BcppoError, match=r"Could not append to replay\.bin"):
        file.flush()


def test_an_older_checkpoint_finds_its_transitions_in_a_longer_file(tmp_path: Path, whole: RunFolder) -> None:
    interrupt(tmp_path / "run", after=34)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"damaged")
    resume(tmp_path / "run", make_env=TinyCMDP)
    found, expected = results(tmp_path / "run"), results(whole.path)
    assert found["policy.safetensors"] == expected["policy.safetensors"]
    assert found["progress.parquet"] == expected["progress.parquet"]


@pytest.mark.filterwarnings("ignore:.*encountered in matmul")
def test_divergence_stops_the_run_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        train(out=tmp_path / "run", make_env=TinyCMDP, **TINY, learning_rate=1e30)
    assert RunFolder(tmp_path / "run").status()["state"] == "diverged"


# --- stacks ---


def trained_together(configs: list[WCSACConfig], folder: Path, make_env=None) -> list[RunFolder]:
    runs = []
    for number, config in enumerate(configs):
        own = RunFolder(folder / str(number))
        own.create("wcsac", config, "cpu")
        runs.append(Run("wcsac", config, own, make_env))
    Trainer(runs, Watch(bar=False)).train()
    for run in runs:
        run.close()
    return [run.folder for run in runs]


def test_a_run_in_a_stack_leaves_the_same_bytes_as_alone(tmp_path: Path) -> None:
    settings = {name: value for name, value in TINY.items() if name != "method"} | {"task": "hopper"}
    changes = ({"seed": 3}, {"seed": 4, "learning_rate": 3e-3, "alpha": 0.5}, {"seed": 5, "discount": 0.9, "damp": 1.0})
    configs = [WCSACConfig(**settings | change) for change in changes]
    together = trained_together(configs, tmp_path / "together")
    for number, config in enumerate(configs):
        (alone,) = trained_together([config], tmp_path / f"alone{number}")
        assert results(alone.path) == results(together[number].path), number


# --- configs ---

NAN, INF = float("nan"), float("inf")
IMPOSSIBLE = {
    "minibatch": [0, -1, 1.5], "buffer": [255, 0], "random_steps": [0], "learning_rate": [0.0, NAN, INF],
    "multiplier_rate_factor": [0.0, -1.0, INF], "hidden": [(), (0,)], "discount": [-0.1, 1.1, NAN],
    "polyak": [1.1, NAN], "alpha": [0.0, 1.0, NAN], "damp": [-1.0, NAN], "target_entropy": [1.0, NAN],
    "horizon": [0], "release_variance_target": [1], "window": [0], "num_envs": [2], "steps": [0],
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_setting_is_refused_in_one_sentence(name: str) -> None:
    for value in IMPOSSIBLE[name]:
        with pytest.raises(ConfigError, match=rf"^{name} must be .* was given\.$"):
            WCSACConfig(**{name: value})


def test_actions_without_bounds_are_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    def unbounded() -> TinyCMDP:
        env = TinyCMDP()
        env.action_space = gymnasium.spaces.Box(-np.inf, 1.0, (1,), np.float32)
        return env

    with pytest.raises(ConfigError, match="must have bounds"):
        train(out=tmp_path / "run", make_env=unbounded, **TINY)
    assert not (tmp_path / "run").exists()


def test_the_preset_is_the_papers() -> None:
    config = make_config("wcsac", "ant")
    assert isinstance(config, WCSACConfig)
    assert (config.minibatch, config.buffer, config.learning_rate, config.hidden) == (256, 10**6, 1e-3, (256, 256))
    assert (config.discount, config.polyak, config.alpha, config.damp) == (0.99, 0.995, 0.95, 10.0)
    assert (config.random_steps, config.steps, config.horizon) == (500, 10**6, 1000)
    assert (config.multiplier_rate_factor, config.target_entropy) == (50.0, -1.0)
    assert not config.release_variance_target


# --- learning ---

PROBLEMS: dict[str, tuple[tuple[float, float], float, float]] = {
    "dear and cheap": ((0.5, 1.5), 0.4, 1e-3),
    "equal costs": ((1.0, 1.0), 0.3, 1e-3),
    "inactive limit": ((0.5, 1.5), 5.0, 1e-3),
    "averse": ((0.5, 1.5), 0.4, 0.95),
}
"""Costs per unit of action in the two contexts, the limit per step, and α: at 0.001, k = 0.003 and Γ is the mean."""


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[np.ndarray, dict[str, list]]]:
    """(a in each context, progress) of each problem. Episodes are cut by a time limit, so that the discounted cost is
    the rate over 1 − γ, as the limit has it.

    Not the paper's settings: smaller networks, a shorter horizon (γ = 0.8) and greater steps, for 2,000 steps to do.
    """
    folder, runs = tmp_path_factory.mktemp("learning"), []
    for name, (costs, limit, alpha) in PROBLEMS.items():
        config = WCSACConfig(
            task="own", steps=2000, cost_limit_rate=limit, alpha=alpha, minibatch=64, hidden=(32, 32),
            learning_rate=3e-3, discount=0.8, polyak=0.98, random_steps=200, window=250, eval_every=0,
            checkpoint_every=10**6, tensorboard=False,
        )  # fmt: skip
        own = RunFolder(folder / name)
        own.create("wcsac", config, "cpu")
        runs.append(Run("wcsac", config, own, functools.partial(TinyCMDP, costs, truncate=True)))
    Trainer(runs, Watch(bar=False)).train()
    found = {}
    for name, run in zip(PROBLEMS, runs):
        action = load_policy(run.folder / "policy.safetensors").act(np.eye(2, dtype=np.float32))[:, 0]
        found[name] = (action + 1) / 2, run.folder.read_rows("progress")
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", ["dear and cheap", "equal costs"])
def test_reaches_the_constrained_optimum_of_the_mean(name: str, learned) -> None:
    """Actions within 0.12 of the best ones, the collecting policy's cost at the limit within 0.04."""
    costs, limit, _ = PROBLEMS[name]
    action, rows = learned[name]
    best, best_reward = optimum(limit, costs)
    np.testing.assert_allclose(action, best, atol=0.12)
    assert np.mean(1 - (1 - action) ** 2) == pytest.approx(best_reward, abs=0.1)
    assert np.mean(rows["mean_cost"][-3:]) == pytest.approx(limit, abs=0.04)
    assert np.mean(rows["risk"][-3:]) == pytest.approx(rows["discounted_limit"][0], rel=0.1)


@pytest.mark.full
def test_an_inactive_limit_gives_the_unconstrained_optimum(learned) -> None:
    action, rows = learned["inactive limit"]
    assert np.mean(1 - (1 - action) ** 2) > 0.98
    assert rows["multiplier"][-1] < 0.01


@pytest.mark.full
def test_a_limit_on_the_tail_keeps_the_mean_further_below_it(learned) -> None:
    """Γ is at the limit, the mean k·√V below it: some 2.06·0.3 = 0.6 of 2."""
    _, rows = learned["averse"]
    assert np.mean(rows["risk"][-3:]) == pytest.approx(rows["discounted_limit"][0], rel=0.1)
    assert np.mean(rows["mu_c"][-3:]) < 0.85 * rows["discounted_limit"][0]
    assert np.mean(rows["mean_cost"][-3:]) < 0.85 * PROBLEMS["averse"][1]
    assert rows["multiplier_positive"][-1] > 0.5
