"""A study's records → frames. What cannot be trusted is named in one sentence and left out; the rest stands.

Two forms give the same frames: a folder of run folders as a study leaves them, and the packed form that is published
(see pack.py). A folder without a study gives the frames of whatever runs are in it (see found.py).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bcppo.config import digest
from bcppo.records import DIVERGED, FAILED, FINISHED, FORMAT, LONG, RUNNING, FolderError, read_json
from bcppo.report.checks import check_copies, check_protocols, check_values, mixed_provenance
from bcppo.report.entries import Entry, Problem, Settings, read_entries, settings_of
from bcppo.report.found import find_entries
from bcppo.report.long_rows import EMPTY, check_long, check_policy, damaged
from bcppo.report.names import aside
from bcppo.report.schema import EVALUATIONS, IN_TURN, LONG_EPISODES, PROGRESS, RUNS

PROGRESS_NEEDED = ("update", "step")
Query = tuple[str, pl.LazyFrame]
"""A run's id, and rows of it."""


@dataclass(frozen=True)
class StudyRecords:
    """A study's records, checked."""

    folder: Path
    name: str
    title: str
    runs: pl.DataFrame
    """Columns RUNS."""
    evaluations: pl.DataFrame
    """Column `run` and EVALUATIONS, of usable runs, along the way (`final` false) and at the end."""
    progress: pl.DataFrame
    """Column `run`, PROGRESS and `records`: the number of updates a row stands for, 1 but where curves were thinned."""
    problems: tuple[Problem, ...]
    planned: bool = True
    """Whether a study.json says what there should be; otherwise these are the runs that were found."""
    long: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=EMPTY))
    """Column `run` and LONG_EPISODES, of usable runs that were evaluated on many more episodes."""

    @property
    def episodes(self) -> pl.DataFrame:
        """The final evaluation episodes: what every table is computed from."""
        return self.evaluations.filter("final")

    def expected_seeds(self, task: str, method: str) -> int:
        """Training seeds a cell should have: all of the study's or, where nothing was planned, all of the task's.

        The paper's methods are not asked for seeds that only our own row has.
        """
        runs = self.runs if self.planned else self.runs.filter(pl.col("task") == task)
        if method not in (ours := aside(self.runs["method"])):
            runs = runs.filter(~pl.col("method").is_in(list(ours)))
        return runs["seed"].n_unique()


def load_study(folder: str | Path) -> StudyRecords:
    """Load a study from its folder, packed or not; without a study.json, every run folder that lies there."""
    folder = Path(folder)
    if (folder / "runs.parquet").exists():
        from bcppo.report.pack import load_packed

        return load_packed(folder)
    planned = (folder / "study.json").exists()
    name, title, entries, problems = read_entries(folder) if planned else find_entries(folder)
    rows, plans = [], []
    for entry in entries:
        row, queries, trouble = _load_run(folder, entry)
        rows.append(row)
        plans += queries
        problems += trouble
    frames = _collect(plans)
    for row in rows:
        broken = [frame for frame in frames.get(row["id"], []) if isinstance(frame, str)]
        if broken:
            row.update(usable=False, state="damaged")
            problems.append(Problem(row["id"], "damaged", f"{row['id']} is not used: {broken[0]}."))
    pairs = [frames[row["id"]] for row in rows if row["usable"]]
    evaluations: list[Any] = [pair[0] for pair in pairs]
    progress: list[Any] = [pair[1] for pair in pairs]
    places = {entry.id: _place(folder, entry) for entry in entries}
    long, trouble = _load_long(folder, {row["id"]: places[row["id"]] for row in rows if row["usable"]})
    problems += trouble
    return assemble(folder, (name, title), rows, (evaluations, progress), problems, planned=planned, long=long)


def assemble(
    folder: Path,
    names: tuple[str, str],
    rows: list[dict[str, Any]],
    frames: tuple[list[pl.DataFrame], list[pl.DataFrame]],
    problems: list[Problem],
    *,
    planned: bool = True,
    long: Sequence[pl.DataFrame] = (),
) -> StudyRecords:
    """Rows of runs, and their frames of evaluations and of progress → the study, after the checks across runs."""
    evaluations, progress = frames
    runs = pl.DataFrame(rows, schema=RUNS)
    all_evaluations = pl.concat([_empty({"run": pl.String, **EVALUATIONS}), *evaluations])
    all_progress = pl.concat([_empty({"run": pl.String, **PROGRESS, "records": pl.Int64}), *progress])
    bad = check_values(runs.filter("usable"), all_evaluations, all_progress)
    bad += check_copies(runs, all_evaluations, {problem.run for problem in bad})
    bad += check_protocols(runs.filter(pl.col("usable") & ~pl.col("id").is_in([problem.run for problem in bad])))
    kinds = {problem.run: problem.kind for problem in bad}
    state = pl.col("id").replace_strict(kinds, default=pl.col("state"), return_dtype=pl.String)
    runs = runs.with_columns(state=state, usable=pl.col("usable") & ~pl.col("id").is_in(list(kinds)))
    good = pl.col("run").is_in(runs.filter("usable")["id"].to_list())
    mixed = mixed_provenance(runs.filter("usable"))
    all_evaluations = all_evaluations.filter(good)
    all_long = pl.concat([_empty(EMPTY), *long]).filter(good)
    all_long, longer = check_long(all_long, all_evaluations.filter("final"))
    return StudyRecords(
        folder=folder,
        name=names[0],
        title=names[1],
        runs=runs,
        evaluations=all_evaluations,
        progress=all_progress.filter(good),
        problems=tuple(dict.fromkeys((*problems, *bad, *longer, *mixed))),  # a packed study brings some along
        planned=planned,
        long=all_long,
    )


# --- one run ---


def _load_run(folder: Path, entry: Entry) -> tuple[dict, list[Query], list[Problem]]:
    """(the run's row; queries of its evaluations and its progress, none where they cannot be trusted; problems)"""
    path = _place(folder, entry)
    failures = _failures(path.with_name(f"{path.name}.failures.jsonl"))
    settings: Settings | None = None
    provenance: dict[str, Any] = {}
    try:
        settings = settings_of(entry)
        _check_status(path, entry.id, failures)
        provenance = _check_identity(path, entry)
        evaluations = _query(path / "evaluations.parquet", entry.id, EVALUATIONS, tuple(EVALUATIONS))
        progress = _query(path / "progress.parquet", entry.id, PROGRESS, PROGRESS_NEEDED)
    except _Unusable as error:
        return run_row(entry, settings, provenance, error.kind), [], [Problem(entry.id, error.kind, str(error))]
    except FolderError as error:
        sentence = f"{entry.id}: {error}".replace(f"{folder}/", "")
        return run_row(entry, settings, provenance, "damaged"), [], [Problem(entry.id, "damaged", sentence)]
    except (ValueError, OverflowError, RecursionError) as error:
        sentence = f"{entry.id} is not used: {error}."
        return run_row(entry, settings, provenance, "mismatch"), [], [Problem(entry.id, "mismatch", sentence)]
    retried = [Problem(entry.id, "retried", f"{entry.id} finished after a failure: {text}") for text in failures]
    queries = [(entry.id, evaluations), (entry.id, progress.with_columns(records=pl.lit(1, pl.Int64)))]
    return run_row(entry, settings, provenance, FINISHED), queries, retried


def _place(folder: Path, entry: Entry) -> Path:
    return folder / (entry.place or f"runs/{entry.id}")


def _load_long(folder: Path, places: dict[str, Path]) -> tuple[list[pl.DataFrame], list[Problem]]:
    """(rows of many episodes, of runs that have any; problems) of runs in their folders."""
    frames, problems = [], []
    for run, path in places.items():
        if not (path / f"{LONG}.parquet").exists():
            continue
        try:
            rows = _query(path / f"{LONG}.parquet", run, LONG_EPISODES, tuple(LONG_EPISODES)).collect()
        except FolderError as error:
            problems.append(damaged(run, folder, error))
            continue
        except pl.exceptions.PolarsError as error:
            problems.append(damaged(run, folder, FolderError(_reason(error))))
            continue
        other = check_policy(run, path, rows)
        problems += other
        frames += [] if other else [rows]
    return frames, problems


class _Unusable(Exception):
    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def run_row(entry: Entry, settings: Settings | None, provenance: dict[str, Any], state: str) -> dict[str, Any]:
    versions = provenance.get("versions")
    return {
        **{name: getattr(entry, name) for name in ("id", "task", "method", "variant", "seed", "protocol")},
        **(vars(settings) if settings else dict.fromkeys(vars(Settings)["__dataclass_fields__"])),
        "usable": state == FINISHED,
        "state": state,
        **{name: _in_turn(provenance, name) for name in ("revision", "python", "device", "processor")},
        "versions": json.dumps(versions if isinstance(versions, dict) else {}, sort_keys=True),
        "config": json.dumps(entry.config, sort_keys=True),
    }


def _in_turn(provenance: dict[str, Any], name: str) -> str:
    """What a run was made with, and what it went on with where that was something else."""
    later = provenance.get("resumed")
    parts = [provenance, *(part for part in (later if isinstance(later, list) else []) if isinstance(part, dict))]
    return IN_TURN.join(dict.fromkeys(str(part[name]) for part in parts if name in part))


def _failures(path: Path) -> list[str]:
    """One text for each failed attempt."""
    try:
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    except OSError as error:
        return [f"the record of its failures cannot be read ({error.strerror})"]
    texts = []
    for line in filter(str.strip, lines):
        try:
            failure = json.loads(line)
            texts.append(f"attempt {failure['attempt']}: {failure['error']}")
        except (ValueError, TypeError, KeyError, RecursionError):
            texts.append("a line of the record of its failures is damaged")
    return texts


def _check_status(path: Path, run: str, failures: list[str]) -> None:
    if not (path / "config.json").exists():
        if failures:
            raise _Unusable(FAILED, f"{run} failed and left no run: {failures[-1]}")
        raise _Unusable("missing", f"{run} has not been run: it has no folder with a config.json.")
    status = read_json(path / "status.json") if (path / "status.json").exists() else {"state": RUNNING}
    state = status.get("state") if isinstance(status, dict) else None
    if state == FINISHED:
        return
    message = str(status.get("message", "")) if isinstance(status, dict) else ""
    known = {RUNNING: "has not finished", DIVERGED: "diverged", FAILED: "failed"}
    if not isinstance(state, str) or state not in known:
        raise _Unusable("damaged", f"{run} is not used: its status.json does not say what state it is in.")
    reason = message or (failures[-1] if failures else "")
    raise _Unusable(state, f"{run} {known[state]}{': ' + reason if reason else '.'}")


def _check_identity(path: Path, entry: Entry) -> dict[str, Any]:
    """The run folder is the study entry's: method, settings and protocol. Returns its provenance."""
    stored, provenance = read_json(path / "config.json"), read_json(path / "provenance.json")
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or not isinstance(provenance, dict):
        raise ValueError("its config.json or provenance.json is of another version, or changed since")
    if stored.get("method") != entry.method:
        raise ValueError(f"its folder holds a run of {stored.get('method')!r}, not of {entry.method!r}")
    if digest(stored.get("config")) != digest(entry.config):
        raise ValueError("the settings in its folder are not those in study.json")
    if provenance.get("protocol") != entry.protocol:
        raise ValueError(f"its protocol is {provenance.get('protocol')!r}, the study's is {entry.protocol!r}")
    return provenance


def _query(path: Path, run: str, schema: dict[str, Any], needed: Iterable[str]) -> pl.LazyFrame:
    """The columns of a schema from a Parquet file whose checksum and types hold, read when collected."""
    payload = _checked(path)
    try:
        found = pl.read_parquet_schema(io.BytesIO(payload))
    except Exception as error:
        raise FolderError(f"{path} cannot be read: {_reason(error)}.") from error
    absent = [name for name in needed if name not in found]
    if absent:
        raise FolderError(f"{path} lacks the columns {', '.join(absent)}.")
    for name, kind in schema.items():
        if name in found and not _fits(found[name], kind):
            raise FolderError(f"{path} has a column {name} of type {found[name]}, not {kind}.")
    columns = [(pl.col(n) if n in found else pl.lit(None)).cast(kind).alias(n) for n, kind in schema.items()]
    return pl.scan_parquet(io.BytesIO(payload)).select(pl.lit(run).alias("run"), *columns)


def _collect(queries: list[Query]) -> dict[str, list[pl.DataFrame | str]]:
    """Each run's frames in their order; a text says why one cannot be read. All at once is far quicker than singly."""
    frames: dict[str, list[pl.DataFrame | str]] = {}
    try:
        collected: list[Any] = pl.collect_all([query for _, query in queries])
    except Exception:
        collected = [_collect_one(query) for _, query in queries]
    for (run, _), frame in zip(queries, collected):
        frames.setdefault(run, []).append(frame)
    return frames


def _collect_one(query: pl.LazyFrame) -> pl.DataFrame | str:
    try:
        return query.collect()
    except Exception as error:
        return f"its rows cannot be read ({_reason(error)})"


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _fits(found: Any, wanted: Any) -> bool:
    if wanted in (pl.Boolean, pl.String):
        return bool(found == wanted)
    return bool(found.is_integer()) if wanted == pl.Int64 else bool(found.is_numeric())


def _checked(path: Path) -> bytes:
    """A file whose checksum holds; without one it is refused: a study's files are all written with theirs."""
    try:
        payload = path.read_bytes()
        known = path.with_suffix(".sum").read_text().split()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FolderError(f"{path}, or the checksum beside it, cannot be read: {reason}.") from None
    # Checked before it is parsed: on some damaged files polars ends the whole process.
    if hashlib.blake2b(payload, digest_size=16).hexdigest() not in known:
        raise FolderError(f"{path} is damaged and was not loaded: its checksum does not match its contents.")
    return payload


def read_frame(path: Path) -> pl.DataFrame:
    """A Parquet file whose checksum holds."""
    payload = _checked(path)
    try:
        return pl.read_parquet(io.BytesIO(payload))
    except Exception as error:
        raise FolderError(f"{path} cannot be read: {_reason(error)}.") from error


def _empty(schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(schema=schema)
