"""Small studies for tests, and an environment that fails until it is mended."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
from test_kill import results
from tiny_cmdp import BrokenAfter, TinyCMDP

from bcppo.run import train
from bcppo.study.child import Outcome, attempt
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import Group, Study

TINY = {
    "steps": 60, "rollout": 20, "minibatch": 10, "epochs": 1, "hidden": [8], "cost_limit_rate": 0.3, "eval_every": 0,
    "eval_episodes": 1, "checkpoint_every": 20, "tensorboard": False,
}  # fmt: skip
HOPPER = {
    "rollout": 256, "minibatch": 64, "epochs": 1, "hidden": [16, 16], "checkpoint_every": 256, "eval_every": 0,
    "eval_episodes": 2, "tensorboard": False,
}  # fmt: skip
"""A checkpoint after every rollout."""

MENDED = "BCPPO_TEST_MENDED"
"""The environment variable with the path of a file: while that is not there, `broken` goes wrong."""


GATE = "BCPPO_TEST_GATE"
"""The environment variable with the path of a file: while that is not there, `gated` waits in an evaluation episode."""


def tiny_run(task: str = "tiny_cmdp:make", method: str = "bcppo", seed: int = 0, **settings: Any) -> dict[str, Any]:
    """A run of a study file."""
    return {"task": task, "method": method, "seed": seed, "config": TINY | settings}


def hopper_run(seed: int, steps: int, method: str = "bcppo") -> dict[str, Any]:
    return {"task": "hopper", "method": method, "seed": seed, "config": HOPPER | {"steps": steps}}


def stored(*runs: dict[str, Any], name: str = "tiny") -> dict[str, Any]:
    return {"format": 1, "name": name, "title": "A study for a test", "runs": list(runs)}


def write_study(path: Path, *runs: dict[str, Any], name: str = "tiny") -> Path:
    path.write_text(json.dumps(stored(*runs, name=name)))
    return path


def study_results(folder: Path) -> dict[str, dict[str, bytes]]:
    """Every run's files, but for what depends on the clock."""
    return {path.name: results(path) for path in sorted((folder / "runs").iterdir()) if path.is_dir()}


def plain_results(study: Study, out: Path) -> dict[str, dict[str, bytes]]:
    """The same runs by `bcppo.train`, one after another in this process: what any engine has to end with."""
    return {
        entry.id: results(train(entry.config, method=entry.method, out=out / entry.id).path)
        for entry in sorted(study.runs, key=lambda entry: entry.id)
    }


class HereEngine:
    """An engine in this process: one group at a time, in turn."""

    places = 2

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        self.started: list[Group] = []
        self.stopped = False
        self._queue: list[Group] = []

    def start(self, group: Group) -> None:
        assert len(self._queue) < self.places
        self.started.append(group)
        self._queue.append(group)

    def wait(self) -> list[tuple[Group, list[Outcome]]]:
        group = self._queue.pop(0)
        return [(group, [attempt(self.folder, name) for name in group])]

    def stop(self) -> None:
        self.stopped = True


def broken() -> gymnasium.Env:
    """For runs that name their task 'tiny_studies:broken': raises in its 30th step until it is mended."""

    def wrong(result: list) -> None:
        if not os.path.exists(os.environ[MENDED]):
            raise RuntimeError("the gripper fell off")

    return BrokenAfter(TinyCMDP(), 30, wrong)


class Gated(gymnasium.Wrapper):
    """Waits in the episode of seed 10007 until its gate is open, and leaves word beside the gate that it does."""

    def reset(self, *, seed=None, options=None):
        if seed == 10_007 and GATE in os.environ:
            gate = Path(os.environ[GATE])
            gate.with_name("reached").write_text("")
            while not gate.exists():
                time.sleep(0.005)
        return self.env.reset(seed=seed, options=options)


def gated() -> gymnasium.Env:
    """For runs that name their task 'tiny_studies:gated'."""
    return Gated(TinyCMDP())
