"""The wheel without torch: a policy needs NumPy and safetensors alone, tasks and reports little more."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import bcppo
from bcppo.exporting import export

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, **options) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=clean, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the files that are committed or could be, so that no stray build leaks into it."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, tree)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.full
def test_the_wheel_holds_one_kernel_for_every_python(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "-cp310-abi3-" in wheel.name
    assert [Path(name).name for name in names if "_kernel" in name] == ["_kernel.abi3.so"]
    assert "bcppo/py.typed" in names


@pytest.mark.full
def test_a_policy_loads_without_torch_gymnasium_or_mujoco(wheel, tmp_path):
    settings = {"rollout": 64, "minibatch": 32, "epochs": 1, "eval_episodes": 1, "tensorboard": False}
    bcppo.train(task="tiny_cmdp:make", cost_limit_rate=0.5, steps=64, out=tmp_path / "run", **settings)
    path = export(tmp_path / "run", kind="numpy").path
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    run(*pip, "numpy", "safetensors", wheel)
    code = (
        "import importlib.util as u, bcppo\n"
        "assert not any(u.find_spec(name) for name in ('torch', 'gymnasium', 'mujoco', 'scipy', 'polars'))\n"
        f"print(*bcppo.load_policy({str(path)!r}).act([0.25, -0.5]).tolist())\n"
        "try:\n    bcppo.make_task('goal1')\n"
        "except bcppo.BcppoError as error:\n    print(error)"
    )
    action, sentence = run(python, "-c", code, cwd=tmp_path).splitlines()
    np.testing.assert_allclose(float(action), bcppo.load_policy(path).act([0.25, -0.5])[0], atol=1e-6)
    assert sentence == "bcppo.make_task needs the package 'gymnasium', which is not installed."
    said = subprocess.run([python, "-m", "bcppo", "tasks"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert said.stderr == "error: The command bcppo needs the package 'tyro', which is not installed.\n"


@pytest.mark.full
def test_tasks_policies_and_reports_need_no_torch(tmp_path):
    settings = {"rollout": 64, "minibatch": 32, "epochs": 1, "eval_episodes": 1, "tensorboard": False}
    bcppo.train(task="hopper", steps=64, out=tmp_path / "run", **settings)
    export(tmp_path / "run", kind="numpy")
    said = run(ROOT / "scripts" / "wheels.sh", sys.executable, tmp_path / "run", sys.executable)
    assert "goal1 and hopper stepped, policy loaded, report: 1 of 1 runs used" in said
