"""What is shown of a run while it trains."""

from __future__ import annotations

import sys

from rich.console import Console
from tiny_cmdp import TinyCMDP

from bcppo.run import make_config, train
from bcppo.watch import FleetWatch, Watch

SMALL = {"rollout": 64, "minibatch": 32, "epochs": 1, "steps": 64, "eval_episodes": 1, "tensorboard": False}


def test_a_disagreement_is_shown_of_methods_that_have_one_and_never_as_nan(tmp_path, capsys):
    for method in ("bcppo", "ppolag"):
        train(method=method, make_env=TinyCMDP, cost_limit_rate=0.5, out=tmp_path / method, watch=Watch(), **SMALL)
        line = capsys.readouterr().err.splitlines()[-1]
        assert ("σ" in line) == (method == "bcppo")
        assert "nan" not in line


def test_a_machine_without_tensorboard_trains_and_is_told_once(tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    watch = Watch(bar=False)
    settings = SMALL | {"tensorboard": True}
    for name in ("a", "b"):
        folder = train(make_env=TinyCMDP, cost_limit_rate=0.5, out=tmp_path / name, watch=watch, **settings)
        assert folder.status()["state"] == "finished"
    warnings = [line for line in capsys.readouterr().err.splitlines() if "TensorBoard" in line]
    assert warnings == ["warning: No curves for TensorBoard are written: the package 'tensorboard' is not installed."]


def told(watch: FleetWatch, room: int) -> list[str]:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(watch._table(room))
    return [line.strip("│┃ ") for line in shown.get().splitlines()]


def test_a_fleets_table_has_room_for_what_matters_and_counts_the_rest():
    watch, config = FleetWatch(bar=False), make_config("bcppo", "goal1", steps=1000)
    news = {"episode_return": 1.5, "mean_cost": 0.25, "cost_cvar95": 0.5, "multiplier": 2.0}
    with watch.fleet([(f"run{number}", config) for number in range(9)]):
        for number, step in ((0, 1000), (1, 1000), (2, 500), (3, 250), (4, 400)):
            watch.hear(f"run{number}", {"step": step, **news})
        watch.over("run4", "failed")
        whole = told(watch, room=9)
        assert [line.split()[0] for line in whole if line.startswith("run")][1:] == [f"run{n}" for n in range(9)]
        title, *lines = told(watch, room=5)
    assert title.startswith("2 of 9 runs done, 1 failed, 3,150 steps")
    rows = [[part.strip() for part in line.split("│")] for line in lines if line.startswith(("run", "…"))][1:]
    assert [(row[0], row[-1]) for row in rows[:4]] == [
        ("run4", "failed"), ("run2", "running"), ("run3", "running"), ("run5", "waiting"),
    ]  # fmt: skip
    assert rows[0] == ["run4", "400", "1.50", "0.250 / 0.65", "0.500", "2.000", "failed"]
    assert rows[4][0] == "… and 3 waiting, 2 done"


def test_a_run_that_goes_no_further_is_not_waited_for(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("bcppo.watch.perf_counter", lambda: clock[0])
    watch, config = FleetWatch(bar=False), make_config("bcppo", "goal1", steps=1000)
    with watch.fleet([("a", config), ("b", config)]):
        for name in "ab":
            watch.hear(name, {"step": 0})
        clock[0] = 10.0
        for name in "ab":
            watch.hear(name, {"step": 500})
        assert watch._summary().endswith("100 steps/s, 0:00:10 left")
        watch.over("b", "diverged")
        assert watch._summary() == "0 of 2 runs done, 1 diverged, 1,000 steps, 100 steps/s, 0:00:05 left"
