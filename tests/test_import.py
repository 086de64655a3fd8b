"""Importing the package is light: what is heavy waits until it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "mujoco", "scipy", "polars", "matplotlib", "tensorboard", "rich", "tyro", "safetensors")


def modules_after(code: str) -> set[str]:
    """Names of the top-level modules a fresh Python has imported after running some code."""
    script = f"{code}\nimport sys\nprint(' '.join(name for name in sys.modules if '.' not in name))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(result.stdout.split("\n")[-2].split())


def test_importing_the_package_imports_nothing_heavy():
    imported = modules_after("import bcppo")
    assert "bcppo" in imported
    assert imported.isdisjoint(HEAVY)


@pytest.mark.parametrize("task", ["goal1", "hopper"])
def test_simulating_a_task_needs_no_torch(task):
    code = f"import bcppo\nenv = bcppo.make_task('{task}')\nenv.reset(seed=0)\nenv.step(env.action_space.sample())"
    imported = modules_after(code)
    assert "mujoco" in imported
    assert "torch" not in imported


def test_no_module_hides_a_function_of_the_same_name():
    """Importing a submodule makes it an attribute of the package: `bcppo.train` must stay the function."""
    import bcppo

    modules = {path.stem for path in Path(bcppo.__file__).parent.iterdir()}
    assert modules.isdisjoint(bcppo._LATE)


def test_importing_registers_the_nine_navigation_tasks():
    code = (
        "import bcppo, gymnasium\n"
        "print(' '.join(sorted(name for name in gymnasium.registry if name.startswith('bcppo/'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    names = [f"bcppo/SafetyPoint{task}{level}-v0" for task in ("Button", "Goal", "Push") for level in range(3)]
    assert result.stdout.split() == names
