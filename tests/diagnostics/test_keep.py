"""Kept runs: diagnosed as their run folders are, bit for bit, and refused where they are not what was kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bcppo.algorithms import CONFIGS, METHODS
from bcppo.cli import main
from bcppo.diagnostics.drive import diagnose
from bcppo.diagnostics.keep import keep
from bcppo.diagnostics.measure import calibration, diversity, intervention, multiplier, target_noise, theory
from bcppo.diagnostics.measure.checkpoints import restore
from bcppo.diagnostics.measure.latency import runtimes
from bcppo.diagnostics.measure.networks import put_networks, take_networks
from bcppo.diagnostics.runs import Found, find_runs
from bcppo.diagnostics.store import Measured, load
from bcppo.errors import BcppoError, FolderError
from bcppo.evaluation import evaluate
from bcppo.exporting import export
from bcppo.fleet import train_fleet
from bcppo.kept import check_kept, policy_parts, read_manifest, read_networks
from bcppo.records import RunFolder, write_tensors
from bcppo.run import make_config, resume
from bcppo.streams import Streams
from bcppo.tensors import read_tensors


@pytest.fixture(scope="module")
def kept(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs, kept plain."""
    folder = tmp_path_factory.mktemp("kept")
    keep([runs], folder)
    return folder


@pytest.fixture(scope="module")
def small(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs, compressed and without V_r."""
    folder = tmp_path_factory.mktemp("small")
    keep([runs], folder, compressed=True, reward_value=False)
    return folder


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    """A kept run to damage."""
    for name in ("networks.json", "binding"):
        source = kept / name
        shutil.copytree(source, tmp_path / name) if source.is_dir() else shutil.copy(source, tmp_path)
    return tmp_path / "binding"


def found(folder: Path, name: str = "binding") -> Found:
    return find_runs([folder / name])[0]


def assert_same(one: Measured, other: Measured) -> None:
    assert (one.not_eligible, one.settings) == (other.not_eligible, other.settings)
    assert one.tables.keys() == other.tables.keys()
    for name in one.tables:
        rows, expected = one.table(name), other.table(name)
        assert rows.keys() == expected.keys()
        for column in expected:
            np.testing.assert_array_equal(rows[column], expected[column], err_msg=f"{name}.{column}")


# --- the same results ---


@pytest.mark.parametrize("name", ["binding", "slack", "other"])
def test_a_kept_run_is_restored_to_the_bit_with_its_padding(runs: Path, kept: Path, small: Path, name: str) -> None:
    ours = restore(found(runs, name)).learner
    for folder in (kept, small):
        theirs = restore(found(folder, name)).learner
        for part in ours.optimizers():
            one, other = (x.optimizers()[part].stack.flat.detach() for x in (ours, theirs))
            if folder == small and part == "values":  # V_r was left out
                assert other[:, 0].isnan().any()
                one, other = one[:, 1:], other[:, 1:]
            assert torch.equal(one, other), part
        for key, tensor in ours.memory().items():
            assert torch.equal(tensor, theirs.memory()[key]), key


@pytest.mark.parametrize("diagnostic", [multiplier, diversity, calibration])
def test_diagnostics_of_a_kept_run_are_the_run_folders(runs: Path, kept: Path, small: Path, diagnostic) -> None:
    expected = diagnostic.measure(find_runs([runs]))
    assert any(len(rows) for name, rows in expected.tables.items() if name != "runs")
    for folder in (kept, small):
        assert_same(diagnostic.measure(find_runs([folder])), expected)


def test_retrained_critics_of_a_kept_run_are_the_run_folders(runs: Path, small: Path) -> None:
    expected = target_noise.measure_both(find_runs([runs]), max_updates=2)
    for name, measured in target_noise.measure_both(find_runs([small]), max_updates=2).items():
        assert len(measured.table("held_out")["mean"])
        assert_same(measured, expected[name])


def test_an_update_of_the_actor_needs_no_optimiser_of_the_run(runs: Path, kept: Path) -> None:
    ours, theirs = (intervention.measure_with(find_runs([one]), rollouts=1, steps=128) for one in (runs, kept))
    assert ours.table("pairs")["treatment_difference"].max() > 0
    assert_same(ours, theirs)


def test_the_theory_s_checks_of_a_kept_run_are_the_run_folder_s(runs: Path, kept: Path) -> None:
    ours, theirs = (restore(found(one)) for one in (runs, kept))
    assert theory.coupling_rows(ours) == theory.coupling_rows(theirs)
    assert theory.windup_rows(ours).keys() == theory.windup_rows(theirs).keys()
    for name, rows in theory.windup_rows(ours).items():
        np.testing.assert_array_equal(rows, theory.windup_rows(theirs)[name])
    probes = [theory._probes(one) for one in (ours, theirs)]
    assert all(torch.equal(probes[0][name], probes[1][name]) for name in probes[0])


def test_what_latency_times_acts_the_same(runs: Path, kept: Path) -> None:
    (ours, missing), (theirs, also_missing) = (runtimes(restore(found(one))) for one in (runs, kept))
    assert missing == also_missing
    assert ours.keys() == theirs.keys()
    for key, act in ours.items():
        for one, other in zip(act(), theirs[key]()):
            np.testing.assert_array_equal(one, other)


@pytest.mark.full
@pytest.mark.parametrize("name", ["coverage", "target-noise", "intervention", "theory", "multiplier", "calibration"])
def test_the_commands_report_of_kept_runs_is_the_run_folders(runs: Path, kept: Path, name: str, tmp_path: Path) -> None:
    texts = [diagnose(name, [one], tmp_path / one.name, max_updates=50) for one in (runs, kept)]
    assert texts[0] == texts[1]
    assert_same(load(tmp_path / runs.name / name), load(tmp_path / kept.name / name))


def test_without_v_r_only_what_updates_the_actor_is_not_eligible(small: Path) -> None:
    measured = intervention.measure_with(find_runs([small]), rollouts=1, steps=128)
    reasons = {item.run: item.reason for item in measured.not_eligible}
    assert "V_r was left out" in reasons["binding"]
    assert not measured.table("pairs")
    with pytest.raises(BcppoError, match="V_r was left out"):
        theory.coupling_rows(restore(found(small)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["intervention", "theory"])
def test_a_report_without_v_r_says_what_it_lacks(small: Path, name: str, tmp_path: Path) -> None:
    text = diagnose(name, [small / "binding"], tmp_path)
    assert "| V_r was left out when the run was kept, and an update of the actor needs it |" in text


@pytest.mark.parametrize("method", METHODS)
def test_networks_of_every_method_come_back(method: str) -> None:
    config = make_config(method, "hopper", hidden=(32, 32))
    make = METHODS[method].learner()

    def learner(seed: int):
        return make([config], (11, 3), [Streams(seed, 1)], torch.device("cpu"))

    ours, theirs = learner(1), learner(2)
    put_networks(theirs, 0, take_networks(ours))
    for name, optimizer in ours.optimizers().items():
        assert torch.equal(optimizer.stack.flat, theirs.optimizers()[name].stack.flat), name
    for name, tensor in ours.memory().items():
        assert torch.equal(tensor, theirs.memory()[name]), name


# --- what is kept ---


def test_nothing_is_kept_twice_and_no_padding(kept: Path) -> None:
    tensors, notes = read_tensors(kept / "binding" / "networks.safetensors")
    assert notes["policy"] == "policy.safetensors"
    assert tensors["critics.parameter.weight2"].shape == (5, 32, 1)  # stored 16 wide in a checkpoint
    assert tensors["values.parameter.bias2"].shape == (2, 1)
    assert not [name for name in tensors if name.startswith("policy.") or "first" in name or "second" in name]
    assert {array.dtype for name, array in tensors.items() if "parameter" in name} == {np.dtype(np.float32)}


def test_the_manifest_has_the_hash_and_size_of_every_file(kept: Path) -> None:
    listed = json.loads((kept / "networks.json").read_text())["files"]
    files = {path.relative_to(kept).as_posix(): path.read_bytes() for path in kept.glob("*/*")}
    assert listed.keys() == files.keys()
    for name, payload in files.items():
        assert listed[name] == {"sha256": hashlib.sha256(payload).hexdigest(), "bytes": len(payload)}


def test_a_run_that_is_not_finished_keeps_its_policy_among_the_networks(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "binding", tmp_path / "stopped")
    (tmp_path / "stopped" / "policy.safetensors").unlink()
    RunFolder(tmp_path / "stopped").set_status("failed", "no room left")
    keep([tmp_path / "stopped"], tmp_path / "kept", compressed=True)
    own = policy_parts(read_tensors(runs / "binding" / "policy.safetensors")[0])
    tensors, _ = read_networks(tmp_path / "kept" / "stopped")
    assert own.keys() == {name for name in tensors if name.startswith("policy.")}
    assert all(np.array_equal(own[name], tensors[name]) for name in own)
    ours, theirs = (restore(found(one, "stopped")).policy.weights for one in (tmp_path, tmp_path / "kept"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert RunFolder(tmp_path / "kept" / "stopped").status()["state"] == "failed"


def test_a_policy_file_that_says_something_else_does_not_stand_for_the_checkpoint(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "binding", tmp_path / "mixed")
    shutil.copy(runs / "slack" / "policy.safetensors", tmp_path / "mixed")
    keep([tmp_path / "mixed"], tmp_path / "kept")
    ours, theirs = (restore(found(one, "mixed")).policy.weights for one in (tmp_path, tmp_path / "kept"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_numbers_in_the_padding_are_refused(runs: Path) -> None:
    learner = restore(found(runs)).learner
    with torch.no_grad():
        learner.signal.critics.parameters["weight2"][0, 0, 0, 5] = 1.0
    with pytest.raises(FolderError, match="critics hold numbers beyond"):
        take_networks(learner)


# --- the folder ---


def test_keeping_again_changes_nothing_and_another_run_of_that_name_is_refused(
    runs: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}

    out = tmp_path / "out"
    assert main(["keep", str(runs / "binding"), "--out", str(out)]) == 0
    assert "kept 1 runs" in capsys.readouterr().out
    before = files()
    (out / ".slack.part").mkdir()  # of a command that was killed
    keep([runs / "binding"], out)
    assert files() == before
    shutil.copytree(runs / "slack", tmp_path / "other" / "binding")
    shutil.copytree(runs / "slack", out / "slack")  # not the command's own
    before = files()
    for run in (tmp_path / "other", runs / "slack"):
        with pytest.raises(FolderError, match="already holds another"):
            keep([run], out)
        assert files() == before
    with pytest.raises(FolderError, match="Two of the runs are named binding"):
        keep([runs / "binding", tmp_path / "other"], tmp_path / "new")


def test_runs_kept_elsewhere_are_taken_over_once_their_hashes_hold(runs: Path, kept: Path, tmp_path: Path) -> None:
    one, new = tmp_path / "one", tmp_path / "new"
    keep([runs / "binding"], one, compressed=True)
    keep([runs / "slack"], new)
    keep([one], new)
    whole = read_manifest(new)
    assert whole.keys() >= read_manifest(one).keys()
    assert {file: known for file, known in whole.items() if file in read_manifest(one)} == read_manifest(one)
    check_kept(new / "binding")
    keep([kept / "binding"], tmp_path / "small", compressed=True)
    assert read_manifest(tmp_path / "small") == read_manifest(one)
    with pytest.raises(FolderError, match="was kept with V_r"):
        keep([one], tmp_path / "other", reward_value=False)
    (one / "binding" / "config.json").write_text("{}")
    with pytest.raises(FolderError, match="bytes"):
        keep([one], tmp_path / "other")
    assert not (tmp_path / "other" / "binding").exists()


def test_a_command_killed_between_manifest_and_folder_is_ended_by_the_next(runs: Path, kept: Path, copy: Path) -> None:
    shutil.rmtree(copy)
    keep([runs / "binding"], copy.parent)
    check_kept(copy)
    assert (copy / "networks.safetensors").read_bytes() == (kept / "binding" / "networks.safetensors").read_bytes()


def test_a_run_without_a_checkpoint_is_not_kept(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "binding", tmp_path / "begun", ignore=shutil.ignore_patterns("checkpoint*"))
    with pytest.raises(FolderError, match=r"begun cannot be kept: the run has left no checkpoint \(finished\)"):
        keep([tmp_path / "begun"], tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_the_manifest_among_the_runs_does_no_harm(kept: Path) -> None:
    assert [run.name for run in find_runs(sorted(kept.iterdir()))] == ["binding", "other", "slack"]


# --- other commands ---


def test_a_kept_run_cannot_be_resumed(runs: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["resume", str(kept / "binding")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot go on; resume the run folder it was kept from." in said
    with pytest.raises(FolderError, match="cannot go on"):
        resume(kept / "binding")
    shutil.copytree(runs / "binding", tmp_path / "hopper-bcppo-seed0")
    folder = RunFolder(tmp_path / "hopper-bcppo-seed0")
    folder.set_status("running")
    keep([folder.path], tmp_path / "kept")
    with pytest.raises(FolderError, match="cannot go on"):
        train_fleet([folder.load_config(CONFIGS)], out=tmp_path / "kept", workers=1, device="cpu")
    check_kept(tmp_path / "kept" / folder.path.name)


def test_a_kept_run_is_evaluated_and_exported_as_its_run_folder(runs: Path, copy: Path, small: Path) -> None:
    expected = evaluate(runs / "binding", episodes=2)
    assert evaluate(copy, episodes=2) == evaluate(small / "binding", episodes=2) == expected
    assert export(copy, kind="numpy").return_difference == 0.0
    check_kept(copy)  # what was exported into it is no part of it


# --- bad input ---


def tamper(copy: Path, file: str = "networks.safetensors", **changes: np.ndarray | None) -> None:
    """Write other networks, with a manifest that fits them."""
    tensors, notes = read_tensors(copy / file)
    tensors |= changes  # type: ignore[arg-type]
    write_tensors(copy / file, {name: array for name, array in tensors.items() if array is not None}, notes)
    payload = (copy / file).read_bytes()
    manifest = json.loads((copy.parent / "networks.json").read_text())
    manifest["files"][f"{copy.name}/{file}"] = {
        "sha256": hashlib.sha256(payload).hexdigest(), "bytes": len(payload),
    }  # fmt: skip
    (copy.parent / "networks.json").write_text(json.dumps(manifest))


def test_a_file_with_another_hash_is_refused(copy: Path, capsys: pytest.CaptureFixture) -> None:
    path = copy / "progress.parquet"
    payload = bytearray(path.read_bytes())
    payload[40] ^= 1
    path.write_bytes(payload)
    assert main(["diagnose", "multiplier", str(copy), "--out", str(copy.parent / "out")]) == 2
    said = capsys.readouterr().err
    assert said == f"error: {path} is not the file that was kept: its SHA-256 is not the one in networks.json.\n"


def test_a_truncated_or_absent_file_is_refused(copy: Path) -> None:
    path = copy / "networks.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    with pytest.raises(FolderError, match=rf"has 1,000 bytes, but {len(whole):,} were kept\.$"):
        find_runs([copy])
    path.unlink()
    with pytest.raises(FolderError, match=r"networks.safetensors cannot be read: No such file"):
        find_runs([copy])


def test_a_policy_with_another_hash_is_not_evaluated(copy: Path, kept: Path) -> None:
    shutil.copy(kept / "slack" / "policy.safetensors", copy)
    with pytest.raises(FolderError, match="SHA-256"):
        evaluate(copy, episodes=1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"critics.parameter.bias1": None}, "critics.parameter.bias1 is missing."),
        ({"controller.multiplier": None}, "controller.multiplier is missing."),
        ({"more": np.zeros(1)}, "its config knows no more."),
        (
            {"critics.parameter.weight2": np.zeros((5, 32, 16), np.float32)},
            "critics.parameter.weight2 is [5, 32, 16] float32, not [5, 32, 1] float32.",
        ),
        (
            {"critics.parameter.bias2": np.zeros((5, 1))},
            "critics.parameter.bias2 is [5, 1] float64, not [5, 1] float32.",
        ),
    ],
)
def test_networks_that_do_not_fit_are_named_in_a_sentence(copy: Path, changes: dict, sentence: str) -> None:
    tamper(copy, **changes)
    measured = diversity.measure(find_runs([copy]))
    (reason,) = [item.reason for item in measured.not_eligible]
    assert reason == f"The kept networks do not fit their config: {sentence}"


def test_compressed_networks_that_are_no_networks_are_refused(small: Path, tmp_path: Path) -> None:
    import lzma

    shutil.copytree(small / "binding", tmp_path / "binding")
    path = tmp_path / "binding" / "networks.safetensors.xz"
    whole = path.read_bytes()
    for payload in (whole[:1000], b"no xz at all", lzma.compress(b"no tensors in it")):
        path.write_bytes(payload)
        with pytest.raises(FolderError) as refused:
            read_networks(tmp_path / "binding")
        assert str(refused.value).startswith(f"{path} is damaged and was not loaded: ")


def test_a_manifest_that_is_none_or_does_not_know_the_run_is_refused(copy: Path) -> None:
    manifest = copy.parent / "networks.json"
    text = manifest.read_text()
    for wrong in ("[]", '{"format": 2, "files": {}}', '{"format": 1, "files": {"binding/config.json": 3}}'):
        manifest.write_text(wrong)
        with pytest.raises(FolderError, match="is no list of kept files"):
            find_runs([copy])
    manifest.write_text(text[:100])
    with pytest.raises(FolderError, match="is not whole"):
        find_runs([copy])
    manifest.unlink()
    with pytest.raises(FolderError, match=r"no networks\.json beside it has their hashes"):
        find_runs([copy])


def test_a_file_put_into_a_kept_run_is_refused(copy: Path, small: Path) -> None:
    shutil.copy(small / "binding" / "networks.safetensors.xz", copy)
    with pytest.raises(FolderError, match=r"it is not in networks\.json"):
        find_runs([copy])
