"""The monitor sees what the critics saw in training, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bcppo
from bcppo.errors import BcppoError, ConfigError, FolderError
from bcppo.monitor import load_monitor
from bcppo.records import RunFolder, read_tensors, write_tensors

SMALL = {
    "task": "tiny_cmdp:make", "cost_limit_rate": 0.5, "rollout": 64, "minibatch": 32, "epochs": 1, "hidden": (8, 16),
    "steps": 128, "eval_episodes": 1, "tensorboard": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("monitor") / "run"
    bcppo.train(method="bcppo", members=3, out=out, **SMALL)
    return out


@pytest.fixture(scope="module")
def normalized_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("normalized") / "run"
    bcppo.train(method="bcppo", members=3, normalize_observations=True, out=out, **SMALL)
    return out


@pytest.mark.parametrize("which", ["run", "normalized_run"])
def test_it_measures_what_the_restored_learner_predicts(which, request):
    """Against the learner itself, restored from the same checkpoint."""
    run = request.getfixturevalue(which)
    import torch

    from bcppo.algorithms import CONFIGS
    from bcppo.run import Run
    from bcppo.training import Trainer, load_learner
    from bcppo.watch import silent

    folder = RunFolder(run)
    _, config = folder.load_config(CONFIGS)
    trainer = Trainer([Run("bcppo", config, folder, None)], silent())
    load_learner(trainer.learner, 0, read_tensors(run / "checkpoint.safetensors")[0])
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(5000, 2)), rng.normal(0, 2, (5000, 1))
    executed = np.clip(actions, -1, 1)  # what the critics saw
    if which == "normalized_run":
        memory = {name: part[0].numpy() for name, part in trainer.learner.memory().items()}
        std = np.sqrt(memory["squares"] / (memory["observations"] - 1))
        assert not np.allclose(std, 1.0)
        observations_seen = np.clip((observations - memory["mean"]) / np.maximum(std, 0.01), -5.0, 5.0)
    else:
        observations_seen = observations
    rows = torch.from_numpy(np.concatenate([observations_seen, executed], 1).astype(np.float32))[None]
    with torch.no_grad():
        predictions = trainer.learner.signal.critics(rows)[0, ..., 0].double().numpy()
    measured = load_monitor(run).measure(observations, actions)
    np.testing.assert_allclose(measured.mu_c, predictions.mean(0), rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(measured.sigma_c, predictions.std(0), rtol=1e-4, atol=2e-6)
    trainer.runs[0].close()


def test_members_that_agree_are_given_the_floor(run, tmp_path):
    tensors, notes = read_tensors(run / "checkpoint.safetensors")
    for name in list(tensors):
        if name.startswith("critics.parameter."):
            tensors[name] = np.repeat(tensors[name][:1], 3, axis=0)
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, notes)
    for name in ("config.json", "policy.safetensors"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert load_monitor(tmp_path).measure(np.zeros((1, 2)), np.zeros((1, 1))).sigma_c[0] == np.float32(1e-6)


def test_it_imports_neither_torch_nor_a_simulator(run):
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(['gymnasium', 'mujoco', 'torch', 'scipy', 'polars']))\n"
        f"from bcppo.monitor import load_monitor\nprint(load_monitor({str(run)!r}).measure([[0, 0]], [[0]]).mu_c.shape)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout == "(1,)\n"


def test_logs_that_do_not_fit_are_refused(run):
    monitor = load_monitor(run)
    with pytest.raises(ConfigError, match=r"observations of 2 numbers as actions of 1, but .* \(3, 2\) and \(2, 1\)"):
        monitor.measure(np.zeros((3, 2)), np.zeros((2, 1)))
    with pytest.raises(BcppoError, match="actions are not all finite"):
        monitor.measure(np.zeros((1, 2)), np.full((1, 1), np.nan))
    assert monitor.measure(np.zeros((0, 2)), np.zeros((0, 1))).mu_c.shape == (0,)


def test_runs_without_an_ensemble_are_refused(run, tmp_path):
    with pytest.raises(FolderError, match="holds no run"):
        load_monitor(tmp_path)
    bcppo.train(method="ppopid", out=tmp_path / "pid", **SMALL)
    with pytest.raises(ConfigError, match=r"Only a BCPPO run .* this one is 'ppopid'"):
        load_monitor(tmp_path / "pid")
