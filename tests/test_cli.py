"""The command line: exit codes, errors in one sentence without a traceback, every setting a flag."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bcppo
from bcppo.algorithms import METHODS
from bcppo.cli import main
from bcppo.records import RunFolder, read_json
from bcppo.tasks.table import TASKS

SMALL = [
    "--task", "hopper", "--steps", "512", "--rollout", "256", "--minibatch", "64", "--epochs", "1",
    "--hidden", "16", "16", "--eval-episodes", "3", "--no-tensorboard",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", *SMALL, "--seed", "3", "--out", str(out), "--quiet"]) == 0
    return out


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a command; boxes drawn around text are taken off."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    out, err = capsys.readouterr()
    plain = re.sub(r"[│╭╮╰╯─]", " ", err)
    return code, out, re.sub(r"\s+", " ", plain).strip()


# --- commands that work ---


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(arguments: list[str], capsys) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    for command in ("train", "resume", "evaluate", "tasks", "methods", "--debug"):
        assert command in out


def test_version(capsys) -> None:
    assert run(capsys, "--version") == (0, f"bcppo {bcppo.__version__}\n", "")


def test_tasks_lists_them_with_their_limits(capsys) -> None:
    code, out, _ = run(capsys, "tasks")
    assert code == 0
    for task in TASKS.values():
        assert task.name in out
        assert f"{task.cost_limit_rate:.8g}" in out


def test_methods_lists_them(capsys) -> None:
    code, out, _ = run(capsys, "methods")
    assert code == 0
    assert all(name in out and method.summary in out for name, method in METHODS.items())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("before", [[], ["--task", "push1"]])
def test_train_help_lists_every_setting_with_its_help(method: str, before: list[str], capsys) -> None:
    code, out, _ = run(capsys, "train", "--method", method, *before, "--help")
    assert code == 0
    plain = re.sub(r"[\s│╭╮╰╯─]+", " ", out)
    for field in dataclasses.fields(METHODS[method].config):
        flag = f"--{field.name.replace('_', '-')}"
        described = re.search(rf" {flag}(, --no-[a-z-]+)?( [A-Z{{}}|\[\]. ]+(?= ))? (.*?) \(default:", plain)
        assert described, field.name
        assert len(described[3]) > 10, field.name
    for flag in ("--out", "--method", "--preset", "--beside-random", "--quiet"):
        assert flag in plain
    config = bcppo.make_config(method, task="push1" if before else "goal1")
    if not METHODS[method].off_policy:
        assert f"Steps collected between updates. (default: {config.rollout})" in plain


def test_train_leaves_a_folder_and_prints_its_evaluation(tmp_path: Path, capsys) -> None:
    code, out, err = run(capsys, "train", *SMALL, "--out", tmp_path / "run", "--beside-random")
    assert code == 0
    assert re.search(r"256 steps .*512 steps .* left", err)
    assert "3 evaluation episodes" in out
    assert "bcppo" in out
    assert "random" in out
    assert f"run folder: {tmp_path / 'run'}" in out
    assert RunFolder(tmp_path / "run").status()["state"] == "finished"


def test_flags_reach_the_config(folder: Path) -> None:
    config = read_json(folder / "config.json")["config"]
    assert (config["task"], config["seed"], config["steps"], config["hidden"]) == ("hopper", 3, 512, [16, 16])
    assert config["tensorboard"] is False
    assert config["alpha"] == 0.95


def test_the_command_line_and_python_make_the_same_run(folder: Path, tmp_path: Path) -> None:
    same = bcppo.train(
        task="hopper", steps=512, rollout=256, minibatch=64, epochs=1, hidden=(16, 16), eval_episodes=3, seed=3,
        tensorboard=False, out=tmp_path / "run",
    )  # fmt: skip
    for name in ("config.json", "progress.parquet", "policy.safetensors"):
        assert (same / name).read_bytes() == (folder / name).read_bytes()


def test_evaluate_prints_and_writes_the_episodes(folder: Path, tmp_path: Path, capsys) -> None:
    import polars

    code, out, _ = run(capsys, "evaluate", folder, "--episodes", "4", "--csv", tmp_path / "episodes.csv")
    assert code == 0
    assert "4 evaluation episodes" in out
    assert polars.read_csv(tmp_path / "episodes.csv").to_dicts() == bcppo.evaluate(folder, episodes=4)
    code, stochastic, _ = run(capsys, "evaluate", folder, "--episodes", "4", "--stochastic")
    assert code == 0
    assert stochastic != out


def test_resume_of_a_finished_run_has_nothing_to_do(folder: Path, capsys) -> None:
    code, out, _ = run(capsys, "resume", folder)
    assert code == 0
    assert "finished; there is nothing to resume" in out


def test_resume_goes_on_with_a_run(folder: Path, tmp_path: Path, capsys) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "status.json").unlink()
    code, out, _ = run(capsys, "resume", tmp_path / "run", "--quiet")
    assert code == 0
    assert "finished; run folder" in out


# --- commands that do not ---


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], r"There is no command named 'trian'; .* Did you mean 'train'\?"),
        (["train", "--method", "bcpo", "--out", "{new}"], r"There is no method named 'bcpo'; .* Did you mean '"),
        (["train", "--task", "gaol1", "--out", "{new}"], r"There is no task named 'gaol1'; .* Did you mean 'goal1'\?"),
        (["train", "--preset", "mine", "--out", "{new}"], r"There is no preset named 'mine'"),
        (["train", "--task", "hopper"], r"`bcppo train` needs --out PATH \(Folder to make for the run\)\."),
        (["train", "--out={new}", "--learning-rat", "1"], r"no use for --learning-rat 1\. Did you mean --learning"),
        (["train", "--out"], r"--out needs a value\."),
        (["train", "--out", "{new}", "--cost-limit-rate", "x"], r"--cost-limit-rate must be a number, but x was"),
        (["train", "--out", "{new}", "--hidden", "3", "b"], r"--hidden must be whole numbers, but 3 b was given\."),
        (["study", "run", "smoke", "--out", "{new}", "--engine", "x"], r"(?i)invalid choice 'x'"),
        (["train", "--out", "{new}", "--alpha", "1.5"], r"error: alpha must be a number in \(0, 1\), but 1.5 was"),
        (["train", "--out", "{new}", "--beta=nan"], r"beta must be a number in \[0, ∞\), but nan was given"),
        (["train", "--out", "{new}", "--minibatch", "4096"], r"error: minibatch must be between 1 and the rollout's"),
        (["train", "--out", "{new}", "--integral-gain", "-1"], r"integral_gain must be a number in \[0, ∞\)"),
        (["train", "--out", "{new}", "--steps", "0"], r"steps must be at least 1, but 0 was given"),
        (["train", "--out", "{new}", "--steps", "many"], r"--steps must be a whole number, but many was given\."),
        (["train", "--out", "{new}", "--task", "nowhere:make"], r"The module 'nowhere' .* cannot be imported"),
        (["train", "--out", "{new}", "--task", "Pendulum-v1"], r"needs? a cost_limit_rate|give a cost_limit_rate"),
        (["train", "--out", "{run}", "--task", "hopper"], r"already holds another run"),
        (["train", "--out", "{file}", "--task", "hopper"], r"cannot be made: File exists"),
        (["evaluate", "{new}"], r"holds no run"),
        (["evaluate", "{run}", "--episodes", "0"], r"at least 1 episode, but 0"),
        (["evaluate", "{run}", "--episodes", "1", "--csv", "{new}/no/such.csv"], r"such\.csv"),
        (["evaluate"], r"`bcppo evaluate` needs PATH \(The run's folder\)\."),
        (["resume", "{new}"], r"holds no run"),
        (["tasks", "please"], r"`bcppo tasks` takes no arguments, but please was given"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_sentence_and_change_nothing(arguments, sentence, folder: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("mine")
    places = {"new": tmp_path / "new", "run": folder, "file": tmp_path / "file"}
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, _, err = run(capsys, *(argument.format(**places) for argument in arguments))
    assert code == 2
    assert re.search(sentence, err), err
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_what_the_parser_objects_reads_the_same_with_and_without_its_box() -> None:
    from bcppo.parsing import sentence

    lines = ["Unrecognized options: --sed, 3  ", "{rule}", "Perhaps you meant:", "    --seed INT", "        Seed."]
    drawn = ["╭─ Unrecognized options ─╮", *(f"│ {line.format(rule='─' * 20):<40} │" for line in lines), "╰────────╯"]
    plain = [" Unrecognized options ", " -------------------- ", *(f"  {line.format(rule='-' * 20)}" for line in lines)]
    for text in (drawn, plain):
        assert sentence("\n".join(text), "bcppo train") == "`bcppo train` has no use for --sed 3. Did you mean --seed?"
    assert sentence("", "bcppo train") == "The arguments cannot be understood."


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bcppo", "evaluate", str(tmp_path)]
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (plain.returncode, plain.stdout) == (2, "")
    assert plain.stderr == f"error: {tmp_path} holds no run: there is no config.json in it.\n"
    debug = subprocess.run([*command, "--debug"], capture_output=True, text=True, check=False)
    assert debug.returncode != 0
    assert "Traceback" in debug.stderr
    assert "FolderError" in debug.stderr


def test_the_installed_command_is_there() -> None:
    script = Path(sys.executable).with_name("bcppo")
    if not script.exists():
        pytest.skip("the package is not installed with its command here")
    done = subprocess.run([script, "methods"], capture_output=True, text=True, check=True, env={**os.environ})
    assert "bcppo" in done.stdout


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    """As `bcppo methods | head -1` has one."""
    command = [sys.executable, "-m", "bcppo", "methods"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # type: ignore[union-attr]
    assert process.stderr.read() == b""  # type: ignore[union-attr]
    assert process.wait() == 141
