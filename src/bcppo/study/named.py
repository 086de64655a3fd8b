"""The paper's studies, with a row of our own in the first, and others: tasks × arms × seeds, over the preset `paper`.

They are written as designs rather than as files with every setting of every run: such files would repeat the presets
200 times and be out of date with the next field of a config. The folder of a study holds the file, with every setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcppo.algorithms import METHODS
from bcppo.errors import unknown_name
from bcppo.study.plan import Study, StudyError, make_entry, override, read_study


@dataclass(frozen=True)
class Arm:
    """A method, and what is changed about it."""

    method: str
    variant: str = ""
    """What is changed, in the words of the paper's tables; empty for the method as it is."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Design:
    """Every arm on every task with every seed."""

    name: str
    title: str
    tasks: tuple[str, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What all runs have apart from the preset."""

    @property
    def size(self) -> int:
        return len(self.tasks) * len(self.arms) * len(self.seeds)


_FULL = Arm("bcppo")
_HALF = {"steps": 500_000}
_ABLATED = ("button1", "push1", "hopper")
"""The tasks of the paper's ablations."""

_MAIN = Design(
    "main",
    "Five tasks, the paper's seven methods and PPO-PID (ours), one million steps",
    ("goal1", "button1", "push1", "hopper", "ant"),
    # ppopid is no row of the paper's: BCPPO with β = 0, which shows what disagreement adds.
    tuple(map(Arm, ("bcppo", "cppo", "qrppo", "ppolag", "cpo", "focops", "wcsac", "ppopid"))),
)

_COMPONENTS = Design(
    "components",
    "BCPPO with one component taken out at a time, 500,000 steps",
    _ABLATED,
    (
        _FULL,
        Arm("bcppo", "no Bachelier", {"beta": 0.0}),
        Arm("bcppo", "uncertainty bonus", {"bonus": True}),
        Arm("bcppo", "no branch normalization", {"branch_normalization": False}),
        Arm("bcppo", "no anti-windup", {"anti_windup": False}),
    ),
    settings=_HALF,
)

_SENSITIVITY = Design(
    "sensitivity",
    "BCPPO with one setting changed at a time, Push1, 500,000 steps",
    ("push1",),
    (
        _FULL,
        *(Arm("bcppo", f"beta={value:.2f}", {"beta": value}) for value in (0.05, 0.10, 0.25, 0.40)),
        *(Arm("bcppo", f"kappa={value:.2f}", {"kappa": value}) for value in (0.0, 0.10, 0.30)),
        *(Arm("bcppo", f"alpha={value:.2f}", {"alpha": value}) for value in (0.90, 0.99)),
        *(Arm("bcppo", f"M={members}", {"members": members}) for members in (1, 3, 10)),
    ),
    settings=_HALF,
)

_SCALE = Design(
    "scale",
    "BCPPO against the raw disagreement σ_c as its penalty, 500,000 steps",
    _ABLATED,
    (_FULL, Arm("bcppo", "raw sigma", {"raw_disagreement": True})),
    settings=_HALF,
)

_BEFORE = (100, 101)
"""Training seeds of what is tried before a table's settings are fixed: no table uses them."""

_CALIBRATION_POLICY = Design(
    "calibration-policy",
    "Which log standard deviation the paper's policies may have begun with",
    ("hopper", "ant", "goal1"),
    tuple(Arm("bcppo", f"log-std={value:.1f}", {"initial_log_std": value}) for value in (-1.0, -0.5, 0.0)),
    seeds=_BEFORE,
)

_CLIPPED = {"clip_actions": True, "cost_advantage_scale": "length"}
_CALIBRATION_COMPARATORS = Design(
    "calibration-comparators",
    "Which action the OmniSafe family may have been charged for, at what scale of its cost advantage, and CPO's dual",
    ("hopper", "goal1"),
    (
        *(
            Arm(method, variant, {**_CLIPPED, **change})
            for method in ("ppolag", "focops")
            for variant, change in (
                ("clipped", {}), ("unclipped", {"clip_actions": False}), ("scale=one", {"cost_advantage_scale": "one"}),
            )
        ),
        *(
            Arm("cpo", variant, {**_CLIPPED, **change})
            for variant, change in (
                ("clipped", {"release_dual": False}), ("unclipped", {"release_dual": False, "clip_actions": False}),
                ("release dual", {"release_dual": True}),
            )
        ),
    ),
    seeds=_BEFORE,
)  # fmt: skip

_SMOKE = Design(
    "smoke",
    "A small study from end to end: too short to learn from",
    ("goal1", "hopper"),
    tuple(map(Arm, ("bcppo", "cppo", "ppolag", "cpo"))),
    seeds=(0, 1),
    settings={"steps": 20_480, "eval_every": 0, "checkpoint_every": 4096},
)

DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        _MAIN, _COMPONENTS, _SENSITIVITY, _SCALE, _CALIBRATION_POLICY, _CALIBRATION_COMPARATORS, _SMOKE,
    )
}  # fmt: skip


def find_study(
    name: str,
    *,
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    device: str | None = None,
) -> Study:
    """A named study or one from a JSON file, or the part of it that has these tasks and methods.

    Seeds replace a named study's own; of a file, they pick those runs that have them.
    """
    if name.endswith(".json"):
        study = part_of(read_study(Path(name)), {"task": tasks, "method": methods, "seed": seeds})
    elif name not in DESIGNS:
        if (Path(name) / "study.json").exists():
            raise StudyError(f"{name} is a study's folder; the study is the file in it, {Path(name) / 'study.json'}.")
        error = unknown_name("study", name, DESIGNS)
        raise StudyError(f"{error} A study of your own is a path that ends in .json.")
    else:
        study = expand(_narrow(DESIGNS[name], tasks, methods, seeds))
    return override(study, steps=steps, device=device)


def expand(design: Design) -> Study:
    """The runs of a design, seed by seed: a study that was stopped early has whole tables of fewer seeds."""
    missing = sorted({arm.method for arm in design.arms} - set(METHODS))
    if missing:
        raise StudyError(
            f"The study '{design.name}' has runs of {', '.join(missing)}, a method that this version does not have; "
            "--methods picks others."
        )
    runs = tuple(
        make_entry(arm.method, task, seed, variant=arm.variant, settings={**design.settings, **arm.settings})
        for seed in design.seeds
        for task in design.tasks
        for arm in design.arms
    )
    return Study(design.name, design.title, runs)


def _narrow(
    design: Design, tasks: Sequence[str] | None, methods: Sequence[str] | None, seeds: Sequence[int] | None
) -> Design:
    known = {arm.method for arm in design.arms}
    _known("task", tasks, design.tasks)
    _known("method", methods, known)
    return dataclasses.replace(
        design,
        tasks=tuple(task for task in design.tasks if tasks is None or task in tasks),
        arms=tuple(arm for arm in design.arms if methods is None or arm.method in methods),
        seeds=design.seeds if seeds is None else tuple(dict.fromkeys(seeds)),
    )


def part_of(study: Study, wanted: Mapping[str, Sequence | None]) -> Study:
    """The runs of a study that have the wanted values."""
    runs = [(entry, entry.to_json()) for entry in study.runs]
    for name, values in wanted.items():
        if values is not None:
            _known(name, list(map(str, values)), {str(row[name]) for _, row in runs})
            runs = [(entry, row) for entry, row in runs if row[name] in values]
    return dataclasses.replace(study, runs=tuple(entry for entry, _ in runs))


def _known(kind: str, names: Sequence[str] | None, known: Sequence[str] | set[str]) -> None:
    for name in names or ():
        if name not in known:
            raise unknown_name(kind, name, known)
