"""The run folder: what happened, written so that it can be trusted.

    config.json          method and every setting
    provenance.json      code revision, versions of the stack, protocol identifier, device, processor
    progress.parquet     one row an update
    episodes.parquet     one row a training episode
    evaluations.parquet  one row an evaluation episode
    long_evaluation.parquet  the policy on many more episodes, where it was asked for; see long_evaluation.py
    timings.parquet      seconds by phase: apart, so that equal runs are equal bytes elsewhere
    *.sum                checksum of the Parquet file of that name
    checkpoint.safetensors (and checkpoint.previous.safetensors)
    replay.bin           stored transitions of a run that learns from them, until it is finished; see replay.py
    policy.safetensors   the policy alone, deployable
    status.json          running, finished, diverged or failed, and why

Every file is written beside its place and moved there when it is whole. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from bcppo.config import RunConfig, from_json, protocol_id, to_json
from bcppo.errors import ConfigError, FolderError, unknown_name
from bcppo.stack import processor, python_release, versions
from bcppo.tensors import checksum, read_tensors

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
"""Version of the folder's layout; a folder of another version is refused, not guessed at."""

ROWS = ("progress", "episodes", "evaluations", "timings")
REPLAY = "replay.bin"
_FIRST_FILES = ("config.json", "provenance.json", "status.json", REPLAY, "tensorboard")
"""What a run leaves that ends before its first update."""
_LAST_REMAINS = ("provenance.json", "status.json")
"""What may be left of a run that has no config: `create` was killed before it wrote one, or after it took one away."""
LONG = "long_evaluation"
"""Rows a finished run may get later, of the policy it left."""
POLICY = "policy.safetensors"
RUNNING, FINISHED, DIVERGED, FAILED = "running", "finished", "diverged", "failed"


class FolderBusy(FolderError):
    """A run folder in which another process is at work."""


# --- writing ---


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a file beside `path`, then move it there: readers see the old file or the new one, whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise FolderError(
            f"Could not write {path.name} in {path.parent}: {error.strerror or error}; what was there before is intact."
        ) from error
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, values: Any) -> None:
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda part: _write_bytes(part, text.encode()))


def write_rows(path: Path, columns: Mapping[str, list]) -> None:
    """Columns of equal length → a Parquet file, and its checksum beside it."""
    import polars

    buffer = io.BytesIO()
    polars.DataFrame(columns, strict=False).write_parquet(buffer, compression="zstd", statistics=False)
    payload = buffer.getvalue()
    # Both checksums while the file is replaced: killed in between, whichever is there is known.
    fresh = [_digest(payload)]
    _write_text(path.with_suffix(".sum"), fresh + _known_digests(path))
    write_atomically(path, lambda part: _write_bytes(part, payload))
    _write_text(path.with_suffix(".sum"), fresh)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> None:
    """A safetensors file with text notes and a checksum over both."""
    arrays = {name: np.asarray(array, order="C") for name, array in sorted(tensors.items())}
    text = json.dumps({**notes, "checksum": checksum(arrays, notes)}, sort_keys=True)
    # Under one key, since safetensors writes several in an order of its own that differs from time to time.
    payload = save(arrays, metadata={"notes": text})
    write_atomically(path, lambda part: _write_bytes(part, payload))


def _write_bytes(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)


def _write_text(path: Path, lines: list[str]) -> None:
    write_atomically(path, lambda part: _write_bytes(part, "".join(f"{line}\n" for line in lines).encode()))


def _digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def _known_digests(path: Path) -> list[str]:
    """What the checksum file beside a Parquet file says it may hold; nothing where there is none."""
    try:
        return path.with_suffix(".sum").read_text().split()
    except OSError:
        return []
    except ValueError as error:
        raise FolderError(f"{path.with_suffix('.sum')} is damaged.") from error


# --- reading ---


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FolderError(f"{path} is not whole: {error}.") from error


def read_rows(path: Path) -> dict[str, list]:
    """The columns of a Parquet file whose checksum holds (where there is one: a file may have been copied alone)."""
    import polars

    try:
        payload, known = path.read_bytes(), _known_digests(path)
        # Checked first: on some damaged files polars ends the whole process.
        if known and _digest(payload) not in known:
            raise FolderError(f"{path} is damaged and was not loaded: its checksum does not match its contents.")
        return polars.read_parquet(io.BytesIO(payload)).to_dict(as_series=False)
    except FolderError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise FolderError(f"{path} cannot be read: {reason}.") from error


def policy_digest(folder: Path) -> str:
    """What tells a run's policy file from any other; empty where there is none."""
    try:
        return _digest((folder / POLICY).read_bytes())
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise FolderError(f"{folder / POLICY} cannot be read: {error.strerror}.") from error


def _is_part(path: Path) -> bool:
    """Whether it is a file of `write_atomically`'s that never became whole."""
    return path.name.startswith(".") and path.suffix == ".part"


def _is_whole(path: Path) -> bool:
    try:
        read_tensors(path)
    except FolderError:
        return False
    return True


# --- the folder ---

Checkpoint = tuple[dict[str, np.ndarray], dict[str, str]]
"""Tensors by name, and what is said beside them."""


class RunFolder:
    """One run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def exists(self) -> bool:
        return (self / "config.json").exists()

    @property
    def came_to_nothing(self) -> bool:
        """Whether a run was begun here that ended before its first update: then there is nothing to go on from.

        A fleet's run that waits for its turn has no status yet.
        """
        begun = self.exists and (self / "status.json").exists() and self.status()["state"] in (RUNNING, FAILED)
        return begun and all(path.name in _FIRST_FILES or _is_part(path) for path in self.path.iterdir())

    def create(self, method: str, config: RunConfig, device: str, notes: Mapping[str, Any] | None = None) -> None:
        """Begin a run in a folder that holds no other, or one that came to nothing."""
        if self.exists and not self.came_to_nothing:
            raise FolderError(
                f"{self.path} already holds another run; choose another folder, or go on by `bcppo resume {self.path}`."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(f"The folder {self.path} cannot be made: {error.strerror}.") from error
        with self.locked():
            found = list(self.path.iterdir())
            if not (self.came_to_nothing or all(path.name in _LAST_REMAINS or _is_part(path) for path in found)):
                raise FolderError(f"{self.path} already holds other files; choose another folder.")
            # Killed on the way, this leaves a run that came to nothing or, without its config, the last remains of one.
            for path in sorted(found, key=lambda path: (path.name in _LAST_REMAINS, path.name == "config.json")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            write_json(self / "provenance.json", provenance(method, config, device) | dict(notes or {}))
            write_json(self / "config.json", {"format": FORMAT, "method": method, "config": to_json(config)})

    def went_on(self, step: int, device: str, notes: Mapping[str, Any] | None = None) -> None:
        """Where a run goes on by other means than it was begun with, the record says from which step and by which."""
        stored = read_json(self / "provenance.json")
        last = dict(stored)
        for later in stored.get("resumed", []):
            last |= later
        means = surroundings(device) | dict(notes or {})
        changed = {name: value for name, value in means.items() if value != last.get(name)}
        if changed:
            resumed = [*stored.get("resumed", []), {"step": step, **changed}]
            write_json(self / "provenance.json", stored | {"resumed": resumed})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While one process works on the folder, no other does; the lock ends with its process, however that ends."""
        if fcntl is None:
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderBusy(f"Another process is at work in {self.path}; wait for it, or end it first.") from None
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(folder)

    def load_config(self, config_kinds: Mapping[str, type[RunConfig]]) -> tuple[str, RunConfig]:
        """(method, config) of the run in this folder."""
        if not self.exists:
            raise FolderError(f"{self.path} holds no run: there is no config.json in it.")
        stored = read_json(self / "config.json")
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise FolderError(f"{self.path} was written by another version of this library, or changed since.")
        method = str(stored.get("method"))
        if method not in config_kinds:
            raise unknown_name("method", method, config_kinds)
        try:
            return method, from_json(config_kinds[method], stored.get("config", {}))
        except ConfigError as error:
            raise FolderError(f"{self / 'config.json'} cannot be used: {error}") from error

    def set_status(self, state: str, message: str = "") -> None:
        write_json(self / "status.json", {"state": state, "message": message})

    def status(self) -> dict[str, str]:
        """{"state": …, "message": …}; running where nothing was written yet."""
        if not (self / "status.json").exists():
            return {"state": RUNNING, "message": ""}
        status = read_json(self / "status.json")
        if not (isinstance(status, dict) and {"state", "message"} <= set(status)):
            raise FolderError(f"{self / 'status.json'} does not say what state the run is in.")
        return status

    def write_rows(self, name: str, columns: Mapping[str, list]) -> None:
        write_rows(self / f"{name}.parquet", columns)

    def read_rows(self, name: str) -> dict[str, list]:
        path = self / f"{name}.parquet"
        return read_rows(path) if path.exists() else {}

    def save_checkpoint(self, tensors: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> None:
        """Write a checkpoint, keeping the one before it."""
        write_tensors(self._checkpoint("next"), tensors, notes)
        self._advance_checkpoints()

    def load_checkpoint(self, warn: Callable[[str], None], *, previous: bool = False) -> Checkpoint | None:
        """The newest checkpoint that is whole; says so where a newer one is damaged. None before the first.

        With `previous` the one before it, in a folder that was tidied.
        """
        trouble = []
        for kind in ("previous",) if previous else ("next", "", "previous"):
            path = self._checkpoint(kind)
            if not path.exists():
                continue
            try:
                loaded = read_tensors(path)
            except FolderError as error:
                trouble.append(str(error))
                continue
            for sentence in trouble:
                warn(f"{sentence} Going on from {path.name}.")
            return loaded
        if trouble:
            raise FolderError(f"No checkpoint of this run is whole, so it cannot go on: {trouble[0]}")
        return None

    def tidy(self) -> None:
        """Before a run goes on: the checkpoint it goes on from in its place, damaged ones and half-written files not.

        So the next checkpoint does not push out a good one in favour of a damaged one, and in the end the folder of a
        run that was killed holds the same as any other.
        """
        for part in self.path.glob(".*.part"):
            part.unlink(missing_ok=True)
        for kind in ("next", "", "previous"):
            path = self._checkpoint(kind)
            if path.exists() and not _is_whole(path):
                path.replace(self._checkpoint("damaged"))
        if self._checkpoint("next").exists():
            self._advance_checkpoints()
        elif not self._checkpoint().exists() and self._checkpoint("previous").exists():
            self._checkpoint("previous").replace(self._checkpoint())

    def go_back(self) -> None:
        """From now on the newest checkpoint is the one before it, in a folder that was tidied."""
        self._checkpoint("previous").replace(self._checkpoint())

    def _checkpoint(self, kind: str = "") -> Path:
        return self / (f"checkpoint.{kind}.safetensors" if kind else "checkpoint.safetensors")

    def _advance_checkpoints(self) -> None:
        """next → checkpoint → previous; killed in between, `load_checkpoint` still finds the newest."""
        if self._checkpoint().exists():
            self._checkpoint().replace(self._checkpoint("previous"))
        self._checkpoint("next").replace(self._checkpoint())


# --- provenance ---


def provenance(method: str, config: RunConfig, device: str) -> dict[str, Any]:
    """Where a run comes from; nothing in it changes a result."""
    return {"protocol": protocol_id(method, config), **surroundings(device)}


def surroundings(device: str) -> dict[str, Any]:
    """What this process computes with."""
    return {
        "revision": revision(),
        "python": python_release(),
        "device": device,
        "processor": processor(),
        "versions": versions(),
    }


@cache
def revision() -> str:
    """The code's git revision, with a + where it was changed since; outside a checkout what BCPPO_REVISION says."""
    folder = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in folder.parents):
        return os.environ.get("BCPPO_REVISION", "")
    try:
        head = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip()
