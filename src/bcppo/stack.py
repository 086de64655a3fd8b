"""Releases of what a run is made with. `python -m bcppo.stack` prints those of the simulators, as JSON."""

from __future__ import annotations

import json
import sys
from importlib import metadata

SIMULATORS = ("mujoco", "gymnasium")


def python_release() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def release(package: str) -> str:
    """Empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Of this process's packages."""
    return {name: release(name) for name in ("bcppo", "numpy", "torch", *SIMULATORS, "scipy")}


if __name__ == "__main__":
    import bcppo.tasks.locomotion
    import bcppo.tasks.navigation.env  # noqa: F401  what a worker needs is there

    print(json.dumps({name: release(name) for name in (*SIMULATORS, "numpy")} | {"python": python_release()}))
