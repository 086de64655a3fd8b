"""OmniSafe trains on our tasks and is charged our costs; OMNISAFE_PYTHON names a Python with OmniSafe 0.5.0."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bcppo

PYTHON = os.environ.get("OMNISAFE_PYTHON", "")
SCRIPT = """
import json, sys, tempfile
import bcppo.integrations.omnisafe as tasks
import omnisafe

log = []
step, reset = tasks.BcppoTask.step, tasks.BcppoTask.reset

def logged_step(self, action):
    result = step(self, action)
    log.append(["step", action.detach().numpy().tolist(), float(result[2]), float(result[1])])
    return result

def logged_reset(self, seed=None, options=None):
    log.append(["reset", seed])
    return reset(self, seed, options)

tasks.BcppoTask.step, tasks.BcppoTask.reset = logged_step, logged_reset
with tempfile.TemporaryDirectory() as folder:
    settings = {
        "seed": 0,
        "train_cfgs": {"total_steps": 2048, "vector_env_nums": 1, "torch_threads": 1, "device": "cpu"},
        "algo_cfgs": {"steps_per_epoch": 1024, "update_iters": 2, "batch_size": 256},
        "lagrange_cfgs": {"cost_limit": tasks.episode_cost_limit("goal1")},
        "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "log_dir": folder},
    }
    agent = omnisafe.Agent("PPOLag", "bcppo-goal1", custom_cfgs=settings)
    agent.learn()
json.dump({"log": log, "limit": tasks.episode_cost_limit("goal1")}, open(sys.argv[1], "w"))
"""


@pytest.mark.full
@pytest.mark.skipif(not PYTHON, reason="OMNISAFE_PYTHON names no Python with OmniSafe 0.5.0")
def test_omnisafe_trains_on_goal1_at_our_costs(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(bcppo.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [PYTHON, "-c", SCRIPT, tmp_path / "log.json"]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path, timeout=900)
    result = json.loads((tmp_path / "log.json").read_text())
    assert result["limit"] == pytest.approx(650.0)  # 0.65 a step, 1000 steps
    steps = [entry for entry in result["log"] if entry[0] == "step"]
    assert len(steps) >= 2048
    # The same resets and actions in our own environment charge the same, step by step.
    env = bcppo.make_task("goal1")
    charged = []
    for entry in result["log"]:
        if entry[0] == "reset":
            env.reset(seed=entry[1])
        else:
            _, reward, _, _, info = env.step(np.array(entry[1], np.float32))
            charged.append((info["cost"], reward))
    seen = np.array([entry[2:] for entry in steps])
    np.testing.assert_allclose(np.array(charged), seen, rtol=1e-6, atol=1e-7)
    assert len(np.unique(seen[:, 0])) > 100  # costs that differ, so that their equality says something


def test_without_omnisafe_the_error_says_so(monkeypatch):
    import sys

    for name in ("omnisafe", "omnisafe.envs", "omnisafe.envs.core"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "bcppo.integrations.omnisafe", raising=False)
    with pytest.raises(bcppo.BcppoError, match=r"needs OmniSafe 0\.5\.0"):
        __import__("bcppo.integrations.omnisafe")
