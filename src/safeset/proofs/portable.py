"""Certificates that travel: a proof as plain values, which `check.py` verifies without safeset and without torch.

What is written here is believed by nobody: the checker evaluates the network and proves the bounds by itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from safeset import layers
from safeset.certificates.constants import HeadConstants
from safeset.errors import UnsupportedLayerError, expected
from safeset.guarantees import affinity
from safeset.guarantees.guarantee import Affinity
from safeset.lipschitz.sliding import axes
from safeset.nets.proof import LayerBound
from safeset.numerics.strict import strict_arithmetic
from safeset.program.from_modules import Branch, Step, Steps
from safeset.proofs import check
from safeset.system.provenance import weights_digest

if TYPE_CHECKING:
    from safeset.certificates.certificate import Certificate
    from safeset.nets.net import CertifiedNet
    from safeset.nets.sealed import Sealed

PLAIN: Mapping[type[nn.Module], str] = {
    nn.Identity: "identity",
    nn.ReLU: "relu",
    layers.Abs: "abs",
    layers.MinMax: "minmax",
}
SAVED = (
    "A proof is about weights in a file: save those of net.frozen().network.state_dict() with safetensors, and take "
    "net.frozen().certify(x).proof()."
)


@dataclass(frozen=True, eq=False)
class Seen:
    """With what points were certified: nothing is copied.

    Attributes:
        net: whose weights a proof is about.
        sealed: the same as it was certified.
        x: (batch, *input_shape) inputs.
        logits: (batch, classes) as they were computed.
        head: the constants of pairs.
    """

    net: "CertifiedNet"
    sealed: "Sealed"
    x: Tensor
    logits: Tensor
    head: HeadConstants

    def at(self, places: Tensor) -> "Seen":
        """Some of the points."""
        x = self.x[places.to(self.x.device)]
        return Seen(self.net, self.sealed, x, self.logits[places.to(self.logits.device)], self.head)


def proof_of(certificate: "Certificate", network: nn.Module | None = None) -> dict[str, Any]:
    """The proof of all points of a certificate, as `Certificate.proof` gives it.

    Args:
        certificate: of points that are all certified.
        network: whose weights are in the file that the proof will be checked with, if not the net that certified.
    """
    seen = certificate.seen
    if seen is None:
        remedy = "Logits and constants alone, copies and pickles have none: take net.certify(x).proof()."
        raise expected("a certificate that a network made, with the network and the input", "one without", remedy)
    if not len(certificate) or not bool(certificate.certified.all()):
        got = f"{int(certificate.certified.sum())} certified of {len(certificate)}"
        remedy = "There is nothing to prove of the others: certificate[certificate.certified].proof()."
        raise expected("points that are certified", got, remedy)
    weights = (seen.net.network if network is None else network).state_dict()
    program = list(_program(seen.sealed.steps, seen.sealed.network, weights, iter(certificate.layers)))
    with strict_arithmetic():
        again = seen.sealed.logits(seen.x.to(seen.sealed.device, torch.float64))
    if not torch.allclose(again, seen.logits, rtol=1e-9, atol=0.0):
        raise expected("the input and the network that were certified", "others: one of them has changed since")
    return {
        "format": check.FORMAT,
        "weights": weights_digest(weights),
        "input_shape": list(seen.x.shape[1:]),
        "program": program,
        "certificates": [_statement(one) for one in certificate],
    }


def _statement(certificate: "Certificate") -> dict[str, Any]:
    """What is said of one point."""
    seen, classes = certificate.seen, certificate.classes
    assert seen is not None
    logits: list[float] = seen.logits[0].tolist()
    ranking = sorted(range(classes), key=lambda j: (-logits[j], j))
    a, b = (int(end) + 1 for end in certificate._window)
    table = certificate.windows[0]
    radius = float(table[a - 1, b - 1])
    inside = [(p, q) for p in range(a, b + 1) for q in range(p, b + 1) if float(table[p - 1, q - 1]) >= radius]
    p, q = min(inside, key=lambda window: window[1] - window[0])  # what proves it: the others are around it
    core, optional = ranking[:a], ranking[a:b]
    constants = seen.head.upper(torch.tensor(ranking[:q], device=seen.head.rows.device)).tolist()
    known = {(j, i): row[i] for j, row in zip(ranking[:q], constants, strict=True) for i in range(classes)}
    used: dict[
        tuple[tuple[int, int], ...], None
    ] = {}  # of each chain one pair, where that is clearly enough, else all of them
    for chain in check.chains(ranking, p, q):
        enough = ((j, i) for j, i in chain if logits[j] - logits[i] > radius * known[j, i] * (1 + 1e-6))
        alone = next(enough, None)
        used[(alone,) if alone else tuple(chain)] = None
    guarantee: dict[str, Any] = {"guarantee": str(certificate.guarantee)}
    if isinstance(certificate.guarantee, Affinity):
        sets = affinity.complete(certificate.guarantee.sets, certificate.guarantee.everyone_with, classes)
        together = next(one for one in sets if {*core, *optional} <= set(one))
        guarantee = {"guarantee": "affinity", "set": sorted(map(int, together))}
    return {
        "claim": check.claim(core, optional, radius, classes),
        **guarantee,
        "method": certificate.method,
        "epsilon": certificate.epsilon,
        "radius": radius,
        "core": core,
        "optional": optional,
        "class_names": list(certificate.names),
        "logits": logits,
        "window": [p, q],
        "inequalities": [
            {"classes": [each for pair in pairs for each in pair], "constants": [known[pair] for pair in pairs]}
            for pairs in used
        ],
        "input": seen.x[0].double().flatten().tolist(),
    }


def _program(
    steps: Steps, network: nn.Module, weights: Mapping[str, Tensor], lines: Iterator[LayerBound]
) -> Iterator[dict[str, Any]]:
    """Layers as values: what they compute, the names of their weights, their bounds and how these were proved."""
    for step in steps:
        if isinstance(step, Branch):
            yield {"kind": "residual", "body": list(_program(step.body, network, weights, lines))}
            continue
        line = next(lines)
        yield {**_entry(step, network.get_submodule(step.name), weights), "bound": line.bound, "proved by": line.method}


def _entry(step: Step, layer: Any, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """One layer."""

    def name(attribute: str) -> str | None:
        """The name of one of its tensors in the file, whose numbers must be those that were certified."""
        tensor = getattr(layer, attribute)
        key = f"{step.name}.{attribute}" if step.name else attribute
        if tensor is None:
            return None
        if key not in weights or not torch.equal(weights[key].detach().double().cpu(), tensor.detach().cpu()):
            got = f"others for {key!r}: they have changed since, or are computed from what is in the file"
            raise expected("the weights that were certified", got, SAVED)
        return key

    kind = type(layer)
    if kind in PLAIN:
        return {"kind": PLAIN[kind]}
    if kind is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return {"kind": "flatten"}
    if kind is nn.LeakyReLU and layer.negative_slope >= 0:
        return {"kind": "leaky", "slope": float(layer.negative_slope)}
    if kind in (layers.InvertibleDownsampling, nn.PixelUnshuffle):
        size = layer.size if kind is layers.InvertibleDownsampling else layer.downscale_factor
        return {"kind": "unshuffle", "size": [size]}
    if kind is nn.Linear and len(step.shape) == 1:
        return {"kind": "linear", "weight": name("weight"), "bias": name("bias")}
    if kind is layers.ChannelAffine:
        return {"kind": "affine", "weight": name("scale"), "bias": name("shift")}
    if kind in (nn.Conv2d, nn.AvgPool2d) or (kind is nn.MaxPool2d and not layer.ceil_mode):
        rows, columns = axes(layer, step.shape)
        window = {
            "stride": [rows.stride, columns.stride],
            "dilation": [rows.dilation, columns.dilation],
            "padding": [rows.before, rows.after, columns.before, columns.after],
        }
        if kind is nn.Conv2d:
            own = {"kind": "conv", "weight": name("weight"), "bias": name("bias"), "groups": [layer.groups]}
            return {**own, **window}
        return {
            "kind": "avgpool" if kind is nn.AvgPool2d else "maxpool",
            "size": [rows.kernel, columns.kernel],
            **window,
        }
    raise UnsupportedLayerError(
        f"Expected layers that the checker of proofs knows, but got {step.name!r}, {layer} on inputs of shape "
        f"{step.shape}. Its certificates are as true as others, but cannot travel."
    )
