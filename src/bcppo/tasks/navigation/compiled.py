"""Getting at compiled code: our own kernel, and the MuJoCo library behind its Python bindings."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

import mujoco


def load_kernel():
    """The compiled kernel, or None: not built, switched off, or on a platform whose pointers it does not fit."""
    if os.environ.get("BCPPO_PURE_PYTHON", "") not in ("", "0") or sys.maxsize < 2**32:
        return None
    try:
        from bcppo.tasks.navigation import _kernel  # type: ignore[attr-defined]

        mujoco_library()
    except (ImportError, OSError):
        return None
    return _kernel if hasattr(_kernel, "look") else None  # one that an older source left behind is none


@functools.cache
def mujoco_library() -> ctypes.CDLL:
    """The MuJoCo library the Python bindings already loaded."""
    folder = Path(mujoco.__file__).parent
    for pattern in ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll"):
        for path in sorted(folder.glob(pattern)):
            return ctypes.CDLL(str(path))
    raise OSError("MuJoCo's shared library is not beside its Python package.")
