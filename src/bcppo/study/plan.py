"""A study as data: a list of runs, each with its whole config, in memory and as JSON.

    {"format": 1, "name": "main", "title": "…", "runs": [
        {"id": "goal1-bcppo-seed0", "task": "goal1", "method": "bcppo", "variant": "", "seed": 0,
         "protocol": "…", "config": {…}}, …]}

In a study's folder every run has its whole config and its protocol identifier. In a file one writes oneself, `config`
needs to hold what differs from the preset `paper` only, and `id`, `variant`, `seed` and `protocol` may be left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcppo.algorithms import CONFIGS
from bcppo.config import RunConfig, from_json, protocol_id, to_json
from bcppo.errors import BcppoError, ConfigError, unknown_name
from bcppo.records import read_json
from bcppo.settings import paper_preset

FORMAT = 1
"""Version of study.json's layout."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")
_TAKEN = (".jsonl", ".log", ".part")
"""Endings of the files that lie beside run folders: no run may be called so."""

Group = tuple[str, ...]
"""Identifiers of runs that one process works on."""


class StudyError(BcppoError):
    """A study that is not what was asked for, or cannot be run."""


@dataclass(frozen=True)
class Entry:
    """One run of a study."""

    id: str
    method: str
    config: RunConfig
    variant: str = ""
    """What an ablation changes, in words; empty for the method as it is."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.id) or self.id.endswith(_TAKEN):
            raise StudyError(
                f"A run's id names its folder: letters, digits and ._=+- (no ending {', '.join(_TAKEN)}), "
                f"but {self.id!r} was given."
            )

    @property
    def protocol(self) -> str:
        return protocol_id(self.method, self.config)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "task": self.config.task, "method": self.method, "variant": self.variant,
            "seed": self.config.seed, "protocol": self.protocol, "config": to_json(self.config),
        }  # fmt: skip


@dataclass(frozen=True)
class Study:
    """A named list of runs."""

    name: str
    title: str
    runs: tuple[Entry, ...]
    by_id: dict[str, Entry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise StudyError(f"A study's name is made of letters, digits and ._=+-, but {self.name!r} was given.")
        if not self.runs:
            raise StudyError(f"The study '{self.name}' has no runs.")
        object.__setattr__(self, "by_id", {entry.id: entry for entry in self.runs})
        if len(self.by_id) < len(self.runs):
            ids = [entry.id for entry in self.runs]
            twice = next(name for name in ids if ids.count(name) > 1)
            raise StudyError(f"The study '{self.name}' has two runs with the id '{twice}'.")

    def to_json(self) -> dict[str, Any]:
        runs = [entry.to_json() for entry in self.runs]
        return {"format": FORMAT, "name": self.name, "title": self.title, "runs": runs}


def make_entry(
    method: str, task: str, seed: int = 0, *, variant: str = "", settings: Mapping[str, Any] | None = None, id: str = ""
) -> Entry:
    """A run of the preset `paper` with some settings changed."""
    if method not in CONFIGS:
        raise unknown_name("method", method, CONFIGS)
    settings = {"task": task, "seed": seed, **(settings or {})}
    for name, told in (("task", task), ("seed", seed)):
        if settings[name] != told:
            raise StudyError(f"A run's {name} is given twice and differently: {told!r} and {settings[name]!r}.")
    if not isinstance(task, str):
        raise StudyError(f"A run's task must be a text, but {task!r} was given.")
    preset = to_json(paper_preset(CONFIGS[method], task))
    for name in settings:
        if name not in preset:
            raise unknown_name("setting", name, preset)
    config = from_json(CONFIGS[method], preset | settings)
    _ = config.limit_rate  # refuses a run without a limit
    return Entry(id or _name(task, method, variant, config.seed), method, config, variant)


def override(study: Study, *, steps: int | None = None, device: str | None = None) -> Study:
    """The same runs with other steps or on another device."""
    given = {"steps": steps, "device": device}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not changes:
        return study
    runs = [dataclasses.replace(e, config=dataclasses.replace(e.config, **changes)) for e in study.runs]
    return dataclasses.replace(study, runs=tuple(runs))


def groups(runs: Sequence[Entry]) -> list[Group]:
    """Who works on what: each run by itself. Runs of one method and shape could be stacked into one group here."""
    return [(entry.id,) for entry in runs]


def read_study(path: Path) -> Study:
    """A study from its JSON file."""
    stored = read_json(path)
    try:
        return study_from_json(stored)
    except BcppoError as error:
        raise StudyError(f"{path} is no study that can be run: {error}") from error


def study_from_json(stored: Any) -> Study:
    _expect(stored, "A study", {"format": int, "name": str, "runs": list}, {"title": str})
    if stored["format"] != FORMAT:
        raise StudyError(f"The format {stored['format']!r} is unknown; this version reads format {FORMAT}.")
    runs = tuple(_entry_from_json(index, run) for index, run in enumerate(stored["runs"]))
    return Study(stored["name"], stored.get("title", stored["name"]), runs)


def _entry_from_json(index: int, stored: Any) -> Entry:
    optional = {"id": str, "variant": str, "seed": int, "protocol": str, "config": dict}
    _expect(stored, f"Run {index}", {"task": str, "method": str}, optional)
    settings = stored.get("config", {})
    name = stored.get("id") or str(index)
    try:
        entry = make_entry(
            stored["method"], stored["task"], stored.get("seed", settings.get("seed", 0)),
            variant=stored.get("variant", ""), settings=settings, id=stored.get("id", ""),
        )  # fmt: skip
    except BcppoError as error:
        raise StudyError(f"Run '{name}': {error}") from error
    if stored.get("protocol", entry.protocol) != entry.protocol:
        raise StudyError(
            f"Run '{name}': its settings make the protocol {entry.protocol}, but {stored['protocol']} is written there."
        )
    return entry


def _expect(stored: Any, what: str, needed: Mapping[str, type], optional: Mapping[str, type]) -> None:
    """Refuse anything but an object with these fields."""
    if not isinstance(stored, dict):
        raise StudyError(f"{what} must be an object with the fields {', '.join([*needed, *optional])}.")
    for name, kind in {**needed, **optional}.items():
        if name not in stored and name in needed:
            raise StudyError(f"{what} has no field '{name}'.")
        value = stored.get(name, kind())
        if not isinstance(value, kind) or isinstance(value, bool):
            words = {int: "a whole number", str: "a text", list: "a list", dict: "an object"}[kind]
            raise StudyError(f"{what} has {value!r} as its {name}, which must be {words}.")
    for name in stored:
        if name not in needed and name not in optional:
            raise ConfigError(f"{what}: {unknown_name('field', name, [*needed, *optional])}")


def _name(task: str, method: str, variant: str, seed: int) -> str:
    """A run's id from what it is; other characters than those of a name become dashes."""
    words = [task, method, *([variant] if variant else []), f"seed{seed}"]
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", "-".join(words)).strip("-.")
