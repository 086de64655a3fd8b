"""The examples in the documentation of the tasks run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("code", blocks("tasks.md"))
def test_examples_run(code, capsys):
    exec(compile(code, "docs/tasks.md", "exec"), {})
    printed = re.findall(r"print\(.*\)  # (.*)", code)
    assert capsys.readouterr().out.splitlines() == printed
