"""The run folder's files: whole or not there, checked when read, never unpickled."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bcppo
from bcppo.algorithms import CONFIGS
from bcppo.config import protocol_id
from bcppo.errors import BcppoError
from bcppo.records import (
    FORMAT,
    FolderError,
    RunFolder,
    provenance,
    read_json,
    read_rows,
    read_tensors,
    revision,
    write_atomically,
    write_json,
    write_rows,
    write_tensors,
)
from bcppo.settings import BCPPOConfig
from bcppo.stack import processor

SOURCE = Path(bcppo.__file__).parent
TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array([True, False]),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 2), np.float32),
}
NOTES = {"format": "1", "state": json.dumps({"λ": 0.5}), "config": "abc"}


def silent(_: str) -> None:
    pass


# --- atomic writes ---


def test_a_failing_writer_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "progress.parquet"
    write_rows(path, {"step": [1, 2]})
    before = path.read_bytes()

    def half(part: Path) -> None:
        part.write_bytes(b"half of")
        raise OSError(28, "No space left on device")

    with pytest.raises(FolderError, match=r"Could not write progress\.parquet .* No space left on device; .* intact"):
        write_atomically(path, half)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["progress.parquet", "progress.sum"]


def test_a_writer_that_breaks_off_otherwise_leaves_nothing_either(tmp_path: Path) -> None:
    def interrupted(part: Path) -> None:
        part.write_bytes(b"half of")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "x.json", interrupted)
    assert not os.listdir(tmp_path)


def test_readers_never_see_a_part_of_a_file(tmp_path: Path) -> None:
    """While the new one is being written, the old one is there, whole; then the new one is."""
    path = tmp_path / "status.json"
    write_json(path, {"state": "old"})
    seen = []

    def write(part: Path) -> None:
        part.write_text('{"state"')
        seen.append(read_json(path)["state"])
        part.write_text('{"state": "new"}')
        seen.append(read_json(path)["state"])

    write_atomically(path, write)
    assert [*seen, read_json(path)["state"]] == ["old", "old", "new"]


def test_a_folder_that_is_gone_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    for write in (
        lambda: write_json(tmp_path / "no" / "x.json", {}),
        lambda: write_rows(tmp_path / "no" / "x.parquet", {"step": [1]}),
        lambda: write_tensors(tmp_path / "no" / "x.safetensors", TENSORS, NOTES),
    ):
        with pytest.raises(FolderError, match=r"Could not write x\."):
            write()


# --- rows ---


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    columns = {"step": [1, 2, 3], "cost": [0.1, math.nan, 1e-320], "final": [True, False, True], "text": ["a", "", "ü"]}
    write_rows(tmp_path / "rows.parquet", columns)
    np.testing.assert_equal(read_rows(tmp_path / "rows.parquet"), columns)


def test_equal_rows_are_equal_bytes(tmp_path: Path) -> None:
    columns = {"step": list(range(1000)), "cost": np.random.default_rng(0).random(1000).tolist()}
    for name in ("one", "other"):
        write_rows(tmp_path / f"{name}.parquet", columns)
    for suffix in ("parquet", "sum"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"other.{suffix}").read_bytes()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_in_a_row_file_is_noticed(where: float, bit: int, tmp_path_factory) -> None:
    """Polars itself reads other numbers from many such files without a word, and on some it ends the process."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_rows(path, {"step": list(range(100)), "cost": [0.5] * 100})
    payload = bytearray(path.read_bytes())
    payload[int(where * len(payload))] ^= 1 << bit
    path.write_bytes(payload)
    with pytest.raises(FolderError, match="is damaged and was not loaded"):
        read_rows(path)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cut=st.floats(0, 1, exclude_max=True), alone=st.booleans())
def test_a_truncated_row_file_is_an_error_in_one_sentence(cut: float, alone: bool, tmp_path_factory) -> None:
    """Also of a file that was copied without the checksum beside it."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_rows(path, {"step": list(range(100)), "cost": [0.5] * 100})
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    if alone:
        path.with_suffix(".sum").unlink()
    with pytest.raises(FolderError, match="cannot be read" if alone else "damaged") as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)


def test_killed_anywhere_while_rows_are_replaced_they_stay_readable(tmp_path: Path, monkeypatch) -> None:
    """Of the three moves (both checksums, the file, its checksum) any number may have been made."""
    path = tmp_path / "rows.parquet"

    class Killed(BaseException):
        pass

    for moves in range(4):
        write_rows(path, {"step": [1]})
        left, replace = moves, Path.replace

        def counted(self, target, replace=replace):
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", counted)
        try:
            write_rows(path, {"step": [1, 2]})
        except Killed:
            assert moves < 3
        monkeypatch.setattr(Path, "replace", replace)
        assert read_rows(path)["step"] == ([1] if moves < 2 else [1, 2])


def test_rows_without_their_checksum_can_still_be_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", {"step": [1]})
    (tmp_path / "rows.sum").unlink()
    assert read_rows(tmp_path / "rows.parquet") == {"step": [1]}


# --- tensors ---


def test_tensors_and_notes_come_back_as_they_went_in(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, NOTES)
    arrays, notes = read_tensors(path)
    assert notes == NOTES
    assert arrays.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert (array.dtype, array.shape) == (arrays[name].dtype, arrays[name].shape)
        np.testing.assert_array_equal(array, arrays[name])


def test_equal_tensors_are_equal_bytes_in_every_process(tmp_path: Path) -> None:
    """Hash seeds and insertion order must not show: equal runs are equal bytes."""
    code = (
        "import numpy, sys; from pathlib import Path; from bcppo.records import write_tensors;"
        "write_tensors(Path(sys.argv[1]), {n: numpy.ones(3) for n in sys.argv[2]}, {n: n for n in sys.argv[2]})"
    )
    for number, order in enumerate(("abcdefgh", "hgfedcba", "abcdefgh")):
        subprocess.run([sys.executable, "-c", code, tmp_path / str(number), order], check=True)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(3)}) == 1


@settings(max_examples=150, deadline=None, derandomize=True)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(where: float, bit: int, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("tensors") / "x.safetensors"
    write_tensors(path, TENSORS, NOTES)
    payload = bytearray(path.read_bytes())
    payload[int(where * len(payload))] ^= 1 << bit
    path.write_bytes(payload)
    with pytest.raises(FolderError, match="damaged and was not loaded"):
        read_tensors(path)


@pytest.mark.parametrize("length", [0, 7, 8, 40, -1])
def test_a_truncated_tensor_file_is_noticed(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, NOTES)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FolderError, match="damaged and was not loaded"):
        read_tensors(path)


def test_a_tensor_file_without_our_checksum_is_not_trusted(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "x.safetensors"
    for metadata in (None, {"notes": "{}"}, {"notes": "[]"}, {"notes": "nonsense"}, {"other": "x"}):
        save_file(TENSORS, path, metadata=metadata)
        with pytest.raises(FolderError, match="damaged"):
            read_tensors(path)
    huge = struct.pack("<Q", 2**40) + b"{}"
    path.write_bytes(huge)
    with pytest.raises(FolderError, match="damaged"):
        read_tensors(path)


# --- the folder ---


def test_a_run_starts_in_a_new_or_an_empty_folder_only(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new" / "deep").create("bcppo", BCPPOConfig(), "cpu")
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").create("bcppo", BCPPOConfig(), "cpu")
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "thesis.tex").write_text("years of work")
    with pytest.raises(FolderError, match=r"holds other files; choose another folder\.$"):
        RunFolder(tmp_path / "busy").create("bcppo", BCPPOConfig(), "cpu")
    with pytest.raises(FolderError, match=r"holds another run; .*`bcppo resume "):
        RunFolder(tmp_path / "empty").create("bcppo", BCPPOConfig(seed=1), "cpu")
    assert os.listdir(tmp_path / "busy") == ["thesis.tex"]
    assert RunFolder(tmp_path / "empty").load_config(CONFIGS) == ("bcppo", BCPPOConfig())
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot be made"):
        RunFolder(tmp_path / "file").create("bcppo", BCPPOConfig(), "cpu")


def test_config_and_method_are_read_back(tmp_path: Path) -> None:
    config = BCPPOConfig(task="push1", hidden=(8, 4), cost_limit_rate=0.25, seed=9)
    RunFolder(tmp_path).create("bcppo", config, "cpu")
    assert RunFolder(tmp_path).load_config(CONFIGS) == ("bcppo", config)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not whole"),
        ("[]", "another version"),
        ('{"format": 99, "method": "bcppo", "config": {}}', "another version"),
        (f'{{"format": {FORMAT}, "method": "bcpo", "config": {{}}}}', "no method named 'bcpo'"),
        (f'{{"format": {FORMAT}, "method": "bcppo", "config": {{}}}}', "cannot be used"),
        (f'{{"format": {FORMAT}, "method": "bcppo", "config": 3}}', "cannot be used"),
        (f'{{"format": {FORMAT}, "method": null}}', "no method named"),
    ],
)
def test_a_spoiled_config_is_an_error_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).create("bcppo", BCPPOConfig(), "cpu")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BcppoError, match=sentence):
        RunFolder(tmp_path).load_config(CONFIGS)


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="holds no run"):
        RunFolder(tmp_path / "nowhere").load_config(CONFIGS)


@pytest.mark.parametrize("text", ["[]", "{}", "{", "3"])
def test_a_spoiled_status_is_an_error_in_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(FolderError, match=r"status\.json"):
        RunFolder(tmp_path).status()


# --- checkpoints ---


def checkpointed(path: Path, count: int) -> RunFolder:
    """A folder after checkpoints 1 … count."""
    folder = RunFolder(path)
    folder.path.mkdir(exist_ok=True)
    for number in range(1, count + 1):
        folder.save_checkpoint({"x": np.array(number)}, NOTES)
    return folder


def number(folder: RunFolder, warn=silent) -> int:
    loaded = folder.load_checkpoint(warn)
    assert loaded is not None
    return int(loaded[0]["x"])


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).load_checkpoint(silent) is None
    folder = checkpointed(tmp_path, 3)
    assert number(folder) == 3
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.previous.safetensors", "checkpoint.safetensors"]
    (tmp_path / "checkpoint.safetensors").unlink()
    assert number(folder) == 2


def test_killed_between_any_two_steps_of_a_checkpoint_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    """The steps of writing checkpoint 3: written as `next`; 2 becomes `previous`; 3 takes its place."""
    current, previous, fresh = (f"checkpoint{kind}.safetensors" for kind in ("", ".previous", ".next"))
    folder = checkpointed(tmp_path, 3)
    three, two = (tmp_path / current).read_bytes(), (tmp_path / previous).read_bytes()
    one = checkpointed(tmp_path / "one", 1)._checkpoint().read_bytes()
    shutil.rmtree(tmp_path / "one")
    moments = [
        ({current: two, previous: one}, 2),
        ({current: two, previous: one, fresh: three}, 3),
        ({previous: two, fresh: three}, 3),
        ({current: three, previous: two}, 3),
    ]
    for files, expected in moments:
        for name in os.listdir(tmp_path):
            (tmp_path / name).unlink()
        for name, payload in files.items():
            (tmp_path / name).write_bytes(payload)
        (tmp_path / ".progress.parquet.77.part").write_bytes(b"half of")
        assert number(folder) == expected
        folder.tidy()
        assert number(folder) == expected
        if expected == 3:  # the folder is as if nothing had happened
            assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {current: three, previous: two}
        assert not list(tmp_path.glob(".*"))


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_is_set_aside(tmp_path: Path) -> None:
    folder = checkpointed(tmp_path, 3)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"torn")
    warnings: list[str] = []
    assert number(folder, warnings.append) == 2
    assert len(warnings) == 1
    assert re.search(r"damaged and was not loaded: .*\. Going on from checkpoint\.previous\.safetensors", warnings[0])
    folder.tidy()
    folder.save_checkpoint({"x": np.array(3)}, NOTES)
    assert number(folder, warnings.append) == 3
    (tmp_path / "checkpoint.safetensors").write_bytes(b"torn again")
    assert number(folder, warnings.append) == 2  # not the torn one, which a plain rotation would have put there
    assert (tmp_path / "checkpoint.damaged.safetensors").read_bytes() == b"torn"


def test_without_a_whole_checkpoint_nothing_is_guessed(tmp_path: Path) -> None:
    folder = checkpointed(tmp_path, 2)
    for name in os.listdir(tmp_path):
        (tmp_path / name).write_bytes(b"torn")
    with pytest.raises(FolderError, match="No checkpoint of this run is whole"):
        folder.load_checkpoint(silent)


# --- provenance, and what is never done ---


def test_provenance_names_protocol_revision_versions_and_device(tmp_path: Path) -> None:
    config = BCPPOConfig(seed=3)
    RunFolder(tmp_path).create("bcppo", config, "cpu", {"command": "bcppo train"})
    stored = read_json(tmp_path / "provenance.json")
    assert stored == provenance("bcppo", config, "cpu") | {"command": "bcppo train"}
    assert stored["protocol"] == protocol_id("bcppo", config)
    assert stored["revision"] == revision()
    assert stored["device"] == "cpu"
    assert stored["processor"] == processor() != ""
    assert stored["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(stored["versions"]) == {"bcppo", "numpy", "torch", "mujoco", "gymnasium", "scipy"}
    assert stored["versions"]["numpy"] == np.__version__
    assert all(stored["versions"].values())


def test_revision_is_the_checkouts() -> None:
    head = subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    revision.cache_clear()  # someone may have committed since it was first asked for
    if head.returncode:
        assert revision() == ""
    else:
        assert revision().rstrip("+") == head.stdout.strip()[:12]


def test_no_pickle_anywhere_in_the_source() -> None:
    names = r"\b(pickle|dill|joblib|shelve|marshal)\b"
    forbidden = re.compile(names + r"|\btorch\.(load|save)\b|allow_pickle\s*=\s*True|\bnp\.load\b")
    for path in SOURCE.rglob("*.py"):
        for line in path.read_text().splitlines():
            assert not forbidden.search(line), f"{path}: {line}"


def test_reading_a_folder_imports_no_torch() -> None:
    code = "import sys, bcppo.records, bcppo.policy, bcppo.worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
