"""Proofs of whole networks: plain ones by what "auto" chooses and by tori, and torchvision's as they are captured.

python benchmarks/networks.py [--device cuda]    # writes results/benchmarks/networks-cpu.json or networks-cuda.json
python benchmarks/networks.py --captured         # writes results/benchmarks/captured.json; needs torchvision
"""

import argparse
import json
import resource
import subprocess
import sys
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


def captured(name: str, pixels: int) -> dict[str, Any]:
    """Seconds, memory and tightness of one of torchvision's networks, as its batch norm is after some noise."""
    library: Any = torch.library  # what torchvision's own build would define
    library = library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import models

    torch.manual_seed(0)
    shape = (3, pixels, pixels)
    network = getattr(models, name)(num_classes=10).train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.rand(16, *shape))
    marks = [time.perf_counter()]

    def lap() -> float:
        marks.append(time.perf_counter())
        return marks[-1] - marks[-2]

    net = CertifiedNet(network.eval(), input_shape=shape, guarantee="standard", epsilon=0.1)
    seconds = {"capture": lap()}
    frozen = net.frozen()
    seconds["copy and tighten"] = lap()
    scale = float(frozen.bounds().head.scale)
    seconds["proof"] = lap()
    frozen.certify(torch.rand(64, *shape))
    seconds["certify 64 points"] = lap()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    plain = CertifiedNet(network, input_shape=shape, guarantee="standard", epsilon=0.1, tighten=False)
    loose = float(plain.bounds(convolutions="torus").head.scale)
    lines = [line for line in frozen.explain().layers if line.type in ("Conv2d", "Linear")]
    ratios = sorted(line.gives_away for line in lines if line.gives_away is not None)
    gives_away = {"median": ratios[len(ratios) // 2], "largest": ratios[-1]}
    row = {"network": name, "pixels": pixels, "seconds": seconds, "peak_gib": peak, "product": scale}
    return {**row, "product_untightened_torus": loose, "bound_over_least": gives_away, "layers": len(ratios)}


def measure_captured() -> list[dict[str, Any]]:
    """A row for each network and size, each in a process of its own, so that memory is its own too."""
    rows = []
    for name in ("resnet18", "vgg11"):
        for pixels in (32, 64):
            command = [sys.executable, __file__, "--one", name, str(pixels)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--captured", action="store_true", help="torchvision's networks, on the CPU")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "PIXELS"), help="print one row of the captured ones")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(captured(given.one[0], int(given.one[1]))))
        return
    if given.captured:
        about: dict[str, Any] = {"command": "python benchmarks/networks.py --captured", "commit": commit()}
        save("benchmarks/captured.json", {**about, "machine": machine(), "rows": measure_captured()})
        return
    device = given.device
    command = f"python benchmarks/networks.py --device {device}"
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    result = {"command": command, "commit": commit(), "device": name, "machine": machine(), "rows": proved(device)}
    save(f"benchmarks/networks-{device}.json", result)


if __name__ == "__main__":
    main()
