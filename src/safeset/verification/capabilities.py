"""What queries can be decided, in the words of the VNN-LIB standard's command line."""

from safeset.verification.networks import onnx_reader

THEORIES = {
    "vnnlib-versions": ("1.0", "2.0"),
    "hidden-node-theories": ("NH",),
    "multiple-input-output-theories": ("SIO",),
    "multiple-network-theories": ("SNET",),
    "multiple-node-comparison-theories": ("SNC", "MNC"),
    "arithmetic-complexity-theories": ("BND", "COUT", "LIN"),
    "optimised-disjunctive-reasoning": ("false",),
    "serialise-assignments": ("false",),
}


def capabilities() -> dict[str, tuple[str, ...]]:
    """Each capability that the standard asks for, and the lines that answer it.

    The only element type is ``real``: nothing is claimed of networks that are computed in floats.
    """
    reader = onnx_reader()
    opsets = () if reader is None else tuple(map(str, getattr(reader, "OPSETS", (13, 21))))
    operators = () if reader is None else tuple(sorted(getattr(reader, "OPERATORS", ())))
    onnx = {"onnx-opset-versions": opsets, "onnx-element-types": ("real",), "onnx-operators": operators}
    return {**onnx, **THEORIES}
