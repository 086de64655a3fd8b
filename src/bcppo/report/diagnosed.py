"""The diagnostics of a study's runs on its page: reports and plots that `bcppo study run diagnostics` left in
STUDY/diagnostics. Only what is written there is shown; nothing is computed."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

from bcppo.diagnostics import SUMMARIES

FOLDER = "diagnostics"


def diagnostics_section(study: Path) -> str:
    """Each diagnostic's tables and plots; empty where none was taken."""
    return "".join(
        _diagnostic(study / FOLDER / name, summary)
        for name, summary in SUMMARIES.items()
        if (study / FOLDER / name / "report.md").exists()
    )


def _diagnostic(folder: Path, summary: str) -> str:
    body = []
    for block in (folder / "report.md").read_text(encoding="utf-8").split("\n\n"):
        image = re.fullmatch(r"!\[(.*)\]\(([a-z0-9-]+\.png)\)\n?", block)
        if image and (folder / image[2]).exists():
            payload = base64.b64encode((folder / image[2]).read_bytes()).decode()
            body.append(f'<img alt="{html.escape(image[1], quote=True)}" src="data:image/png;base64,{payload}">')
        elif block.startswith("|"):
            body.append(_table(block.strip().splitlines()))
        elif not image:
            text = html.escape(block.strip().lstrip("# "))
            body.append(f"<h3>{text}</h3>" if block.startswith("#") else f'<p class="caption">{text}</p>')
    title = html.escape(f"{folder.name}: {summary}")
    return f'<div class="card"><details><summary><b>{title}</b></summary>{"".join(body)}</details></div>'


def _table(lines: list[str]) -> str:
    header, _, *rows = [[html.escape(cell.strip()) for cell in line.strip("|").split("|")] for line in lines]
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
