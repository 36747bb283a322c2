"""Proved bounds of the paper's networks at full size, layer by layer, and how their cost grows.

    python benchmarks/bounds.py [--device cuda]

For each layer: the proved bound, an estimate run to convergence in float64 (singular values; the Lanczos method for
convolutions), their ratio, the power method's value after 300 steps, and the seconds of the proof.
The weights are torch's initialisation with seed 0. Writes results/benchmarks/bounds-cpu.json or bounds-cuda.json.
"""

import argparse
import time
from typing import Any

import torch

from common import commit, machine, save
from safeset import CertifiedNet, create_model
from safeset.lipschitz.block_cholesky import largest_eigenvalue
from safeset.lipschitz.convolution import Axis, Convolution
from safeset.lipschitz.convolution_proof import cost, exact_bound, torus_bound
from safeset.numerics.strict import strict_arithmetic
from safeset.program.from_modules import program_of
from safeset.program.rules import rule_of
from safeset.program.sliding import Conv2d

NETWORKS = {
    "CIFAR-100": ("cnn-2c2f", (3, 32, 32), 100),
    "EuroSAT": ("cnn-2c2f", (3, 64, 64), 10),
    "Tiny-ImageNet": ("cnn-8c2f", (3, 64, 64), 200),
    "ACAS Xu": ("mlp-3x1000", (5,), 5),
}
STEPS = 300
TOO_MUCH = 1e12  # floating-point operations for one exact bound on a CPU


def synchronised(device: str) -> float:
    """The time, once the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def converged(layer: torch.nn.Module, shape: tuple[int, ...]) -> float:
    """The layer's norm without proof, to about 12 digits."""
    operation = program_of(layer, shape).nodes[0].operation
    if isinstance(operation, Conv2d):
        return float(largest_eigenvalue(Convolution(operation.weight, *operation.axes(shape))) ** 0.5)
    return float(torch.linalg.matrix_norm(layer.state_dict()["weight"], 2))


def network_rows(name: str, device: str) -> list[dict[str, Any]]:
    """A row for each layer with weights, by every method that is affordable."""
    model, shape, classes = NETWORKS[name]
    torch.manual_seed(0)
    network = create_model(model, input_shape=shape, classes=classes)
    net = CertifiedNet(network, input_shape=shape, guarantee="standard", epsilon=0.1).to(device)
    frozen = net.frozen()
    vectors, rows = {name: v.double() for name, v in net.start_vectors().items()}, []
    plain = frozen.network
    for step in frozen.program.layers:
        layer = plain.get_submodule(step.name)
        if step.name not in vectors:
            continue
        rule = rule_of(layer)
        with strict_arithmetic():
            power, _ = rule.estimate(layer, step.shape, vectors[step.name], STEPS)
            estimate = converged(layer, step.shape)
            methods = ["auto"] if isinstance(layer, torch.nn.Linear) else ["auto", "exact", "torus"]
            done = set()
            for wish in methods:
                started = synchronised(device)
                if wish == "exact" and device == "cpu" and "torus" in done:
                    continue  # auto found it too expensive
                bound, method = rule.bound(layer, step.shape, wish)
                seconds = synchronised(device) - started
                if method in done:
                    continue
                done.add(method)
                rows.append(
                    {
                        "network": name,
                        "layer": step.name,
                        "type": type(layer).__name__,
                        "weights": list(layer.state_dict()["weight"].shape),
                        "input": list(step.shape),
                        "method": method,
                        "auto": wish == "auto",
                        "bound": float(bound),
                        "estimate": estimate,
                        "ratio": float(bound) / estimate,
                        "power_method": float(power),
                        "seconds": round(seconds, 3),
                    }
                )
                found = f"{float(bound):.9f} {float(bound) / estimate - 1:9.1e} {float(power) / estimate - 1:9.1e}"
                print(f"{name:14} {step.name:>3} {method:6} {found} {seconds:7.2f} s")
    return rows


def growth_rows(device: str) -> list[dict[str, Any]]:
    """A 3×3 convolution of random weights, as channels and image size grow."""
    rows = []
    for channels, size in [(8, 16), (16, 16), (32, 16), (64, 16), (128, 16), (16, 8), (16, 32), (16, 64), (16, 128)]:
        generator = torch.Generator().manual_seed(0)
        kernel = torch.randn(channels, channels, 3, 3, generator=generator, dtype=torch.float64).to(device)
        axis = Axis(size, 3, 1, 1, 1, 1)
        convolution = Convolution(kernel, axis, axis)
        row: dict[str, Any] = {"channels": channels, "size": size, "operations": cost(convolution)}
        for name, method in (("torus", torus_bound), ("exact", exact_bound)):
            if name == "exact" and device == "cpu" and cost(convolution) > TOO_MUCH:
                continue
            with strict_arithmetic():
                started = synchronised(device)
                row[name] = float(method(convolution))
                row[f"{name}_seconds"] = round(synchronised(device) - started, 3)
        rows.append(row)
        print(row)
    return rows


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = parser.parse_args().device
    layers = [row for name in NETWORKS for row in network_rows(name, device)]
    result = {
        "command": f"python benchmarks/bounds.py --device {device}",
        "commit": commit(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "dtype": "float64",
        "steps_of_the_estimate": STEPS,
        "machine": machine(),
        "layers": layers,
        "growth": growth_rows(device),
    }
    save(f"benchmarks/bounds-{device}.json", result)


if __name__ == "__main__":
    main()
