"""The packed form of a study, small enough to publish: study.json and Parquet tables, each with its checksum.

study.json        as in the study folder
runs.parquet      one row a run: state, protocol, provenance, problems
episodes.parquet  every evaluation episode, raw
progress.parquet  the curves, thinned to one row in `every` updates
long_episodes.parquet  every episode of `bcppo study evaluate`, raw; only where there are any
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from bcppo.config import digest
from bcppo.errors import BcppoError, ConfigError
from bcppo.records import FINISHED, FolderError, read_json, write_json, write_rows
from bcppo.report.adding import added, finished
from bcppo.report.entries import Problem, StudyError, read_entries, settings_of
from bcppo.report.load import StudyRecords, assemble, load_study, read_frame, run_row
from bcppo.report.long_rows import EMPTY
from bcppo.report.schema import EVALUATIONS, LONG_EPISODES, PROGRESS

EVERY = 5
"""Updates to a row of a packed curve. 5 divides the paper's rolling windows of 15 and 25 records: those stay exact."""

AVERAGED = ("mean_cost", "sigma_c", "multiplier")
"""Measured anew at each update, so a thinned row holds their mean; the rest are running statistics: the last counts."""

LONG_TABLE = "long_episodes"
_TABLES = ("runs", "episodes", "progress", LONG_TABLE)
PROVENANCE = ("revision", "python", "device", "processor", "versions")


def pack_study(folder: str | Path, out: str | Path, every: int = EVERY, *, add: bool = False) -> StudyRecords:
    """Write the study in `folder` to the folder `out` in its packed form, and return what is packed there now.

    With `add`, runs that are packed in `out` already stay, and those of `folder`, which may be packed too, are put
    beside them; without, nothing is written where `out` has finished runs that `folder` has not. (A pack that cannot
    be read is written anew.)
    """
    folder, out = Path(folder), Path(out)
    out = out.resolve() if out.name in ("", "..") else out  # it is given a name beside its own for a moment
    if every < 1:
        raise ConfigError(f"A packed curve keeps one row in at least 1 update, but {every} was asked for.")
    packed = (folder / "runs.parquet").exists()
    if packed and not add:
        raise StudyError(f"{folder} is packed already; pack the study folder it came from, or add to another (--add).")
    if not (folder / "study.json").exists():
        raise StudyError(f"{folder} holds no study: there is no study.json in it.")
    if out.resolve() == folder.resolve():
        raise StudyError(f"A study is packed into another folder than its own, {folder}.")
    _settle(out)
    if (out / "study.json").exists() and not (out / "runs.parquet").exists():
        raise StudyError(f"{out} holds a study that is not packed; choose another folder.")
    records = load_study(folder)
    if not packed:
        records = replace(records, progress=thin(records.progress, every))
    study, wanted = read_json(folder / "study.json"), finished(records)
    if add and (out / "runs.parquet").exists():
        there = load_packed(out)
        if unread := sorted(_finished_there(out) - finished(there)):
            raise StudyError(f"{out} has runs that cannot be used, {unread[0]} the first of them; nothing was added.")
        wanted |= finished(there)
        study, records = added(there, read_json(out / "study.json"), records, study)
    elif lost := sorted(_finished_there(out) - wanted):
        raise StudyError(
            f"{out} has {len(lost)} finished runs that {folder} has not ({lost[0]} the first of them): add to what is "
            "there (--add), or choose another folder."
        )
    return _written(records, study, out, wanted)


def _finished_there(out: Path) -> set[str]:
    """Runs that were finished when they were packed; none where that cannot be read."""
    try:
        rows = read_frame(out / "runs.parquet") if (out / "runs.parquet").exists() else pl.DataFrame()
        return set(rows.filter(pl.col("state") == FINISHED)["id"]) if rows.height else set()
    except (BcppoError, pl.exceptions.PolarsError):
        return set()


def _written(records: StudyRecords, study: Any, out: Path, wanted: set[str]) -> StudyRecords:
    """What is packed there in the end: written beside it, read again, and then put in its place."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    except OSError as error:
        raise StudyError(f"The folder {out} cannot be made: {error.strerror}.") from error
    try:
        write_json(part / "study.json", study)
        runs = _runs(records, _digest_text((part / "study.json").read_bytes()))
        progress = rounded(records.progress)
        tables = {"runs": runs, "episodes": records.evaluations, "progress": progress, LONG_TABLE: records.long}
        for name, frame in tables.items():
            if frame.height or name != LONG_TABLE:
                write_rows(part / f"{name}.parquet", frame.to_dict())  # type: ignore[arg-type]
        found = load_packed(part)
        if lost := sorted(wanted - finished(found)):
            why = next((problem.sentence for problem in found.problems if problem.run == lost[0]), lost[0])
            raise StudyError(f"Nothing was packed, since together {len(lost)} of these runs would not count: {why}")
        part.chmod(0o755)
        if out.exists():
            out.rename(_before(out))
        part.rename(out)
        _settle(out)
    except OSError as error:
        raise StudyError(f"{out} could not be written: {error.strerror}; what was packed before is intact.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return replace(found, folder=out)


def _before(out: Path) -> Path:
    return out.with_name(f".{out.name}.before")


def _settle(out: Path) -> None:
    """After a pack was put in another's place, or was about to be when the process was killed."""
    before = _before(out)
    if not before.exists():
        return
    if not out.exists():
        before.rename(out)
        return
    for path in before.iterdir():  # what somebody else keeps there
        if path.stem not in _TABLES and path.name != "study.json":
            path.rename(out / path.name)
    shutil.rmtree(before)


def thin(progress: pl.DataFrame, every: int) -> pl.DataFrame:
    """One row in `every` of each run, and its last. `records` says how many updates a row stands for."""
    block = (pl.int_range(pl.len()) // every).over("run")
    columns = [(pl.col(name).mean() if name in AVERAGED else pl.col(name).last()).alias(name) for name in PROGRESS] + [
        pl.col("records").sum()
    ]
    return progress.group_by("run", block.alias("block"), maintain_order=True).agg(columns).drop("block")


def rounded(progress: pl.DataFrame) -> pl.DataFrame:
    """The share of updates with λ > 0 is a figure of the tables; the others are only drawn, for which 7 digits do."""
    drawn = [name for name, kind in PROGRESS.items() if kind == pl.Float64 and name != "multiplier_positive_share"]
    return progress.with_columns(pl.col(drawn).cast(pl.Float32))


def load_packed(folder: Path) -> StudyRecords:
    """Load a packed study; one whose files do not belong together is refused as a whole."""
    name, title, entries, problems = read_entries(folder)
    try:
        stored = read_frame(folder / "runs.parquet")
        episodes = read_frame(folder / "episodes.parquet").select("run", *EVALUATIONS).cast(EVALUATIONS)  # type: ignore[arg-type]
        progress = read_frame(folder / "progress.parquet").select("run", *PROGRESS, "records")
        progress = progress.cast({**PROGRESS, "records": pl.Int64})  # type: ignore[dict-item]
        long = _read_long(folder, stored)
        by_id: dict[str, dict[str, Any]] = {row["id"]: row for row in stored.iter_rows(named=True)}
        study = stored["study"].unique().to_list()
    except (pl.exceptions.PolarsError, KeyError) as error:
        reason = (str(error).splitlines() or ["wrong columns"])[0].rstrip(".")
        raise StudyError(f"The packed study in {folder} cannot be read: {reason}.") from error
    if study != [_digest_text((folder / "study.json").read_bytes())]:
        raise StudyError(f"study.json in {folder} is not the one this study was packed with.")
    rows = []
    for entry in entries:
        row = by_id.get(entry.id)
        if row is None:
            raise StudyError(f"The packed study in {folder} has no row for {entry.id}.")
        provenance = {key: row.get(key, "") for key in PROVENANCE} | {"versions": json.loads(row["versions"])}
        try:
            settings = settings_of(entry)
        except ValueError as error:
            settings, state = None, "mismatch"
            if row["state"] == FINISHED:  # packed by a version that knew these settings
                problems.append(Problem(entry.id, "mismatch", f"{entry.id} is not used: {error}."))
        else:
            state = row["state"]
        rows.append(run_row(entry, settings, provenance, state))
        problems += [Problem(entry.id, *pair) for pair in json.loads(row["problems"])]
    return assemble(folder, (name, title), rows, ([episodes], [progress]), problems, long=[long])


def _read_long(folder: Path, stored: pl.DataFrame) -> pl.DataFrame:
    """Rows of many episodes, as many of each run as runs.parquet says; none in packs from before there were any."""
    path = folder / f"{LONG_TABLE}.parquet"
    rows = read_frame(path).select("run", *LONG_EPISODES) if path.exists() else pl.DataFrame(schema=EMPTY)
    counts = dict(rows.group_by("run").len().iter_rows())
    known = dict(stored.select("id", "long_episodes").iter_rows()) if "long_episodes" in stored.columns else {}
    if counts != {run: count for run, count in known.items() if count}:
        raise StudyError(f"{path.name} in {folder} does not have the episodes this study was packed with.")
    return rows.cast(EMPTY)  # type: ignore[arg-type]


def _runs(records: StudyRecords, study: str) -> pl.DataFrame:
    texts: dict[str, list[tuple[str, str]]] = {}
    for problem in records.problems:
        texts.setdefault(problem.run, []).append((problem.kind, problem.sentence))
    problems = [json.dumps(texts.get(run, [])) for run in records.runs["id"]]
    columns = records.runs.select("id", "state", "protocol", *PROVENANCE)
    counts = dict(records.long.group_by("run").len().iter_rows())
    many = pl.Series([counts.get(run, 0) for run in records.runs["id"]], dtype=pl.Int64)
    return columns.with_columns(
        problems=pl.Series(problems, dtype=pl.String), long_episodes=many, study=pl.lit(study)
    )


def _digest_text(payload: bytes) -> str:
    try:
        return digest(payload.decode())
    except UnicodeDecodeError as error:
        raise FolderError(f"study.json is not whole: {error}.") from None
