"""A suggested limit is the stated fraction of what maximising the reward costs."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest
from tiny_cmdp import TinyCMDP

from bcppo.cli import main
from bcppo.errors import BcppoError, ConfigError
from bcppo.limits import suggest_limit
from bcppo.records import RunFolder
from bcppo.run import train


def test_it_is_the_fraction_of_the_evaluation_cost_of_reward_ppo(tmp_path: Path) -> None:
    found = suggest_limit("tiny_cmdp:make", fraction=0.5, steps=2048, seed=3, out=tmp_path / "kept")
    same = train(
        method="ppo",
        task="tiny_cmdp:make",
        steps=2048,
        seed=3,
        cost_limit_rate=7.0,
        eval_every=0,
        out=tmp_path / "same",
    )
    rates = same.read_rows("evaluations")["cost_rate"]
    assert len(rates) == 20
    assert found.cost_rate == pytest.approx(np.mean(rates))
    assert found.cost_limit_rate == pytest.approx(0.5 * np.mean(rates))
    assert RunFolder(tmp_path / "kept").status()["state"] == "finished"


def test_an_environment_from_python_can_be_given() -> None:
    assert suggest_limit(make_env=TinyCMDP, steps=1024).cost_limit_rate > 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "hopper", "fraction": -1.0}, "fraction must be"),
        ({"task": "hopper", "fraction": float("nan")}, "fraction must be"),
        ({}, "one of the two"),
        ({"task": "hopper", "make_env": TinyCMDP}, "one of the two"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        suggest_limit(**settings)


def test_a_cost_of_nothing_gives_no_limit_and_says_so() -> None:
    with pytest.raises(BcppoError, match=r"came to cost nothing in 64 steps .* choose a cost_limit_rate"):
        suggest_limit(make_env=lambda: TinyCMDP(cost=(0.0, 0.0)), steps=64)


def test_the_command_prints_the_flag_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suggest-limit", "--task", "tiny_cmdp:make", "--steps", "1024", "--fraction", "0.85"]) == 0
    printed = capsys.readouterr().out
    rate = float(printed.split("mean cost per step ")[1].split()[0])
    limit = float(printed.split("--cost-limit-rate ")[1].split()[0])
    assert limit == pytest.approx(0.85 * rate, rel=1e-4)


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(importlib.import_module("bcppo.limits")).failed == 0
