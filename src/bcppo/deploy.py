"""A deployed policy: a file that `bcppo export` wrote, checked before it is used, run by NumPy or ONNX Runtime.

Needs NumPy and safetensors alone (ONNX Runtime and onnx for .onnx files): neither torch nor a simulator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bcppo.errors import BcppoError, ConfigError, FolderError, MissingDependency
from bcppo.tensors import checksum, read_tensors

FORMAT, FORMAT_VERSION = "bcppo-policy", 1
ACTIVATIONS = ("tanh", "relu")
OUTPUTS = ("clip", "squash")
"""clip: the mean, clipped to the action space; squash: tanh of the mean, stretched over the action space."""

MAX_FILE_BYTES = 1 << 29
MAX_WIDTH, MAX_LAYERS = 1 << 16, 64

Tensors = dict[str, np.ndarray]


class PolicyFileError(FolderError):
    """A file that is no policy this library would have written."""


class DeployedPolicy:
    """A policy of one run, ready to act.

    `metadata` says what it was trained for: task, method, cost limit and its unit, spaces, versions, provenance.
    """

    def __init__(self, metadata: Mapping[str, Any], run_one: Callable, run_many: Callable, width: int) -> None:
        self.metadata = dict(metadata)
        self._one, self._many, self._width = run_one, run_many, width

    def act(self, observation: Any) -> np.ndarray:
        """The deterministic action (float32, inside the action space) of an observation [obs], or of several [B, obs].

        Uses buffers of its own: give each thread a policy of its own.
        """
        if not isinstance(observation, np.ndarray):
            try:
                observation = np.asarray(observation, dtype=np.float64)
            except (TypeError, ValueError):
                raise ConfigError(f"An observation is {self._width} numbers, but {observation!r} was given.") from None
        shape = observation.shape
        if shape == (self._width,):
            return self._one(observation)
        if len(shape) == 2 and shape[1] == self._width:
            return self._many(observation)
        raise ConfigError(
            f"An observation has shape ({self._width},), or (number, {self._width}) for several, "
            f"but shape {shape} was given."
        )


def load_policy(path: str | Path) -> DeployedPolicy:
    """The policy in a file: .onnx or .safetensors as `bcppo export` writes them, or a run's own policy.safetensors.

    A file that is damaged, or holds anything but a policy of this library, is refused; nothing in it is ever executed.
    """
    path = Path(path)
    _refuse_by_its_looks(path)
    if path.suffix == ".onnx":
        return _load_onnx(path)
    tensors, notes = read_tensors(path)
    if "metadata" in notes:
        metadata = _metadata(path, notes["metadata"])
    else:
        metadata = _run_metadata(path, notes)
        tensors, metadata["network"] = deterministic_part(path, tensors)
    check_network(path, tensors, metadata)
    return numpy_policy(tensors, metadata)


# --- what is refused ---


def _refuse_by_its_looks(path: Path) -> None:
    if path.suffix not in (".onnx", ".safetensors"):
        raise PolicyFileError(f"{path} is neither an .onnx nor a .safetensors file.")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise PolicyFileError(f"{path} cannot be read: {error.strerror}.") from error
    if size > MAX_FILE_BYTES:
        raise PolicyFileError(f"{path} was not loaded: its {size:,} bytes are more than a policy can need.")
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05") or head == b"PK\x03\x04":
        raise PolicyFileError(f"{path} was not loaded: it is a pickled object or an archive under another name.")


def _metadata(path: Path, text: Any) -> dict[str, Any]:
    try:
        metadata = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise PolicyFileError(f"{path} was not loaded: its metadata is not JSON.") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise PolicyFileError(f"{path} was not loaded: its metadata is not that of a policy.")
    if metadata.get("format_version") != FORMAT_VERSION:
        raise PolicyFileError(
            f"{path} was not loaded: its format has version {metadata.get('format_version')!r}, "
            f"but this library reads version {FORMAT_VERSION}."
        )
    return metadata


def _run_metadata(path: Path, notes: Mapping[str, Any]) -> dict[str, Any]:
    """What the policy file of a run folder says about itself; `bcppo export` adds the rest."""
    try:
        config = json.loads(notes["config"])
        return {"format": FORMAT, "method": str(notes["method"]), "task": str(config["task"]), "config": config}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise PolicyFileError(f"{path} holds no policy.") from error


def deterministic_part(path: Path, stored: Mapping[str, np.ndarray]) -> tuple[Tensors, dict[str, Any]]:
    """(tensors, network) of a run's policy file without what only sampling needs; see NumpyPolicy for the two kinds."""
    tensors = {name: np.ascontiguousarray(array, np.float32) for name, array in stored.items()}
    squashes = tensors.pop("log_std_bounds", None) is not None
    tensors.pop("log_std", None)
    layers = sum(name.startswith("weight") for name in tensors)
    weights = [tensors.get(f"weight{layer}") for layer in range(layers)]
    if not weights or any(weight is None or weight.ndim != 2 for weight in weights) or "low" not in tensors:
        raise PolicyFileError(f"{path} holds no policy.")
    if squashes:  # its last layer gives the mean and, after it, the log-std
        for name in (f"weight{layers - 1}", f"bias{layers - 1}"):
            tensors[name] = np.ascontiguousarray(tensors[name][..., : tensors["low"].size])
    sizes = [tensors["weight0"].shape[0], *(tensors[f"weight{layer}"].shape[1] for layer in range(layers))]
    kind = {"activation": "relu", "output": "squash"} if squashes else {"activation": "tanh", "output": "clip"}
    return tensors, {"sizes": sizes, **kind, "normalizes": "offset" in tensors}


def _sizes(network: Any) -> list[int] | None:
    """Widths of a described network from the observation to the action; None where the description is not one."""
    if not isinstance(network, dict) or set(network) != {"sizes", "activation", "output", "normalizes"}:
        return None
    sizes = network["sizes"]
    if not isinstance(sizes, list) or not 2 <= len(sizes) <= MAX_LAYERS + 1:
        return None
    if any(type(size) is not int or not 1 <= size <= MAX_WIDTH for size in sizes):
        return None
    known = network["activation"] in ACTIVATIONS and network["output"] in OUTPUTS
    return sizes if known and isinstance(network["normalizes"], bool) else None


def shapes(network: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor a network has."""
    sizes = network["sizes"]
    expected: dict[str, tuple[int, ...]] = {"low": (sizes[-1],), "high": (sizes[-1],)}
    for layer, (width_in, width_out) in enumerate(pairwise(sizes)):
        expected[f"weight{layer}"], expected[f"bias{layer}"] = (width_in, width_out), (width_out,)
    if network["normalizes"]:
        expected |= {"offset": (sizes[0],), "scale": (sizes[0],), "bound": (1,)}
    return expected


def check_network(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Refuse, by name, whatever is not exactly the network that the metadata describe."""
    if _sizes(metadata.get("network")) is None:
        raise PolicyFileError(f"{path} was not loaded: its metadata describe no network.")
    expected = shapes(metadata["network"])
    for name in sorted(set(expected) ^ set(tensors)):
        odd = "is missing" if name in expected else "does not belong in a policy"
        raise PolicyFileError(f"{path} was not loaded: the tensor {name[:40]!r} {odd}.")
    for name, shape in expected.items():
        array = tensors[name]
        if array.dtype != np.float32 or array.shape != shape:
            found = f"{array.dtype} {array.shape}"
            raise PolicyFileError(f"{path} was not loaded: '{name}' is {found} instead of float32 {shape}.")
        if name not in ("low", "high") and not np.isfinite(array).all():
            raise PolicyFileError(f"{path} was not loaded: '{name}' holds numbers that are not finite.")
    low, high = tensors["low"], tensors["high"]
    bounded = metadata["network"]["output"] == "clip" or bool(np.isfinite(low).all() and np.isfinite(high).all())
    if not ((low <= high).all() and bounded):
        raise PolicyFileError(f"{path} was not loaded: 'low' and 'high' bound no action.")
    if metadata["network"]["normalizes"] and not ((tensors["scale"] > 0).all() and tensors["bound"][0] > 0):
        raise PolicyFileError(f"{path} was not loaded: 'scale' and 'bound' must be positive.")


def _require_finite(observation: np.ndarray) -> None:
    # The squared norm alone decides nearly always; it can overflow, so it does not condemn.
    if not math.isfinite(observation.dot(observation)) and not np.isfinite(observation).all():
        raise BcppoError("The observation is not finite (in float32), so no action was taken.")


# --- running it ---


def numpy_policy(tensors: Tensors, metadata: Mapping[str, Any]) -> DeployedPolicy:
    """A checked network, run by NumPy in buffers that are allocated once."""
    network = metadata["network"]
    count = len(network["sizes"]) - 1
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    observed = np.zeros(network["sizes"][0], np.float32)
    layers = [(arrays[f"weight{i}"], arrays[f"bias{i}"]) for i in range(count)]
    steps = [(weight, bias, np.zeros_like(bias)) for weight, bias in layers]
    hidden_steps, (last_weight, last_bias, last) = steps[:-1], steps[-1]
    dot, add = np.dot, np.add
    activate: Callable = np.tanh if network["activation"] == "tanh" else _relu
    normalize, finish = _normalizer(network, arrays), _finisher(network, arrays)

    def one(observation: np.ndarray) -> np.ndarray:
        observed[...] = observation
        _require_finite(observed)
        hidden = normalize(observed) if normalize else observed
        for weight, bias, buffer in hidden_steps:
            dot(hidden, weight, buffer)
            add(buffer, bias, buffer)
            activate(buffer, buffer)
            hidden = buffer
        dot(hidden, last_weight, last)
        add(last, last_bias, last)
        return finish(last)

    def many(observations: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # refused below
            hidden = observations.astype(np.float32)
        _require_finite(hidden.ravel())
        hidden = normalize(hidden) if normalize else hidden
        for weight, bias in layers[:-1]:
            hidden = hidden @ weight + bias
            activate(hidden, hidden)
        return finish(hidden @ last_weight + last_bias)

    return DeployedPolicy(metadata, one, many, network["sizes"][0])


def _relu(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.float32(0), out)


def _normalizer(network: Mapping[str, Any], arrays: Tensors) -> Callable[[np.ndarray], np.ndarray] | None:
    """observation → (observation − offset) / scale, clipped to ±bound; None where the policy sees it as it is."""
    if not network["normalizes"]:
        return None
    offset, scale, bound = arrays["offset"], arrays["scale"], arrays["bound"]
    return lambda observation: np.minimum(np.maximum((observation - offset) / scale, -bound), bound)


def _finisher(network: Mapping[str, Any], arrays: Tensors) -> Callable[[np.ndarray], np.ndarray]:
    """mean → action, in a new array."""
    low, high = arrays["low"], arrays["high"]
    if network["output"] == "clip":
        return lambda mean: np.minimum(np.maximum(mean, low), high)
    centre, half = centre_and_half(low, high)
    # Clipped, since rounding may carry it past a bound.
    return lambda mean: np.minimum(np.maximum(np.tanh(mean) * half + centre, low), high)


def centre_and_half(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a squashed action is stretched by: tanh(mean)·half + centre."""
    return (low + high) / np.float32(2), (high - low) / np.float32(2)


def _load_onnx(path: Path) -> DeployedPolicy:
    from bcppo.onnx_graph import build_model, read_model

    payload = path.read_bytes()
    model, tensors, properties = read_model(path, payload)
    metadata = _metadata(path, properties.get("bcppo"))
    check_network(path, tensors, metadata)
    if properties.get("checksum") != checksum(tensors, {"metadata": properties["bcppo"]}):
        raise PolicyFileError(f"{path} is damaged and was not loaded: its checksum does not match its contents.")
    # Whatever else an ONNX file can hold, from other operators to names of other files, is refused at once.
    if model != build_model(tensors, properties["bcppo"]):
        raise PolicyFileError(f"{path} was not loaded: its graph is not the one this library writes for its weights.")
    return onnx_policy(payload, metadata)


def onnx_policy(payload: bytes, metadata: Mapping[str, Any]) -> DeployedPolicy:
    """A checked ONNX file, run by ONNX Runtime in one thread."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency("Running an .onnx file needs ONNX Runtime: pip install 'bcppo[onnx]'.") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(payload, options, providers=["CPUExecutionProvider"])
    run, names = session.run, ["action"]

    def one(observation: np.ndarray) -> np.ndarray:
        row = observation.astype(np.float32)
        _require_finite(row)
        return run(names, {"observation": row[None]})[0][0]

    def many(observations: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # refused below
            rows = np.ascontiguousarray(observations, dtype=np.float32)
        _require_finite(rows.ravel())
        return run(names, {"observation": rows})[0]

    return DeployedPolicy(metadata, one, many, metadata["network"]["sizes"][0])
