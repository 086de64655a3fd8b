"""Studies as data: what the paper's hold, and what is refused of one's own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiny_studies import stored, tiny_run

from bcppo.algorithms import METHODS
from bcppo.config import to_json
from bcppo.errors import BcppoError
from bcppo.study.named import DESIGNS, expand, find_study
from bcppo.study.plan import Study, groups, make_entry, read_study, study_from_json

FAMILY = ("bcppo", "cppo", "qrppo")
HERE = [arm.method for arm in DESIGNS["main"].arms if arm.method in METHODS]


def changes(study: Study) -> dict[str, dict[str, Any]]:
    """By variant: what its configs have other than those of the method as it is."""
    plain = {(e.config.task, e.config.seed): to_json(e.config) for e in study.runs if not e.variant}
    found: dict[str, dict[str, Any]] = {}
    for entry in study.runs:
        base, own = plain[entry.config.task, entry.config.seed], to_json(entry.config)
        change = {name: value for name, value in own.items() if value != base[name]}
        assert found.setdefault(entry.variant, change) == change, "a variant is the same change on every task"
    return found


def test_main_is_the_papers_175_runs_and_25_of_our_own() -> None:
    design = DESIGNS["main"]
    assert design.tasks == ("goal1", "button1", "push1", "hopper", "ant")
    assert [arm.method for arm in design.arms] == [*FAMILY, "ppolag", "cpo", "focops", "wcsac", "ppopid"]
    assert design.seeds == (0, 1, 2, 3, 4)
    assert design.size == 5 * 7 * 5 + 5 * 1 * 5
    assert Counter(entry.method == "ppopid" for entry in find_study("main").runs) == {False: 175, True: 25}


def test_our_own_row_of_main_is_bcppo_without_what_its_critics_need() -> None:
    study = find_study("main", methods=["bcppo", "ppopid"])
    for entry in study.runs:
        if entry.method == "ppopid":
            own, other = (to_json(study.by_id[entry.id.replace("ppopid", m)].config) for m in ("ppopid", "bcppo"))
            assert own.items() <= other.items()
            assert {"beta", "kappa", "members"} <= other.keys() - own.keys()


def test_main_has_the_papers_settings() -> None:
    study = find_study("main", methods=HERE)
    assert len(study.runs) == len(study.by_id) == 25 * len(HERE)
    for entry in study.runs:
        config: Any = entry.config
        if entry.method in FAMILY:
            short = config.task in ("button1", "push1")
            assert (config.rollout, config.minibatch, config.epochs) == ((256, 64, 4) if short else (1024, 512, 3))
            assert config.steps == 1_000_000
    assert study.by_id["goal1-bcppo-seed3"].config.seed == 3


def test_seeds_share_a_protocol_and_nothing_else_does() -> None:
    study = find_study("main", methods=HERE)
    protocols = {(e.config.task, e.method): {r.protocol for r in study.runs if r.method == e.method and
                 r.config.task == e.config.task} for e in study.runs}  # fmt: skip
    assert all(len(found) == 1 for found in protocols.values())
    assert len(set.union(*protocols.values())) == 5 * len(HERE)


FROZEN = """
        bcppo        cppo         qrppo        ppolag       cpo          focops       wcsac        ppopid
goal1   9cd423aedb94 7bd71e6c7ea0 346834279b08 a0cb2d8c045b 9438198d27d4 723ad104ce5f d1d623ba4b90 21c60eb2af2f
button1 99926e151da4 db80c818dd28 9196c50e9830 2611a5f88f42 4766736fe35e 29202fa0ee70 88b1db409f3d 7abd99f007f3
push1   5464d0272237 a7d374264183 7f13aabfb8f1 e59f60e5b5f0 c59ebfcd39b0 0428861365f2 d2c47db480b5 26182478bcf7
hopper  1cacfea29ca5 3110d2ba97a3 e0a1210b6937 8590e0d23781 485329c52d94 f147d17410fc 43941b0e1130 2e9b013e3913
ant     2cd2fdcf0ad8 85840f7f0901 1c70bfb5d51e 8ee2be362f34 69472a27ef08 c80e5c29b7e9 329f4018105d 8aaf360fc031
"""
"""Protocols of main that are calibrated and frozen (docs/calibration.md): runs are stored under these."""


def test_what_was_frozen_stays() -> None:
    methods, *rows = (line.split() for line in FROZEN.strip().splitlines())
    frozen = {(task, method): own for task, *protocols in rows for method, own in zip(methods, protocols, strict=True)}
    assert {(e.config.task, e.method): e.protocol for e in find_study("main", seeds=[0]).runs} == frozen


def test_components_change_one_thing_each() -> None:
    study = find_study("components")
    assert changes(study) == {
        "": {},
        "no Bachelier": {"beta": 0.0},
        "uncertainty bonus": {"bonus": True},
        "no branch normalization": {"branch_normalization": False},
        "no anti-windup": {"anti_windup": False},
    }
    assert {entry.config.task for entry in study.runs} == {"button1", "push1", "hopper"}
    assert {entry.config.steps for entry in study.runs} == {500_000}


def test_sensitivity_has_the_rows_of_the_papers_table() -> None:
    study = find_study("sensitivity")
    assert changes(study) == {
        "": {},
        "beta=0.05": {"beta": 0.05}, "beta=0.10": {"beta": 0.1}, "beta=0.25": {"beta": 0.25},
        "beta=0.40": {"beta": 0.4}, "kappa=0.00": {"kappa": 0.0}, "kappa=0.10": {"kappa": 0.1},
        "kappa=0.30": {"kappa": 0.3}, "alpha=0.90": {"alpha": 0.9}, "alpha=0.99": {"alpha": 0.99},
        "M=1": {"members": 1}, "M=3": {"members": 3}, "M=10": {"members": 10},
    }  # fmt: skip
    assert {(entry.config.task, entry.config.steps) for entry in study.runs} == {("push1", 500_000)}


def test_scale_sets_the_raw_disagreement_beside_the_default() -> None:
    study = find_study("scale")
    assert changes(study) == {"": {}, "raw sigma": {"raw_disagreement": True}}
    assert len(study.runs) == 3 * 2 * 5


def test_the_default_has_one_protocol_in_all_ablations_of_a_task() -> None:
    found = {
        entry.protocol
        for name in ("components", "sensitivity", "scale")
        for entry in find_study(name).runs
        if not entry.variant and entry.config.task == "push1"
    }
    assert len(found) == 1


def test_a_method_this_version_lacks_is_refused_in_a_sentence_and_others_can_be_picked(monkeypatch) -> None:
    monkeypatch.delitem(METHODS, "cpo")
    with pytest.raises(BcppoError, match=r"has runs of cpo.*, a method that this version does not have"):
        expand(DESIGNS["smoke"])
    assert {entry.method for entry in find_study("smoke", methods=["bcppo"]).runs} == {"bcppo"}


def test_seeds_tasks_and_steps_can_be_chosen() -> None:
    study = find_study("smoke", seeds=[7], tasks=["hopper"], methods=["cppo", "cpo"], steps=5000)
    assert list(study.by_id) == ["hopper-cppo-seed7", "hopper-cpo-seed7"]
    assert {entry.config.steps for entry in study.runs} == {5000}
    whole = find_study("smoke", tasks=["hopper"], methods=["cppo"])
    assert study.runs[0].protocol != whole.runs[0].protocol


def test_a_study_comes_back_from_its_json_as_it_was() -> None:
    study = find_study("components")
    assert study_from_json(json.loads(json.dumps(study.to_json()))) == study


def test_a_file_of_ones_own_needs_only_what_differs_from_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    runs = [{"task": "push1", "method": "bcppo", "variant": "eager", "seed": 2, "config": {"kappa": 0, "steps": 1000}}]
    path.write_text(json.dumps({"format": 1, "name": "own", "runs": runs}))
    (entry,) = read_study(path).runs
    assert entry == make_entry("bcppo", "push1", 2, variant="eager", settings={"kappa": 0.0, "steps": 1000})
    assert entry.id == "push1-bcppo-eager-seed2"
    assert entry.config.rollout == 256  # the preset's, for push1


def test_seeds_pick_runs_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(stored(*(tiny_run(seed=seed) for seed in range(4)))))
    assert [entry.config.seed for entry in find_study(str(path), seeds=[3, 1]).runs] == [1, 3]
    with pytest.raises(BcppoError, match="no seed named '9'"):
        find_study(str(path), seeds=[9])


def test_groups_cover_every_run_once() -> None:
    study = find_study("smoke")
    assert sorted(run for group in groups(study.runs) for run in group) == sorted(study.by_id)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda s: s.pop("name"), "no field 'name'"),
        (lambda s: s.update(format=2), "reads format 1"),
        (lambda s: s.update(runs=[]), "has no runs"),
        (lambda s: s.update(runs={}), "must be a list"),
        (lambda s: s.update(name="a/b"), "letters, digits"),
        (lambda s: s.update(extra=1), "no field named 'extra'"),
        (lambda s: s.update(runs=s["runs"] * 2), "two runs with the id 'tiny_cmdp-make-bcppo-seed0'"),
        (lambda s: s["runs"].append(3), "Run 1 must be an object"),
        (lambda s: s["runs"][0].pop("task"), "no field 'task'"),
        (lambda s: s["runs"][0].update(method="bcpo"), "Did you mean 'bcppo'"),
        (lambda s: s["runs"][0].update(seed=True), "must be a whole number"),
        (lambda s: s["runs"][0].update(id="../up"), "names its folder"),
        (lambda s: s["runs"][0].update(id="x.log"), "names its folder"),
        (lambda s: s["runs"][0].update(protocol="beef"), "but beef is written there"),
        (lambda s: s["runs"][0]["config"].update(betta=1), "Did you mean 'beta'"),
        (lambda s: s["runs"][0]["config"].update(beta=-1), "beta must be a number in"),
        (lambda s: s["runs"][0]["config"].update(seed=5), "seed is given twice"),
        (lambda s: s["runs"][0]["config"].update(cost_limit_rate=None), "give a cost_limit_rate"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_in_one_sentence(change, complaint: str, tmp_path: Path) -> None:
    study = json.loads(json.dumps(stored(tiny_run())))
    change(study)
    path = tmp_path / "own.json"
    path.write_text(json.dumps(study))
    with pytest.raises(BcppoError) as caught:
        read_study(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null"])
def test_a_file_that_is_no_study_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(BcppoError):
        read_study(path)
