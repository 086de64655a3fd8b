"""`bcppo keep`: run folders → kept runs; `bcppo.kept` says what those hold."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bcppo.diagnostics.runs import Found, find_runs
from bcppo.errors import BcppoError, FolderError
from bcppo.kept import (
    COMPRESSED,
    COPIED,
    FORMAT,
    MANIFEST,
    NETWORKS,
    POLICY,
    READ,
    compress,
    describe,
    is_kept,
    policy_parts,
    read_manifest,
    read_networks,
)
from bcppo.records import RunFolder, read_json, write_json, write_rows, write_tensors
from bcppo.tensors import read_tensors

PROGRESS = ("update", "step", "multiplier", "mean_cost")
"""The columns of progress.parquet that diagnostics read, and the one a report counts by."""


@dataclass(frozen=True)
class Kept:
    """A run that is kept now."""

    folder: Path
    size: int
    """Bytes of all its files."""


def keep(
    runs: Sequence[str | Path], out: str | Path, *, compressed: bool = False, reward_value: bool = True
) -> list[Kept]:
    """Keep runs (run folders, folders of them, studies' folders) in `out`, beside those that are there. Runs that were
    kept elsewhere are taken over as they are, once their hashes are seen to hold.

    `compressed` writes the networks as xz. Without `reward_value`, V_r is left out: one actor update, which
    `intervention` and a check of `theory` take, is then not to be had of these runs; all else is.
    """
    found, out = find_runs(runs), Path(out)
    names = [run.folder.path.resolve().name for run in found]
    for name in names:
        if names.count(name) > 1:
            raise FolderError(f"Two of the runs are named {name}; keep them in different folders.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"The folder {out} cannot be made: {error.strerror}.") from error
    with RunFolder(out).locked():
        for part in out.glob(".*.part"):  # of a command that was killed
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        return [_keep_one(run, out, name, compressed, reward_value) for run, name in zip(found, names)]


def _keep_one(run: Found, out: Path, name: str, compressed: bool, reward_value: bool) -> Kept:
    part = out / f".{name}.part"
    part.mkdir()
    try:
        try:
            _fill(part, run, compressed, reward_value)
        except BcppoError as error:
            raise FolderError(f"{run.folder.path} cannot be kept: {error}") from error
        except OSError as error:
            raise FolderError(f"{name} could not be written in {out}: {error.strerror or error}.") from error
        _place(part, out, name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Kept(out / name, sum(file.stat().st_size for file in (out / name).iterdir()))


def _fill(part: Path, run: Found, compressed: bool, reward_value: bool) -> None:
    from bcppo.diagnostics.measure.checkpoints import restore
    from bcppo.diagnostics.measure.networks import take_networks

    if is_kept(run.folder.path):
        _take_over(part, run.folder.path, compressed, reward_value)
        return
    read_json(run.folder / "provenance.json")
    run.folder.read_rows("evaluations")
    for name in COPIED:
        if (run.folder / name).exists():
            (part / name).write_bytes((run.folder / name).read_bytes())
    rows = run.folder.read_rows("progress")
    write_rows(part / "progress.parquet", {name: rows[name] for name in PROGRESS if name in rows})
    learner = restore(run).learner
    reward_value = reward_value or "values" not in learner.optimizers()
    tensors = take_networks(learner, reward_value=reward_value)
    notes = {"format": str(FORMAT), "reward_value": "kept" if reward_value else "left out"}
    if (part / POLICY).exists():
        policy = policy_parts(read_tensors(part / POLICY)[0])
        own = {name: array for name, array in tensors.items() if name.startswith("policy.")}
        if policy.keys() == own.keys() and all(np.array_equal(policy[name], own[name]) for name in own):
            tensors = {name: array for name, array in tensors.items() if name not in own}
            notes["policy"] = POLICY
    write_tensors(part / NETWORKS, tensors, notes)
    if compressed:
        _compress(part)


def _take_over(part: Path, kept: Path, compressed: bool, reward_value: bool) -> None:
    """A run that was kept elsewhere, as it is."""
    tensors, notes = read_networks(kept)
    has_values = any(name.startswith("values.") for name in tensors)  # methods without V_r have nothing to leave out
    if not reward_value and has_values and notes["reward_value"] == "kept":
        raise FolderError("it was kept with V_r, which is left out only when a run folder is kept.")
    for name in READ:
        if (kept / name).exists():
            (part / name).write_bytes((kept / name).read_bytes())
    if compressed and (part / NETWORKS).exists():
        _compress(part)


def _compress(part: Path) -> None:
    (part / COMPRESSED).write_bytes(compress((part / NETWORKS).read_bytes()))
    (part / NETWORKS).unlink()


def _place(part: Path, out: Path, name: str) -> None:
    """Into the manifest, then to its place: killed in between, the same command ends what it began."""
    target, files = out / name, read_manifest(out)
    own = {f"{name}/{file}": known for file, known in describe(part).items()}
    before = {file: known for file, known in files.items() if file.startswith(f"{name}/")}
    if target.exists():
        if own == before:
            return
        raise FolderError(f"{out} already holds another {name}; keep this one in another folder.")
    files = {file: known for file, known in files.items() if file not in before} | own
    write_json(out / MANIFEST, {"format": FORMAT, "files": files})
    part.replace(target)
