"""The 45 ACAS Xu networks as they were published: how many points they certify, though nobody trained them for it.

Each `.nnet` file becomes an ONNX file and is read back; the least cost is the advice, so costs are negated. Points are
uniform in the input domain, ε is in the network's own, scaled units.

    SAFESET_DATA=FOLDER python benchmarks/acasxu_published.py    # writes results/benchmarks/acasxu-published.json
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from common import commit, machine, save
from safeset import Affinity, CertifiedNet
from safeset.capture.from_onnx import read_onnx
from safeset.capture.program_network import ProgramNetwork
from safeset.data.acasxu import ADVISORIES, NnetNetwork, nnet_file, read_nnet
from safeset.program.program import Program
from safeset.program.rebalancing import rebalance

POINTS, SEED = 2000, 0
EPSILONS = (0.001, 0.003, 0.01)
ORDER = ["strong left", "weak left", "clear of conflict", "weak right", "strong right"]  # neighbours go together
GUARANTEES: dict[str, Any] = {"standard": "standard", "affinity": Affinity.from_neighbours(ORDER)}


def write_onnx(network: NnetNetwork, path: Path) -> None:
    """Write a network as products, sums and Relu, in float64; its last layer is negated."""
    nodes, numbers, value = [], [], "x"
    last = len(network.weights) - 1
    for place, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        sign = -1.0 if place == last else 1.0
        for name, tensor in ((f"w{place}", sign * weight.T), (f"b{place}", sign * bias)):
            numbers.append(numpy_helper.from_array(tensor.contiguous().numpy(), name))
        nodes.append(helper.make_node("MatMul", [value, f"w{place}"], [f"m{place}"], name=f"dense{place}"))
        nodes.append(helper.make_node("Add", [f"m{place}", f"b{place}"], [f"a{place}"], name=f"layer{place}"))
        value = f"a{place}"
        if place < last:
            nodes.append(helper.make_node("Relu", [value], [f"r{place}"], name=f"relu{place}"))
            value = f"r{place}"
    ends = [
        helper.make_tensor_value_info(*each) for each in (("x", 11, ["n", 5]), (value, TensorProto.DOUBLE, ["n", 5]))
    ]
    graph = helper.make_graph(nodes, "acasxu", ends[:1], ends[1:], numbers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, str(path))


def certified(program: Program, x: Tensor) -> dict[str, Any]:
    """The share of points that are certified at each ε, and the median radius, for each guarantee."""
    found: dict[str, Any] = {}
    network = ProgramNetwork(program)
    net = CertifiedNet(network, input_shape=(5,), guarantee="standard", epsilon=EPSILONS[0], class_names=ADVISORIES)
    for name, guarantee in GUARANTEES.items():
        certificate = net.certify(x, guarantee=guarantee)
        found[name] = {
            "certified": {str(each): float(certificate.at(each).certified.double().mean()) for each in EPSILONS},
            "median_radius": float(certificate.radius.median()),
        }
    return found | {"bound": float(net.bounds().head.scale)}


def measure() -> dict[str, Any]:
    """Every network at its own points."""
    started, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for name in (f"{previous}_{when}" for previous in range(1, 6) for when in range(1, 10)):
            network, path = read_nnet(nnet_file(name)), Path(folder) / f"{name}.onnx"
            write_onnx(network, path)
            program = read_onnx(path)
            generator = torch.Generator().manual_seed(SEED)
            share = torch.rand(POINTS, 5, generator=generator, dtype=torch.float64)
            x = network.scale(network.low + share * (network.high - network.low))
            costs = network.costs(x)
            assert bool(((program.run(x) + costs).abs() <= 1e-9 * costs.abs().amax()).all())
            row = {"network": name, "as published": certified(program, x)}
            rows.append(row | {"rebalanced": certified(rebalance(program, powers_of_two=False), x)})
            print(name, row["as published"]["standard"], rows[-1]["rebalanced"]["standard"]["median_radius"])
    about = {"points": POINTS, "seed": SEED, "epsilons": EPSILONS, "seconds": round(time.perf_counter() - started, 1)}
    return {**about, "commit": commit(), "machine": machine(), "rows": rows}


if __name__ == "__main__":
    save("benchmarks/acasxu-published.json", measure())
