"""Pieces of a study, run apart and put together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_studies import study_results, tiny_run, write_study

from bcppo.errors import BcppoError
from bcppo.study.commands import study
from bcppo.study.folder import StudyFolder
from bcppo.study.gather import gather
from bcppo.study.named import find_study


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(Seed 0 of a study, seed 1 of it, both in one.)"""
    base = tmp_path_factory.mktemp("pieces")
    file = str(write_study(base / "study.json", tiny_run(seed=0), tiny_run(seed=1)))
    for name, *seeds in (("one", "0"), ("other", "1"), ("both", "0", "1")):
        study(["run", file, "--out", str(base / name), "--workers", "1", "--seeds", *seeds])
    return base / "one", base / "other", base / "both"


def test_pieces_gathered_are_the_study_run_at_once(pieces: tuple[Path, Path, Path], tmp_path: Path) -> None:
    one, other, both = pieces
    whole, new = gather([one, other], tmp_path / "all")
    assert sorted(new) == sorted(whole.by_id) == sorted(StudyFolder(both).study().by_id)
    assert study_results(tmp_path / "all") == study_results(both)
    assert gather([one, other, both], tmp_path / "all")[1] == []


def test_a_piece_is_added_to_what_is_there(pieces: tuple[Path, Path, Path], tmp_path: Path, capsys) -> None:
    one, other, both = pieces
    gather([one], tmp_path / "all")
    study(["gather", str(other), "--out", str(tmp_path / "all")])
    assert "1 runs are new" in capsys.readouterr().err
    assert study_results(tmp_path / "all") == study_results(both)


def test_a_run_is_entered_as_where_it_was_run(pieces: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Another device than the folder had it down for: a piece from a GPU comes to one that waits for the CPU's."""
    one, _, both = pieces
    shutil.copytree(both, tmp_path / "all")
    for run in (tmp_path / "all" / "runs").glob("*-seed0"):
        shutil.rmtree(run)
    shutil.copytree(one, tmp_path / "gpu")
    for file in [tmp_path / "gpu" / "study.json", *(tmp_path / "gpu" / "runs").glob("*-seed0/config.json")]:
        file.write_text(file.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    whole, new = gather([tmp_path / "gpu"], tmp_path / "all")
    folder = StudyFolder(tmp_path / "all")
    assert [whole.by_id[id].config.device for id in new] == ["cuda"]
    assert sorted(entry.config.device for entry in folder.study().runs) == ["cpu", "cuda"]
    for entry in folder.study().runs:
        folder.check(entry)


def test_a_run_begun_in_the_folder_stays_as_it_is_there(pieces: tuple[Path, Path, Path], tmp_path: Path) -> None:
    one, _, both = pieces
    shutil.copytree(both, tmp_path / "all")
    (run,) = (tmp_path / "all" / "runs").glob("*-seed0")
    (run / "status.json").write_text(json.dumps({"state": "running", "message": ""}))
    shutil.copytree(one, tmp_path / "gpu")
    for file in [tmp_path / "gpu" / "study.json", *(tmp_path / "gpu" / "runs").glob("*-seed0/config.json")]:
        file.write_text(file.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    assert gather([tmp_path / "gpu"], tmp_path / "all")[1] == []
    folder = StudyFolder(tmp_path / "all")
    for entry in folder.study().runs:
        folder.check(entry)


def test_different_results_of_one_run_are_refused_and_nothing_is_copied(
    pieces: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    one, other, _ = pieces
    shutil.copytree(one, tmp_path / "odd")
    run = next((tmp_path / "odd" / "runs").glob("*-seed0"))
    (run / "policy.safetensors").write_bytes(b"another")
    with pytest.raises(BcppoError, match=r"hold different results of one run \(policy.safetensors\)"):
        gather([one, other, tmp_path / "odd"], tmp_path / "all")
    assert not (tmp_path / "all").exists()
    gather([one], tmp_path / "all")
    with pytest.raises(BcppoError, match="hold different results"):
        gather([tmp_path / "odd", other], tmp_path / "all")
    assert len(list((tmp_path / "all" / "runs").iterdir())) == 1


def test_other_settings_and_other_studies_are_refused(pieces: tuple[Path, Path, Path], tmp_path: Path) -> None:
    one, _, _ = pieces
    for name, run in (("longer", tiny_run(seed=0, steps=80)), ("tiny2", tiny_run(seed=0))):
        kind = "tiny" if name == "longer" else name
        file = write_study(tmp_path / f"{name}.json", run, name=kind)
        StudyFolder(tmp_path / name).adopt(find_study(str(file)))
    with pytest.raises(BcppoError, match=r"seed0 has other settings in one piece than in another"):
        gather([one, tmp_path / "longer"], tmp_path / "all")
    with pytest.raises(BcppoError, match="pieces of two studies, 'tiny' and 'tiny2'"):
        gather([one, tmp_path / "tiny2"], tmp_path / "all")
    with pytest.raises(BcppoError, match="holds no study"):
        gather([tmp_path / "nowhere"], tmp_path / "all")


def test_what_is_not_at_its_end_stays_where_it_is_and_a_killed_copy_is_made_again(
    pieces: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, _, both = pieces
    shutil.copytree(both, tmp_path / "begun")
    first, second = sorted((tmp_path / "begun" / "runs").iterdir())
    (first / "status.json").write_text(json.dumps({"state": "running", "message": ""}))
    (second / "status.json").write_text(json.dumps({"state": "diverged", "message": "a loss is not finite"}))
    whole, new = gather([tmp_path / "begun"], tmp_path / "all")
    assert (len(whole.runs), new) == (2, [second.name])
    assert StudyFolder(tmp_path / "all").diverged(second.name)
    copied = tmp_path / "all" / "runs" / second.name
    before = {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    half = copied.rename(f"{copied}.part")
    (half / "policy.safetensors").unlink()
    (half / "other").write_text("half a copy")
    assert gather([tmp_path / "begun"], tmp_path / "all")[1] == [second.name]
    assert {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()} == before
    assert not half.exists()


def test_a_named_study_lists_the_runs_no_piece_has(tmp_path: Path) -> None:
    StudyFolder(tmp_path / "piece").adopt(find_study("main", tasks=["hopper"], methods=["wcsac"], device="cuda"))
    whole, new = gather([tmp_path / "piece"], tmp_path / "all")
    assert (len(whole.runs), new) == (200, [])
    devices = {entry.config.device for entry in whole.runs if entry.method == "wcsac" and entry.config.task == "hopper"}
    assert devices == {"cuda"}
    assert StudyFolder(tmp_path / "all").study() == whole
