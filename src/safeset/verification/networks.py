"""Networks from files, as programs: ONNX, and the .nnet files of ACAS Xu."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from safeset.data.acasxu import NnetNetwork, read_nnet
from safeset.errors import expected
from safeset.program.from_modules import program_of
from safeset.program.program import Program


def read_network(path: Path) -> Program:
    """The program of a network in a file.

    Raises:
        ArgumentError: if it is no such file, or has operations without a proof.
    """
    if not path.is_file():
        raise expected(f"a network at {path}", "no file")
    if path.suffix.lower() == ".nnet":
        return nnet_program(read_nnet(path))
    if path.suffix.lower() != ".onnx":
        raise expected("a network that ends in .onnx or .nnet", path.name)
    reader = onnx_reader()
    if reader is None:
        raise expected("a network that ends in .nnet", path.name, "This version of safeset does not read ONNX.")
    from safeset.capture.onnx_comparison import compare_with_runtime

    program: Program = reader.read_onnx(path)
    compare_with_runtime(path, program)
    return program


def onnx_reader() -> ModuleType | None:
    """The module that reads ONNX, if it is there: onnx is an extra of its own."""
    name = "safeset.capture.from_onnx"
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, "onnx"):
            raise
        return None


def nnet_program(network: NnetNetwork) -> Program:
    """A dense ReLU network on its own, scaled inputs; its outputs are costs, up to a common scale."""
    layers: list[nn.Module] = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        layer = nn.Linear(weight.shape[1], len(weight), device="meta")
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
        layers += [layer, nn.ReLU()]
    with torch.no_grad():
        return program_of(nn.Sequential(*layers[:-1]), (network.weights[0].shape[1],))
