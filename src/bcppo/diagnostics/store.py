"""What a diagnostic measured, in a folder: Parquet tables of raw rows, and notes.json with settings and what was not
eligible. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bcppo.records import FINISHED, read_json, read_rows, revision, write_json, write_rows

Columns = dict[str, Any]
"""Name → values of equal length."""


@dataclass(frozen=True)
class NotEligible:
    """A run that a statistic cannot be taken of, and why."""

    run: str
    statistic: str
    reason: str


@dataclass
class Measured:
    """Rows of a diagnostic. In every table the column `run` counts the rows of the table `runs`."""

    tables: dict[str, Columns]
    not_eligible: list[NotEligible] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> dict[str, np.ndarray]:
        """A table's columns as arrays; no columns where it was never written."""
        return {key: np.asarray(values) for key, values in self.tables.get(name, {}).items()}

    @property
    def runs(self) -> list[dict[str, Any]]:
        columns = self.tables.get("runs", {})
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    @property
    def cut_off(self) -> list[str]:
        """A sentence for each run that is measured though it is not finished."""
        return [
            f"{run['name']} is cut off at step {run['trained_steps']:,} of {run['steps']:,} ({run['state']})."
            for run in self.runs
            if run.get("state", FINISHED) != FINISHED
        ]


def save(folder: Path, measured: Measured) -> None:
    """Write rows and notes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in measured.tables.items():
        write_rows(folder / f"{name}.parquet", columns)
    write_json(
        folder / "notes.json",
        {
            "tables": sorted(measured.tables),
            "settings": measured.settings,
            "not_eligible": [asdict(item) for item in measured.not_eligible],
            "not_finished": measured.cut_off,
            "revision": revision(),
        },
    )


def load(folder: Path) -> Measured:
    """Read back what `save` wrote."""
    notes = read_json(folder / "notes.json")
    tables = {name: read_rows(folder / f"{name}.parquet") for name in notes["tables"]}
    return Measured(tables, [NotEligible(**item) for item in notes["not_eligible"]], notes["settings"])


def groups(columns: Mapping[str, np.ndarray], *keys: str) -> Iterator[tuple[tuple[Any, ...], dict[str, np.ndarray]]]:
    """(values of the keys, the rows that have them), in the order in which they first occur."""
    if not columns or not len(next(iter(columns.values()))):
        return
    codes = np.stack([np.unique(columns[key], return_inverse=True)[1] for key in keys])
    _, first, inverse = np.unique(codes, axis=1, return_index=True, return_inverse=True)
    for group in np.argsort(first):
        rows = np.flatnonzero(inverse.reshape(-1) == group)
        yield tuple(columns[key][rows[0]].item() for key in keys), {k: v[rows] for k, v in columns.items()}


def join(parts: Sequence[Mapping[str, Any]]) -> Columns:
    """Tables of the same columns, one under the other."""
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]} if parts else {}
