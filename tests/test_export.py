"""An exported policy acts as the run's does, in every format; where it would not, nothing is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bcppo
from bcppo import exporting
from bcppo.algorithms import CONFIGS
from bcppo.cli import main
from bcppo.deploy import numpy_policy
from bcppo.errors import BcppoError, ConfigError
from bcppo.exporting import ExportMismatch, export
from bcppo.policy import load_policy as load_run_policy
from bcppo.records import RunFolder
from bcppo.reenact import ReplayMismatch

pytest.importorskip("onnxruntime")
KINDS = ("onnx", "numpy", "torch")
SMALL = {
    "task": "tiny_cmdp:make", "cost_limit_rate": 0.5, "rollout": 64, "minibatch": 32, "epochs": 1, "hidden": (8, 16),
}  # fmt: skip


@pytest.fixture(scope="module", params=["bcppo", "ppolag"])
def run(request, tmp_path_factory) -> Path:
    """A finished run; PPOLag's policy normalises what it sees."""
    out = tmp_path_factory.mktemp("export") / "run"
    bcppo.train(method=request.param, steps=128, eval_episodes=3, tensorboard=False, out=out, **SMALL)
    return out


def by_hand(run: Path, observation: np.ndarray) -> np.ndarray:
    """The action in float64, straight from the weights."""
    w = {name: array.astype(np.float64) for name, array in load_run_policy(run / "policy.safetensors").weights.items()}
    x = observation.astype(np.float64)
    if "offset" in w:
        x = np.clip((x - w["offset"]) / w["scale"], -5, 5)
    x = np.tanh(x @ w["weight0"] + w["bias0"])
    x = np.tanh(x @ w["weight1"] + w["bias1"])
    return np.clip(x @ w["weight2"] + w["bias2"], -1, 1)


@pytest.mark.parametrize("kind", ["onnx", "numpy"])
def test_an_exported_policy_acts_as_the_weights_say(run, kind, tmp_path):
    suffix = {"onnx": ".onnx", "numpy": ".safetensors"}[kind]
    policy = bcppo.load_policy(export(run, kind=kind, out=tmp_path / f"p{suffix}").path)
    observations = np.random.default_rng(0).normal(0, 30, (7, 2))  # far out, so that clipping shows
    expected = by_hand(run, observations)
    np.testing.assert_allclose(policy.act(observations), expected, atol=2e-5)
    for observation, action in zip(observations, expected):
        one = policy.act(observation)
        assert one.shape == (1,)
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, action, atol=2e-5)


def test_a_torch_export_loads_with_torch_and_safetensors_alone(run, tmp_path):
    export(run, kind="torch", out=tmp_path / "mine.safetensors")
    observations = np.random.default_rng(0).normal(0, 30, (7, 2)).astype(np.float32)
    np.save(tmp_path / "observations.npy", observations)
    code = (
        "import sys, numpy, torch\nfrom mine import load, metadata\n"
        "numpy.save('actions.npy', load()(torch.from_numpy(numpy.load('observations.npy'))).numpy())\n"
        "assert metadata()['cost_limit'] == 0.5\n"
        "assert 'bcppo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), by_hand(run, observations), atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_say_what_the_policy_is_for(run, kind):
    path = export(run, kind=kind).path
    if kind == "torch":
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            metadata = json.loads(json.loads(file.metadata()["notes"])["metadata"])
    else:
        metadata = bcppo.load_policy(path).metadata
    method = RunFolder(run).load_config(CONFIGS)[0]
    assert metadata["method"] == method
    assert (metadata["task"], metadata["bcppo"]) == ("tiny_cmdp:make", bcppo.__version__)
    assert (metadata["cost_limit"], metadata["cost_limit_unit"]) == (0.5, "mean cost per step")
    assert metadata["observation_space"] == {"shape": [2], "dtype": "float32", "low": [-1.0] * 2, "high": [1.0] * 2}
    assert metadata["action_space"] == {"shape": [1], "dtype": "float32", "low": [-1.0], "high": [1.0]}
    assert metadata["network"]["normalizes"] == (method == "ppolag")
    assert len(metadata["provenance_hash"]) == 64
    assert metadata["parity"]["episodes_replayed"] == 3


def test_exports_of_one_run_are_equal_bytes(run, tmp_path):
    for kind, suffix in (("onnx", ".onnx"), ("numpy", ".safetensors"), ("torch", ".safetensors")):
        first, second = (export(run, kind=kind, out=tmp_path / f"p{i}{suffix}").path for i in (1, 2))
        assert first.read_bytes() == second.read_bytes()


def test_a_run_s_own_policy_file_loads_too(run):
    policy = bcppo.load_policy(run / "policy.safetensors")
    assert policy.metadata["task"] == "tiny_cmdp:make"
    observation = np.array([0.3, -0.7])
    assert np.array_equal(policy.act(observation), load_run_policy(run / "policy.safetensors").act(observation))


def test_numpy_episodes_are_the_recorded_ones_to_the_bit(run, tmp_path):
    done = export(run, kind="numpy", out=tmp_path / "p.safetensors")
    assert (done.return_difference, done.cost_rate_difference) == (0.0, 0.0)
    assert done.steps == 2 * 3 * 8  # three episodes of eight steps, the run's policy acting and the exported one


# --- what is refused ---


def test_an_export_whose_actions_differ_is_not_written(run, tmp_path, monkeypatch):
    def off(path):
        tensors, network = exporting._policy(RunFolder(run))
        tensors["bias2"] = tensors["bias2"] + np.float32(1e-4)
        return numpy_policy(tensors, {"network": network})

    monkeypatch.setattr(exporting, "load_policy", off)
    with pytest.raises(ExportMismatch, match="actions differs from the run's by"):
        export(run, kind="numpy", out=tmp_path / "p.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_differs_where_it_goes_itself_is_not_written(run, tmp_path, monkeypatch):
    """Right in every recorded observation, one by one and all at once; wrong from then on."""
    load, calls = exporting.load_policy, []

    def late(path):
        policy = load(path)

        def act(observation):
            calls.append(observation)
            return policy.act(observation) + np.float32(1e-4 if len(calls) > 3 * 8 + 1 else 0.0)

        return SimpleNamespace(act=act)

    monkeypatch.setattr(exporting, "load_policy", late)
    with pytest.raises(ExportMismatch, match=r"actions differs from the run's by 0\.0001"):
        export(run, kind="numpy", out=tmp_path / "p.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_does_not_replay_is_not_exported(run, tmp_path, monkeypatch):
    changed = [dict(row) for row in exporting.recorded_episodes(RunFolder(run))]
    changed[1]["episode_return"] += 1e-9
    monkeypatch.setattr(exporting, "recorded_episodes", lambda run: changed)
    with pytest.raises(ReplayMismatch, match=r"episode 10001 has episode_return .* --no-replay compares actions"):
        export(run, kind="numpy", out=tmp_path / "p.safetensors")
    assert list(tmp_path.iterdir()) == []
    assert export(run, kind="numpy", out=tmp_path / "p.safetensors", replay=False).steps == 1000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "onxx"}, "no format named 'onxx'; the formats are numpy, onnx, torch. Did you mean 'onnx'"),
        ({"kind": "onnx", "out": "p.safetensors"}, "format onnx is a .onnx file"),
        ({"kind": "torch", "out": "a-b.safetensors"}, "names a module too"),
    ],
)
def test_impossible_exports_are_refused_in_a_sentence(run, options, sentence):
    with pytest.raises((ConfigError, BcppoError), match=sentence):
        export(run, **options)


def test_an_unfinished_run_has_nothing_to_export(tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_the_command_says_how_near_the_export_is(run, tmp_path, capsys):
    assert main(["export", str(run), "--format", "numpy", "--out", str(tmp_path / "p.safetensors")]) == 0
    assert "actions on 48 observations within" in capsys.readouterr().out
