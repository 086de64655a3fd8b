"""The page: everything in it, nothing from outside it, and hostile records are only text. In Chromium where marked."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic import config_for, make_study

from bcppo import cli
from bcppo.report import load_study
from bcppo.report.page import SECTIONS, write_report
from bcppo.report.pagedata import page_data, train_command
from bcppo.report.stats import statistics

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'&"


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """Two tasks, three methods, two seeds; one run missing, and strings in the records that want to be markup."""
    folder = make_study(tmp_path_factory.mktemp("page") / "study", methods=("bcppo", "cppo", "cpo"))
    shutil.rmtree(folder / "runs" / "hopper-cpo-seed1")
    values = json.loads((folder / "study.json").read_text())
    values["title"] = values["name"] = HOSTILE
    (folder / "study.json").write_text(json.dumps(values))
    for run in ("goal1-bcppo-seed0", "goal1-cpo-seed0"):
        path = folder / "runs" / run / "provenance.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"revision": HOSTILE, "device": HOSTILE}))
    failure = json.dumps({"attempt": 1, "error": HOSTILE, "seconds": 1})
    (folder / "runs" / "goal1-cpo-seed0.failures.jsonl").write_text(failure)
    diagnosed = folder / "diagnostics" / "diversity"
    diagnosed.mkdir(parents=True)
    table = f"| run | rank |\n| --- | --- |\n| {HOSTILE} | 0.619 |"
    (diagnosed / "report.md").write_text(f"## Diversity\n\n### By run\n\n{table}\n\n![diversity](diversity.png)\n")
    (diagnosed / "diversity.png").write_bytes(b"a picture")
    return folder


@pytest.fixture(scope="module")
def page(study, tmp_path_factory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("report"))


class References(HTMLParser):
    """What the attributes of a page's elements refer to."""

    @classmethod
    def of(cls, text: str) -> list[str]:
        parser = cls()
        parser.found = []
        parser.feed(text)
        return parser.found

    def handle_starttag(self, tag, attributes):
        self.found += [value or "" for name, value in attributes if name in ("src", "href", "action", "data")]


def test_the_page_is_one_file_that_refers_to_nothing_outside(page):
    text = page.read_text()
    for key in SECTIONS:
        assert f'id="{key}"' in text
    assert "default-src 'none'" in text
    targets = References.of(text)
    assert len(targets) > len(SECTIONS)
    assert all(target.startswith(("data:", "#")) for target in targets)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_diagnostics_of_the_studys_runs_are_on_its_page(study, page, tmp_path):
    text = page.read_text()
    assert "diversity: how far the critics of an ensemble differ" in text
    assert "<td>0.619</td>" in text
    assert f'src="data:image/png;base64,{base64.b64encode(b"a picture").decode()}"' in text
    bare = shutil.copytree(study, tmp_path / "bare", ignore=shutil.ignore_patterns("diagnostics"))
    assert 'id="diagnostics"' not in write_report(bare, tmp_path / "out").read_text()


def test_tables_and_figures_lie_beside_the_page(page):
    assert {path.suffix for path in (page.parent / "tables").iterdir()} == {".md", ".tex", ".csv"}
    names = {path.stem for path in (page.parent / "figures").iterdir()}
    for name in names:
        assert {path.suffix for path in (page.parent / "figures").glob(f"{name}.*")} == {".pdf", ".png", ".csv"}
    assert "pareto" in names


def test_strings_of_the_records_never_become_markup(page):
    text = page.read_text()
    assert "<script>window.hacked" not in text
    assert "<img src=x" not in text
    assert text.count("<script") == 2
    assert "&lt;/script&gt;&lt;script&gt;window.hacked" in text


def test_the_pages_numbers_are_those_of_the_statistics(study, page):
    text = re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1]
    data = json.loads(text)
    records = load_study(study)
    stats = statistics(records)
    expected = json.loads(json.dumps(page_data(records, stats)))
    assert data == expected
    assert len(data["runs"]) == 12
    missing = next(run for run in data["runs"] if run["id"] == "hopper-cpo-seed1")
    assert missing["ret"] is None
    assert missing["problems"] == ["hopper-cpo-seed1 has not been run: it has no folder with a config.json."]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("bcppo", {"beta": 0.4, "anti_windup": False, "bonus": True, "hidden": (32, 16)}),
        ("ppolag", {"steps": 2048}),
        ("cppo", {}),
    ],
)
def test_a_runs_command_makes_its_config_again(method, changes):
    config = config_for(method, "button1", 3, None, {"eval_every": 0, **changes})
    words = shlex.split(train_command("x", method, json.loads(json.dumps(vars(config)))))
    assert words[:2] == ["bcppo", "train"]
    options, parsed = cli._parse(words[2:])
    assert parsed == config
    assert options.method == method


def test_the_command_line_writes_a_report_and_packs(study, tmp_path, capsys):
    assert cli.main(["pack", str(study), str(tmp_path / "packed")]) == 0
    assert "packed 11 of 12 runs" in capsys.readouterr().out
    assert cli.main(["report", str(tmp_path / "nothing")]) == 2
    assert "There is no folder" in capsys.readouterr().err


# --- in a browser ---


@pytest.fixture
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here; scripts/system-packages.sh installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser, page: Path, width: int = 1280, scheme: str = "light"):
    """(the page in a tab, what it complained of, what it asked of a network)"""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab, complaints, requests = context.new_page(), [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("body[data-ready=yes]")
    return tab, complaints, [url for url in requests if not url.startswith(("file:", "data:"))]


@pytest.mark.full
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_page_renders_without_complaint_or_request(browser, page, width, scheme):
    tab, complaints, requests = open_page(browser, page, width, scheme)
    assert complaints == []
    assert requests == []
    assert tab.locator("#plot svg").count() == 2
    assert tab.locator("#curves svg").count() == 2
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("window.hacked") is None
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(20, 23, 26)") == (scheme == "dark")


@pytest.mark.full
def test_methods_toggle_and_markers_tell_their_numbers(browser, page):
    tab, complaints, _ = open_page(browser, page)
    assert tab.locator("#plot g.mark").count() == 6
    tab.locator("#plot-section button.toggle", has_text="CPPO").last.click()
    assert tab.locator("#plot g.mark").count() == 4
    assert tab.locator("#curves-section button.toggle[aria-pressed=false]").count() == 1
    tab.locator('[data-show="paper"]').click()
    assert tab.locator("#plot g.mark").count() == 8
    tab.locator('[data-show="runs"]').click()
    assert tab.locator("#plot circle").count() == 7
    tab.locator("#plot g.mark").last.focus()
    assert "BCPPO (2 of 2 seeds" in tab.locator("#tip").inner_text()
    tab.locator("#quantity").select_option("sigma_c")
    assert "25-record rolling mean" in tab.locator("#curves-note").inner_text()
    assert complaints == []


@pytest.mark.full
def test_tables_sort_by_number_and_runs_open_to_their_episodes(browser, page):
    tab, complaints, _ = open_page(browser, page)
    column = "#table-main tbody td:nth-child(3)"
    head = tab.locator("#table-main th").nth(2).locator("button")
    for order in (1, -1):
        head.click()
        values = tab.eval_on_selector_all(column, "cells => cells.map(cell => Number(cell.dataset.v))")
        assert values == sorted(values, reverse=order < 0)
    tab.locator("#runs-search").fill("hopper seed1")
    assert tab.locator("#runs-table tbody tr").count() == 3
    tab.locator("#runs-table tbody tr").first.click()
    assert tab.locator("#runs-table .detail table tbody tr").count() == 20
    assert "bcppo train --task hopper" in tab.locator("#runs-table .detail pre").inner_text()
    tab.locator("#runs-search").fill("cpo hopper missing")
    tab.locator("#runs-table tbody tr").first.press("Enter")
    assert "has not been run" in tab.locator("#runs-table .detail").inner_text()
    assert complaints == []


@pytest.mark.full
def test_our_own_row_is_pale_and_says_that_it_is_not_in_the_paper(browser, tmp_path):
    folder = make_study(tmp_path / "study", tasks=["goal1"], methods=("bcppo", "cppo", "ppopid"))
    tab, complaints, _ = open_page(browser, write_report(folder))
    pale = tab.locator("#plot g.mark:has(path[fill-opacity])")
    assert pale.count() == 1
    pale.focus()
    assert "PPO-PID (ours) (2 of 2 seeds, not in the paper)" in tab.locator("#tip").inner_text()
    assert "a pale one is PPO-PID (ours)" in tab.locator("#plot-section .lead").inner_text()
    assert complaints == []
