"""What the documentation prints, runs; what it names, exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from bcppo import cli, flags
from bcppo.parsing import parse
from bcppo.study import commands

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")])
PAPER_LABELS = (
    "eq:cvar_general", "eq:bachelier", "eq:mu", "eq:sigma", "eq:strike", "eq:bachelier_penalty",
    "eq:bachelier_simplified", "eq:effective_beta", "eq:td_target", "eq:critic_loss", "eq:hybrid_advantage",
    "eq:ppo_loss", "eq:pid", "eq:cost_wrapper", "alg:bcppo",
)  # fmt: skip


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_tutorial_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("own-environment.md")
    exec(compile(code, "docs/own-environment.md", "exec"), {"__name__": "tutorial"})
    cost, page, deployed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"mean cost per step 0\.\d{3}, limit 0\.05", cost)
    assert "tutorial:Cart, limit 0.05" in Path(page).read_text(encoding="utf-8")
    assert deployed == "0.05 mean cost per step (1,)"


def rows() -> list[tuple[str, str, str]]:
    """(label, file, function) of every row of the table of equations."""
    text = (DOCS / "equations.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `((?:eq|alg):\w+)` \|.*\| `([\w/]+\.py)` `([\w.]+)` \|", text, flags=re.MULTILINE)


def docstring(file: str, dotted: str) -> str:
    """The docstring of a function, class or method, read from the source."""
    node: ast.AST = ast.parse((ROOT / "src" / "bcppo" / file).read_text(encoding="utf-8"))
    for name in dotted.split("."):
        (node,) = [child for child in node.body if getattr(child, "name", None) == name]  # type: ignore[attr-defined]
    return ast.get_docstring(node) or ""  # type: ignore[arg-type]


@pytest.mark.parametrize(("label", "file", "function"), rows())
def test_every_equation_s_function_exists_and_names_it(label, file, function):
    assert re.search(rf"{label}\b", docstring(file, function))


def test_every_equation_of_the_method_is_in_the_table():
    assert set(PAPER_LABELS) <= {label for label, _, _ in rows()}


KINDS = {
    "fleet": flags.Fleet, "resume": flags.Resume, "evaluate": flags.Evaluate, "suggest-limit": flags.SuggestLimit,
    "report": flags.Report, "pack": flags.Pack, "diagnose": flags.Diagnose, "export": flags.Export, "play": flags.Play,
    "keep": flags.Keep, "study run": commands._Run, "study status": commands._Status,
    "study gather": commands._Gather, "study evaluate": commands._Evaluate, "study compare": commands._Compare,
}  # fmt: skip


def printed_commands() -> list[str]:
    """Every `bcppo …` that the pages print, in shell or in a sentence, and the command line's own examples."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    found = [line for text in texts for line in re.findall(r"^(?:\S+/run -m )?(bcppo [a-z].*)$", text, re.MULTILINE)]
    found += [line for text in texts for line in re.findall(r"`(bcppo [a-z][^`…]*?)`", text) if " --" in line]
    found += re.findall(r"  (bcppo [a-z].*)$", cli.USAGE + commands.USAGE, re.MULTILINE)
    return sorted({" ".join(re.sub(r"\s{2,}#.*", "", line).split()) for line in found})


@pytest.mark.parametrize("line", printed_commands())
def test_every_command_that_is_printed_can_be_parsed(line):
    filled = line.replace("--seed S", "--seed 0").translate(str.maketrans("", "", "[]"))
    _, command, *arguments = shlex.split(filled, comments=True)
    if command == "study":
        command = f"study {arguments.pop(0)}"
    if command in ("tasks", "methods", "study list"):
        assert arguments == []
    elif "--help" in arguments:
        assert command in (*KINDS, "train")
    elif command == "train":
        cli._parse(arguments)
    else:
        parse(KINDS[command], arguments, f"bcppo {command}")


def anchors(page: Path) -> set[str]:
    """What links to a page's headings may end in, as GitHub and the built pages have it."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(there), f"{page.name} links to {target}#{anchor}"
