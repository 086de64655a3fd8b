"""What goes wrong is said in one sentence, and what was there before is kept: full disks, damaged files, divergence."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from test_kill import results
from tiny_cmdp import BrokenAfter, TinyCMDP

from bcppo.errors import BcppoError, Diverged
from bcppo.evaluation import evaluate
from bcppo.policy import NumpyPolicy, load_policy
from bcppo.records import FolderError, RunFolder, read_json, read_tensors, write_json, write_tensors
from bcppo.rollout import Collector
from bcppo.run import Run, make_config, resume, train
from bcppo.watch import Watch
from bcppo.worker import own_environment

TINY = {
    "steps": 160, "rollout": 20, "minibatch": 10, "epochs": 1, "hidden": (8,), "cost_limit_rate": 0.3,
    "eval_every": 40, "eval_episodes": 1, "checkpoint_every": 20, "log_every": 1, "tensorboard": False,
}  # fmt: skip


def broken(wrong: Callable[[list], None], steps: int = 70) -> Callable[[], BrokenAfter]:
    return lambda: BrokenAfter(TinyCMDP(), steps, wrong)


def crash(result: list) -> None:
    raise RuntimeError("the simulator fell over")


class Warned(Watch):
    """A silent watch that keeps what it was told to warn of."""

    def __init__(self) -> None:
        super().__init__(bar=False)
        self.sentences: list[str] = []

    def warn(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run leaves."""
    return results(train(out=tmp_path_factory.mktemp("faults") / "whole", make_env=TinyCMDP, **TINY).path)


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run that stopped after 60 of its 160 steps, with two checkpoints."""
    with pytest.raises(RuntimeError, match="fell over"):
        train(out=tmp_path / "run", make_env=broken(crash), **TINY)
    return tmp_path / "run"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def one_sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def complaint(stderr: str) -> str:
    """The error the command line ends with; before it, Gymnasium may warn that Hopper-v4 has a successor."""
    assert "Traceback" not in stderr
    (found,) = re.findall(r"^error: (.*)\n", stderr, re.MULTILINE)
    return found


# --- an environment that fails ---


def test_an_environment_that_fails_leaves_a_folder_that_can_go_on(interrupted: Path, whole: dict[str, bytes]) -> None:
    folder = RunFolder(interrupted)
    assert folder.status() == {"state": "failed", "message": "RuntimeError: the simulator fell over"}
    assert folder.read_rows("progress")["step"] == [20, 40, 60]
    resume(interrupted, make_env=TinyCMDP)
    assert results(interrupted) == whole


def test_a_cost_that_is_no_cost_is_named(tmp_path: Path) -> None:
    def negative(result: list) -> None:
        result[4]["cost"] = -1.0

    with pytest.raises(BcppoError, match=r"at least 0, but the cost of this step was -1\.0") as error:
        train(out=tmp_path / "run", make_env=broken(negative), **TINY)
    assert RunFolder(tmp_path / "run").status() == {"state": "failed", "message": one_sentence(error)}


def test_an_environment_process_that_dies_is_started_again_and_nothing_changes(tmp_path: Path) -> None:
    settings = TINY | {"task": "tiny_cmdp:make", "num_envs": 2}
    expected = results(train(out=tmp_path / "whole", **settings).path)
    start, killed = Run.record, []

    class Murdered(Run):
        def record(self, *arguments):
            start(self, *arguments)
            if self.step in (60, 100):
                os.kill(self.collectors[1].worker.pid, signal.SIGKILL)
                killed.append(self.collectors[1].worker.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bcppo.run.Run", Murdered)
        train(out=tmp_path / "run", **settings)
    assert len(set(killed)) == 2
    assert results(tmp_path / "run") == expected


def make_deadly() -> TinyCMDP:
    """An environment whose process does not live to see the end of an episode."""

    class Deadly(TinyCMDP):
        def step(self, action):
            os.kill(os.getpid(), signal.SIGKILL)

    return Deadly()


def test_an_environment_process_that_dies_again_and_again_is_reported(tmp_path: Path) -> None:
    settings = TINY | {"task": "test_faults:make_deadly", "num_envs": 2}
    with pytest.raises(BcppoError, match=r"process died 3 times in a row \(SIGKILL\); the run can be resumed") as error:
        train(out=tmp_path / "run", **settings)
    assert RunFolder(tmp_path / "run").status() == {"state": "failed", "message": one_sentence(error)}


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    ).returncode
    if mounted:
        pytest.skip("mounting a small disk needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("curves", [False, True], ids=["without curves", "with curves"])
def test_a_full_disk_is_reported_and_the_last_good_state_kept(
    curves: bool, small_disk: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    def fill(_: list) -> None:
        with open(small_disk / "others", "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    settings = TINY | {"tensorboard": curves}
    expected = whole if not curves else results(train(out=tmp_path / "whole", make_env=TinyCMDP, **settings).path)
    folder, watch = RunFolder(small_disk / "run"), Warned()
    with pytest.raises(FolderError, match=r"Could not write .* No space left on device; what was .* intact") as error:
        train(out=folder.path, make_env=broken(fill), watch=watch, **settings)
    one_sentence(error)
    assert len(watch.sentences) <= curves
    loaded = folder.load_checkpoint(pytest.fail)
    assert loaded is not None
    assert json.loads(loaded[1]["state"])["step"] == 60
    assert folder.read_rows("progress")["step"][:3] == [20, 40, 60]
    assert not list(folder.path.glob(".*"))
    (small_disk / "others").unlink()
    resume(folder.path, make_env=TinyCMDP)
    assert results(folder.path) == expected


def test_curves_that_cannot_be_written_end_with_a_warning_and_the_run_goes_on(tmp_path: Path, monkeypatch) -> None:
    from bcppo.watch import _Curves

    def full(self: _Curves, *_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_Curves, "add", full)
    watch = Warned()
    folder = train(out=tmp_path / "run", make_env=TinyCMDP, watch=watch, **TINY | {"tensorboard": True})
    assert folder.status()["state"] == "finished"
    assert watch.sentences == [f"The TensorBoard curves of {folder.path} end here: No space left on device."]


def test_a_file_that_may_not_grow_is_reported_by_the_command_line(tmp_path: Path) -> None:
    """The same without root: files are limited to 20,000 bytes, which a checkpoint exceeds."""
    arguments = ["train", "--task", "hopper", "--hidden", "16", "--rollout", "64", "--minibatch", "64", "--epochs", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "bcppo", *arguments, "--checkpoint-every", "64", "--out", tmp_path / "run", "--quiet"],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"Could not write checkpoint.* File too large; what was .* intact\.", complaint(done.stderr))
    assert RunFolder(tmp_path / "run").status()["state"] == "failed"
    assert RunFolder(tmp_path / "run").read_rows("progress")["step"] == [64]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"cannot be made: ") as error:
        train(out="/proc/run", make_env=TinyCMDP, **TINY)
    one_sentence(error)
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"cannot be made: ") as error:
        train(out=tmp_path / "file" / "run", make_env=TinyCMDP, **TINY)
    one_sentence(error)


# --- damaged checkpoints ---


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def tamper(path: Path) -> None:
    payload = bytearray(path.read_bytes())
    payload[-100] ^= 1
    path.write_bytes(payload)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, tamper, empty, remove])
def test_a_damaged_checkpoint_falls_back_and_the_run_still_ends_the_same(damage, interrupted: Path, whole) -> None:
    damage(interrupted / "checkpoint.safetensors")
    watch = Warned()
    resume(interrupted, make_env=TinyCMDP, watch=watch)
    if damage is not remove:
        (sentence,) = watch.sentences
        assert "checkpoint.safetensors is damaged and was not loaded" in sentence
        assert sentence.endswith("Going on from checkpoint.previous.safetensors.")
        (interrupted / "checkpoint.damaged.safetensors").unlink()  # set aside, not thrown away
    assert results(interrupted) == whole


def test_a_damaged_last_checkpoint_of_a_run_is_survived_too(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Training was over, the evaluation at the end done: rows of it are in the file and must not be there twice."""
    folder = train(out=tmp_path / "run", make_env=TinyCMDP, **TINY)
    folder.set_status("running")
    tamper(folder / "checkpoint.safetensors")
    (folder / "policy.safetensors").unlink()
    resume(folder.path, make_env=TinyCMDP, watch=Warned())
    (folder / "checkpoint.damaged.safetensors").unlink()
    assert results(folder.path) == whole


def test_both_checkpoints_damaged_is_one_sentence_and_nothing_is_touched(interrupted: Path) -> None:
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
        truncate(interrupted / name)
    before = files(interrupted)
    with pytest.raises(FolderError, match="No checkpoint of this run is whole, so it cannot go on") as error:
        resume(interrupted, make_env=TinyCMDP)
    one_sentence(error)
    assert files(interrupted) == before


@pytest.mark.parametrize("kind", ["format", "config", "shape"])
def test_a_checkpoint_of_another_version_or_config_is_refused_and_nothing_is_touched(kind, interrupted: Path) -> None:
    path = interrupted / "checkpoint.safetensors"
    tensors, notes = read_tensors(path)
    if kind == "format":
        notes["format"] = "99"
    elif kind == "config":
        notes["config"] = "0123456789ab"
    else:
        tensors["policy.parameter.weight0"] = np.zeros((1, 3, 5), np.float32)
    write_tensors(path, tensors, notes)
    before = files(interrupted)
    expected = {"format": "another version", "config": "another config", "shape": "does not fit its config"}[kind]
    with pytest.raises(FolderError, match=expected) as error:
        resume(interrupted, make_env=TinyCMDP)
    one_sentence(error)
    assert files(interrupted) == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda stored: stored["config"].update(learning_rate=1e-3), "belongs to another config"),
        (lambda stored: stored["config"].update(seed=1), "belongs to another config"),
        (lambda stored: stored["config"].update(alpha=7), "alpha must be a number"),
        (lambda stored: stored["config"].pop("alpha"), "the fields alpha differ"),
        (lambda stored: stored.update(format=99), "another version"),
        (lambda stored: stored.update(method="sarsa"), "no method named 'sarsa'"),
        (lambda stored: stored.clear(), "another version"),
    ],
)
def test_a_tampered_config_is_refused_and_nothing_is_touched(change, sentence: str, interrupted: Path) -> None:
    stored = read_json(interrupted / "config.json")
    change(stored)
    write_json(interrupted / "config.json", stored)
    before = files(interrupted)
    with pytest.raises(BcppoError, match=sentence):
        resume(interrupted, make_env=TinyCMDP)
    assert files(interrupted) == before


@pytest.mark.parametrize("name", ["progress", "episodes", "evaluations"])
@pytest.mark.parametrize("damage", [truncate, tamper, remove])
def test_damaged_rows_are_refused_and_nothing_is_touched(name: str, damage, interrupted: Path) -> None:
    """Rows that a checkpoint covers cannot be made again without doing the run over."""
    damage(interrupted / f"{name}.parquet")
    before = files(interrupted)
    with pytest.raises(FolderError, match=rf"{name}\.parquet (is damaged|does not fit|cannot be read)") as error:
        resume(interrupted, make_env=TinyCMDP)
    one_sentence(error)
    assert files(interrupted) == before


def test_rows_older_than_the_checkpoint_are_refused(interrupted: Path) -> None:
    rows = RunFolder(interrupted).read_rows("progress")
    RunFolder(interrupted).write_rows("progress", {name: values[:1] for name, values in rows.items()})
    with pytest.raises(FolderError, match="does not fit the checkpoint: it has 1 of the 3 rows"):
        resume(interrupted, make_env=TinyCMDP)


# --- folders that hold something else ---


def test_another_run_is_never_overwritten(interrupted: Path) -> None:
    before = files(interrupted)
    with pytest.raises(FolderError, match=r"already holds another run; .*`bcppo resume "):
        train(out=interrupted, make_env=TinyCMDP, **TINY)
    assert files(interrupted) == before


class Unwritten(TinyCMDP):
    """An environment whose step is still to be written."""

    def step(self, action):
        raise ValueError("not yet written")


def test_a_run_that_ended_before_its_first_update_may_be_begun_anew(tmp_path: Path, capsys) -> None:
    with pytest.raises(Exception, match="not yet written"):
        train(out=tmp_path / "run", make_env=Unwritten, **TINY)
    assert RunFolder(tmp_path / "run").came_to_nothing
    with RunFolder(tmp_path / "run").locked(), pytest.raises(FolderError, match="Another process is at work"):
        train(out=tmp_path / "run", make_env=TinyCMDP, **TINY)
    settings = TINY | {"seed": 7}
    assert train(out=tmp_path / "run", make_env=TinyCMDP, **settings).status()["state"] == "finished"
    assert "ended before its first update; it is begun anew" in capsys.readouterr().err
    train(out=tmp_path / "other", make_env=TinyCMDP, **settings)
    for name in ("config.json", "progress.parquet", "policy.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_beginning_anew_may_be_killed_at_any_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each file or folder that it takes away, the next start finds a folder it can begin in."""

    class Killed(BaseException):
        pass

    def killed_after(count: int, name: str, owner: object) -> None:
        original = getattr(owner, name)

        def once(*arguments, **options):
            original(*arguments, **options)
            removed.append(arguments[0])
            if len(removed) == count:
                raise Killed

        monkeypatch.setattr(owner, name, once)

    for count in range(1, 5):
        folder, removed = tmp_path / str(count), []
        with pytest.raises(Exception, match="not yet written"):
            train(out=folder, make_env=Unwritten, **TINY)
        (folder / "tensorboard").mkdir()  # as with curves
        killed_after(count, "unlink", Path)
        killed_after(count, "rmtree", shutil)
        with pytest.raises(Killed):
            RunFolder(folder).create("bcppo", make_config("bcppo", "hopper"), "cpu")
        monkeypatch.undo()
        assert train(out=folder, make_env=TinyCMDP, **TINY).status()["state"] == "finished"


@pytest.mark.parametrize("kept", ["notes.txt", "progress.parquet", "checkpoint.safetensors"])
def test_a_folder_with_anything_to_lose_is_not_begun_anew(tmp_path: Path, kept: str) -> None:
    with pytest.raises(Exception, match="not yet written"):
        train(out=tmp_path / "run", make_env=Unwritten, **TINY)
    (tmp_path / "run" / kept).write_text("mine")
    before = files(tmp_path / "run")
    with pytest.raises(FolderError, match="already holds another run"):
        train(out=tmp_path / "run", make_env=TinyCMDP, **TINY)
    assert files(tmp_path / "run") == before


def test_other_files_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "progress.parquet").write_text("mine")
    with pytest.raises(FolderError, match="already holds other files"):
        train(out=tmp_path, make_env=TinyCMDP, **TINY)
    assert files(tmp_path) == {"progress.parquet": b"mine"}


def test_a_run_at_work_is_left_alone(interrupted: Path) -> None:
    """Its status says running, like that of one that was killed: only the lock tells the two apart."""
    (interrupted / ".progress.parquet.77.part").write_text("being written")
    before = files(interrupted)
    with RunFolder(interrupted).locked(), pytest.raises(FolderError, match="Another process is at work") as error:
        resume(interrupted, make_env=TinyCMDP)
    one_sentence(error)
    assert files(interrupted) == before
    assert resume(interrupted, make_env=TinyCMDP).status()["state"] == "finished"


# --- divergence ---


def nan_reward(result: list) -> None:
    result[1] = float("nan")


def infinite_reward(result: list) -> None:
    result[1] = float("inf")


def nan_observation(result: list) -> None:
    result[0] = np.full_like(result[0], np.nan)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (nan_reward, r"Training diverged at step 80: loss_\w+ is not finite"),
        (infinite_reward, r"Training diverged at step 80: loss_\w+ is not finite"),
        (nan_observation, r"Training diverged: the environment's observation is not finite"),
    ],
)
def test_numbers_that_are_not_finite_stop_the_run_with_a_usable_folder(wrong, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=sentence) as error:
        train(out=tmp_path / "run", make_env=broken(wrong), **TINY)
    assert_diverged(RunFolder(tmp_path / "run"), one_sentence(error), steps=[20, 40, 60])


def test_a_huge_learning_rate_stops_the_run_with_a_usable_folder(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="Training diverged") as error:
        train(out=tmp_path / "run", make_env=TinyCMDP, **TINY | {"learning_rate": 1e30})
    assert_diverged(RunFolder(tmp_path / "run"), one_sentence(error), steps=[])


def test_divergence_in_a_process_of_its_own_is_divergence_too(tmp_path: Path) -> None:
    settings = TINY | {"task": "test_faults:make_nan", "num_envs": 2}
    with pytest.raises(Diverged, match="observation is not finite") as error:
        train(out=tmp_path / "run", **settings)
    assert_diverged(RunFolder(tmp_path / "run"), one_sentence(error), steps=[20])


def make_nan() -> BrokenAfter:
    return BrokenAfter(TinyCMDP(), 15, nan_observation)


def assert_diverged(folder: RunFolder, sentence: str, steps: list[int]) -> None:
    assert folder.status() == {"state": "diverged", "message": sentence}
    if steps:
        assert folder.read_rows("progress")["step"][: len(steps)] == steps
    for name in ("progress", "episodes", "timings"):
        assert isinstance(folder.read_rows(name), dict)
    if (checkpoint := folder.load_checkpoint(pytest.fail)) is not None:
        assert all(np.isfinite(array).all() for array in checkpoint[0].values())
    before = files(folder.path)
    with pytest.raises(FolderError, match="diverged and cannot go on: ") as error:
        resume(folder.path, make_env=TinyCMDP)
    one_sentence(error)
    with pytest.raises(BcppoError, match=r"has left no policy yet \(diverged\)"):
        evaluate(folder.path, make_env=TinyCMDP)
    assert files(folder.path) == before


def test_an_action_that_is_not_finite_is_the_policys_fault_where_the_observation_is_fine() -> None:
    collector = Collector(own_environment(TinyCMDP, 0.3), np.random.default_rng(0), np.random.default_rng(1))
    weights = {"weight0": np.zeros((2, 1)), "bias0": np.array([np.nan]), "log_std": np.zeros(1)}
    with pytest.raises(Diverged, match="the policy's action is not finite"):
        collector.collect(NumpyPolicy(weights, np.array([-1.0]), np.array([1.0])), 5)


def test_a_diverging_run_ends_with_one_sentence_on_the_command_line(tmp_path: Path) -> None:
    arguments = ["--task", "hopper", "--hidden", "16", "--rollout", "64", "--minibatch", "64", "--learning-rate", "9e9"]
    done = subprocess.run(
        [sys.executable, "-m", "bcppo", "train", *arguments, "--out", tmp_path / "run", "--quiet", "--no-tensorboard"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"Training diverged.*\.", complaint(done.stderr))


# --- the policy file ---


@pytest.mark.parametrize("damage", [truncate, tamper, empty])
def test_a_tampered_policy_is_not_loaded(damage, tmp_path: Path) -> None:
    folder = train(out=tmp_path / "run", make_env=TinyCMDP, **TINY)
    damage(folder / "policy.safetensors")
    for use in (lambda: load_policy(folder / "policy.safetensors"), lambda: evaluate(folder.path, make_env=TinyCMDP)):
        with pytest.raises(FolderError, match=r"policy\.safetensors is damaged and was not loaded") as error:
            use()
        one_sentence(error)


def test_another_file_is_not_taken_for_a_policy(interrupted: Path) -> None:
    with pytest.raises(FolderError, match="holds no policy") as error:
        load_policy(interrupted / "checkpoint.safetensors")
    one_sentence(error)
    with pytest.raises(FolderError, match="does not exist") as error:
        load_policy(interrupted / "policy.safetensors")
    one_sentence(error)


def test_a_copied_folder_goes_on_like_the_original(interrupted: Path, whole, tmp_path: Path) -> None:
    shutil.copytree(interrupted, tmp_path / "copy")
    resume(tmp_path / "copy", make_env=TinyCMDP)
    assert results(tmp_path / "copy") == whole
    assert os.path.exists(interrupted / "checkpoint.safetensors")
