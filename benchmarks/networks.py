"""Proofs of whole networks: VGG-11 at two sizes, by what "auto" chooses for each convolution, and by tori alone.

python benchmarks/networks.py [--device cuda]    # writes results/benchmarks/networks-cpu.json or networks-cuda.json
"""

import argparse
import time
from typing import Any

import torch
from torch import nn

from common import commit, machine, save
from safeset import CertifiedNet


def vgg(pixels: int) -> nn.Sequential:
    """VGG-11, with averages where it has maxima."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for out in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()] if out else [nn.AvgPool2d(2)]
        channels = out or channels
    side = pixels // 32
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * side**2, 512), nn.ReLU(), nn.Linear(512, 100))


def synchronised(device: str) -> float:
    """The time, once the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def proved(device: str) -> list[dict[str, Any]]:
    """A row for each size and wish."""
    rows = []
    for pixels, wish in ((32, "auto"), (32, "torus"), (64, "auto"), (64, "torus")):
        shape = (3, pixels, pixels)
        net = CertifiedNet(vgg(pixels), input_shape=shape, guarantee="rt5", epsilon=0.1).to(device)
        started = synchronised(device)
        bounds = net.bounds(convolutions=wish)
        seconds = synchronised(device) - started
        convolutions = [line.method for line in bounds.layers if line.type == "Conv2d"]
        exact = f"{convolutions.count('exact')} of {len(convolutions)}"
        name = f"VGG-11, {pixels}² pixels"
        row = {"network": name, "wish": wish, "seconds": seconds, "product": float(bounds.head.scale), "exact": exact}
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = parser.parse_args().device
    command = f"python benchmarks/networks.py --device {device}"
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    result = {"command": command, "commit": commit(), "device": name, "machine": machine(), "rows": proved(device)}
    save(f"benchmarks/networks-{device}.json", result)


if __name__ == "__main__":
    main()
