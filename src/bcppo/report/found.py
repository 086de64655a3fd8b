"""Runs that belong to no study: every run folder in a folder, or the one it is, laid out as if a study had listed them.

Runs that differ in their settings never share a cell. What a run has that others of its task or method have not names
its variant: beta=0.1, steps=20480.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bcppo.config import NOT_PROTOCOL, OWN_TASK, RunConfig, text_of, to_json
from bcppo.errors import ConfigError, FolderError
from bcppo.records import FINISHED, FORMAT, read_json
from bcppo.report.entries import Entry, Problem, StudyError, typed_config
from bcppo.settings import make_preset, paper_preset
from bcppo.tasks.table import TASKS

_SHARED = frozenset(field.name for field in dataclasses.fields(RunConfig)) - {"task"} | {"preset", "protocol"}
"""Settings that runs of one task must agree in to be compared, whatever their methods."""
_SYMBOLS = {"members": "M"}
"""Settings that the paper's tables call otherwise."""
_TRACES = ("status.json", "provenance.json", "progress.parquet", "checkpoint.safetensors", "policy.safetensors")


def find_entries(folder: Path) -> tuple[str, str, list[Entry], list[Problem]]:
    """(name, title, entries, problems) of the runs in a folder."""
    if not folder.is_dir():
        raise StudyError(f"There is no folder {folder}.")
    entries, problems = [], []
    for place in _places(folder):
        name = folder.resolve().name if place == "." else place
        if place.endswith("study.json"):
            study = Path(place).parent
            packed = (folder / study / "runs.parquet").exists()
            what = "in its published form" if packed else "of which only runs that were begun are here"
            sentence = f"{study} is a study, {what}; `bcppo report` of its own folder has all its runs."
            problems.append(Problem("", "mixed", sentence))
            continue
        try:
            entries.append(_entry(folder / place, name, place))
        except (FolderError, RecursionError, ValueError) as error:
            text = str(error).replace(f"{folder}/", "").rstrip(".")
            problems.append(Problem(name, "damaged", f"{name} is not used: {text}."))
    if not entries and not problems:
        raise StudyError(f"{folder} holds neither a study (study.json) nor a run (config.json), here or further down.")
    kept, repeated = _without_copies(folder, _named(entries))
    return folder.resolve().name, f"Runs in {folder.resolve().name}", kept, problems + repeated


def _places(folder: Path) -> Iterable[str]:
    """Folders, relative to `folder`, that hold a run or remains of one, and files study.json; in order of name."""
    for path, inside, files in os.walk(folder):
        place = Path(path).relative_to(folder).as_posix()
        inside.sort()
        if "study.json" in files and "config.json" not in files:
            yield f"{place}/study.json"
        elif "config.json" in files or any(name in files for name in _TRACES):
            inside.clear()
            yield place


def _entry(path: Path, name: str, place: str) -> Entry:
    if not (path / "config.json").exists():
        raise FolderError("it holds remains of a run, but no config.json")
    stored, provenance = read_json(path / "config.json"), read_json(path / "provenance.json")
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or not isinstance(provenance, dict):
        raise FolderError("its config.json or provenance.json is of another version, or changed since")
    config, method, protocol = stored.get("config"), stored.get("method"), provenance.get("protocol")
    if not (isinstance(config, dict) and isinstance(method, str) and isinstance(protocol, str)):
        raise FolderError("its config.json or provenance.json lacks the method, the settings or the protocol")
    task, seed = config.get("task"), config.get("seed")
    if not isinstance(task, str) or not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise FolderError("its config.json has no task or no seed")
    # An environment from Python is 'own' in the settings; where it came from tells two of them apart.
    environment = provenance.get("environment")
    task = environment if task == OWN_TASK and isinstance(environment, str) and environment else task
    return Entry(name, task, method, "", seed, protocol, config, place, frozenset())


# --- variants ---


def _named(entries: list[Entry]) -> list[Entry]:
    """With variants: the settings, other than the preset's, in which runs of a task or of a method on it differ."""
    changes = [_changes(entry) for entry in entries]
    named = []
    for entry, own in zip(entries, changes):
        of_task = [c for e, c in zip(entries, changes) if e.task == entry.task]
        of_method = [c for e, c in zip(entries, changes) if (e.task, e.method) == (entry.task, entry.method)]
        differ = [
            name for name in own
            if any(other.get(name) != own[name] for other in (of_task if name in _SHARED else of_method))
        ]  # fmt: skip
        variant = ", ".join(f"{_SYMBOLS.get(name, name)}={text_of(own[name])}" for name in differ)
        named.append(dataclasses.replace(entry, variant=variant, covers=frozenset(differ)))
    return named


def _changes(entry: Entry) -> dict[str, Any]:
    """A run's settings that are not the preset's, the seed and what changes no result apart.

    The preset is the paper's, or another with its name, where fewer settings differ from that.
    """
    try:
        config = typed_config(entry.config)
    except ValueError:  # said where the run is loaded
        config = None
    if config is None:  # settings of another version: nobody knows what its preset was
        return {"protocol": entry.protocol}
    ours = to_json(config)
    plain = _differences(entry, ours, to_json(paper_preset(type(config), config.task)))
    try:
        quick = to_json(make_preset("quick", entry.method, type(config), config.task))
    except ConfigError:
        return plain
    named = {"preset": "quick"} | _differences(entry, ours, quick)
    return min(plain, named, key=len)


def _differences(entry: Entry, ours: dict[str, Any], preset: dict[str, Any]) -> dict[str, Any]:
    ours, preset, task = {**ours}, {**preset}, TASKS.get(entry.task)
    if task is not None:
        preset["cost_limit_rate"] = task.cost_limit_rate
        if ours.get("cost_limit_rate") is None:
            ours["cost_limit_rate"] = task.cost_limit_rate
    kept = [name for name in ours if name not in (*NOT_PROTOCOL, "task") and ours[name] != preset.get(name)]
    return {name: ours[name] for name in kept}


def _without_copies(folder: Path, entries: list[Entry]) -> tuple[list[Entry], list[Problem]]:
    """One run of each seed of a cell: the first by name that is finished. The others are the same run again."""
    chosen: dict[tuple, Entry] = {}
    for entry in sorted(entries, key=lambda entry: not _finished(folder / entry.place)):
        chosen.setdefault((*entry.cell, entry.seed, entry.protocol), entry)
    kept, problems = [], []
    for entry in entries:
        used = chosen[(*entry.cell, entry.seed, entry.protocol)]
        if used is entry:
            kept.append(entry)
        else:
            sentence = f"{entry.id} is not used: {used.id} is a run with the same settings and seed."
            problems.append(Problem(entry.id, "duplicate", sentence))
    return kept, problems


def _finished(path: Path) -> bool:
    try:
        status = read_json(path / "status.json")
    except (FolderError, RecursionError):
        return False
    return isinstance(status, dict) and status.get("state") == FINISHED
