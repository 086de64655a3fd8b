"""A policy as an ONNX model, built from its weights by hand: no torch, one fixed graph a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bcppo.deploy import PolicyFileError, Tensors, centre_and_half
from bcppo.errors import MissingDependency
from bcppo.tensors import checksum

OPSET, IR_VERSION = 17, 8
"""Read by ONNX Runtime 1.12 and later."""


def _onnx() -> Any:
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise MissingDependency("ONNX files need the package onnx: pip install 'bcppo[onnx]'.") from error
    return onnx


def build_model(tensors: Mapping[str, np.ndarray], metadata: str) -> Any:
    """observation [batch, obs] → action [batch, act], float32; normalisation and the action's bounds inside.

    `metadata` is the policy's, as JSON text; it goes into the model's properties beside a checksum of everything.
    """
    onnx = _onnx()
    helper, network = onnx.helper, json.loads(metadata)["network"]
    sizes, constants = network["sizes"], dict(tensors)
    nodes: list[Any] = []

    def add(operator: str, *inputs: str) -> str:
        output = f"{operator.lower()}{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [output], name=output))
        return output

    value = "observation"
    if network["normalizes"]:
        constants["minus_bound"] = -tensors["bound"]
        value = add("Div", add("Sub", value, "offset"), "scale")
        value = add("Min", add("Max", value, "minus_bound"), "bound")
    for layer in range(len(sizes) - 1):
        value = add("Gemm", value, f"weight{layer}", f"bias{layer}")
        if layer < len(sizes) - 2:
            value = add({"tanh": "Tanh", "relu": "Relu"}[network["activation"]], value)
    if network["output"] == "squash":
        constants["centre"], constants["half"] = centre_and_half(tensors["low"], tensors["high"])
        value = add("Add", add("Mul", add("Tanh", value), "half"), "centre")
    add("Min", add("Max", value, "low"), "high")
    nodes[-1].output[0] = "action"
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", float32, ["batch", sizes[0]])],
        [helper.make_tensor_value_info("action", float32, ["batch", sizes[-1]])],
        [onnx.numpy_helper.from_array(constants[name], name) for name in sorted(constants)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="bcppo")
    model.ir_version = IR_VERSION
    helper.set_model_props(model, {"bcppo": metadata, "checksum": checksum(tensors, {"metadata": metadata})})
    return model


def read_model(path: Path, payload: bytes) -> tuple[Any, Tensors, dict[str, str]]:
    """(model, tensors of the network, properties) of an ONNX file; nothing outside it is opened."""
    onnx = _onnx()
    model = onnx.ModelProto()
    try:
        model.ParseFromString(payload)
        properties = {entry.key: entry.value for entry in model.metadata_props}
        tensors = {tensor.name: _array(onnx, tensor) for tensor in model.graph.initializer}
        # What is not UTF-8 comes as bytes.
        if not all(isinstance(text, str) for text in (*properties, *properties.values(), *tensors)):
            raise ValueError("a name or a property is not UTF-8")
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise PolicyFileError(f"{path} is damaged and was not loaded: {reason}.") from error
    for derived in ("minus_bound", "centre", "half"):  # build_model makes these again
        tensors.pop(derived, None)
    return model, tensors, properties


def _array(onnx: Any, tensor: Any) -> np.ndarray:
    """A tensor whose numbers are all in the file, as many as its shape says."""
    if tensor.data_location or tensor.external_data or tensor.data_type != onnx.TensorProto.FLOAT:
        raise ValueError(f"the tensor {tensor.name[:40]!r} does not hold its own float32 numbers")
    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"the tensor {tensor.name[:40]!r} has a negative size")
    return np.frombuffer(tensor.raw_data, "<f4").reshape(tuple(tensor.dims)).astype(np.float32)
