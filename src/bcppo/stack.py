"""Releases of what a run is made with. `python -m bcppo.stack` prints those of the simulators, as JSON."""

from __future__ import annotations

import json
import platform
import sys
from functools import cache
from importlib import metadata

SIMULATORS = ("mujoco", "gymnasium")


def python_release() -> str:
    return ".".join(map(str, sys.version_info[:3]))


@cache  # it takes 10 ms to read, and every run of a fleet asks
def release(package: str) -> str:
    """Empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def processor() -> str:
    """What this machine computes with, as Linux names it, and its widest vectors: others may round differently."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    except (OSError, ValueError):
        lines = {}
    facts = {name.strip(): value.strip() for name, value in lines.items()}
    vectors = next((kind for kind in ("avx512f", "avx2", "avx") if kind in facts.get("flags", "").split()), "")
    return ", ".join(filter(None, (facts.get("model name", platform.processor() or platform.machine()), vectors)))


def versions() -> dict[str, str]:
    """Of this process's packages."""
    return {name: release(name) for name in ("bcppo", "numpy", "torch", *SIMULATORS, "scipy")}


if __name__ == "__main__":
    import bcppo.tasks.locomotion
    import bcppo.tasks.navigation.env  # noqa: F401  what a worker needs is there

    print(json.dumps({name: release(name) for name in (*SIMULATORS, "numpy")} | {"python": python_release()}))
