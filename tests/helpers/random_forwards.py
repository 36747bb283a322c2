"""Networks whose forward is a random graph of operations: to search for bounds below the truth."""

import random

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import nn

CHANNELS, SIZE, CLASSES = 4, 4, 3


class RandomForward(nn.Module):
    """Random operations on images (batch, 4, 4, 4), each of random earlier values; then a linear head.

    ``written`` says what they are. Modules are shared: the same convolution may be called many times.
    """

    def __init__(self, seed, steps=6):
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2, bias=False),
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, padding_mode=draw.choice(["circular", "reflect"])),
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=2, dilation=2, groups=CHANNELS),
            ]
        )
        self.wide = nn.Conv2d(2 * CHANNELS, CHANNELS, 1)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.clip = nn.Hardtanh(-0.3, 0.3, inplace=True)
        self.slopes = nn.PReLU(CHANNELS, init=draw.uniform(-1.5, 1.5))
        self.register_buffer("numbers", torch.randn(CHANNELS, 1, 1))
        self.register_buffer("matrix", torch.randn(SIZE, SIZE))
        self.register_buffer("mask", torch.rand(CHANNELS, SIZE, SIZE) < 0.3)
        self.register_buffer("order", torch.randperm(CHANNELS))
        self.steps = [self._step(draw, count) for count in range(1, steps + 1)]
        self.written = [f"{name}{places}" for name, places in self.steps]
        self.end = draw.choice(["flat", "mean", "max", "halves", "pooled"])
        features = CHANNELS * SIZE * SIZE
        inner = {"flat": features, "mean": CHANNELS, "max": CHANNELS, "halves": features // 2, "pooled": CHANNELS}
        self.head = nn.Linear(inner[self.end], CLASSES)
        self.eval()

    @staticmethod
    def _step(draw, count):
        name = draw.choice(sorted(OPERATIONS))
        recent = [count - 1] * 2 + list(range(count))  # mostly the newest value, so that graphs are deep
        return name, tuple(draw.choice(recent) for _ in range(2))

    def forward(self, x):
        values = [x * 1.0]  # nothing may write into the input
        for name, (first, second) in self.steps:
            values.append(OPERATIONS[name](self, values[first], values[second]))
        last = values[-1]
        if self.end == "mean":
            last = last.mean(dim=(2, 3))
        elif self.end == "max":
            last = last.flatten(2).max(dim=-1).values
        elif self.end == "halves":
            last = torch.maximum(*last.chunk(2, dim=1))
        elif self.end == "pooled":
            last = F.adaptive_avg_pool2d(last, 1)
        return self.head(last.flatten(1))


def _sorted_groups(net, x, y):
    return x.reshape(-1, 2, 2, SIZE, SIZE).sort(dim=2, descending=True).values.reshape(x.shape)


def _min_max(net, x, y):
    return torch.stack([torch.maximum(x, y), torch.minimum(y, x)], dim=2).mean(dim=2)


def _max_min_halves(net, x, y):
    first, second = x.split(2, dim=1)
    return torch.cat([torch.max(first, second), torch.min(first, second)], dim=1)


def _part_written(net, x, y):
    out = x.clone()
    out[:, 1:] = y[:, :-1]
    return out


def _view_written(net, x, y):
    out = (x * 0.5).contiguous()  # torch has no such view of a transposed value
    out.view(-1, CHANNELS, SIZE * SIZE)[:, :, 3:5].mul_(1.5)
    return out


def _part_added(net, x, y):
    out = x.clone()
    out[:, 0] += y[:, 1]
    out[:, :, 0] -= 1.0
    return out


def _filled(net, x, y):
    out = x.new_zeros(x.shape)
    out[:, ::2] = x[:, 1::2]
    out[:, 1, 1:] = y[:, 2, :-1]
    return out


def _in_place(net, x, y):
    out = x + y
    out.relu_()
    out += x
    return out.mul_(0.7)


def _in_place_shared(net, x, y):
    out = net.convolutions[0](x)
    before = out
    F.relu(out, inplace=True)
    return before - y  # what was written is seen here too


def _changed_value(net, x, y):
    """A value that others have read, and read again after it was changed: then they read the new one."""
    x.mul_(-0.8)
    return x + y


def _part_clipped(net, x, y):
    """A layer that writes into a part of what another layer wrote into."""
    out = net.convolutions[0](x)
    net.clip(out[:, :2])
    net.clip(out.transpose(2, 3)[:, 1:, 2:])
    return out


def _view_read(net, x, y):
    """A view that was taken before its memory was written, and is read by a layer after that."""
    out = net.convolutions[0](x)
    turned = out.transpose(2, 3)
    out[:, 1].mul_(2.0)
    return net.slopes(turned)


def _differences(net, x, y):
    return F.pad(x[..., 1:] - y[..., :-1], (0, 1))


def _norms(net, x, y):
    return x + torch.linalg.vector_norm(y, dim=1, keepdim=True)


def _roots(net, x, y):
    return x.square().sum(dim=(2, 3), keepdim=True).sqrt() - y


OPERATIONS = {
    "relu": lambda net, x, y: F.relu(x),
    "abs": lambda net, x, y: x.abs(),
    "leaky_relu": lambda net, x, y: F.leaky_relu(x, 0.3),
    "prelu": lambda net, x, y: net.slopes(x),
    "tanh": lambda net, x, y: torch.tanh(2 * x),
    "sigmoid": lambda net, x, y: torch.sigmoid(x),
    "silu": lambda net, x, y: x * torch.sigmoid(x),
    "silu_function": lambda net, x, y: F.silu(x),
    "gelu": lambda net, x, y: F.gelu(x),
    "gelu_tanh": lambda net, x, y: F.gelu(x, approximate="tanh"),
    "gelu_written": lambda net, x, y: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "elu": lambda net, x, y: F.elu(x, 1.5),
    "selu": lambda net, x, y: F.selu(x),
    "celu": lambda net, x, y: F.celu(x, 0.7),
    "softplus": lambda net, x, y: F.softplus(x, 2.0),
    "mish": lambda net, x, y: F.mish(x),
    "hardswish": lambda net, x, y: F.hardswish(3 * x),
    "hardsigmoid": lambda net, x, y: F.hardsigmoid(x),
    "relu6": lambda net, x, y: F.relu6(4 * x),
    "clamp": lambda net, x, y: x.clamp(-0.5, 0.7),
    "clamp_values": lambda net, x, y: torch.clamp(x, min=y, max=y + 1),
    "clamp_constants": lambda net, x, y: torch.clamp(x, max=net.numbers),
    "negative": lambda net, x, y: -x,
    "one_minus": lambda net, x, y: 1 - x,
    "rsub": lambda net, x, y: torch.rsub(x, y, alpha=2),
    "scaled": lambda net, x, y: net.numbers * x,
    "shifted": lambda net, x, y: x + net.numbers,
    "divided": lambda net, x, y: x / (net.numbers.abs() + 0.5),
    "sum": lambda net, x, y: x + y,
    "difference": lambda net, x, y: torch.sub(x, y, alpha=0.5),
    "lerp": lambda net, x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda net, x, y: torch.addcmul(x, y, net.numbers, value=0.5),
    "maximum": lambda net, x, y: torch.maximum(x, y),
    "minimum_constants": lambda net, x, y: torch.minimum(x, net.numbers),
    "min_max": _min_max,
    "max_min_halves": _max_min_halves,
    "sorted": lambda net, x, y: x.sort(dim=-1).values,
    "sorted_groups": _sorted_groups,
    "amax": lambda net, x, y: x - y.amax(dim=(2, 3), keepdim=True),
    "min_of_stack": lambda net, x, y: torch.stack([x, y, x.flip(1)], dim=-1).min(dim=-1).values,
    "cumulative": lambda net, x, y: torch.cumsum(x, dim=2) * 0.5,
    "rolled": lambda net, x, y: x.roll((1, -1), (2, 1)),
    "flipped": lambda net, x, y: x.flip(3) + y,
    "transposed": lambda net, x, y: x.transpose(2, 3).contiguous(),
    "swapped": lambda net, x, y: torch.cat([x[:, 2:], y[:, :2]], dim=1),
    "shuffled": lambda net, x, y: F.channel_shuffle(x, 2),
    "indexed": lambda net, x, y: x[:, net.order],
    "masked": lambda net, x, y: x.masked_fill(net.mask, 0.3),
    "where": lambda net, x, y: torch.where(net.mask, x, y),
    "repeated": lambda net, x, y: x[:, :1].expand_as(x) - 0.5 * y,
    "unshuffled": lambda net, x, y: F.pixel_shuffle(x, 2).unfold(2, 2, 2).unfold(3, 2, 2).reshape(x.shape),
    "upsampled": lambda net, x, y: F.avg_pool2d(F.interpolate(x, scale_factor=2), 3, 2, 1),
    "convolved": lambda net, x, y: net.convolutions[0](x),
    "grouped": lambda net, x, y: net.convolutions[1](x),
    "padded": lambda net, x, y: net.convolutions[2](x),
    "dilated": lambda net, x, y: net.convolutions[3](x),
    "backwards": lambda net, x, y: F.conv_transpose2d(x, net.convolutions[0].weight, padding=1),
    "backwards_spread": lambda net, x, y: F.max_pool2d(
        F.conv_transpose2d(x, net.convolutions[1].weight, stride=2, padding=1, output_padding=1, groups=2), 2
    ),
    "residual": lambda net, x, y: y + net.convolutions[0](F.relu(net.norm(x))),
    "joined": lambda net, x, y: net.wide(torch.cat([x, y], dim=1)),
    "two_ways": lambda net, x, y: net.wide(torch.cat([x, F.relu(-x)], dim=1)),
    "normalised": lambda net, x, y: net.norm(x),
    "centred": lambda net, x, y: x - x.mean(dim=(2, 3), keepdim=True),
    "matrix": lambda net, x, y: x @ net.matrix,
    "matrix_left": lambda net, x, y: net.matrix @ x,
    "einsum": lambda net, x, y: torch.einsum("bchw,vh->bcvw", x, net.matrix),
    "max_pooled": lambda net, x, y: F.max_pool2d(x, 3, 1, 1),
    "average_pooled": lambda net, x, y: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "l2_pooled": lambda net, x, y: F.lp_pool2d(x, 2, 2).repeat_interleave(2, 2).repeat_interleave(2, 3),
    "strided": lambda net, x, y: F.interpolate(F.max_pool2d(x, 2), scale_factor=2),
    "norms": _norms,
    "roots": _roots,
    "differences": _differences,
    "part_written": _part_written,
    "part_added": _part_added,
    "view_written": _view_written,
    "part_clipped": _part_clipped,
    "view_read": _view_read,
    "filled": _filled,
    "in_place": _in_place,
    "in_place_shared": _in_place_shared,
    "changed_value": _changed_value,
}
