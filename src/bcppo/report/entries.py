"""study.json: which runs a study consists of, and what a run's settings say about it. (Without one: found.py.)"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bcppo import settings
from bcppo.config import NOT_PROTOCOL, OWN_TASK, RunConfig, from_json, protocol_id, to_json
from bcppo.errors import BcppoError
from bcppo.records import read_json
from bcppo.settings import paper_preset
from bcppo.tasks.table import TASKS

FORMAT = 1
"""Version of study.json; another is refused, not guessed at."""

ABLATION_STEPS = 500_000
"""Interactions of the paper's ablations; its main table has 1e6, each method's own rounding of it."""

MAIN, ABLATION = "main", "ablation"


class StudyError(BcppoError):
    """A study folder nothing can be read from."""


@dataclass(frozen=True)
class Problem:
    """Something about a study that a reader of its tables has to know, in one sentence."""

    run: str
    """Id of the run it is about; empty where it is about the study."""
    kind: str
    """missing, running, failed, diverged, damaged, mismatch, duplicate, retried or mixed."""
    sentence: str


def brief(problems: Iterable[Problem], most: int = 5) -> list[str]:
    """Sentences for a terminal: of runs the first few of each kind and how many more there are; of the study all."""
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind if problem.run else "", []).append(problem.sentence)
    whole = kinds.pop("", [])
    lines = []
    for kind, sentences in kinds.items():
        left = len(sentences) - most
        lines += sentences[:most] if left > 1 else sentences  # a line for one more would take as much room
        lines += [f"… and {left} more like these ({kind}); the report's page lists them all."] if left > 1 else []
    return [*lines, *whole]


@dataclass(frozen=True)
class Entry:
    """One run of a study, as study.json has it."""

    id: str
    task: str
    method: str
    variant: str
    seed: int
    protocol: str
    config: dict[str, Any]
    place: str = ""
    """Its folder within the study's; runs/ID where none is said."""
    covers: frozenset[str] | None = None
    """The settings its variant's name stands for; None where study.json vouches for the name."""

    @property
    def cell(self) -> tuple[str, str, str]:
        return self.task, self.method, self.variant


@dataclass(frozen=True)
class Settings:
    """What a run's config says: what the tables need of it."""

    steps: int
    eval_episodes: int
    limit_rate: float
    """C_lim, mean cost per step."""
    paper: str
    """The paper's experiment these settings belong to: main, ablation, or empty for neither."""
    differs: str
    """Settings other than the paper's preset, apart from what a variant's name covers."""


def read_entries(folder: Path) -> tuple[str, str, list[Entry], list[Problem]]:
    """(name, title, entries, problems) of a study folder's study.json."""
    path = folder / "study.json"
    if not path.exists():
        raise StudyError(f"{folder} holds no study: there is no study.json in it.")
    try:
        study = read_json(path)
    except RecursionError:
        raise StudyError(f"{path} is nested too deeply to be a study.") from None
    if not isinstance(study, dict) or study.get("format") != FORMAT or isinstance(study.get("format"), bool):
        raise StudyError(f"{path} is not a study of format {FORMAT}, which this version reads.")
    listed = study.get("runs")
    if not isinstance(listed, list) or not listed:
        raise StudyError(f"{path} lists no runs.")
    entries, problems = [], []
    for number, values in enumerate(listed):
        entry, trouble = _entry(values)
        if entry is None:
            problems.append(Problem("", "damaged", f"Entry {number} of study.json cannot be used: {trouble}."))
        else:
            entries.append(entry)
    kept, repeated = _without_repetitions(entries)
    return str(study.get("name", "")), str(study.get("title", "")), kept, problems + repeated


def _entry(values: Any) -> tuple[Entry | None, str]:
    if not isinstance(values, dict):
        return None, "it is not a set of fields"
    for name in ("id", "task", "method", "variant", "protocol"):
        if not isinstance(values.get(name), str):
            return None, f"its {name} is not a text"
    run = values["id"]
    if not run or run in (".", "..") or any(mark in run for mark in "/\\\0"):
        return None, f"its id {run!r} cannot be a folder's name"
    if not isinstance(values.get("seed"), int) or isinstance(values["seed"], bool) or not 0 <= values["seed"] < 2**63:
        return None, "its seed is not a whole number of at least 0"
    if not isinstance(values.get("config"), dict):
        return None, "its config is not a set of fields"
    return Entry(**{name: values[name] for name in _LISTED}), ""


_LISTED = ("id", "task", "method", "variant", "seed", "protocol", "config")
"""What study.json says of a run."""


def _without_repetitions(entries: list[Entry]) -> tuple[list[Entry], list[Problem]]:
    """A run listed twice, under one id or as the same seed of the same cell, would count twice: neither is used."""
    kept, problems = [], []
    ids = [entry.id for entry in entries]
    places = [(*entry.cell, entry.seed) for entry in entries]
    for entry, place in zip(entries, places):
        if ids.count(entry.id) > 1:
            sentence = f"{entry.id} is listed {ids.count(entry.id)} times in study.json; none of them is used."
        elif places.count(place) > 1:
            sentence = f"{entry.id} is one of {places.count(place)} runs listed for one seed; none of them is used."
        else:
            kept.append(entry)
            continue
        problem = Problem(entry.id, "duplicate", sentence)
        if problem not in problems:
            problems.append(problem)
    return kept, problems


def settings_of(entry: Entry) -> Settings:
    """Raises ValueError with the reason where a config cannot be what a run had."""
    named = entry.task if entry.covers is None or entry.config.get("task") != OWN_TASK else OWN_TASK
    if (entry.config.get("task"), entry.config.get("seed")) != (named, entry.seed):
        raise ValueError("study.json gives it another task or seed than its config")
    config = typed_config(entry.config)
    if config is None:
        return _untyped_settings(entry.config)
    if protocol_id(entry.method, config) != entry.protocol:
        raise ValueError("its protocol identifier is not the one its settings give")
    preset = paper_preset(type(config), config.task)
    ours, theirs = to_json(config), to_json(preset)
    ours["cost_limit_rate"] = config.limit_rate
    theirs["cost_limit_rate"] = TASKS[config.task].cost_limit_rate if config.task in TASKS else None
    odd = [name for name in ours if name not in NOT_PROTOCOL and ours[name] != theirs[name]]
    scale = MAIN if config.steps == preset.steps else ABLATION if config.steps == ABLATION_STEPS else ""
    named_for = set(odd) if entry.covers is None and entry.variant else set(entry.covers or ())
    excused = not set(odd) - named_for - ({"steps"} if scale == ABLATION else set())
    known = config.task in TASKS and config.eval_episodes == preset.eval_episodes
    return Settings(
        steps=config.steps,
        eval_episodes=config.eval_episodes,
        limit_rate=config.limit_rate,
        paper=scale if excused and known else "",
        differs=", ".join(f"{name}={ours[name]}" for name in odd),
    )


def typed_config(values: dict[str, Any]) -> RunConfig | None:
    """The config these fields make; None where no method of this version has them (a study of another version)."""
    kind = _kinds().get(frozenset(values))
    if kind is None:
        return None
    try:
        return from_json(kind, values)
    except (BcppoError, TypeError, ValueError) as error:
        raise ValueError(f"its settings are impossible ({str(error).rstrip('.')})") from None


@cache
def _kinds() -> dict[frozenset[str], type[RunConfig]]:
    """Config classes by their fields, which tell them apart: the table of methods stands left of the records."""
    kinds = [kind for kind in vars(settings).values() if isinstance(kind, type) and issubclass(kind, RunConfig)]
    return {frozenset(field.name for field in dataclasses.fields(kind)): kind for kind in kinds}


def _untyped_settings(values: dict[str, Any]) -> Settings:
    steps, episodes, limit = (values.get(name) for name in ("steps", "eval_episodes", "cost_limit_rate"))
    task = TASKS.get(str(values.get("task")))
    if limit is None and task is not None:
        limit = task.cost_limit_rate
    whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in (steps, episodes))
    if not whole or isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < float("inf"):
        raise ValueError("its settings lack steps, eval_episodes or a cost limit")
    return Settings(int(steps), int(episodes), float(limit), "", "settings of another version")  # type: ignore[arg-type]
