"""Certificates that travel: a proof as plain values, which `check.py` verifies without safeset and without torch.

What is written here is believed by nobody: the checker evaluates the network and proves the bounds by itself.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.certificates.constants import HeadConstants
from safeset.errors import UnsupportedLayerError, expected
from safeset.guarantees import affinity
from safeset.guarantees.guarantee import Affinity
from safeset.numerics.strict import strict_arithmetic
from safeset.program.program import INPUT, Node, Program
from safeset.program.total import Sum
from safeset.proofs import check
from safeset.proofs.prove import LayerBound
from safeset.system.provenance import weights_digest

SAVED = (
    "A proof is about weights in a file: save those of net.frozen().network.state_dict() with safetensors, and take "
    "net.frozen().certify(x).proof()."
)


@dataclass(frozen=True, eq=False)
class Seen:
    """With what points were certified: nothing is copied.

    Attributes:
        weights: gives those that a proof is about, by their names in a file, as they are now.
        program: what was certified.
        x: (batch, *input_shape) inputs.
        logits: (batch, classes) as they were computed.
        head: the constants of pairs.
    """

    weights: Callable[[], Mapping[str, Tensor]]
    program: Program
    x: Tensor
    logits: Tensor
    head: HeadConstants

    def at(self, places: Tensor) -> "Seen":
        """Some of the points."""
        x, logits = (each[places.to(each.device)] for each in (self.x, self.logits))
        return replace(self, x=x, logits=logits)

    def proof(self, certificate: Certificate, network: nn.Module | None = None) -> dict[str, Any]:
        """The proof of all points of a certificate, as `Certificate.proof` gives it.

        Args:
            certificate: of points that are all certified.
            network: whose weights are in the file that the proof will be checked with, if not the net that certified.
        """
        if not len(certificate) or not bool(certificate.certified.all()):
            got = f"{int(certificate.certified.sum())} certified of {len(certificate)}"
            remedy = "There is nothing to prove of the others: certificate[certificate.certified].proof()."
            raise expected("points that are certified", got, remedy)
        weights = self.weights() if network is None else network.state_dict()
        program = _nested(self.program, weights, iter(certificate.layers))
        with strict_arithmetic():
            again = self.program.run(self.x.to(self.program.device, torch.float64))
        if not torch.allclose(again, self.logits, rtol=1e-9, atol=0.0):
            raise expected("the input and the network that were certified", "others: one of them has changed since")
        return {
            "format": check.FORMAT,
            "weights": weights_digest(weights),
            "input_shape": list(self.x.shape[1:]),
            "program": program,
            "certificates": [_statement(one) for one in certificate],
        }


def proof_of(certificate: Certificate, network: nn.Module | None = None) -> dict[str, Any]:
    """`Certificate.proof`, about the weights of another network, where those in a file are not the certified ones."""
    source = certificate._source
    return source.proof(certificate, network) if isinstance(source, Seen) else certificate.proof()


def _statement(certificate: Certificate) -> dict[str, Any]:
    """What is said of one point."""
    seen, classes = certificate._source, certificate.classes
    assert isinstance(seen, Seen)  # it is what asks
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


def _nested(program: Program, weights: Mapping[str, Tensor], lines: Iterator[LayerBound]) -> list[dict[str, Any]]:
    """The nodes as values: what they compute, the names of their weights, their bounds and how these were proved.

    A sum becomes a residual layer with a body: all that was computed since the first of its inputs.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    for number, node in enumerate(program.nodes):
        numbers = [INPUT, *(at for at, _ in found)]
        if node.place.is_layer:
            if node.inputs != (numbers[-1],):
                raise UnsupportedLayerError(f"Expected a chain of layers, but got {node.name!r} beside another.")
            line = next(lines)
            entry = {**_entry(node, weights), "bound": line.bound, "proved by": line.method}
        else:
            start, end = node.inputs[0], node.inputs[-1]
            after = sum(at <= start for at, _ in found)
            is_plain = isinstance(node.operation, Sum) and node.operation.signs == (1, 1)
            if not is_plain or end != numbers[-1] or start not in numbers:
                raise UnsupportedLayerError(
                    f"Expected a residual layer, but got another node that joins several, {node.name!r}."
                )
            entry = {"kind": "residual", "body": [each for _, each in found[after:]]}
            del found[after:]
        found.append((number, entry))
    return [entry for _, entry in found]


def _entry(node: Node, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """One layer."""
    constants = node.operation.constants()

    def name(attribute: str) -> str | None:
        """The name of one of its tensors in the file, whose numbers must be those that were certified."""
        key = f"{node.name}.{attribute}" if node.name else attribute
        if attribute not in constants:
            return None
        if key not in weights or not torch.equal(weights[key].detach().double().cpu(), constants[attribute].cpu()):
            got = f"others for {key!r}: they have changed since, or are computed from what is in the file"
            raise expected("the weights that were certified", got, SAVED)
        return key

    entry = node.operation.portable(node.shape, name)
    if entry is None:
        raise UnsupportedLayerError(
            f"Expected layers that the checker of proofs knows, but got {node.name!r}, {node.place.type} on inputs of "
            f"shape {node.shape}. Its certificates are as true as others, but cannot travel."
        )
    return dict(entry)
