"""The run folder: what happened, written so that it can be trusted.

    config.json          method and every setting
    provenance.json      code revision, versions of the stack, protocol identifier, device
    progress.parquet     one row an update
    episodes.parquet     one row a training episode
    evaluations.parquet  one row an evaluation episode
    timings.parquet      seconds by phase: apart, so that equal runs are equal bytes elsewhere
    checkpoint.safetensors (and checkpoint.previous.safetensors)
    policy.safetensors   the policy alone, deployable
    status.json          running, finished, diverged or failed, and why

Every file is written beside its place and moved there when it is whole. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bcppo.config import RunConfig, from_json, protocol_id, to_json
from bcppo.errors import BcppoError, unknown_name

FORMAT = 1
"""Version of the folder's layout; a folder of another version is refused, not guessed at."""

ROWS = ("progress", "episodes", "evaluations", "timings")
RUNNING, FINISHED, DIVERGED, FAILED = "running", "finished", "diverged", "failed"


class FolderError(BcppoError):
    """A run folder that is not what was asked for."""


# --- writing -----------------------------------------------------------------------------------------------------------


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
    """Columns of equal length → a Parquet file."""
    import polars

    frame = polars.DataFrame(columns, strict=False)
    write_atomically(path, lambda part: _write_parquet(frame, part))


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> None:
    """A safetensors file with text notes and a checksum over both."""
    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(tensors.items())}
    notes = dict(notes)
    notes["checksum"] = _checksum(arrays, notes)
    payload = save(arrays, metadata=notes)
    write_atomically(path, lambda part: _write_bytes(part, payload))


def _write_bytes(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)


def _write_parquet(frame, path: Path) -> None:
    try:
        frame.write_parquet(path, compression="zstd", statistics=False)
    except OSError:
        raise
    except Exception as error:  # polars reports a full disk under a type of its own
        raise OSError(str(error)) from error


# --- reading -----------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FolderError(f"{path} is not whole: {error}.") from error


def read_rows(path: Path) -> dict[str, list]:
    import polars

    try:
        return polars.read_parquet(path, glob=False).to_dict(as_series=False)
    except Exception as error:
        raise FolderError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors, notes) of a file whose checksum holds."""
    try:
        with safe_open(path, framework="numpy") as file:
            notes = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except FileNotFoundError:
        raise FolderError(f"{path} does not exist.") from None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise FolderError(f"{path} is damaged and was not loaded: {error}") from error
    expected = notes.pop("checksum", None)
    if expected != _checksum(arrays, notes):
        raise FolderError(f"{path} is damaged and was not loaded: its checksum does not match its contents.")
    return arrays, notes


def _checksum(arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> str:
    total = hashlib.blake2b(json.dumps(dict(sorted(notes.items()))).encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name}{array.dtype}{array.shape}".encode())
        total.update(memoryview(array).cast("B") if array.size else b"")
    return total.hexdigest()


# --- the folder --------------------------------------------------------------------------------------------------------


class RunFolder:
    """One run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def exists(self) -> bool:
        return (self / "config.json").exists()

    def create(self, method: str, config: RunConfig, device: str, notes: Mapping[str, Any] | None = None) -> None:
        """Begin a run in a folder that holds no other."""
        if self.path.exists() and any(self.path.iterdir()):
            what = "another run" if self.exists else "other files"
            raise FolderError(
                f"{self.path} already holds {what}; choose another folder, or go on with `bcppo resume {self.path}`."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(f"The folder {self.path} cannot be made: {error.strerror}.") from error
        write_json(self / "provenance.json", provenance(method, config, device) | dict(notes or {}))
        write_json(self / "config.json", {"format": FORMAT, "method": method, "config": to_json(config)})

    def load_config(self, config_kinds: Mapping[str, type[RunConfig]]) -> tuple[str, RunConfig]:
        """(method, config) of the run in this folder."""
        if not self.exists:
            raise FolderError(f"{self.path} holds no run: there is no config.json in it.")
        stored = read_json(self / "config.json")
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise FolderError(f"{self.path} was written by another version of this library and cannot be used by this one.")
        method = stored.get("method")
        if method not in config_kinds:
            raise unknown_name("method", method, config_kinds)
        return method, from_json(config_kinds[method], stored["config"])

    def set_status(self, state: str, message: str = "") -> None:
        write_json(self / "status.json", {"state": state, "message": message})

    def status(self) -> dict[str, str]:
        return read_json(self / "status.json") if (self / "status.json").exists() else {"state": RUNNING, "message": ""}

    def write_rows(self, name: str, columns: Mapping[str, list]) -> None:
        write_rows(self / f"{name}.parquet", columns)

    def read_rows(self, name: str) -> dict[str, list]:
        path = self / f"{name}.parquet"
        return read_rows(path) if path.exists() else {}

    def save_checkpoint(self, tensors: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> None:
        """Write a checkpoint, keeping the one before it."""
        path = self / "checkpoint.safetensors"
        fresh = self / "checkpoint.next.safetensors"
        write_tensors(fresh, tensors, notes)
        if path.exists():
            path.replace(self / "checkpoint.previous.safetensors")
        fresh.replace(path)

    def load_checkpoint(self, warn: Callable[[str], None]) -> tuple[dict[str, np.ndarray], dict[str, str]] | None:
        """The newest checkpoint that is whole; says so where a newer one is damaged. None before the first."""
        trouble = []
        for name in ("checkpoint.next", "checkpoint", "checkpoint.previous"):
            path = self / f"{name}.safetensors"
            if not path.exists():
                continue
            try:
                loaded = read_tensors(path)
            except FolderError as error:
                trouble.append(str(error))
                continue
            for sentence in trouble:
                warn(f"{sentence}; going on from {path.name}.")
            return loaded
        if trouble:
            raise FolderError(f"No checkpoint of this run is whole. {trouble[0]}")
        return None


# --- provenance --------------------------------------------------------------------------------------------------------


def provenance(method: str, config: RunConfig, device: str) -> dict[str, Any]:
    """Where a run comes from; nothing in it changes a result."""
    return {
        "protocol": protocol_id(method, config),
        "revision": revision(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "device": device,
        "versions": {name: _version(name) for name in ("bcppo", "numpy", "torch", "mujoco", "gymnasium", "scipy")},
    }


@cache
def revision() -> str:
    """The code's git revision, with a + where it was changed since; empty outside a checkout."""
    folder = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in folder.parents):
        return ""
    try:
        head = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
