"""Safetensors files whose checksum holds; needs neither torch nor a simulator, so that a deployed policy can use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bcppo.errors import FolderError


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors, notes) of a file whose checksum holds."""
    try:
        with safe_open(path, framework="numpy") as file:
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except FileNotFoundError:
        raise FolderError(f"{path} does not exist.") from None
    except (SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        raise FolderError(f"{path} is damaged and was not loaded: {error}.") from error
    if not isinstance(notes, dict) or notes.pop("checksum", None) != checksum(arrays, notes):
        raise FolderError(f"{path} is damaged and was not loaded: its checksum does not match its contents.")
    return arrays, notes


def checksum(arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> str:
    total = hashlib.blake2b(json.dumps(dict(sorted(notes.items()))).encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name}{array.dtype}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()
