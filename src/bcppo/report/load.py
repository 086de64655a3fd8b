"""A study's records → frames. What cannot be trusted is named in one sentence and left out; the rest stands.

Two forms give the same frames: a folder of run folders as a study leaves them, and the packed form that is published
(see pack.py).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bcppo.config import EVAL_FIRST_SEED, digest
from bcppo.records import DIVERGED, FAILED, FINISHED, FORMAT, RUNNING, FolderError, read_json
from bcppo.report.entries import Entry, Problem, Settings, read_entries, settings_of

EVALUATIONS = {
    "step": pl.Int64, "final": pl.Boolean, "stochastic": pl.Boolean, "episode_seed": pl.Int64,
    "episode_return": pl.Float64, "cost_rate": pl.Float64, "native_cost": pl.Float64, "boundary_hits": pl.Float64,
    "length": pl.Int64,
}  # fmt: skip
"""One row an evaluation episode: cost_rate is the mean cost per step, native_cost and boundary_hits are sums."""

PROGRESS = {
    "update": pl.Int64, "step": pl.Int64, "episode_return": pl.Float64, "episode_cost_rate": pl.Float64,
    "cost_cvar95": pl.Float64, "mean_cost": pl.Float64, "sigma_c": pl.Float64, "multiplier": pl.Float64,
    "multiplier_positive_share": pl.Float64,
}  # fmt: skip
"""One row an update. A method without a critic ensemble has no sigma_c; the column is null there."""

PROGRESS_NEEDED = ("update", "step")
Query = tuple[str, pl.LazyFrame]
"""A run's id, and rows of it."""

MEASURED = ("episode_return", "cost_rate", "native_cost", "boundary_hits")

RUNS = {
    "id": pl.String, "task": pl.String, "method": pl.String, "variant": pl.String, "seed": pl.Int64,
    "protocol": pl.String, "steps": pl.Int64, "eval_episodes": pl.Int64, "limit_rate": pl.Float64, "paper": pl.String,
    "differs": pl.String, "usable": pl.Boolean, "state": pl.String, "revision": pl.String, "python": pl.String,
    "device": pl.String, "versions": pl.String, "config": pl.String,
}  # fmt: skip
"""One row a run of the study, usable or not. `state` is finished, or the kind of the problem."""


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

    @property
    def episodes(self) -> pl.DataFrame:
        """The final evaluation episodes: what every table is computed from."""
        return self.evaluations.filter("final")

    @property
    def seeds(self) -> list[int]:
        """All training seeds of the study: a cell that lacks one is incomplete."""
        return sorted(self.runs["seed"].unique().to_list())


def load_study(folder: str | Path) -> StudyRecords:
    """Load a study from its folder, packed or not."""
    folder = Path(folder)
    if (folder / "runs.parquet").exists():
        from bcppo.report.pack import load_packed

        return load_packed(folder)
    name, title, entries, problems = read_entries(folder)
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
    return assemble(folder, (name, title), rows, (evaluations, progress), problems)


def assemble(
    folder: Path,
    names: tuple[str, str],
    rows: list[dict[str, Any]],
    frames: tuple[list[pl.DataFrame], list[pl.DataFrame]],
    problems: list[Problem],
) -> StudyRecords:
    """Rows of runs, and their frames of evaluations and of progress → the study, after the checks across runs."""
    evaluations, progress = frames
    runs = pl.DataFrame(rows, schema=RUNS)
    all_evaluations = pl.concat([_empty({"run": pl.String, **EVALUATIONS}), *evaluations])
    all_progress = pl.concat([_empty({"run": pl.String, **PROGRESS, "records": pl.Int64}), *progress])
    bad = _check_values(runs.filter("usable"), all_evaluations, all_progress)
    bad += _check_copies(runs, all_evaluations, {problem.run for problem in bad})
    bad += _check_protocols(runs.filter(pl.col("usable") & ~pl.col("id").is_in([problem.run for problem in bad])))
    kinds = {problem.run: problem.kind for problem in bad}
    state = pl.col("id").replace_strict(kinds, default=pl.col("state"), return_dtype=pl.String)
    runs = runs.with_columns(state=state, usable=pl.col("usable") & ~pl.col("id").is_in(list(kinds)))
    good = runs.filter("usable").select(run="id")
    mixed = _mixed_provenance(runs.filter("usable"))
    return StudyRecords(
        folder=folder,
        name=names[0],
        title=names[1],
        runs=runs,
        evaluations=all_evaluations.join(good, on="run", how="semi", maintain_order="left"),
        progress=all_progress.join(good, on="run", how="semi", maintain_order="left"),
        problems=(*problems, *bad, *mixed),
    )


# --- one run ---


def _load_run(folder: Path, entry: Entry) -> tuple[dict, list[Query], list[Problem]]:
    """(the run's row; queries of its evaluations and its progress, none where they cannot be trusted; problems)"""
    path = folder / "runs" / entry.id
    failures = _failures(folder / "runs" / f"{entry.id}.failures.jsonl")
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
        **{name: str(provenance.get(name, "")) for name in ("revision", "python", "device")},
        "versions": json.dumps(versions if isinstance(versions, dict) else {}, sort_keys=True),
        "config": json.dumps(entry.config, sort_keys=True),
    }


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
    if wanted == pl.Boolean:
        return found == pl.Boolean
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


# --- all runs ---


def _check_values(runs: pl.DataFrame, evaluations: pl.DataFrame, progress: pl.DataFrame) -> list[Problem]:
    """What a run's own rows must hold: finite numbers, exactly the protocol's episodes, updates to the end."""
    measured = [pl.col(name) for name in MEASURED]
    finite = pl.all_horizontal(column.is_finite() for column in measured)
    whole = pl.all_horizontal(pl.col(name).is_not_null() for name in EVALUATIONS)
    sound = finite.fill_null(False) & whole & (pl.col("length") >= 1).fill_null(False)
    by_run = evaluations.group_by("run").agg(
        sound=sound.all(),
        deterministic=(~pl.col("stochastic")).filter("final").all(),
        seeds=pl.col("episode_seed").filter("final").sort(),
        end=pl.col("step").filter("final").unique(),
    )
    updates = progress.group_by("run").agg(
        reached=pl.col("step").max(),
        ordered=(pl.col("step").diff().fill_null(1) > 0).all() & (pl.col("update").diff().fill_null(1) > 0).all(),
        updates_finite=pl.all_horizontal(
            pl.col(name).fill_null(0.0).is_finite() for name in ("mean_cost", "sigma_c", "multiplier")
        ).all(),
    )
    table = runs.select(run="id", steps="steps", eval_episodes="eval_episodes")
    table = table.join(by_run, on="run", how="left").join(updates, on="run", how="left")
    problems = []
    for row in table.iter_rows(named=True):
        reason = _unsound(row)
        if reason:
            problems.append(Problem(row["run"], "damaged", f"{row['run']} is not used: {reason}."))
    return problems


def _unsound(row: dict[str, Any]) -> str:
    """What is wrong with a run's rows; empty where nothing is."""
    if row["sound"] is None or row["reached"] is None:
        return "it has no evaluation episodes or no updates on record"
    if not row["sound"]:
        return "an evaluation episode has a value that is missing or not finite"
    if not row["updates_finite"] or not row["ordered"]:
        return "its updates are out of order or hold a number that is not finite"
    return _not_the_protocol(row)


def _not_the_protocol(row: dict[str, Any]) -> str:
    if not row["deterministic"]:
        return "its final evaluation has sampled actions, not deterministic ones"
    count = row["eval_episodes"]
    if row["seeds"] != list(range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + count)):
        last = EVAL_FIRST_SEED + count - 1
        return f"its final evaluation is not the {count} episodes of seeds {EVAL_FIRST_SEED} to {last}, once each"
    if row["end"] != [row["reached"]] or row["reached"] < row["steps"]:
        return "its final evaluation was not made at the end of its training"
    return ""


def _check_copies(runs: pl.DataFrame, evaluations: pl.DataFrame, skip: set[str]) -> list[Problem]:
    """Runs of one cell with other seeds but the same episodes to the last bit: a file was copied."""
    marks = evaluations.filter("final").group_by("run").agg(mark=pl.struct(MEASURED).hash(seed=0).sort())
    table = runs.filter("usable").join(marks, left_on="id", right_on="run", how="inner")
    seen: dict[tuple, list[str]] = {}
    for row in table.iter_rows(named=True):
        if row["id"] not in skip:
            seen.setdefault((row["task"], row["method"], row["variant"], *row["mark"]), []).append(row["id"])
    return [
        Problem(run, "duplicate", f"{run} has the same episodes as {' and '.join(x for x in group if x != run)}: one "
                "is a copy, so neither is used.")
        for group in seen.values() if len(group) > 1 for run in group
    ]  # fmt: skip


def _check_protocols(runs: pl.DataFrame) -> list[Problem]:
    """Runs of one cell that follow several protocols: the commonest stands, and none where two are as common."""
    problems = []
    for (task, method, variant), group in runs.group_by(["task", "method", "variant"], maintain_order=True):
        counts = group["protocol"].value_counts(sort=True)
        if counts.height < 2:
            continue
        tied = counts["count"][0] == counts["count"][1]
        odd = group if tied else group.filter(pl.col("protocol") != counts["protocol"][0])
        cell = f"{method} on {task}" + (f" ({variant})" if variant else "")
        problems += [
            Problem(run, "mismatch", f"{run} is not used: the runs of {cell} follow {counts.height} protocols.")
            for run in odd["id"]
        ]
    return problems


def _mixed_provenance(runs: pl.DataFrame) -> list[Problem]:
    """Mixed revisions or stacks are no fault, but are said."""
    problems = []
    for column, words in (("revision", "code revisions"), ("versions", "sets of library versions")):
        kinds = runs[column].unique().len()
        if kinds > 1:
            problems.append(Problem("", "mixed", f"The runs come from {kinds} {words}; see Provenance."))
    return problems
