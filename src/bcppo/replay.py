"""Stored transitions on disk: one file that is only ever appended to, without torch.

A checkpoint says how many rows of the file it covers and their checksum. What a killed run wrote beyond its last
checkpoint is cut off by the next append, so a checkpoint costs the rows since the one before it and no more.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bcppo.records import FolderError

CHUNK = 1 << 16
"""Rows read at a time."""


class ReplayFile:
    """Rows of `width` little-endian float32 numbers, oldest first."""

    def __init__(self, path: Path, width: int) -> None:
        self.path, self.rows = path, 0
        self._width, self._row_bytes = width, 4 * width
        self._pending: list[np.ndarray] = []
        self._sum = hashlib.blake2b(digest_size=16)

    def add(self, row: np.ndarray) -> None:
        """A row [width], kept until the next `flush`."""
        self._pending.append(row)

    def flush(self) -> str:
        """Append what was added, for good; what a checkpoint needs to know of it."""
        payload = np.array(self._pending, dtype="<f4").reshape(-1, self._width).tobytes()
        try:
            with self.path.open("r+b" if self.rows else "wb") as file:
                file.truncate(self.rows * self._row_bytes)
                file.seek(0, os.SEEK_END)
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FolderError(
                f"Could not append to {self.path.name} in {self.path.parent}: {error.strerror or error}; "
                "the last checkpoint is intact."
            ) from error
        self.rows += len(self._pending)
        self._sum.update(payload)
        self._pending.clear()
        return json.dumps({"rows": self.rows, "checksum": self._sum.hexdigest()})

    def restore(self, known: str, load: Callable[[int, np.ndarray], None]) -> None:
        """Hand over the rows a checkpoint covers, as load(number of the first, rows [n, width]); go on behind them."""
        noted = json.loads(known)
        try:
            with self.path.open("rb") as file:
                self._read(file, noted["rows"], load)
        except OSError as error:
            raise FolderError(
                f"{self.path} cannot be read: {error.strerror}; without it the run cannot go on."
            ) from error
        if self._sum.hexdigest() != noted["checksum"]:
            raise FolderError(f"{self.path} is damaged and the run cannot go on: its checksum is not the checkpoint's.")
        self.rows = noted["rows"]

    def _read(self, file: BinaryIO, rows: int, load: Callable[[int, np.ndarray], None]) -> None:
        for first in range(0, rows, CHUNK):
            wanted = min(CHUNK, rows - first)
            payload = file.read(wanted * self._row_bytes)
            found = len(payload) // self._row_bytes
            if found < wanted:
                raise FolderError(
                    f"{self.path} is damaged and the run cannot go on: it holds {first + found} of the {rows} "
                    "transitions so far."
                )
            self._sum.update(payload)
            load(first, np.frombuffer(bytearray(payload), dtype="<f4").reshape(wanted, self._width))

    def remove(self) -> None:
        """A run that is done needs its transitions no more."""
        self.path.unlink(missing_ok=True)
