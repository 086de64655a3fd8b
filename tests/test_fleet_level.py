"""Killed fleets go on in the stacks they had: on a GPU a run rounds differently in other company."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest
from test_fleet import STORED, Stop, small
from test_kill import results
from tiny_cmdp import BrokenAfter, TinyCMDP

from bcppo.fleet import name_runs, train_fleet
from bcppo.records import FolderError, RunFolder
from bcppo.run import make_config, train
from bcppo.stacked import _Fleet
from bcppo.training import Trainer


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """The stacks that were launched, seed → step of its runs, which their folders have as the newest."""
    launched: list[dict[int, int]] = []
    restore = Trainer.restore

    def noting(self: Trainer, stored: list) -> None:
        restore(self, stored)
        launched.append({run.config.seed: run.step for run in self.runs})
        in_folders = [found.step if (found := run.stored(print)) else 0 for run in self.runs]
        assert in_folders == [run.step for run in self.runs]

    monkeypatch.setattr(Trainer, "restore", noting)
    return launched


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """Every checkpoint that was written, by run."""
    written: dict[str, list[bytes]] = {}
    save = RunFolder.save_checkpoint

    def keeping(self: RunFolder, tensors, notes) -> None:
        save(self, tensors, notes)
        written.setdefault(self.path.name, []).append((self / "checkpoint.safetensors").read_bytes())

    monkeypatch.setattr(RunFolder, "save_checkpoint", keeping)
    return written


def stop_and_set_back(runs: list, out: Path, back: tuple[int, ...], saved: dict[str, list[bytes]]) -> list[RunFolder]:
    """A fleet killed at step 448, some of whose runs had not written their last checkpoint, or their last two."""
    with pytest.raises(KeyboardInterrupt):
        train_fleet(runs, out=out, workers=1, stacked=True, watch=Stop(448))
    folders = [RunFolder(out / name) for name in name_runs(runs)]
    for seed in set(back):
        (folders[seed] / "checkpoint.previous.safetensors").unlink()
        checkpoint = saved[folders[seed].path.name][-1 - back.count(seed)]
        (folders[seed] / "checkpoint.safetensors").write_bytes(checkpoint)
    return folders


@pytest.mark.parametrize(
    ("back", "then"),
    [
        ((3,), [{0: 256, 3: 256}, {1: 384}, {2: 384}]),  # a kill between two checkpoints of a stack
        ((0, 3), [{0: 256, 3: 256}, {1: 384}, {2: 384}]),  # between two stacks
        ((3, 3), [{0: 384}, {1: 384}, {2: 384}, {3: 128}]),  # nobody has a checkpoint from then
        ((3, 3, 4), [{0: 384}, {1: 256, 4: 256}, {2: 384, 5: 384}, {3: 128}]),  # the others are none the worse
    ],
)
def test_a_fleet_that_was_killed_goes_on_in_the_stacks_it_had(
    back: tuple[int, ...], then: list[dict[int, int]], stacks: list[dict[int, int]], saved: dict, tmp_path: Path
) -> None:
    runs = [small("bcppo", seed) for stack in then for seed in stack]
    runs.sort(key=lambda run: run[1].seed)
    whole = train_fleet(runs, out=tmp_path / "whole", workers=1, stacked=True)
    saved.clear()
    folders = stop_and_set_back(runs, tmp_path / "fleet", back, saved)
    stacks.clear()
    train_fleet(runs, out=tmp_path / "fleet", workers=1, stacked=True)
    assert sorted(stacks, key=min) == then
    assert [results(folder.path) for folder in folders] == [results(folder.path) for folder in whole]


def test_nobody_goes_back_where_not_all_can(
    stacks: list[dict[int, int]], saved: dict[str, list[bytes]], tmp_path: Path
) -> None:
    """Of three in a stack one is behind, and one of the others has nothing to go back to."""
    runs = [small("bcppo", seed) for seed in range(3)]
    with pytest.raises(KeyboardInterrupt):
        train_fleet(runs, out=tmp_path, workers=1, stacked=True, apart=True, watch=Stop(448))
    folders = [RunFolder(tmp_path / name) for name in name_runs(runs)]
    folders[0].go_back()
    (folders[1] / "checkpoint.previous.safetensors").unlink()
    stacks.clear()
    train_fleet(runs, out=tmp_path, workers=1, stacked=True, apart=True)
    assert stacks == [{0: 256}, {1: 384, 2: 384}]


def test_a_checkpoint_that_had_not_come_to_its_place_counts(
    stacks: list[dict[int, int]], saved: dict[str, list[bytes]], tmp_path: Path
) -> None:
    """Killed between writing a checkpoint and moving it: the run is ahead all the same."""
    runs = [small("bcppo", seed) for seed in range(4)]
    folders = stop_and_set_back(runs, tmp_path, (3,), saved)
    ahead = folders[0]
    (ahead / "checkpoint.safetensors").rename(ahead / "checkpoint.next.safetensors")
    (ahead / "checkpoint.previous.safetensors").rename(ahead / "checkpoint.safetensors")
    stacks.clear()
    train_fleet(runs, out=tmp_path, workers=1, stacked=True)
    assert {0: 256, 3: 256} in stacks


# --- with stored transitions ---


def stored_runs(seeds: int = 3) -> list:
    return [("wcsac", make_config("wcsac", seed=seed, **STORED)) for seed in range(seeds)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folders = train_fleet(stored_runs(), out=tmp_path_factory.mktemp("whole"), workers=1, stacked=True)
    return [results(folder.path) for folder in folders]


def test_a_stack_with_stored_transitions_goes_back_to_the_checkpoint_that_all_its_runs_have(
    stacks: list[dict[int, int]], whole: list[dict], tmp_path: Path
) -> None:
    runs = stored_runs()
    with pytest.raises(KeyboardInterrupt):
        train_fleet(runs, out=tmp_path, workers=1, stacked=True, watch=Stop(250))
    folders = [RunFolder(tmp_path / name) for name in name_runs(runs)]
    folders[1].go_back()
    stacks.clear()
    train_fleet(runs, out=tmp_path, workers=1, stacked=True)
    assert stacks == [{0: 100, 1: 100, 2: 100}]
    assert [results(folder.path) for folder in folders] == whole


def no_room_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint of the run with seed 1 cannot be written."""
    save = RunFolder.save_checkpoint

    def full(self: RunFolder, tensors, notes) -> None:
        if self.path.name.endswith("seed1") and '"step": 300' in notes["state"]:
            raise FolderError("no room")
        save(self, tensors, notes)

    monkeypatch.setattr(RunFolder, "save_checkpoint", full)


@pytest.mark.parametrize("gone", [False, True])
def test_runs_at_their_end_are_not_lost_to_one_that_is_not(
    gone: bool, stacks: list[dict[int, int]], whole: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go back if they still have what they would learn from, and otherwise stay where they are."""
    with monkeypatch.context() as patched:
        no_room_for_the_last(patched)
        folders = train_fleet(stored_runs(), out=tmp_path, workers=1, stacked=True)
    assert [folder.status()["state"] for folder in folders] == ["failed"] * 3
    assert all((folder / "replay.bin").exists() for folder in folders)
    if gone:
        (folders[0] / "replay.bin").unlink()
    stacks.clear()
    train_fleet(stored_runs(), out=tmp_path, workers=1, stacked=True)
    assert stacks == ([{0: 300, 2: 300}, {1: 200}] if gone else [{0: 200, 1: 200, 2: 200}])
    assert [folder.status()["state"] for folder in folders] == ["finished"] * 3
    assert [results(folder.path) for folder in folders] == whole


def test_a_finished_run_stays_finished_whatever_becomes_of_the_others(
    whole: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bcppo.training

    save = bcppo.training.save_policy

    def full(path: Path, policy, method, config) -> None:
        if config.seed == 1:
            raise FolderError("no room")
        save(path, policy, method, config)

    with monkeypatch.context() as patched:
        patched.setattr(bcppo.training, "save_policy", full)
        folders = train_fleet(stored_runs(), out=tmp_path, workers=1, stacked=True)
    assert [folder.status()["state"] for folder in folders] == ["finished", "failed", "failed"]
    train_fleet(stored_runs(), out=tmp_path, workers=1, stacked=True)
    assert [results(folder.path) for folder in folders] == whole


def broken(result: list) -> None:
    raise RuntimeError("this one environment is broken")


def make_broken_late() -> gymnasium.Env:
    """Raises an error in its 250th step."""
    return BrokenAfter(TinyCMDP(), 250, broken)


def test_runs_whose_stack_has_lost_one_go_on_together(
    stacks: list[dict[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them has not written its last checkpoint."""
    reopen = _Fleet._reopen

    def behind(self: _Fleet, members) -> None:
        members[0].folder.go_back()
        reopen(self, members)

    monkeypatch.setattr(_Fleet, "_reopen", behind)
    good = stored_runs(2)
    bad = "wcsac", make_config("wcsac", seed=7, **(STORED | {"task": "test_fleet_level:make_broken_late"}))
    *folders, sick = train_fleet([*good, bad], out=tmp_path / "fleet", workers=1, stacked=True)
    assert sick.status()["state"] == "failed"
    assert stacks == [{0: 0, 1: 0, 7: 0}, {0: 100, 1: 100}]
    for folder, (method, config) in zip(folders, good):
        assert results(train(config, method=method, out=tmp_path / folder.path.name).path) == results(folder.path)
