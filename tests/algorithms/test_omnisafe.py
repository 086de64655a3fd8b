"""PPOLag, FOCOPS and CPO against updates that OmniSafe 0.5.0 itself made (bench/record_omnisafe.py), in float64."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bcppo.algorithms.batch import Batch
from bcppo.algorithms.cpo import CPO
from bcppo.algorithms.focops import FOCOPS
from bcppo.algorithms.onpolicy import OnPolicy
from bcppo.algorithms.ppolag import PPOLag
from bcppo.settings import CPOConfig, FOCOPSConfig, PPOLagConfig
from bcppo.streams import Streams

RECORDS = Path(__file__).parents[1] / "data" / "omnisafe_0_5_0.npz"
RELATIVE = 1e-6
CPU = torch.device("cpu")
with np.load(RECORDS) as _file:
    ARRAYS = {name: _file[name] for name in _file.files}
SCENARIOS: dict[str, dict[str, Any]] = json.loads(str(ARRAYS["scenarios"]))


class Orders:
    """A stream of minibatches that hands out recorded orders."""

    def __init__(self) -> None:
        self.left: list[np.ndarray] = []

    def permutation(self, rows: int) -> np.ndarray:
        order = self.left.pop(0).astype(np.int64)
        assert len(order) == rows
        return order


def parts(name: str, prefix: str) -> dict[str, np.ndarray]:
    head = f"{name}/{prefix}."
    return {key.removeprefix(head): array for key, array in ARRAYS.items() if key.startswith(head)}


def learner(name: str, orders: Orders, **changes: Any) -> OnPolicy:
    """Ours, with the scenario's settings and OmniSafe's weights."""
    scenario, before = SCENARIOS[name], parts(name, "before")
    steps = len(ARRAYS[f"{name}/0.reward"])
    settings: dict[str, Any] = {
        "rollout": steps, "steps": steps * len(scenario["costs"]), "minibatch": 16, "epochs": scenario["epochs"],
        "hidden": (8, 8), "normalize_observations": False, "rate_units": False,
        "max_grad_norm": scenario.get("max_grad_norm", 40.0),
    }  # fmt: skip
    if scenario["algorithm"] != "CPO":
        settings |= {"learning_rate": scenario["rate"], "critic_learning_rate": scenario["rate"]}
        settings["target_kl"] = scenario["target_kl"]
    kind, config, compatible = {
        "PPOLag": (PPOLag, PPOLagConfig, {}),
        "FOCOPS": (FOCOPS, FOCOPSConfig, {"broadcast_kl": True}),
        "CPO": (CPO, CPOConfig, {"release_dual": True}),
    }[scenario["algorithm"]]
    widths = ARRAYS[f"{name}/0.observation"].shape[1], ARRAYS[f"{name}/0.action"].shape[1]
    streams: Any = SimpleNamespace(init=Streams(0, 1).init, minibatches=orders)
    ours = kind([config(**(settings | compatible | changes))], widths, [streams], CPU, dtype=torch.float64)
    with torch.no_grad():
        for key, array in before.items():
            group, _, parameter = key.partition(".")
            target = getattr(ours, group).parameters[parameter][0]
            stored = torch.from_numpy(array)
            if group == "policy" and parameter != "log_std":
                target = target[0]
            target.zero_()
            target[..., : stored.shape[-1]] = stored  # the last layers are padded
    return ours


def batch_of(record: dict[str, np.ndarray]) -> Batch:
    tensors = {name: torch.from_numpy(record[name])[None] for name in ("observation", "next_observation", "action")}
    return Batch(
        **tensors,
        executed=tensors["action"],
        reward=torch.from_numpy(record["reward"])[None],
        cost=torch.from_numpy(record["cost"])[None],
        terminated=torch.from_numpy(record["terminated"])[None],
        ended=torch.from_numpy(record["terminated"] | record["truncated"])[None],
        environments=1,
        episodes=[[(cost, 10.0) for cost in record["episode_costs"]]],
    )


def flat(arrays: dict[str, np.ndarray], order: list[str]) -> np.ndarray:
    return np.concatenate([arrays[name].ravel() for name in order])


def distance(ours: OnPolicy, record: dict[str, np.ndarray], before: dict[str, np.ndarray]) -> dict[str, float]:
    """Of each group of weights, the largest difference, relative to how far OmniSafe moved them."""
    found = {}
    for group in ("policy", "values"):
        arrays = getattr(ours, group).arrays(0)
        differences, moves = [], []
        for name, array in arrays.items():
            theirs = record[f"after.{group}.{name}"]
            differences.append(np.abs(array - theirs).max())
            moves.append(np.abs(theirs - before[f"{group}.{name}"]).max())
        found[group] = max(differences) / max(moves) if max(moves) else max(differences)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_updates_are_omnisafes(name: str) -> None:
    orders = Orders()
    ours = learner(name, orders)
    before = parts(name, "before")
    for index in range(len(SCENARIOS[name]["costs"])):
        record = parts(name, str(index))
        orders.left = list(record["orders"])
        metrics = {key: value.item() for key, value in ours.update(batch_of(record)).items()}
        assert not orders.left, "the epochs ended elsewhere"
        for metric in ("multiplier", "kl", "case", "accepted_step", "epochs"):
            if metric in record:
                assert metrics[metric] == pytest.approx(record[metric].item(), rel=RELATIVE, abs=1e-12), metric
        assert max(distance(ours, record, before).values()) < RELATIVE
        before = {key.removeprefix("after."): array for key, array in record.items() if key.startswith("after.")}


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario["algorithm"] == "CPO"])
def test_step_direction_is_omnisafes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = Orders()
    ours: Any = learner(name, orders)
    steps: list[Any] = []
    solve = ours._solve
    monkeypatch.setattr(ours, "_solve", lambda *given: steps.append(solve(*given)) or steps[-1])
    for index in range(len(SCENARIOS[name]["costs"])):
        record = parts(name, str(index))
        orders.left = list(record["orders"])
        ours.update(batch_of(record))
        found: dict[str, np.ndarray] = {}
        for key, tensor in ours.policy.named(steps[-1].direction.unsqueeze(1)).items():
            array = tensor[0].numpy()
            if key == "log_std":
                found[key] = array[: ours.policy.sizes[-1]]
            else:  # OmniSafe's layers are [out, in]
                width = ours.policy.sizes[int(key[-1]) + 1]
                found[key] = array[0][..., :width].T
        order = ["log_std", "weight0", "bias0", "weight1", "bias1", "weight2", "bias2"]
        theirs = record["direction"]
        np.testing.assert_allclose(flat(found, order), theirs, rtol=0, atol=RELATIVE * np.abs(theirs).max())


@pytest.mark.full
def test_the_records_are_what_omnisafe_does_today(tmp_path: Path) -> None:
    python = os.environ.get("OMNISAFE_PYTHON")
    if not python:
        pytest.skip("OMNISAFE_PYTHON names no Python that has OmniSafe 0.5.0; the recorded updates stand for it")
    script = Path(__file__).parents[2] / "bench" / "record_omnisafe.py"
    subprocess.run([python, script, tmp_path / "new.npz"], check=True, capture_output=True)
    with np.load(tmp_path / "new.npz") as new:
        assert set(new.files) == set(ARRAYS)
        for name, array in ARRAYS.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(new[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
            else:
                np.testing.assert_array_equal(new[name], array, err_msg=name)


def test_scenarios_reach_every_branch() -> None:
    cases = {int(array) for key, array in ARRAYS.items() if key.endswith(".case")}
    accepted = {int(array) for key, array in ARRAYS.items() if key.endswith(".accepted_step")}
    assert cases == {0, 1, 2, 3, 4}
    assert {0, 1} < accepted, "no line search that had to shorten its step"
    assert str(ARRAYS["version"]) == "0.5.0"
