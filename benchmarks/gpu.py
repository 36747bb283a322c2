"""What a GPU does in a second: training steps, seeds at once, certified points, and the floors beside them.

    PYTHONPATH=src python benchmarks/gpu.py    # writes results/benchmarks/gpu.json, prints tables

The floor of a step is the larger of two times. Work: floating-point operations, as torch counts them, by the card's
peak in the same arithmetic. Memory: every layer's output is written and read in the forward pass, read again for the
gradient of the next layer's weights, and its gradient is written and read; parameters are read twice, their gradients
written and read, Adam's two moments read and written, the parameters written: divided by the card's bandwidth. Nothing
else is counted.
"""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from common import commit, save
from safeset import CertifiedNet, create_model
from safeset.certificates.margins import METHODS
from safeset.data.augmentation import Augmentation
from safeset.data.dataset import Split
from safeset.guarantees.guarantee import Affinity
from safeset.layers import InvertibleDownsampling, MinMax
from safeset.recipes.recipe import FittedRecipe
from safeset.recipes.sections import Data, Loss, Optimiser, Task
from safeset.system.provenance import provenance
from safeset.training.engine import Engine, fast_arithmetic
from safeset.training.gpu.blocks import InBlocks
from safeset.training.state import State
from safeset.training.step import call_with

# NVIDIA's data sheet of the H200 SXM, dense: operations in a second, and bytes in a second.
PEAK = {"tf32": 494e12, "bfloat16": 989e12, "float32": 67e12, "float64": 67e12}
BANDWIDTH = 4.8e12
CUDA = torch.device("cuda")
PLAIN = {"plain": False, "plain, in blocks": True}  # cross-entropy alone: by torch's layers, or as ours are computed
KINDS = {
    **dict.fromkeys(PLAIN, "standard"),  # not used
    "standard": "standard",
    "rt5": "rt5",
    "affinity 20 × 5": str(Affinity([range(start, start + 5) for start in range(0, 100, 5)])),
}
PARTS = {  # of the time on the card, by the names of kernels
    "convolutions": r"conv|wgrad|dgrad|fprop|cutlass__5x_cudnn",
    "matrix products": r"gemm|gemv|cutlass",
    "layouts and copies": r"copy|nchwToNhwc|nhwcToNchw|CatArray|Memcpy|convertTensor",
    "optimiser": r"FusedOptim",
    "reductions": r"reduce|softmax|nll_loss|scan|topk|sort|Radix|gatherTopK",
}


def recipe(guarantee: str, *, batch: int = 256, precision: str = "tf32") -> FittedRecipe:
    """CIFAR-100's, as far as a step knows it."""
    return FittedRecipe(
        data=Data("none"),
        model="own",
        task=Task((3, 32, 32), (), "pixels"),
        guarantee=guarantee,
        epsilon=0.141,
        epochs=200,
        batch=batch,
        precision=precision,
        augmentation=Augmentation("horizontal", shift=4),
        loss=Loss("trades", power_steps=2),
        optimiser=Optimiser(),
    )


def engine(
    kind: str,
    *,
    network: Callable[[], nn.Module],
    shape: tuple[int, ...],
    seeds: int = 1,
    captured: bool = True,
    batch: int = 256,
    precision: str = "tf32",
    stated: FittedRecipe | None = None,
) -> Engine:
    """Steps of one kind, or of a guarantee, ready to be taken; by the paper's recipe if none is stated."""
    stated = stated or recipe(KINDS.get(kind, kind), batch=batch, precision=precision)
    half = stated.precision == "bfloat16"
    nets = [CertifiedNet(network(), input_shape=shape, guarantee=stated.guarantee, epsilon=0.141) for _ in range(seeds)]
    nets = [net.to(CUDA) for net in nets]
    nets[0].guarantee.prepare(nets[0].classes, CUDA)
    points = max(2048, 2 * batch)
    split = Split(
        torch.randint(256, (points, *shape), dtype=torch.uint8, device=CUDA),
        torch.randint(nets[0].classes, (points,), device=CUDA),
    )
    numbers = list(range(seeds))
    made = Engine(nets[0], stated, split, State.start(nets, stated, numbers), numbers, captured=captured)
    if kind in PLAIN:
        logits_of = InBlocks(nets[0].network, half=half, shifts=seeds == 1) if PLAIN[kind] else nets[0]

        def plain(parameters: Any, vectors: Any, x: Tensor, y: Tensor, weight: Any, *_: Any) -> tuple[Tensor, Any]:
            return functional.cross_entropy(call_with(logits_of, parameters, x), y), vectors

        made._value = plain if seeds == 1 else torch.func.vmap(plain, in_dims=(0, 0, 0, 0, None, None, None))
    with fast_arithmetic(CUDA, stated.precision):
        made.start(0)
    return made


def milliseconds(engines: Sequence[Engine], precision: str = "tf32", rounds: int = 7, steps: int = 30) -> list[float]:
    """The median time of a step of each, over rounds in which all take turns."""
    times: list[list[float]] = [[] for _ in engines]
    with fast_arithmetic(CUDA, precision):
        for _ in range(rounds + 1):
            for each, taken in zip(engines, times, strict=True):
                each._place.zero_()
                torch.cuda.synchronize()
                started = time.perf_counter()
                for place in range(steps):
                    if place % each.steps == 0:
                        each._place.zero_()
                    each.step()
                torch.cuda.synchronize()
                taken.append(1e3 * (time.perf_counter() - started) / steps)
    return [round(statistics.median(taken[1:]), 4) for taken in times]


def floor(network: nn.Sequential, shape: tuple[int, ...], batch: int, seeds: int = 1) -> dict[str, float]:
    """Operations and bytes of a plain step in TF32, and the least milliseconds that they take."""
    x, outputs = torch.zeros(batch, *shape, device=CUDA), 0
    network = network.to(CUDA)
    with torch.no_grad():
        for layer in network:
            x = layer(x)
            outputs += x.numel()
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(batch, *shape, device=CUDA)).sum().backward()
    parameters = sum(parameter.numel() for parameter in network.parameters())
    operations = counter.get_total_flops() * seeds
    moved = 4 * (5 * outputs + 9 * parameters) * seeds
    least = 1e3 * max(operations / PEAK["tf32"], moved / BANDWIDTH)
    return {"operations": operations, "bytes": moved, "floor_ms": round(least, 4)}


def steps() -> dict[str, Any]:
    """Every kind of step, captured and eager; several seeds; where the time goes."""
    shape = (3, 32, 32)

    def network() -> nn.Sequential:
        return create_model("cnn-2c2f", input_shape=shape, classes=100)

    captured = [engine(kind, network=network, shape=shape) for kind in KINDS]
    eager = [engine(kind, network=network, shape=shape, captured=False) for kind in KINDS]
    rows: list[dict[str, Any]] = [
        {"step": name, "captured_ms": one, "eager_ms": two}
        for name, one, two in zip(KINDS, milliseconds(captured), milliseconds(eager, steps=10), strict=True)
    ]
    for row in rows:
        for place, name in enumerate(("x_plain", "x_blocks")):
            row[name] = round(row["captured_ms"] / rows[place]["captured_ms"], 3)
    parts = {name: spent(each) for name, each in zip(KINDS, captured, strict=True)}
    several = []
    for seeds in (1, 2, 5, 10, 20):
        made = [engine(kind, network=network, shape=shape, seeds=seeds) for kind in ("plain, in blocks", "rt5")]
        plain, rt5 = milliseconds(made, steps=20)
        several.append({"seeds": seeds, "plain_ms": plain, "rt5_ms": rt5, **floor(network(), shape, 256, seeds)})
        print(several[-1], flush=True)
        if seeds == 10:
            parts |= {"plain, in blocks, 10 seeds": spent(made[0]), "rt5, 10 seeds": spent(made[1])}
    precisions = [
        {
            "precision": precision,
            **{
                f"{seeds}_ms": milliseconds(
                    [engine("rt5", network=network, shape=shape, seeds=seeds, precision=precision)], precision
                )[0]
                for seeds in (1, 10)
            },
        }
        for precision in ("float32", "tf32", "bfloat16")
    ]
    return {
        "steps": rows,
        "floor": floor(network(), shape, 256),
        "seeds": several,
        "parts": parts,
        "precisions": precisions,
    }


def spent(made: Engine) -> dict[str, Any]:
    """Milliseconds on the card of each part of a step, and the number of kernels."""
    with fast_arithmetic(CUDA, "tf32"), profile(activities=[ProfilerActivity.CUDA]) as found:
        made._place.zero_()
        for _ in range(3):
            made.step()
        torch.cuda.synchronize()
    total: dict[str, float] = dict.fromkeys([*PARTS, "element by element"], 0.0)
    kernels = 0
    for row in found.key_averages():
        kernels += row.count
        name = next((name for name, pattern in PARTS.items() if re.search(pattern, row.key)), "element by element")
        total[name] += row.device_time_total / 3e3
    return {"kernels": kernels // 3, **{name: round(value, 4) for name, value in total.items()}}


def growth() -> list[dict[str, Any]]:
    """How a captured step grows, plain and RTK, from CIFAR-100's: one thing changed at a time."""
    usual = {"classes": 100, "k": 5, "width": 32, "pixels": 32, "batch": 256}
    changes: list[tuple[str, list[int]]] = [
        ("classes", [10, 100, 1000]),
        ("k", [1, 5, 10]),
        ("width", [16, 32, 64]),
        ("pixels", [16, 32, 64]),
        ("batch", [64, 256, 1024]),
    ]
    rows = []
    for name, values in changes:
        for value in values:
            size = {**usual, name: value}
            shape = (3, size["pixels"], size["pixels"])

            def network(size: dict[str, int] = size) -> nn.Sequential:
                return two_convolutions(size["width"], size["pixels"], size["classes"])

            made = [
                engine(kind, network=network, shape=shape, batch=size["batch"])
                for kind in ("plain, in blocks", f"rt{size['k']}")
            ]
            plain, relaxed = milliseconds(made, steps=20)
            rows.append({"changed": name, "value": value, "plain_ms": plain, "rtk_ms": relaxed})
            rows[-1] |= floor(network(), shape, size["batch"])
            print(rows[-1], flush=True)
    return rows


def two_convolutions(width: int, pixels: int, classes: int) -> nn.Sequential:
    """The paper's CIFAR-100 network, with other widths."""
    features = 2 * width * 4 * (pixels // 4) ** 2
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), MinMax(), InvertibleDownsampling()),
        *(nn.Conv2d(4 * width, 2 * width, 3, padding=1), MinMax(), InvertibleDownsampling()),
        *(nn.Flatten(), nn.Linear(features, 256), MinMax(), nn.Linear(256, classes)),
    )


def certified() -> list[dict[str, Any]]:
    """Points certified in a second by each method, beside the plain float64 forward pass, and seconds of the proof."""
    rows = []
    for classes in (100, 1000):
        torch.manual_seed(0)
        net = CertifiedNet(
            create_model("cnn-2c2f", input_shape=(3, 32, 32), classes=classes),
            input_shape=(3, 32, 32),
            guarantee="rt5",
            epsilon=0.141,
        ).to(CUDA)
        torch.cuda.synchronize()
        started = time.perf_counter()
        frozen = net.frozen()
        frozen.bounds()
        torch.cuda.synchronize()
        row: dict[str, Any] = {"classes": classes, "proof_seconds": round(time.perf_counter() - started, 3)}
        x = torch.rand(10_000, 3, 32, 32, device=CUDA)
        row["plain"] = per_second(partial(forward, frozen, x), len(x))
        for method in METHODS:
            row[method] = per_second(partial(frozen.certify, x, method=method), len(x))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            frozen(x[:100])
        row["floor"] = round(PEAK["float64"] / (counter.get_total_flops() / 100))
        rows.append(row)
        print(row, flush=True)
    return rows


@torch.no_grad()
def forward(net: nn.Module, x: Tensor) -> None:
    """The logits, as many points at once as certification takes."""
    for part in torch.split(x, 256):
        net(part)


def per_second(function: Callable[[], Any], points: int) -> int:
    """The median over five calls, after one."""
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return round(points / statistics.median(times[1:]))


def main() -> None:
    """Measure, print and save."""
    started = time.perf_counter()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "command": "PYTHONPATH=src python benchmarks/gpu.py",
        "network": "cnn-2c2f, 3 × 32 × 32 pixels, 100 classes, batch 256, TRADES, two power iterations, Adam",
        "commit": commit(),
        **provenance(CUDA),
        "peak": {"operations_per_second": PEAK, "bytes_per_second": BANDWIDTH},
        **steps(),
        "growth": growth(),
        "certified": certified(),
    }
    result["seconds"] = round(time.perf_counter() - started, 1)
    for row in (*result["steps"], *result["precisions"], *result["parts"].items()):
        print(row)
    save("benchmarks/gpu.json", result)


if __name__ == "__main__":
    main()
