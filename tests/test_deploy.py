"""Loading a deployed policy: light, checked, and closed to files that are anything else."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import bcppo
from bcppo.deploy import FORMAT, FORMAT_VERSION, PolicyFileError, numpy_policy
from bcppo.errors import BcppoError, ConfigError, FolderError
from bcppo.records import write_tensors
from bcppo.tensors import checksum

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from bcppo.onnx_graph import build_model  # noqa: E402

SUFFIXES = (".onnx", ".safetensors")
NETWORK = {"sizes": [3, 4, 2], "activation": "tanh", "output": "clip", "normalizes": False}


def tensors(network: dict = NETWORK) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = network["sizes"]
    arrays = {"low": np.full(sizes[-1], -0.5, np.float32), "high": np.full(sizes[-1], 1.0, np.float32)}
    for i, (a, b) in enumerate(pairwise(sizes)):
        arrays[f"weight{i}"], arrays[f"bias{i}"] = rng.normal(size=(a, b)), rng.normal(size=b)
    if network["normalizes"]:
        arrays |= {"offset": rng.normal(size=sizes[0]), "scale": rng.uniform(1, 2, sizes[0]), "bound": np.ones(1)}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}


def describe(network: dict = NETWORK, **changes) -> str:
    return json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, "network": network} | changes)


def write(path: Path, arrays: dict[str, np.ndarray], metadata: str) -> Path:
    """A file as an attacker who knows the format would write it: every checksum holds."""
    if path.suffix == ".onnx":
        path.write_bytes(onnx_model(arrays, metadata).SerializeToString())
    else:
        write_tensors(path, arrays, {"metadata": metadata})
    return path


def onnx_model(arrays: dict[str, np.ndarray], metadata: str):
    """The right graph with the tensors and metadata given in place of its own."""
    model = build_model(tensors(), describe())
    del model.graph.initializer[:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(arrays[name], name) for name in sorted(arrays))
    onnx.helper.set_model_props(model, {"bcppo": metadata, "checksum": checksum(arrays, {"metadata": metadata})})
    return model


def refused(path: Path, sentence: str) -> None:
    with pytest.raises((PolicyFileError, FolderError), match=sentence) as caught:
        bcppo.load_policy(path)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


# --- what it does ---


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize(("activation", "output"), [("tanh", "clip"), ("relu", "squash")])
def test_every_kind_of_network_computes_what_it_says(suffix, normalizes, activation, output, tmp_path):
    network = NETWORK | {"normalizes": normalizes, "activation": activation, "output": output}
    arrays = tensors(network)
    path = tmp_path / f"p{suffix}"
    if suffix == ".onnx":
        path.write_bytes(build_model(arrays, describe(network)).SerializeToString())
    else:
        write_tensors(path, arrays, {"metadata": describe(network)})
    policy = bcppo.load_policy(path)
    observations = np.random.default_rng(1).normal(0, 2, (5, 3))
    x = observations
    if normalizes:
        x = np.clip((x - arrays["offset"]) / arrays["scale"], -1, 1)
    x = x @ arrays["weight0"] + arrays["bias0"]
    x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0)
    x = x @ arrays["weight1"] + arrays["bias1"]
    # low −0.5, high 1: the middle is 0.25, half the range 0.75
    expected = np.clip(x, -0.5, 1) if output == "clip" else 0.25 + 0.75 * np.tanh(x)
    np.testing.assert_allclose(policy.act(observations), expected, atol=1e-5)
    np.testing.assert_allclose([policy.act(row) for row in observations], expected, atol=1e-5)


def test_a_squashed_run_policy_takes_the_mean_and_leaves_the_log_std(tmp_path):
    rng = np.random.default_rng(0)
    stored = {"weight0": rng.normal(size=(3, 5)), "bias0": rng.normal(size=5), "weight1": rng.normal(size=(5, 4)),
              "bias1": rng.normal(size=4), "log_std_bounds": np.array([-20.0, 2.0]),
              "low": np.array([-1.0, 0.0]), "high": np.array([1.0, 4.0])}  # fmt: skip
    arrays = {name: array.astype(np.float32) for name, array in stored.items()}
    write_tensors(tmp_path / "policy.safetensors", arrays, {"method": "wcsac", "config": '{"task": "goal1"}'})
    x = rng.normal(size=3)
    mean = (np.maximum(x @ stored["weight0"] + stored["bias0"], 0) @ stored["weight1"] + stored["bias1"])[:2]
    # The middles of the two ranges are 0 and 2, half their widths 1 and 2.
    expected = np.array([0, 2]) + np.array([1, 2]) * np.tanh(mean)
    np.testing.assert_allclose(bcppo.load_policy(tmp_path / "policy.safetensors").act(x), expected, atol=1e-5)


def test_an_action_is_an_array_of_its_own():
    policy = numpy_policy(tensors(), json.loads(describe()))
    first = policy.act(np.zeros(3))
    kept = first.copy()
    policy.act(np.ones(3))
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_observations_that_cannot_be_meant_are_refused(suffix, tmp_path):
    policy = bcppo.load_policy(write(tmp_path / f"p{suffix}", tensors(), describe()))
    with pytest.raises(ConfigError, match=r"shape \(3,\), or \(number, 3\) for several, but shape \(4,\) was given"):
        policy.act(np.zeros(4))
    with pytest.raises(ConfigError, match="An observation is 3 numbers"):
        policy.act("north")
    for bad in (np.array([0, np.nan, 0]), np.array([np.inf, 0, 0]), np.array([[0, 0, 1e39]])):
        with pytest.raises(BcppoError, match="not finite"):
            policy.act(bad)
    assert np.isfinite(policy.act([1e20, 0, 0])).all()  # whose square overflows


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_loading_imports_neither_torch_nor_a_simulator(suffix, tmp_path):
    path = write(tmp_path / f"p{suffix}", tensors(), describe())
    code = (
        f"import bcppo, sys\nprint(bcppo.load_policy({str(path)!r}).act([0.0, 0.0, 0.0]).shape)\n"
        "print(sorted({'torch', 'mujoco', 'polars', 'scipy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.splitlines() == ["(2,)", "[]"]


def test_loading_needs_no_gymnasium(tmp_path):
    path = write(tmp_path / "p.safetensors", tensors(), describe())
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['gymnasium', 'mujoco', 'torch', 'scipy', 'polars']))  # None: absent\n"
        f"import bcppo\nprint(bcppo.load_policy({str(path)!r}).act([0.0, 0.0, 0.0]).shape)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.split("\n")[0] == "(2,)", result.stderr


# --- hostile files ---


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_cut_short_anywhere_is_refused(suffix, tmp_path):
    whole = write(tmp_path / f"p{suffix}", tensors(), describe()).read_bytes()
    part = tmp_path / f"part{suffix}"
    for length in range(0, len(whole), 13):
        part.write_bytes(whole[:length])
        refused(part, "was not loaded")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(suffix, tmp_path):
    whole = write(tmp_path / f"p{suffix}", tensors(), describe()).read_bytes()
    expected = bcppo.load_policy(tmp_path / f"p{suffix}").act(np.ones(3))
    rng, flipped = np.random.default_rng(0), tmp_path / f"flipped{suffix}"
    loaded, sentences = 0, []
    for position in rng.choice(len(whole), 150, replace=False):
        payload = bytearray(whole)
        payload[position] ^= 1 << int(rng.integers(8))
        flipped.write_bytes(payload)
        try:
            policy = bcppo.load_policy(flipped)
        except FolderError as error:
            sentences.append(str(error))
        else:
            loaded += 1
            assert np.array_equal(policy.act(np.ones(3)), expected)
    assert loaded <= 2
    assert not any("\n" in sentence for sentence in sentences)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch EXPLODED",)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_under_another_name_is_refused_and_not_run(suffix, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"p{suffix}"
    path.write_bytes(pickle.dumps(Bomb(), protocol=protocol))
    refused(path, "was not loaded")
    assert not (tmp_path / "EXPLODED").exists()


def test_a_torch_archive_under_another_name_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": 1}, tmp_path / "p.onnx")
    refused(tmp_path / "p.onnx", "a pickled object or an archive under another name")


def changed(name: str, array: np.ndarray | None) -> dict[str, np.ndarray]:
    arrays = tensors() | ({} if array is None else {name: array})
    if array is None:
        del arrays[name]
    return arrays


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (changed("bias0", None), "'bias0' is missing"),
        (changed("weight9", np.zeros((1, 1), np.float32)), "'weight9' does not belong in a policy"),
        (changed("weight0", np.zeros((3, 5), np.float32)), r"'weight0' is float32 \(3, 5\) instead of"),
        (changed("bias1", np.full(2, np.nan, np.float32)), "'bias1' holds numbers that are not finite"),
        (changed("weight1", np.full((4, 2), np.inf, np.float32)), "'weight1' holds numbers that are not finite"),
        (changed("low", np.full(2, 2.0, np.float32)), "'low' and 'high' bound no action"),
        (changed("low", np.full(2, np.nan, np.float32)), "'low' and 'high' bound no action"),
    ],
)
def test_wrong_tensors_are_refused_by_name(suffix, arrays, sentence, tmp_path):
    refused(write(tmp_path / f"p{suffix}", arrays, describe()), sentence)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ("{", "metadata is not JSON"),
        ("[" * 100_000, "metadata is not JSON"),
        ("7", "not that of a policy"),
        (describe(format="other"), "not that of a policy"),
        (describe(format_version=2), "version 2, but this library reads version 1"),
        (describe(network=7), "describe no network"),
        (describe(network=NETWORK | {"sizes": [3]}), "describe no network"),
        (describe(network=NETWORK | {"sizes": [3, 1 << 60, 2]}), "describe no network"),
        (describe(network=NETWORK | {"sizes": [3, -4, 2]}), "describe no network"),
        (describe(network=NETWORK | {"sizes": [1] * 100_000}), "describe no network"),
        (describe(network=NETWORK | {"activation": "os.system"}), "describe no network"),
        (describe(network=NETWORK | {"sizes": [3, 60_000, 60_000, 2]}), "'bias2' is missing"),
    ],
)
def test_wrong_metadata_are_refused(suffix, metadata, sentence, tmp_path):
    refused(write(tmp_path / f"p{suffix}", tensors(), metadata), sentence)


def test_metadata_that_are_not_utf8_are_refused(tmp_path):
    whole = write(tmp_path / "p.safetensors", tensors(), describe()).read_bytes()
    (tmp_path / "p.safetensors").write_bytes(whole.replace(b"bcppo-policy", b"bcppo-\xff\xfeolic"))
    refused(tmp_path / "p.safetensors", "is damaged and was not loaded")
    whole = write(tmp_path / "p.onnx", tensors(), describe()).read_bytes()
    (tmp_path / "p.onnx").write_bytes(whole.replace(b"bcppo-policy", b"bcppo-\xff\xfeolic"))
    refused(tmp_path / "p.onnx", "was not loaded")


def test_a_header_that_promises_more_than_the_file_has_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (tmp_path / "p.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    refused(tmp_path / "p.safetensors", "damaged")
    (tmp_path / "p.safetensors").write_bytes((1 << 62).to_bytes(8, "little"))
    refused(tmp_path / "p.safetensors", "damaged")


def test_numbers_that_are_not_float32_are_refused(tmp_path):
    arrays = tensors() | {"bias0": np.zeros(4, np.float64)}
    write_tensors(tmp_path / "p.safetensors", arrays, {"metadata": describe()})
    refused(tmp_path / "p.safetensors", r"'bias0' is float64 \(4,\)")
    (tmp_path / "q.safetensors").write_bytes(save(tensors()))
    refused(tmp_path / "q.safetensors", "checksum does not match")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "p.onnx").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: it takes no room
    refused(tmp_path / "p.onnx", "1,099,511,627,776 bytes are more than a policy can need")


def another_operator(model):
    model.graph.node[0].op_type = "Sin"


def another_file(model):
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def another_node(model):
    model.graph.node.append(onnx.helper.make_node("Tanh", ["action"], ["also"]))


def a_dimension_too_large(model):
    model.graph.initializer[0].dims[0] = 1 << 50


def a_function(model):
    model.functions.add(name="f", domain="other")


@pytest.mark.parametrize("change", [another_operator, another_file, another_node, a_dimension_too_large, a_function])
def test_an_onnx_file_may_hold_nothing_but_the_policy_s_own_graph(change, tmp_path):
    model = build_model(tensors(), describe())
    change(model)
    (tmp_path / "p.onnx").write_bytes(model.SerializeToString())
    refused(tmp_path / "p.onnx", "graph is not the one|damaged and was not loaded")


def test_other_files_are_refused(tmp_path):
    refused(tmp_path / "absent.onnx", "cannot be read: No such file")
    (tmp_path / "p.pt").write_bytes(b"")
    refused(tmp_path / "p.pt", "neither an .onnx nor a .safetensors")
    write_tensors(tmp_path / "c.safetensors", {"x": np.zeros(3)}, {"method": "bcppo", "config": '{"task": "goal1"}'})
    refused(tmp_path / "c.safetensors", "holds no policy")
