"""The report of a study or of any runs: tables, figures and one HTML page that needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import polars as pl

from bcppo.records import write_atomically
from bcppo.report.canvas import Figure
from bcppo.report.claims import NOT, OPEN, PARTLY, REPRODUCED, Claim, claims_of
from bcppo.report.diagnosed import diagnostics_section
from bcppo.report.entries import StudyError
from bcppo.report.figures import figures_of, write_figures
from bcppo.report.load import StudyRecords, load_study
from bcppo.report.names import OURS, PAPER_METHODS, aside, label
from bcppo.report.pagedata import page_data
from bcppo.report.stats import Statistics, statistics
from bcppo.report.tables import Table, Value, mark, tables_of, to_csv, to_latex, to_markdown

VERDICTS = {REPRODUCED: ("reproduced", "✓"), PARTLY: ("partly", "◐"), NOT: ("not", "✗"), OPEN: ("open", "…")}
SECTIONS = {
    "claims": "Claims", "plot-section": "Reward and tail", "tables": "Tables", "curves-section": "Curves",
    "runs": "Runs", "figures": "Figures", "diagnostics": "Diagnostics", "provenance": "Provenance",
    "problems": "Problems", "commands": "Commands",
}  # fmt: skip


def write_report(study: str | Path, out: str | Path | None = None) -> Path:
    """Write the tables, figures and page of a study, or of the runs in a folder, into `out` (STUDY/report).

    Returns the page.
    """
    study = Path(study)
    return write_records(load_study(study), study / "report" if out is None else Path(out))


def write_records(records: StudyRecords, out: Path) -> Path:
    """The same, of records that are loaded."""
    stats = statistics(records)
    tables, figures = tables_of(records, stats), figures_of(records, stats)
    try:
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"The folder {out} cannot be made: {error.strerror}.") from error
    for table in tables:
        for kind, render in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
            _write(out / "tables" / f"{table.name}.{kind}", render(table))
    images = write_figures(figures, out / "figures")
    page = render_page(records, stats, tables, list(zip(figures, images)))
    _write(out / "report.html", page)
    return out / "report.html"


def _write(path: Path, text: str) -> None:
    def fill(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    write_atomically(path, fill)


def render_page(
    records: StudyRecords, stats: Statistics, tables: Sequence[Table], figures: Sequence[tuple[Figure, Path]]
) -> str:
    """The page. Everything from the records is escaped, and the page's own policy allows no script but its own."""
    data = page_data(records, stats)
    parts = {
        "claims": _claims(claims_of(records, stats)),
        "plot-section": _plot(paper=bool(data["paper"]), ours=any(point["aside"] for point in data["points"])),
        "tables": "".join(map(_table, tables)),
        "curves-section": _curves(data["curves"]),
        "runs": _RUNS,
        "figures": _figures(figures),
        "diagnostics": diagnostics_section(records.folder),
        "provenance": _provenance(records),
        "problems": _problems(records),
        "commands": _commands(records),
    }
    parts = {key: body for key, body in parts.items() if body or key != "diagnostics"}
    style, script = _template("page.css"), _template("page.js")
    sections = "".join(f'<section id="{key}"><h2>{SECTIONS[key]}</h2>{body}</section>' for key, body in parts.items())
    return Template(_template("page.html")).substitute(
        title=html.escape(records.title or records.name or "A study"),
        name=html.escape(f"study {records.name}" if records.planned else records.name),
        facts=_facts(records, stats),
        navigation="".join(f'<a href="#{key}">{SECTIONS[key]}</a>' for key in parts),
        sections=sections,
        data=_script_json(data),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _template(name: str) -> str:
    return resources.files("bcppo.report").joinpath("template", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _script_json(values: object) -> str:
    """JSON that cannot end the script element it stands in, whatever the strings in it say."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- sections ---


def _facts(records: StudyRecords, stats: Statistics) -> str:
    facts = [
        *_run_facts(records.runs),
        (f"{records.episodes.height:,} evaluation episodes", False),
        (f"{stats.cells.height} cells", False),
        (f"{len(records.problems)} problem{'s' * (len(records.problems) != 1)}", bool(records.problems)),
    ]
    return "".join(f"<li{' class=warn' if warn else ''}>{html.escape(text)}</li>" for text, warn in facts)


def _run_facts(runs: pl.DataFrame) -> list[tuple[str, bool]]:
    """How many runs are there of how many, and whether some lack; our own row's are counted by themselves."""
    ours = pl.col("method").is_in(list(aside(runs["method"])))
    counts = [(int(part["usable"].sum()), part.height) for part in (runs.filter(~ours), runs.filter(ours))]
    others = "the paper's methods" if set(runs["method"]) <= {OURS, *PAPER_METHODS} else "the other methods"
    texts = (f" of {others}", f" of {label(OURS)}") if counts[1][1] else ("",)
    return [(f"{usable} of {count} runs{text}", usable < count) for (usable, count), text in zip(counts, texts)]


def _claims(claims: Sequence[Claim]) -> str:
    if not claims:
        return '<p class="lead">The paper makes no claim that these runs could test.</p>'
    counts = Counter(claim.verdict for claim in claims)
    lead = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    cards = []
    for claim in claims:
        kind, sign = VERDICTS[claim.verdict]
        more = "".join(f"<br>{html.escape(text)}" for text in claim.details)
        cards.append(
            f'<article class="card claim"><span class="chip v-{kind}">{sign} {html.escape(claim.verdict)}</span>'
            f"<h3>{html.escape(claim.title)}</h3><dl><dt>paper</dt><dd>{html.escape(claim.paper)}</dd>"
            f"<dt>ours</dt><dd>{html.escape(claim.ours)}</dd></dl>"
            f"<details><summary>rule and details</summary>{html.escape(claim.rule)}{more}</details></article>"
        )
    lead = f'<p class="lead">The paper\'s claims and what this study says to each: {lead}.</p>'
    return f'{lead}<div class="claims">{"".join(cards)}</div>'


def _plot(*, paper: bool, ours: bool) -> str:
    pale = f"a pale one is {label(OURS)}, not in the paper and left out of what dominates; " if ours else ""
    printed = '<button type="button" data-show="paper" aria-pressed="false">paper\'s means</button>' if paper else ""
    return (
        '<p class="lead">Mean Return against mean CVaR@95; upper left is better. Bars are 95 % bootstrap '
        "intervals over "
        f"training seeds; filled markers and the line are not dominated; {pale}dashed is the cost limit. "
        "Hover or tab to a "
        'marker for its numbers.</p><div class="card"><div class="controls legend"><span class="gap"></span>'
        f"{printed}"
        '<button type="button" data-show="runs" aria-pressed="false">single runs</button></div>'
        '<div id="plot" class="panels"></div></div>'
    )


def _table(table: Table) -> str:
    title = html.escape(table.title or table.name.replace("_", " ").capitalize())
    head = "".join(f"<th{_numeric(table, i)}>{html.escape(name)}</th>" for i, name in enumerate(table.header))
    body, above = [], ""
    for number, row in enumerate(table.rows):
        repeated = row[0] == ""
        above = above if repeated else str(row[0])
        first = f'<td class="{"rep" if repeated else "group"}">{html.escape(above)}</td>'
        cells = "".join(_cell(table, cell) for cell in row[1:])
        body.append(f"<tr{' class=rule' if number in table.rules else ''}>{first}{cells}</tr>")
    notes = "".join(f"<li>{mark(i)}: {html.escape(note)}</li>" for i, note in enumerate(table.notes))
    notes = f'<ul class="notes">{notes}</ul>' if notes else ""
    opened = " open" if table.name in ("main", "ablations", "variants") else ""
    return (
        f'<div class="card table"><details{opened}><summary><b>{title}</b></summary><div class="scroll">'
        f'<table class="sortable" id="table-{html.escape(table.name)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        f'<p class="caption">{html.escape(table.caption)}</p>{notes}</details></div>'
    )


def _numeric(table: Table, column: int) -> str:
    return ' class="n"' if any(isinstance(row[column], Value) for row in table.rows) else ""


def _cell(table: Table, cell: str | Value) -> str:
    if isinstance(cell, str):
        return f"<td>{html.escape(cell)}</td>"
    text = html.escape(cell.text)
    text = f"<b>{text}</b>" if cell.bold and cell.mean is not None else text
    note = table.mark(cell)
    text += f'<sup title="{html.escape(cell.note, quote=True)}">{note}</sup>' if note else ""
    value = "" if cell.mean is None else f' data-v="{cell.mean!r}"'
    return f'<td class="n{" none" if cell.mean is None else ""}"{value}>{text}</td>'


def _curves(curves: dict[str, Any]) -> str:
    options = "".join(
        f'<option value="{html.escape(key)}">{html.escape(value["label"])}</option>' for key, value in curves.items()
    )
    if not options:
        return '<p class="lead">No curves are on record.</p>'
    return (
        '<p class="lead" id="curves-note"></p><div class="card"><div class="controls legend"><span class="gap"></span>'
        f'<select id="quantity" aria-label="Quantity">{options}</select></div><div id="curves" '
        f'class="panels"></div></div>'
    )


_RUN_COLUMNS = ("Seed", "State", "Return", "Cost", "CVaR@95", "Safety Rate", "λ&gt;0 share")
_RUNS = (
    '<p class="lead">Every run. Open one for its evaluation episodes, its provenance and the command '
    'that makes it.</p><div class="card"><div class="controls"><input id="runs-search" type="search" '
    'placeholder="filter: goal1 bcppo seed0" aria-label="Filter runs"><span id="runs-count"></span></div>'
    '<div class="scroll"><table id="runs-table" class="sortable"><thead><tr><th>Run</th>'
    + "".join(f'<th class="n">{name}</th>' for name in _RUN_COLUMNS)
    + "</tr></thead><tbody></tbody></table></div></div>"
)


def _figures(figures: Sequence[tuple[Figure, Path]]) -> str:
    if not figures:
        return '<p class="lead">There is too little for a figure.</p>'
    shown = []
    for figure, image in figures:
        payload = base64.b64encode(image.read_bytes()).decode()
        shown.append(
            f'<figure class="card"><img alt="{html.escape(figure.caption, quote=True)}" '
            f'src="data:image/png;base64,{payload}">'
            f'<figcaption class="caption">{html.escape(figure.caption)} '
            f"<code>figures/{html.escape(figure.name)}.pdf</code>, "
            "<code>.png</code>, <code>.csv</code></figcaption></figure>"
        )
    return f'<div class="figures">{"".join(shown)}</div>'


def _provenance(records: StudyRecords) -> str:
    usable = records.runs.filter("usable")
    kinds = ("revision", "python", "device", "processor", "versions")
    counts = usable.group_by(kinds).len(name="runs").sort("runs", descending=True)
    rows = []
    for row in counts.iter_rows(named=True):
        versions = ", ".join(f"{name} {version}" for name, version in json.loads(row["versions"]).items())
        device = ", ".join(filter(None, (row["device"], row["processor"])))
        texts = (row["revision"] or "unknown", row["python"], device)
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
        rows.append(f'<tr><td class="n">{row["runs"]}</td>{cells}<td class="wide">{html.escape(versions)}</td></tr>')
    protocols = usable.select("task", "method", "variant", "protocol").unique(maintain_order=True)
    listed = "".join(
        f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in protocols.iter_rows()
    )
    return (
        '<div class="card"><div class="scroll"><table><thead><tr><th '
        'class="n">Runs</th><th>Revision</th><th>Python</th>'
        f"<th>Device</th><th>Libraries</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        "<details><summary>Protocol identifiers</summary><div "
        "class=scroll><table><thead><tr><th>Task</th><th>Method</th>"
        f"<th>Variant</th><th>Protocol</th></tr></thead><tbody>{listed}</tbody></table></div></details></div>"
    )


def _problems(records: StudyRecords) -> str:
    if not records.problems:
        return '<p class="lead">None: every record is there and whole.</p>'
    items = "".join(
        f'<li><span class="tag">{html.escape(problem.kind)}</span>{html.escape(problem.sentence)}</li>'
        for problem in records.problems
    )
    return f'<div class="card"><ul class="problems">{items}</ul></div>'


def _commands(records: StudyRecords) -> str:
    folder = shlex.quote(str(records.folder))
    packed = "The study's published form: raw episodes, thinned curves, configs and provenance"
    lines = [("This page, the tables and the figures", f"bcppo report {folder}")]
    lines += [(packed, f"bcppo pack {folder} OUT")] if records.planned else []
    shown = "".join(f"<h3>{html.escape(what)}</h3><pre><code>{html.escape(line)}</code></pre>" for what, line in lines)
    note = '<p class="caption">The command that makes a single run stands with the run, above.</p>'
    return f'<div class="card">{shown}{note}</div>'
