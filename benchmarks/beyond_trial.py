"""Trials for certified sets worth deploying: networks of rotations and shifts, trained in minutes on one GPU.

This is the script behind results/beyond/tries, kept until its parts have their place in safeset.training; it needs
Triton and a GPU.

    python beyond_trial.py prepare DATA            # sheets and JPEGs become DATA/cifar100.pt and DATA/eurosat.pt
    python beyond_trial.py check                   # kernels and the captured step beside plain torch
    python beyond_trial.py work DATA QUEUE RESULTS # take *.json from QUEUE one by one, train, certify, write RESULTS/*.json

Only training points are read here: a tenth of each class of them is held out (safeset's own `stratify`), and every number
is of that tenth, certified in float64 by safeset's `certify_logits` with bounds proved by its `spectral_bound`.
"""

import io
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

EPSILON = 0.141
QUINTIC = (3.4445, -4.7750, 2.0315)  # Muon's iteration: all singular values to about 1, quickly
PARTS = 8  # of a batch, whose gradients of biases are added up apart


# What is trained, and how -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Layers of one width at one resolution; ``how`` says how they are reached: unshuffle (by 2), or pool (2 × 2)."""

    channels: int
    layers: int
    how: str = "unshuffle"


@dataclass(frozen=True)
class Settings:
    """All that decides a trial."""

    name: str
    data: str = "cifar100"
    patch: int = 4
    stages: tuple[Stage, ...] = (Stage(1024, 12),)
    dense: int = 2
    epochs: float = 90
    batch: int = 256
    loss: str = "emma:.5,drop:.5"  # weights of emma, drop, remove, group
    views: int = 32  # of each image in the bank
    bank_seed: int = 0
    grow: float = 0.5  # share of the training in which ε_t grows
    newton: int = 5  # quintic steps of Muon
    compiled: bool = True
    teacher_moved: bool = False  # the teacher is trained on the same moves
    teacher_rate: float = 0.2
    profile: bool = False
    start: float = 0.0  # 0: random rotations at the start; else the identity turned by about so much
    erase: float = 0.0  # share of images with a grey box
    colour: float = 0.0  # jitter of brightness and contrast
    k: int = 5  # the classes that may stay together in ``drop``
    temperature: float = 3.5
    floor: float = 0.01
    epsilon_factor: float = 2.0
    soft_margin: float = 0.0  # 1: the margin of a class shrinks with its share of the target
    rate: float = 0.005  # of rotations, by Muon
    rate_biases: float = 3e-3
    rate_places: float = 1e-3
    warm_up: float = 0.1
    mixup: float = 0.15
    cutmix: float = 0.25
    moved: float = 0.7  # share of images that are rotated and scaled
    degrees: float = 8.0
    scale: float = 0.1
    shift: int = 4
    dihedral: bool = False
    taught: float = 0.9  # weight of the teacher's labels
    teacher_epochs: float = 40
    teacher_noise: float = 0.0  # σ of the noise that the teacher is trained and asked with
    teacher_temperature: float = 1.0
    teacher_width: int = 64
    teachers: int = 1
    all_points: bool = False  # train on the held-out tenth too (numbers are then of points that were trained on)
    seed: int = 0

    @staticmethod
    def read(table: dict[str, Any]) -> "Settings":
        """From JSON; stages as [channels, layers] or [channels, layers, how]."""
        table = dict(table)
        if "stages" in table:
            table["stages"] = tuple(Stage(*stage) for stage in table["stages"])
        return Settings(**table)


# Data -------------------------------------------------------------------------------------------------------------


def prepare_cifar100(folder: Path) -> dict[str, Tensor]:
    """The training sheets as images (50000, 3, 32, 32) and labels, in the order of the publisher's layout here."""
    from PIL import Image

    images, labels = [], []
    for place in range(5):
        tiles = np.asarray(Image.open(folder / f"cifar100_train_{place}.webp").convert("RGB"))
        images.append(tiles.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32))
        labels.append(np.tile(np.arange(100), 100))
    meta = json.loads((folder / "cifar100_meta.json").read_text())
    groups = torch.tensor(meta["fine_to_coarse"])
    return {"x": torch.tensor(np.concatenate(images)), "y": torch.tensor(np.concatenate(labels)), "groups": groups}


def prepare_jpegs(folder: Path, stem: str) -> dict[str, Tensor]:
    """JPEGs packed without their headers."""
    from concurrent.futures import ThreadPoolExecutor

    from PIL import Image

    def decode(blob: bytes) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(blob)).convert("RGB")).transpose(2, 0, 1)

    blobs, labels = [], []
    for path in sorted(folder.glob(f"{stem}_train_*.npz")):
        part = np.load(path)
        sizes, hsizes = part["lengths"].astype(np.int64), part["head_lengths"].astype(np.int64)
        ends, hends = np.cumsum(sizes), np.cumsum(hsizes)
        content, hcontent, ids = part["bytes"].tobytes(), part["heads"].tobytes(), part["ids"]
        heads = [hcontent[e - n : e] for e, n in zip(hends, hsizes, strict=True)]
        blobs += [heads[i] + content[e - n : e] + b"\xff\xd9" for i, e, n in zip(ids, ends, sizes, strict=True)]
        labels.append(part["y"])
    with ThreadPoolExecutor(14) as pool:
        images = np.stack(list(pool.map(decode, blobs, chunksize=256)))
    return {"x": torch.tensor(images), "y": torch.tensor(np.concatenate(labels)).long(), "groups": torch.zeros(0)}


def prepare_eurosat(folder: Path) -> dict[str, Tensor]:
    return prepare_jpegs(folder, "eurosat")


def prepare_tiny(folder: Path) -> dict[str, Tensor]:
    return prepare_jpegs(folder, "tiny")


PREPARE = {"cifar100": prepare_cifar100, "eurosat": prepare_eurosat, "tiny": prepare_tiny}


@dataclass(frozen=True)
class Points:
    """Images as bytes and labels, in the two parts of a choice."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    classes: int
    guarantees: dict[str, Any]
    mates: Tensor  # (classes, classes): 1 where two classes share an affinity set


def load_points(path: Path, name: str, device: torch.device, *, all_points: bool = False) -> Points:
    """Nine tenths of the training points to train on, one to choose by."""
    from safeset import Affinity
    from safeset.data.dataset import stratify

    table = torch.load(path / f"{name}.pt")
    rest, held = stratify(table["y"], 0.1, seed=0)
    if all_points:
        rest = torch.arange(len(table["y"]))
    if name == "eurosat":
        guarantees = {
            "standard": "standard",
            "rt3": "rt3",
            "affinity": Affinity([[0, 6]], everyone_with=[3, 8]),  # both crops; highway and river with everyone
        }
    elif len(table["groups"]):
        sets = [(table["groups"] == group).nonzero()[:, 0].tolist() for group in range(int(table["groups"].max()) + 1)]
        guarantees = {"standard": "standard", "rt5": "rt5", "superclass": Affinity(sets)}
    else:
        guarantees = {"standard": "standard", "rt5": "rt5"}
    classes = int(table["y"].max()) + 1
    mates = torch.eye(classes)
    if name == "eurosat":
        mates[[0, 6], [6, 0]] = 1
        mates[[3, 8]] = 1
        mates[:, [3, 8]] = 1
    elif len(table["groups"]):
        mates = (table["groups"][:, None] == table["groups"][None]).float()
    parts = [table[key][places].to(device) for places in (rest, held) for key in ("x", "y")]
    return Points(*parts, classes=classes, guarantees=guarantees, mates=mates.to(device))


def centred(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes as numbers in [−½, ½]."""
    return images.to(dtype) / 255 - 0.5


def move(x: Tensor, settings: Settings) -> Tensor:
    """Flip, shift, rotate and scale images at random, by one interpolation; what comes from outside is grey."""
    count, size, device = len(x), x.shape[-1], x.device
    draws = torch.rand(8, count, device=device)
    moved = (draws[0] < settings.moved).float()
    angle = moved * (2 * draws[1] - 1) * math.radians(settings.degrees)
    factor = torch.exp(moved * (2 * draws[2] - 1) * settings.scale)
    steps = ((2 * settings.shift + 1) * draws[3:5]).floor() - settings.shift
    flip = torch.where(draws[5] < 0.5, -1.0, 1.0)
    rows = torch.stack(
        [
            torch.stack([flip * factor * angle.cos(), -factor * angle.sin(), 2 * steps[0] / size], -1),
            torch.stack([flip * factor * angle.sin(), factor * angle.cos(), 2 * steps[1] / size], -1),
        ],
        1,
    )
    if settings.dihedral:  # up and down, and along the diagonal
        upside = torch.where(draws[6] < 0.5, -1.0, 1.0)
        rows = torch.stack([rows[:, 0], upside[:, None] * rows[:, 1]], 1)
        rows = torch.where(draws[7, :, None, None] < 0.5, rows.flip(1), rows)
    grid = functional.affine_grid(rows, list(x.shape), align_corners=False)
    padding = "reflection" if settings.dihedral else "zeros"
    return functional.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def mix(x: Tensor, mixup: float, cutmix: float) -> tuple[Tensor, Tensor]:
    """Mix some images with their neighbours in the batch: the images, and each one's own share of itself (batch,)."""
    count, size, device = len(x), x.shape[-1], x.device
    other, draws = x.roll(1, 0), torch.rand(5, count, device=device)
    side = draws[0].sqrt() * size / 2
    line = torch.arange(size, device=device) + 0.5
    inside = [(line - (draws[axis] * size)[:, None]).abs() < side[:, None] for axis in (1, 2)]
    box = (inside[0][:, :, None] & inside[1][:, None, :]).float()  # (batch, height, width)
    kind = draws[3]
    blended = (kind < mixup).float() * 0.5 * draws[4]
    box = box * ((kind >= mixup) & (kind < mixup + cutmix)).float()[:, None, None]
    weight = torch.maximum(box, blended[:, None, None])[:, None]  # of the neighbour
    return torch.lerp(x, other, weight), 1 - weight.mean((1, 2, 3))


# Layers: one rotation at every pixel, a circular shift of half of the channels, biases, |·| on every other channel --

if triton is not None:

    @triton.jit
    def _source(pixel, channel, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
        """The pixel that each channel of ``pixel`` comes from: an eighth of the channels from each of four sides."""
        group = channel // (C // 8)
        down = tl.where(group == 0, 1, 0) - tl.where(group == 1, 1, 0)
        right = tl.where(group == 2, 1, 0) - tl.where(group == 3, 1, 0)
        return ((pixel // W + H - down) % H) * W + (pixel % W + W - right) % W

    @triton.jit
    def _finish_kernel(
        found, bias, out, N, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr
    ):
        pixel = tl.program_id(0)
        channel = tl.program_id(1) * BC + tl.arange(0, BC)
        point = (tl.program_id(2) * BN + tl.arange(0, BN)).to(tl.int64)[:, None]
        source = _source(pixel, channel, C, H, W)
        mask = point < N
        value = tl.load(found + point * (H * W * C) + (source * C + channel)[None, :], mask=mask, other=0.0)
        value = value.to(tl.float32) + tl.load(bias + pixel * C + channel)[None, :]
        value = tl.where((channel % 2 == 0)[None, :], tl.abs(value), value)
        tl.store(out + point * (H * W * C) + (pixel * C + channel)[None, :], value.to(out.dtype.element_ty), mask=mask)

    @triton.jit
    def _unfinish_kernel(
        gradient, found, bias, of_found, of_bias, N, PER,
        C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    ):  # fmt: skip
        pixel, part = tl.program_id(0), tl.program_id(2)
        channel = tl.program_id(1) * BC + tl.arange(0, BC)
        source = _source(pixel, channel, C, H, W)
        shift = tl.load(bias + pixel * C + channel)[None, :]
        total = tl.zeros((BC,), tl.float32)
        for start in range(0, PER, BN):
            point = (part * PER + start + tl.arange(0, BN)).to(tl.int64)[:, None]
            mask = (point < N) & (point < (part + 1) * PER)
            at = point * (H * W * C) + (source * C + channel)[None, :]
            value = tl.load(found + at, mask=mask, other=0.0).to(tl.float32) + shift
            slope = tl.load(gradient + point * (H * W * C) + (pixel * C + channel)[None, :], mask=mask, other=0.0)
            slope = slope.to(tl.float32)
            slope = tl.where((channel % 2 == 0)[None, :] & (value < 0), -slope, slope)
            tl.store(of_found + at, slope.to(of_found.dtype.element_ty), mask=mask)
            total += tl.sum(slope, 0)
        tl.store(of_bias + part * (H * W * C) + pixel * C + channel, total)


def shifted(z: Tensor, back: bool = False) -> Tensor:
    """Circular shift of (batch, height, width, channels): an eighth of the channels each way, the others stay."""
    parts = list(z.split(z.shape[-1] // 8, -1))
    step = -1 if back else 1
    for place, (amount, axis) in enumerate(((step, 1), (-step, 1), (step, 2), (-step, 2))):
        parts[place] = parts[place].roll(amount, axis)
    return torch.cat(parts, -1)


def half_abs(z: Tensor) -> Tensor:
    """|·| on even channels: 1-Lipschitz, exact, and MinMax up to a rotation."""
    even = torch.arange(z.shape[-1], device=z.device) % 2 == 0
    return torch.where(even, z.abs(), z)


def plain_layer(z: Tensor, rotation: Tensor, bias: Tensor) -> Tensor:
    """σ(S(Qz) + bias), any floating point: z (batch, height, width, channels), bias (height·width, channels)."""
    return half_abs(shifted(z @ rotation.T) + bias.view(1, *z.shape[1:3], -1).to(z.dtype))


class FusedLayer(torch.autograd.Function):
    """`plain_layer` in two passes over memory: the product, and everything else."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, rotation: Tensor, bias: Tensor) -> Tensor:
        count, height, width, channels = z.shape
        found = z.view(-1, channels) @ rotation.T
        out = torch.empty(z.shape[:3] + rotation.shape[:1], dtype=z.dtype, device=z.device)
        grid = (height * width, triton.cdiv(channels, 128), triton.cdiv(count, 32))
        _finish_kernel[grid](found, bias, out, count, channels, height, width, 32, min(128, channels), num_warps=4)
        ctx.save_for_backward(z, rotation, bias, found)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, rotation, bias, found = ctx.saved_tensors
        count, height, width, channels = z.shape
        gradient = gradient.contiguous()
        of_found = torch.empty_like(found)
        of_bias = torch.empty(PARTS, height * width, channels, device=z.device)
        grid = (height * width, triton.cdiv(channels, 128), PARTS)
        per = triton.cdiv(count, PARTS)
        _unfinish_kernel[grid](
            gradient, found, bias, of_found, of_bias, count, per, channels, height, width, 16, min(128, channels),
            num_warps=4,
        )  # fmt: skip
        of_z = (of_found @ rotation).view_as(z)
        return of_z, of_found.T @ z.view(-1, channels), of_bias.sum(0)


def layer(z: Tensor, rotation: Tensor, bias: Tensor) -> Tensor:
    """One layer, fused where it can be."""
    if triton is not None and z.is_cuda and z.dtype == torch.bfloat16:
        return FusedLayer.apply(z, rotation, bias)
    return plain_layer(z, rotation, bias)


def unshuffled(z: Tensor, by: int) -> Tensor:
    """Space to depth of (batch, height, width, channels): a permutation."""
    count, height, width, channels = z.shape
    z = z.reshape(count, height // by, by, width // by, by, channels).permute(0, 1, 3, 2, 4, 5)
    return z.reshape(count, height // by, width // by, by * by * channels)


def pooled(z: Tensor, by: int | None = None) -> Tensor:
    """L2 norms of disjoint windows, or of all pixels: 1-Lipschitz, because |‖u‖ − ‖v‖| ≤ ‖u − v‖."""
    if by is None:
        return torch.linalg.vector_norm(z.flatten(1, 2).to(torch.promote_types(z.dtype, torch.float32)), dim=1)
    count, height, width, channels = z.shape
    windows = z.reshape(count, height // by, by, width // by, by, channels).to(
        torch.promote_types(z.dtype, torch.float32)
    )
    return torch.linalg.vector_norm(windows, dim=(2, 4)).to(z.dtype)


# The network as a pure function of its parameters --------------------------------------------------------------------


def plan(settings: Settings, size: int) -> list[tuple[Stage, int, int]]:
    """Each stage with its channels before and its side in pixels."""
    side, channels, rows = size // settings.patch, 3 * settings.patch**2, []
    for place, stage in enumerate(settings.stages):
        if place:
            side //= 2
            channels *= 4 if stage.how == "unshuffle" else 1
        rows.append((stage, channels, side))
        channels = stage.channels
    return rows


def start_parameters(settings: Settings, size: int, classes: int, device: torch.device) -> dict[str, Tensor]:
    """Random rotations, stems with orthonormal columns, no biases, a head of random directions."""
    make = torch.Generator().manual_seed(settings.seed)

    def orthogonal(rows: int, columns: int) -> Tensor:
        q, r = torch.linalg.qr(torch.randn(rows, columns, generator=make).to(device))
        return q * r.diagonal().sign()

    def rotation(side: int) -> Tensor:
        if not settings.start:
            return orthogonal(side, side)
        turn = torch.randn(side, side, generator=make).to(device)
        near = torch.eye(side, device=device) + settings.start * (turn - turn.T) / math.sqrt(2 * side)
        u, _, v = torch.linalg.svd(near)
        return u @ v

    found: dict[str, Tensor] = {}
    for place, (stage, before, side) in enumerate(plan(settings, size)):
        if before != stage.channels:
            found[f"stem{place}"] = orthogonal(stage.channels, before)
        rotations = [rotation(stage.channels) for _ in range(stage.layers)]
        found[f"rotations{place}"] = torch.stack(rotations)
        found[f"bias{place}"] = torch.zeros(stage.layers, stage.channels, device=device)
        found[f"places{place}"] = torch.zeros(stage.layers, side**2, stage.channels, device=device)
    width = settings.stages[-1].channels
    found["dense"] = torch.stack([rotation(width) for _ in range(settings.dense)])
    found["dense_bias"] = torch.zeros(settings.dense, width, device=device)
    found["head"] = torch.randn(classes, width, generator=make).to(device) / math.sqrt(width)
    found["head_bias"] = torch.zeros(classes, device=device)
    return found


def trunk(parameters: dict[str, Tensor], x: Tensor, settings: Settings) -> Tensor:
    """What is pooled: (batch, height, width, channels)."""
    dtype = parameters["rotations0"].dtype
    z = unshuffled(x.permute(0, 2, 3, 1), settings.patch).to(dtype)
    for place, stage in enumerate(settings.stages):
        if place:
            z = unshuffled(z, 2) if stage.how == "unshuffle" else pooled(z, 2)
        if f"stem{place}" in parameters:
            z = z @ parameters[f"stem{place}"].T
        biases = parameters[f"bias{place}"][:, None] + parameters[f"places{place}"]
        rotations = parameters[f"rotations{place}"].unbind(0)
        for rotation, bias in zip(rotations, biases.unbind(0), strict=True):
            z = layer(z, rotation, bias)
    return z


def features(parameters: dict[str, Tensor], x: Tensor, settings: Settings) -> Tensor:
    """What the head sees: (batch, width). 1-Lipschitz where rotations are rotations. In the rotations' precision."""
    dtype = parameters["rotations0"].dtype
    z = trunk(parameters, x, settings)
    z = pooled(z)
    for rotation, bias in zip(parameters["dense"].unbind(0), parameters["dense_bias"].unbind(0), strict=True):
        z = half_abs((z.to(dtype) @ rotation.T).to(bias.dtype) + bias)
    return z


def unit_rows(head: Tensor) -> Tensor:
    """The head's rows, each of norm 1."""
    return head / torch.linalg.vector_norm(head, dim=1, keepdim=True)


# Losses ------------------------------------------------------------------------------------------------------------


def shifts(logits: Tensor, rows: Tensor, y: Tensor, epsilon: Tensor, floor: float) -> Tensor:
    """EMMA's adaptive margins r_j·ε·K_yj, (batch, classes): 0 at y, at most what j lacks, at least ``floor`` of ε·K."""
    distances = (2 - 2 * (rows @ rows.T)).clamp(min=1e-6).sqrt()[y]  # K of unit rows
    behind = (logits.gather(1, y[:, None]) - logits).detach()
    share = (behind / (epsilon * distances.detach())).clamp(floor, 1.0)
    others = torch.ones_like(logits).scatter(1, y[:, None], 0.0)
    return share * epsilon * distances * others


def certified_loss(
    logits: Tensor,
    rows: Tensor,
    y: Tensor,
    target: Tensor,
    epsilon: Tensor,
    mates: Tensor,
    weights: tuple[tuple[str, float], ...],
    k: int,
    temperature: float,
    floor: float,
) -> Tensor:
    """Cross-entropy of τ·(logits + margins) with soft targets, by EMMA and its relaxed forms."""
    margins = shifts(logits, rows, y, epsilon, floor)
    rivals = logits.detach().scatter(1, y[:, None], -1e9).topk(k - 1, dim=1).indices
    total: Tensor | float = 0.0
    for kind, weight in weights:
        if kind == "emma":
            found = soft_entropy(temperature * (logits + margins), target)
        elif kind == "drop":  # no margins for the k − 1 best rivals of y
            found = soft_entropy(temperature * (logits + margins.scatter(1, rivals, 0.0)), target)
        elif kind == "group":  # no margins for classes that share a set with y
            found = soft_entropy(temperature * (logits + margins * (1 - mates[y])), target)
        else:  # remove: the k − 1 best rivals are not in the softmax
            rest = target.scatter(1, rivals, 0.0)
            rest = rest / rest.sum(1, keepdim=True).clamp(min=1e-3)
            found = soft_entropy((temperature * (logits + margins)).scatter(1, rivals, -1e4), rest)
        total = total + weight * found
    return total


def tail(
    z: Tensor,
    dense: Tensor,
    dense_bias: Tensor,
    head: Tensor,
    head_bias: Tensor,
    y: Tensor,
    target: Tensor,
    epsilon: Tensor,
    mates: Tensor,
    weights: tuple[tuple[str, float], ...],
    k: int,
    temperature: float,
    floor: float,
) -> Tensor:
    """Pooling, dense layers, head and loss."""
    z = torch.sqrt(z.float().square().sum((1, 2)).clamp(min=1e-20))
    for place in range(dense.shape[0]):
        z = half_abs((z.to(dense.dtype) @ dense[place].T).to(dense_bias.dtype) + dense_bias[place])
    rows = unit_rows(head)
    logits = z @ rows.T + head_bias
    return certified_loss(logits, rows, y, target, epsilon, mates, weights, k, temperature, floor)


def fetch_views(bank_x: Tensor, bank_t: Tensor, bank_y: Tensor, places: Tensor, points: int, dihedral: bool):
    """Images, targets and main labels of a step: one view of each point, flipped exactly."""
    count, device = len(places), places.device
    at = torch.randint(len(bank_y) // points, (count,), device=device) * points + places
    x = centred(bank_x[at])
    draws = torch.rand(3, count, 1, 1, 1, device=device)
    x = torch.where(draws[0] < 0.5, x.flip(-1), x)
    if dihedral:
        x = torch.where(draws[1] < 0.5, x.flip(-2), x)
        x = torch.where(draws[2] < 0.5, x.transpose(-1, -2), x)
    return x, bank_t[at].float(), bank_y[at]


_COMPILED: dict[Any, Any] = {}


def fast(function: Callable[..., Any], on: bool) -> Callable[..., Any]:
    """Compiled, where wanted."""
    if not on or not torch.cuda.is_available() and not os.environ.get("BACKEND"):
        return function
    if function not in _COMPILED:
        torch._dynamo.config.recompile_limit = 64
        torch._inductor.config.fallback_random = True
        _COMPILED[function] = torch.compile(function, dynamic=False, backend=os.environ.get("BACKEND", "inductor"))
    return _COMPILED[function]


def soft_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy with soft targets."""
    return -(target * functional.log_softmax(logits, 1)).sum(1).mean()


# Optimisers --------------------------------------------------------------------------------------------------------


def orthogonalised(x: Tensor, steps: int = 5) -> Tensor:
    """Nearly the orthogonal factor of each matrix (Newton–Schulz, quintic), in bfloat16; wide matrices are cheapest."""
    a, b, c = QUINTIC
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-12)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(steps):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return x


def rotate(q: Tensor, gradient: Tensor, momentum: Tensor, rate: Tensor, newton: int, decay: float = 0.95) -> None:
    """One step of Muon on rotations (n, c, c), in place: along the skew part, then back by one Newton–Schulz step."""
    skew = q.mT @ gradient.to(q.dtype)
    skew = skew - skew.mT
    momentum.mul_(decay).add_(skew)
    direction = orthogonalised(skew + decay * momentum, newton)
    q.sub_(rate * (q.to(direction.dtype) @ direction).to(q.dtype))
    q.copy_(1.5 * q - 0.5 * (q @ (q.mT @ q)))


def turn_stem(q: Tensor, gradient: Tensor, momentum: Tensor, rate: Tensor, decay: float = 0.95) -> None:
    """The same for orthonormal columns (rows > columns): along the tangent part of the gradient."""
    gradient = gradient.to(q.dtype)
    inner = q.T @ gradient
    tangent = gradient - q @ ((inner + inner.T) / 2)
    momentum.mul_(decay).add_(tangent)
    direction = orthogonalised((tangent + decay * momentum).T[None])[0].T
    q.sub_(rate * direction.to(q.dtype))
    q.copy_(1.5 * q - 0.5 * (q @ (q.T @ q)))


def adapt(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rate: Tensor, step: Tensor) -> None:
    """One step of Adam, in place (.9, .99)."""
    first.lerp_(gradient, 0.1)
    second.lerp_(gradient.square(), 0.01)
    size = (second / (1 - 0.99**step)).sqrt() + 1e-8
    parameter.sub_(rate / (1 - 0.9**step) * first / size)


def progress_rates(done: Tensor, warm_up: float) -> Tensor:
    """The factor of all rates: linear up, then half a cosine down to 0; ``done`` in [0, 1)."""
    down = 0.5 * (1 + torch.cos(math.pi * ((done - warm_up) / (1 - warm_up)).clamp(0, 1)))
    return torch.minimum(done / warm_up, down)


class Optimiser:
    """Muon for rotations and stems, Adam for the rest; everything on the device, so that a step can be captured."""

    def __init__(self, parameters: dict[str, Tensor], settings: Settings) -> None:
        self.parameters, self.settings = parameters, settings
        self.first = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.second = {name: torch.zeros_like(value) for name, value in parameters.items() if not is_rotation(name)}

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], factor: Tensor, step: Tensor) -> None:
        """Change the parameters in place."""
        settings = self.settings
        for name, gradient in gradients.items():
            value, momentum = self.parameters[name], self.first[name]
            if name.startswith("stem"):
                fast(turn_stem, settings.compiled)(value, gradient, momentum, settings.rate * factor)
            elif is_rotation(name):
                fast(rotate, settings.compiled)(value, gradient, momentum, settings.rate * factor, settings.newton)
            else:
                rate = settings.rate_places if name.startswith("places") else settings.rate_biases
                fast(adapt, settings.compiled)(value, gradient, momentum, self.second[name], rate * factor, step)


def is_rotation(name: str) -> bool:
    """Whether a parameter has orthonormal columns."""
    return name.startswith(("rotations", "stem", "dense")) and not name.endswith("bias")


def lowered(parameters: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Leaves for a gradient: rotations in the precision of the products, the rest as it is."""
    return {
        name: (value.detach().to(dtype, copy=True) if is_rotation(name) else value.detach().clone()).requires_grad_()
        for name, value in parameters.items()
    }


# A plain teacher -----------------------------------------------------------------------------------------------------


class Teacher(nn.Module):
    """ResNet-9: not robust, but it knows which classes look alike."""

    def __init__(self, classes: int, size: int, width: int = 64) -> None:
        super().__init__()

        def block(into: int, out: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

        self.stem = block(3, width, size // 32)
        self.wide1, self.same1 = (
            block(width, 2 * width),
            nn.Sequential(block(2 * width, 2 * width), block(2 * width, 2 * width)),
        )
        self.wide2 = block(2 * width, 4 * width)
        self.wide3, self.same3 = (
            block(4 * width, 8 * width),
            nn.Sequential(block(8 * width, 8 * width), block(8 * width, 8 * width)),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        half = functional.max_pool2d
        z = half(self.wide1(self.stem(x)), 2)
        z = half(self.wide2(z + self.same1(z)), 2)
        z = half(self.wide3(z), 2)
        z = z + self.same3(z)
        return self.head(z.amax((2, 3))) * 0.125


def folded(teacher: Teacher) -> Teacher:
    """A copy for answers only: batch norms inside the convolutions, bfloat16, channels last."""
    import copy

    from torch.nn.utils.fusion import fuse_conv_bn_eval

    found = copy.deepcopy(teacher).eval()
    for module in list(found.modules()):
        if isinstance(module, nn.Sequential) and len(module) == 3 and isinstance(module[1], nn.BatchNorm2d):
            module[0], module[1] = fuse_conv_bn_eval(module[0], module[1]), nn.Identity()
    found.requires_grad_(False)
    found = found.to(memory_format=torch.channels_last)
    return found.bfloat16() if next(found.parameters()).is_cuda else found


# Steps ---------------------------------------------------------------------------------------------------------------


class Steps:
    """Takes steps, each one replay of a CUDA graph where there is one; everything that changes is on the device."""

    def __init__(self, points: Points, batch: int, epochs: float, step: Callable[["Steps"], Tensor]) -> None:
        device = points.y.device
        self.points, self.batch, self._step = points, min(batch, len(points.y)), step
        self.per_epoch = len(points.y) // self.batch
        self.total = max(1, round(epochs * self.per_epoch))
        self.taken = torch.zeros((), dtype=torch.int64, device=device)
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        self.order = torch.zeros(len(points.y), dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        self._within = torch.arange(self.batch, device=device)

    @property
    def done(self) -> Tensor:
        """The share of the training that is over."""
        return self.taken / self.total

    def draw(self) -> tuple[Tensor, Tensor]:
        """Images (centred) and labels of this step."""
        places = self.order[self.place * self.batch + self._within]
        return centred(self.points.x[places]), self.points.y[places]

    def once(self) -> None:
        """One step."""
        found = self._step(self)
        self.loss.lerp_(found.detach().float(), 0.01)
        self.taken.add_(1)
        self.place.add_(1)

    def run(self, changed: Sequence[Tensor], report: Callable[[int, float], None] | None = None) -> float:
        """Take all steps; ``changed`` is what a warm-up must leave as it was. Returns milliseconds of a step."""
        device = self.taken.device
        self.order.copy_(torch.randperm(len(self.order), device=device))
        take = self.once
        if device.type == "cuda":
            kept = [each.detach().clone() for each in changed]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.place.zero_()
                    self.once()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            self.place.zero_()
            with torch.cuda.graph(graph):
                self.once()
            with torch.no_grad():
                for each, content in zip(changed, kept, strict=True):
                    each.copy_(content)
            take = graph.replay
        for each in (self.taken, self.place, self.loss):
            each.zero_()
        wait(device)
        started = time.perf_counter()
        for step in range(self.total):
            if step % self.per_epoch == 0:
                self.order.copy_(torch.randperm(len(self.order), device=device))
                self.place.zero_()
                if report and (step // self.per_epoch) % 10 == 0:
                    report(step // self.per_epoch, self.loss.item())
            take()
        wait(device)
        return 1e3 * (time.perf_counter() - started) / self.total


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def train_teacher(points: Points, settings: Settings, seed: int) -> tuple[Teacher, dict[str, Any]]:
    """SGD, one cycle to .2, cutmix ½; with noise if the settings say so."""
    torch.manual_seed(1000 + seed)
    device = points.y.device
    size = points.x.shape[-1]
    teacher = Teacher(points.classes, size, settings.teacher_width).to(device).to(memory_format=torch.channels_last)
    weights = list(teacher.parameters())
    momenta = [torch.zeros_like(each) for each in weights]
    milder = settings if settings.teacher_moved else replace(settings, moved=0.0)

    def step(steps: Steps) -> Tensor:
        x, y = steps.draw()
        x, own = mix(move(x, milder), 0.0, 0.5)
        x = x + settings.teacher_noise * torch.randn_like(x)
        hot = functional.one_hot(y, points.classes).float()
        target = own[:, None] * hot + (1 - own)[:, None] * hot.roll(1, 0)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = teacher(x.contiguous(memory_format=torch.channels_last))
        loss = soft_entropy(logits.float(), 0.9 * target + 0.1 / points.classes)
        gradients = torch.autograd.grad(loss, weights)
        done = steps.done
        rate = settings.teacher_rate * torch.minimum(done / 0.2, (1 - done) / 0.8).clamp(min=1e-4)
        with torch.no_grad():
            decayed = torch._foreach_add(list(gradients), weights, alpha=5e-4)
            torch._foreach_mul_(momenta, 0.9)
            torch._foreach_add_(momenta, decayed)
            torch._foreach_add_(decayed, momenta, alpha=0.9)
            torch._foreach_mul_(decayed, -rate)
            torch._foreach_add_(weights, decayed)
        return loss

    started = time.perf_counter()
    steps = Steps(points, 256, settings.teacher_epochs, step)
    teacher.train()
    changed = [*weights, *momenta, *teacher.buffers()]
    milliseconds = steps.run(changed)
    answers = folded(teacher)
    with torch.no_grad():
        ask = lambda x: ask_teachers([answers], x, settings).argmax(1)  # noqa: E731
        found = torch.cat([ask(centred(part)) for part in points.held_x.split(1000)])
    top1 = (found == points.held_y).double().mean().item()
    row = {"top1": round(top1, 4), "ms": round(milliseconds, 3), "seconds": round(time.perf_counter() - started, 1)}
    return teacher, row


def ask_teachers(teachers: Sequence[nn.Module], x: Tensor, settings: Settings) -> Tensor:
    """The mean of the teachers' probabilities, each asked with noise of its own if they were trained so."""
    total: Tensor | float = 0.0
    for teacher in teachers:
        noisy = x + settings.teacher_noise * torch.randn_like(x) if settings.teacher_noise else x
        noisy = noisy.bfloat16() if noisy.is_cuda else noisy
        logits = teacher(noisy.contiguous(memory_format=torch.channels_last)).float()
        total = total + torch.softmax(logits / settings.teacher_temperature, 1)
    return total / len(teachers)


def find_teachers(points: Points, settings: Settings, folder: Path) -> tuple[list[nn.Module], list[dict[str, Any]]]:
    """Teachers of these settings, trained once and kept as files."""
    found, rows = [], []
    for seed in range(settings.teachers if settings.taught else 0):
        name = f"teacher-{settings.data}-{settings.teacher_width}-{settings.teacher_epochs}-{settings.teacher_noise}-{int(settings.teacher_moved)}"
        path = folder / f"{name}{'-all' if settings.all_points else ''}-{seed}.pt"
        teacher = Teacher(points.classes, points.x.shape[-1], settings.teacher_width).to(points.y.device)
        if path.exists():
            state, row = torch.load(path, map_location=points.y.device)
            teacher.load_state_dict(state)
        else:
            teacher, row = train_teacher(points, settings, seed)
            torch.save((teacher.state_dict(), row), path)
        print("teacher", path.name, row, flush=True)
        found.append(folded(teacher))
        rows.append(row)
    return found, rows


@torch.no_grad()
def make_bank(points: Points, settings: Settings, teachers: Sequence[nn.Module]) -> tuple[Tensor, Tensor, Tensor]:
    """Views of all points, as bytes, with soft targets and main labels: made once, labelled by the teachers."""
    torch.manual_seed(500 + settings.bank_seed)
    count, device = len(points.y), points.y.device
    bank_x = torch.empty((settings.views, *points.x.shape), dtype=torch.uint8, device=device)
    bank_t = torch.empty((settings.views, count, points.classes), dtype=torch.float16, device=device)
    bank_y = torch.empty((settings.views, count), dtype=torch.int64, device=device)
    for view in range(settings.views):
        order = torch.randperm(count, device=device)
        for places in order.split(2048):
            y = points.y[places]
            x, own = mix(altered(move(centred(points.x[places]), settings), settings), settings.mixup, settings.cutmix)
            hot = functional.one_hot(y, points.classes).float()
            target = own[:, None] * hot + (1 - own)[:, None] * hot.roll(1, 0)
            if teachers:
                target = torch.lerp(target, ask_teachers(teachers, x, settings), settings.taught)
            bank_x[view, places] = ((x + 0.5) * 255).round().clamp(0, 255).byte()
            bank_t[view, places] = target.half()
            bank_y[view, places] = torch.where(own >= 0.5, y, y.roll(1, 0))
    return bank_x.flatten(0, 1), bank_t.flatten(0, 1), bank_y.flatten()


def altered(x: Tensor, settings: Settings) -> Tensor:
    """Colours jittered, boxes greyed."""
    count, size, device = len(x), x.shape[-1], x.device
    if settings.colour:
        draws = settings.colour * (2 * torch.rand(3, count, 1, 1, 1, device=device) - 1)
        middle = x.mean((1, 2, 3), keepdim=True)
        grey = x.mean(1, keepdim=True)
        x = (x - middle) * (1 + draws[0]) + middle + draws[1] / 4
        x = (grey + (x - grey) * (1 + 1.5 * draws[2])).clamp(-0.5, 0.5)
    if settings.erase:
        draws = torch.rand(4, count, device=device)
        line = torch.arange(size, device=device) + 0.5
        side = size * (0.1 + 0.2 * draws[0])
        inside = [(line - (draws[axis] * size)[:, None]).abs() < side[:, None] for axis in (1, 2)]
        box = inside[0][:, :, None] & inside[1][:, None, :] & (draws[3] < settings.erase)[:, None, None]
        x = torch.where(box[:, None], 0.0, x)
    return x


_BANK: dict[str, Any] = {}


def find_bank(points: Points, settings: Settings, teachers: Sequence[nn.Module]) -> tuple[Tensor, Tensor, Tensor]:
    """The last bank, if it was made with the same settings."""
    names = (
        "data views bank_seed mixup cutmix moved degrees scale shift dihedral taught teacher_epochs teacher_noise teacher_temperature "
        "teacher_width teacher_moved teacher_rate teachers all_points erase colour"
    ).split()
    key = str([getattr(settings, name) for name in names])
    if _BANK.get("key") != key:
        _BANK.clear()
        if points.y.is_cuda:
            torch.cuda.empty_cache()
        _BANK["bank"] = make_bank(points, settings, teachers)
        _BANK["key"] = key
    return _BANK["bank"]


def train(
    points: Points, settings: Settings, teachers: Sequence[nn.Module]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The parameters of a network, and how long it took."""
    torch.manual_seed(settings.seed)
    device = points.y.device
    parameters = start_parameters(settings, points.x.shape[-1], points.classes, device)
    optimiser = Optimiser(parameters, settings)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    names = list(parameters)

    wait(device)
    begun = time.perf_counter()
    bank = find_bank(points, settings, teachers)
    wait(device)
    banked = round(time.perf_counter() - begun, 1)
    print(settings.name, "bank", banked, "s", flush=True)
    weights = tuple((kind, float(weight)) for kind, weight in (part.split(":") for part in settings.loss.split(",")))
    on = settings.compiled
    label = torch.profiler.record_function

    def step(steps: Steps) -> Tensor:
        with label("draw"):
            places = steps.order[steps.place * steps.batch + steps._within]
            x, target, main = fast(fetch_views, on)(*bank, places, len(points.y), settings.dihedral)
        with label("lower"):
            leaves = lowered(parameters, precision)
        grown = (steps.done / settings.grow).clamp(max=1.0)
        epsilon = EPSILON * (0.1 + (settings.epsilon_factor - 0.1) * grown)
        with label("trunk"):
            z = trunk(leaves, x, settings)
        with label("tail"):
            loss = fast(tail, on)(
                z,
                leaves["dense"],
                leaves["dense_bias"],
                leaves["head"],
                leaves["head_bias"],
                main,
                target,
                epsilon.float(),
                points.mates,
                weights,
                settings.k,
                settings.temperature,
                settings.floor,
            )
        with label("backward"):
            gradients = torch.autograd.grad(loss, [leaves[name] for name in names])
        with label("optimise"):
            factor = progress_rates(steps.done.float(), settings.warm_up)
            optimiser.step(dict(zip(names, gradients, strict=True)), factor, (steps.taken + 1).float())
        return loss

    started = time.perf_counter()
    steps = Steps(points, settings.batch, settings.epochs, step)
    changed = [*parameters.values(), *optimiser.first.values(), *optimiser.second.values()]

    def report(epoch: int, loss: float) -> None:
        print(f"{settings.name} epoch {epoch} loss {loss:.4f} {time.perf_counter() - started:.0f} s", flush=True)

    milliseconds = steps.run(changed, report)
    if settings.profile:
        profiled(steps, settings)
    return parameters, {
        "bank_seconds": banked,
        "ms": round(milliseconds, 3),
        "seconds": round(time.perf_counter() - started, 1),
        "loss": round(steps.loss.item(), 4),
        "steps": steps.total,
    }


def profiled(steps: Steps, settings: Settings) -> None:
    """Where the time of a step goes."""
    from torch.profiler import ProfilerActivity, profile

    steps.place.zero_()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            steps.once()
        wait(steps.taken.device)
    averages = found.key_averages()
    print(settings.name, "ranges, ms of device a step:", flush=True)
    for each in averages:
        if each.key in ("draw", "lower", "trunk", "tail", "backward", "optimise"):
            print("  ", each.device_type, each.key, round(each.device_time_total / 5e3, 3))
    rows = sorted(
        (e for e in averages if str(e.device_type).endswith("CUDA") and e.self_device_time_total),
        key=lambda e: -e.self_device_time_total,
    )
    print("kernels, ms a step, calls a step")
    for each in rows[:45]:
        print(f"   {each.self_device_time_total / 5e3:.3f} {each.count / 5:.0f} {each.key[:110]}")
    print(
        "all kernels",
        sum(
            e.self_device_time_total
            for e in rows
            if e.key not in ("draw", "lower", "trunk", "tail", "backward", "optimise")
        )
        / 5e3,
        flush=True,
    )


def tightness(parameters: dict[str, Tensor], settings: Settings, x: Tensor) -> dict[str, float]:
    """How much of the bound the gradient of (best − second) uses at the points: quantiles of ‖∇‖/K."""
    parameters = {name: value.float() for name, value in parameters.items()}
    x = centred(x).requires_grad_()
    rows = unit_rows(parameters["head"])
    logits = features(parameters, x, settings) @ rows.T + parameters["head_bias"]
    best = logits.topk(2, 1)
    gradient = torch.autograd.grad((best.values[:, 0] - best.values[:, 1]).sum(), x)[0]
    bound = (rows[best.indices[:, 0]] - rows[best.indices[:, 1]]).norm(dim=1)
    ratio = gradient.flatten(1).norm(dim=1) / bound
    table = {str(q): round(ratio.quantile(q).item(), 4) for q in (0.05, 0.25, 0.5, 0.75, 0.95)}
    return {
        **table,
        "mean_K": round(bound.mean().item(), 4),
        "feature_norm": round(features(parameters, x.detach(), settings).norm(dim=1).mean().item(), 3),
    }


# Evaluation ----------------------------------------------------------------------------------------------------------


def polished(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """In float64, with rotations that are rotations to the last digits."""
    found = {}
    for name, value in parameters.items():
        value = value.double()
        if is_rotation(name):
            for _ in range(6):
                value = 1.5 * value - 0.5 * value @ (value.mT @ value)
        found[name] = value
    return found


def proved_constant(parameters: dict[str, Tensor]) -> float:
    """The product of proved spectral bounds of all rotations: an upper bound of the features' Lipschitz constant."""
    from safeset.lipschitz.dense import spectral_bound

    total = 1.0
    for name, value in parameters.items():
        if is_rotation(name):
            for matrix in value if value.ndim == 3 else [value]:
                total = math.nextafter(total * float(spectral_bound(matrix.contiguous())), math.inf)
    return total


def views(x: Tensor, kind: str) -> list[Tensor]:
    """Images moved by maps that are 1-Lipschitz (grey comes in at borders): the features' mean over them is so too."""
    if kind == "one":
        return [x]
    found = [x, x.flip(-1)]
    if kind == "dihedral":
        found += [each.flip(-2) for each in found]
        found += [each.transpose(-1, -2) for each in found]
    if kind == "shifts":
        for step in ((2, 0), (-2, 0), (0, 2), (0, -2)):
            found += [moved_by(each, *step) for each in found[:2]]
    return found


def moved_by(x: Tensor, down: int, right: int) -> Tensor:
    """A shift by some pixels, 0 (grey) at the borders."""
    height, width = x.shape[-2:]
    padded = functional.pad(x, (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0)))
    return padded[..., max(-down, 0) : max(-down, 0) + height, max(-right, 0) : max(-right, 0) + width]


@torch.no_grad()
def certify(
    parameters: dict[str, Tensor], settings: Settings, x: Tensor, y: Tensor, points: Points, kinds: Sequence[str]
) -> dict[str, Any]:
    """The metrics of each guarantee and method, for each kind of views, on float64 features of ``parameters``."""
    from safeset import HeadConstants, certify_logits
    from safeset.evaluation import Metrics

    constant, rows = proved_constant(parameters), unit_rows(parameters["head"])
    found: dict[str, Any] = {"constant": constant}
    for kind in kinds:
        metrics = {(name, method): Metrics() for name in points.guarantees for method in ("uniform", "joint")}
        for part, labels in zip(x.split(500), y.split(500), strict=True):
            moved = views(centred(part, torch.float64), kind)
            hidden = sum(features(parameters, each, settings) for each in moved) / len(moved)
            logits = hidden @ rows.T + parameters["head_bias"]
            for name, guarantee in points.guarantees.items():
                for method in ("uniform", "joint"):
                    if name == "standard" and method == "joint":
                        continue
                    head = HeadConstants(rows, constant)
                    certificate = certify_logits(logits, head, EPSILON, guarantee, method=method)
                    metrics[name, method].update(certificate, labels)
        found[kind] = {
            f"{name} {method}": each.compute()
            for (name, method), each in metrics.items()
            if not (name == "standard" and method == "joint")
        }
    return found


@torch.no_grad()
def steepest(parameters: dict[str, Tensor], settings: Settings, x: Tensor) -> float:
    """A lower bound of the features' Lipschitz constant, from the data: finite differences along random directions and
    along the way from point to point. It must not exceed the proved constant."""
    x = centred(x, torch.float64)
    best = 0.0
    for other in (x.roll(1, 0), x + 1e-3 * torch.randn_like(x), x + 0.01 * torch.randn_like(x[:1])):
        near = features(parameters, x, settings) - features(parameters, other, settings)
        best = max(best, (near.norm(dim=1) / (x - other).flatten(1).norm(dim=1)).max().item())
    return best


def summary(row: dict[str, Any], kind: str) -> str:
    """The numbers of one trial on one line."""
    table = row["held_out"][kind]
    cells = [f"{name} {found['vra']:.4f}/{found['rejection_rate']:.3f}" for name, found in table.items()]
    return f"{row['settings']['name']} [{kind}] top1 {table['standard uniform']['top1']:.4f} " + " ".join(cells)


# Command line --------------------------------------------------------------------------------------------------------


_POINTS: dict[Any, Points] = {}


def trial(settings: Settings, data: Path, device: torch.device) -> dict[str, Any]:
    """Train and certify as the settings say."""
    key = (settings.data, settings.all_points)
    if key not in _POINTS:
        _POINTS.clear()
        _POINTS[key] = load_points(data, settings.data, device, all_points=settings.all_points)
    points = _POINTS[key]
    started = time.perf_counter()
    teachers, taught = find_teachers(points, settings, data)
    parameters, row = train(points, settings, teachers)
    exact = polished(parameters)
    kinds = ["one"]
    begun = time.perf_counter()
    found = {"settings": asdict(settings), "teachers": taught, "training": row}
    found["held_out"] = certify(exact, settings, points.held_x, points.held_y, points, kinds)
    count = min(2500, len(points.y))
    some = torch.randperm(len(points.y), generator=torch.Generator().manual_seed(1))[:count].to(device)
    found["training_points"] = certify(exact, settings, points.x[some], points.y[some], points, ["one"])
    found["lower_bound"] = steepest(exact, settings, points.held_x[:500])
    found["tightness"] = tightness(exact, settings, points.held_x[:500])
    found["evaluation_seconds"] = round(time.perf_counter() - begun, 1)
    found["sound"] = found["lower_bound"] <= found["held_out"]["constant"]
    found["seconds"] = round(time.perf_counter() - started, 1)
    for kind in kinds:
        print(summary(found, kind), flush=True)
    print(
        settings.name,
        "on training points",
        found["tightness"],
        found["evaluation_seconds"],
        "s",
        summary({**found, "held_out": found["training_points"]}, "one"),
    )
    print(settings.name, row, "L", found["held_out"]["constant"], ">=", found["lower_bound"], flush=True)
    return found


STARTED = time.perf_counter()


def decided(table: dict[str, Any], results: Path) -> dict[str, Any]:
    """A trial that takes over what helped in others (by the sum of four certified shares), and fills the time left."""
    auto = table.pop("auto", None)
    if not auto:
        return table

    def read(name: str) -> tuple[float, float]:
        path = results / f"{name}.json"
        found = json.loads(path.read_text()) if path.exists() else {"failed": "absent"}
        if "failed" in found:
            return -1.0, 0.0
        cells = found["held_out"]["one"]
        names = ("standard uniform", "rt5 uniform", "rt5 joint", "superclass joint")
        return sum(cells[each]["vra"] for each in names), found["training"]["ms"]

    base, milliseconds = read(auto["base"])
    for name, override in auto["options"].items():
        score, cost = read(name)
        print("auto", name, round(score, 4), "base", round(base, 4), cost, flush=True)
        if score > base + auto.get("margins", {}).get(name, auto["margin"]):
            table.update(override)
            if "stages" in override:
                milliseconds = cost
    left = auto["until"] - (time.perf_counter() - STARTED) - auto["reserve"]
    table["epochs"] = max(20, min(auto["most"], int(left / (auto["steps"] * milliseconds / 1e3))))
    print("auto", table, flush=True)
    return table


def work(data: Path, queue: Path, results: Path) -> None:
    """Take trials from the queue until a file named ``stop`` lies in it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    while not (queue / "stop").exists():
        waiting = sorted(queue.glob("*.json"))
        if not waiting:
            time.sleep(0.3)
            continue
        taken = waiting[0].rename(waiting[0].with_suffix(".taken"))
        settings = Settings.read(decided(json.loads(taken.read_text()), results))
        print("start", settings.name, time.strftime("%X"), flush=True)
        try:
            while not (data / f"{settings.data}.pt").exists():
                time.sleep(0.3)
            found = trial(settings, data, device)
        except Exception as error:
            found = {"settings": asdict(settings), "failed": repr(error)}
            traceback.print_exc()
        (results / f"{settings.name}.json").write_text(json.dumps(found, indent=1))
        print("end", settings.name, time.strftime("%X"), flush=True)
        if "failed" in found and "CUDA" in found["failed"]:
            sys.exit(3)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def check(device: torch.device) -> None:
    """The fused layer against the plain one in float64, forward and backward."""
    torch.manual_seed(0)
    for count, height, width, channels in ((7, 4, 4, 64), (256, 8, 8, 1024), (33, 16, 16, 256)):
        z = torch.randn(count, height, width, channels, device=device).bfloat16()
        q = torch.linalg.qr(torch.randn(channels, channels, device=device))[0].bfloat16()
        bias, slope = torch.randn(height * width, channels, device=device), torch.randn_like(z)
        inputs = [each.requires_grad_() for each in (z, q, bias)]
        out = FusedLayer.apply(*inputs)
        fused = [out, *torch.autograd.grad(out, inputs, slope)]
        inputs = [each.detach().double().requires_grad_() for each in inputs]
        out = plain_layer(*inputs)
        plain = [out, *torch.autograd.grad(out, inputs, slope.double())]
        print(
            [round(((one.double() - two).norm() / two.norm()).item(), 5) for one, two in zip(fused, plain, strict=True)]
        )


def main() -> None:
    """One of the three commands above."""
    command = sys.argv[1]
    if command == "prepare":
        folder = Path(sys.argv[2])
        for name in sys.argv[3:]:
            temporary = folder / f"{name}.tmp"
            torch.save(PREPARE[name](folder), temporary)
            temporary.rename(folder / f"{name}.pt")
            print("prepared", name)
    elif command == "check":
        check(torch.device(os.environ.get("DEVICE", "cuda")))
    else:
        work(*map(Path, sys.argv[2:5]))


if __name__ == "__main__":
    main()
