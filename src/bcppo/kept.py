"""Kept runs: what the diagnostics read of a run folder, at a third of a checkpoint's size, with hashes.

    networks.json             SHA-256 and bytes of every file of every run below
    RUN/config.json, provenance.json, status.json, policy.safetensors, evaluations.parquet   as in the run folder
    RUN/progress.parquet      of every update, the columns the diagnostics read
    RUN/networks.safetensors  networks and controller by the checkpoint's names, without padding and optimisers; the
                              policy only where there is no policy.safetensors that says the same
    RUN/networks.safetensors.xz   the same file in its place, compressed

`bcppo.diagnostics.keep` writes them; this reads them, without torch. A kept run cannot be resumed.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bcppo.errors import FolderError
from bcppo.records import POLICY, read_json
from bcppo.tensors import read_tensors

FORMAT = 1
MANIFEST = "networks.json"
NETWORKS = "networks.safetensors"
COMPRESSED = f"{NETWORKS}.xz"
COPIED = ("config.json", "provenance.json", "status.json", POLICY, "evaluations.parquet", "evaluations.sum")
READ = (*COPIED, "progress.parquet", "progress.sum", NETWORKS, COMPRESSED)
"""What a kept run may hold; anything else there, such as an exported policy, is no part of it."""

Files = dict[str, dict[str, Any]]
"""RUN/FILE → {"sha256": …, "bytes": …}"""


def is_kept(folder: Path) -> bool:
    """Whether a folder is a kept run, whole or not, rather than a run folder."""
    return any((folder / name).exists() for name in (NETWORKS, COMPRESSED)) or bool(_own_files(folder))


def refuse_kept(folder: Path) -> None:
    """Refuse to go on with a kept run."""
    if is_kept(folder):
        raise FolderError(
            f"{folder} keeps a run's networks for analysis, without its optimisers and random streams: it cannot go "
            "on; resume the run folder it was kept from."
        )


def check_kept(folder: Path) -> None:
    """Refuse a kept run that is not, to the byte, what its manifest says; a run folder passes."""
    if not is_kept(folder):
        return
    own = _own_files(folder)
    if not own:
        raise FolderError(f"{folder} keeps a run's networks, but no {MANIFEST} beside it has their hashes.")
    for name in READ:
        if name not in own and (folder / name).exists():
            raise FolderError(f"{folder / name} was put there since: it is not in {MANIFEST}.")
    for name, known in own.items():
        path = folder / name
        try:
            payload = path.read_bytes()
        except OSError as error:
            raise FolderError(f"{path} cannot be read: {error.strerror}.") from error
        if len(payload) != known["bytes"]:
            raise FolderError(f"{path} has {len(payload):,} bytes, but {known['bytes']:,} were kept.")
        if hashlib.sha256(payload).hexdigest() != known["sha256"]:
            raise FolderError(f"{path} is not the file that was kept: its SHA-256 is not the one in {MANIFEST}.")


def read_manifest(folder: Path) -> Files:
    """The files of the runs kept in a folder; none where it has no manifest."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    stored = read_json(path)
    files = stored.get("files") if isinstance(stored, dict) and stored.get("format") == FORMAT else None
    if not isinstance(files, dict) or not all(_is_entry(known) for known in files.values()):
        raise FolderError(f"{path} is no list of kept files, or one of another version.")
    return files


def describe(folder: Path) -> Files:
    """FILE → SHA-256 and bytes, of a folder's files."""
    payloads = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {
        name: {"sha256": hashlib.sha256(payload).hexdigest(), "bytes": len(payload)}
        for name, payload in payloads.items()
    }


def read_networks(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors by the checkpoint's names, notes) of a kept run, the policy among them."""
    plain = folder / NETWORKS
    tensors, notes = read_tensors(plain) if plain.exists() else _read_compressed(folder / COMPRESSED)
    if notes.get("format") != str(FORMAT):
        raise FolderError(f"The networks in {folder} were kept by another version of this library.")
    if notes.get("policy") == POLICY:
        tensors = policy_parts(read_tensors(folder / POLICY)[0]) | tensors
    return tensors, notes


def compress(payload: bytes) -> bytes:
    """As xz; told that numbers are 4 bytes wide, it leaves out what is alike in their signs and exponents."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 2, "lp": 2, "pb": 2}]
    return lzma.compress(payload, format=lzma.FORMAT_XZ, filters=filters)


def policy_parts(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A policy file's layers and log-std as a checkpoint names and shapes them: [1, in, out], [1, out], [act]."""
    return {
        f"policy.parameter.{name}": array if name == "log_std" else array[None]
        for name, array in tensors.items()
        if name == "log_std" or name.removeprefix("weight").removeprefix("bias").isdigit()
    }


def _read_compressed(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    try:
        payload = lzma.decompress(path.read_bytes(), format=lzma.FORMAT_XZ)
    except (OSError, lzma.LZMAError) as error:
        raise FolderError(f"{path} is damaged and was not loaded: {error}.") from error
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / NETWORKS
        plain.write_bytes(payload)
        try:
            return read_tensors(plain)
        except FolderError as error:
            raise FolderError(str(error).replace(str(plain), str(path))) from error


def _own_files(folder: Path) -> Files:
    """The manifest's files of one kept run, by name."""
    folder = Path(os.path.abspath(folder))
    prefix = f"{folder.name}/"
    files = read_manifest(folder.parent)
    return {name.removeprefix(prefix): known for name, known in files.items() if name.startswith(prefix)}


def _is_entry(known: Any) -> bool:
    return isinstance(known, dict) and isinstance(known.get("sha256"), str) and isinstance(known.get("bytes"), int)
