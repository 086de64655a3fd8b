"""The study `diagnostics`: what is missing of them, in processes here or on Ray."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bcppo.cli import main
from bcppo.errors import BcppoError
from bcppo.study import diagnostics
from bcppo.study.child import Outcome
from bcppo.study.diagnostics import attempts, diagnose_all, run_diagnostics
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import Group

SAME_EVERYWHERE = ("multiplier", "diversity")
"""Diagnostics of no time and little work."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups of one diagnostic each."""
    monkeypatch.setattr(diagnostics, "GROUPS", (("multiplier",),))
    monkeypatch.setattr(diagnostics, "LAST", ("diversity",))


class Here:
    """An engine in this process."""

    places = 1

    def __init__(self, folder: StudyFolder) -> None:
        self._folder, self._groups = folder.path, []

    def start(self, group: Group) -> None:
        self._groups.append(group)

    def wait(self) -> list[tuple[Group, list[Outcome]]]:
        group = self._groups.pop()
        return [(group, list(attempts(self._folder, group)))]

    def stop(self) -> None:
        assert not self._groups


def study(runs: Path, out: Path) -> list[str]:
    said: list[str] = []
    assert run_diagnostics([runs], out, Here, say=said.append) == {}
    return said


def test_what_is_done_is_not_done_again_until_a_run_has_gone_on(few: None, runs: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "runs", tmp_path / "out"
    shutil.copytree(runs / "binding", own / "binding")
    assert "to do: multiplier, diversity" in study(own, out)[0]
    assert "to do: nothing" in study(own, out)[0]
    (out / "diversity" / "report.md").unlink()
    assert "to do: diversity" in study(own, out)[0]
    shutil.copytree(runs / "slack", own / "slack")
    assert "to do: multiplier, diversity" in study(own, out)[0]
    assert "slack" in (out / "multiplier" / "report.md").read_text()


def test_one_that_fails_takes_no_other_with_it(
    few: None, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "GROUPS", (("multiplier",), ("no-such",)))
    with pytest.raises(BcppoError, match=r"1 of 8 diagnostics failed \(no-such: .*no diagnostic named 'no-such'"):
        diagnose_all([runs], tmp_path, 2, device="cpu", max_updates=0)
    for name in SAME_EVERYWHERE:
        assert "binding" in (tmp_path / name / "report.md").read_text()


def test_the_timed_one_waits_until_the_others_are_done() -> None:
    class Watched:
        places = 4

        def __init__(self) -> None:
            self.working: list[Group] = []
            self.beside_latency = 0

        def start(self, group: Group) -> None:
            self.working.append(group)
            if ("latency",) in self.working:
                self.beside_latency = max(self.beside_latency, len(self.working) - 1)

        def wait(self) -> list:
            group = self.working.pop()
            return [(group, [Outcome(name, "", 0.0) for name in group])]

        def stop(self) -> None:
            assert not self.working

    engine = Watched()
    assert diagnostics._work((*diagnostics.GROUPS, diagnostics.LAST), engine, lambda sentence: None) == {}
    assert engine.beside_latency == 0


def test_every_diagnostic_is_in_one_group() -> None:
    names = [name for group in (*diagnostics.GROUPS, diagnostics.LAST) for name in group]
    assert sorted(names) == sorted(diagnostics.SUMMARIES)


def test_the_command_says_what_the_study_is_not_for(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = str(tmp_path / "out")
    assert main(["study", "run", "diagnostics", "--out", out, "--runs", str(tmp_path), "--seeds", "0"]) == 2
    assert "--seeds says what to train" in capsys.readouterr().err
    assert main(["study", "run", "diagnostics", "--out", out]) == 2
    assert "at least one run folder" in capsys.readouterr().err
    assert main(["study", "run", "smoke", "--out", out, "--runs", str(tmp_path)]) == 2
    assert "--runs is for the study 'diagnostics'" in capsys.readouterr().err


@pytest.mark.full
def test_all_diagnostics_run_over_a_folder_of_runs_on_either_engine(runs: Path, tmp_path: Path) -> None:
    arguments = ["diagnose", "all", str(runs), "--out", str(tmp_path / "local"), "--jobs", "2", "--max-updates", "50"]
    assert main(arguments) == 0
    assert {path.parent.name for path in (tmp_path / "local").glob("*/report.md")} == set(diagnostics.SUMMARIES)

    from bcppo.study.ray_cluster import RayEngine

    said: list[str] = []
    failed = run_diagnostics(
        [runs], tmp_path / "ray", lambda folder: RayEngine(folder, 2, say=said.append), max_updates=50, say=said.append
    )
    assert failed == {}, said
    for name in set(diagnostics.SUMMARIES) - {"latency"}:
        text = (tmp_path / "ray" / name / "report.md").read_text()
        assert text == (tmp_path / "local" / name / "report.md").read_text(), name
    assert "torch" in (tmp_path / "ray" / "latency" / "report.md").read_text()
