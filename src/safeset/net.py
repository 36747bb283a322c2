"""CertifiedNet: a network, a guarantee and a radius."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from safeset.certificates import Certificate
from safeset.certify import certificate, check_logits
from safeset.constants import HeadConstants
from safeset.errors import RoundingWarning, UnsupportedLayerError, expected
from safeset.freezing import Branch, Content, Step, Steps, freeze, leaves
from safeset.guarantees import Guarantee, as_guarantee
from safeset.inputs import Numbers, as_tensor, check_epsilon, check_names, check_shape
from safeset.lipschitz.rules import check_untouched, rule_of
from safeset.lipschitz.upward import row_norms
from safeset.margins import instrument
from safeset.proof import Bounds, Proof, prove

POINTS_AT_ONCE = 256


class CertifiedNet(nn.Module):
    """A classifier whose answers are certified sets.

    Args:
        network: any supported layers, the last one a linear head: plain `torch.nn` modules in `nn.Sequential`, and
            those of `safeset.layers`. Each is known by its exact type; anything else raises `UnsupportedLayerError`.
        input_shape: shape of one input, without the batch.
        guarantee: `Standard`, `TopK`, `RelaxedTopK`, `Affinity`, or a text such as ``"rt3"``.
        epsilon: radius of the L2 ball, in the units of the network's input.
        class_names: for printing and records, and for affinity sets of names.

    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> net = CertifiedNet(network, input_shape=(2,), guarantee="rt2", epsilon=0.1)
    >>> net(torch.zeros(5, 2)).shape, len(net.certify(torch.zeros(5, 2)))
    (torch.Size([5, 3]), 5)
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        input_shape: Sequence[int],
        guarantee: Guarantee | str,
        epsilon: float,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise expected("`network` to be a torch.nn.Module", type(network).__name__)
        self.network = network
        self.input_shape = check_shape(input_shape)
        self.epsilon = check_epsilon(epsilon)
        frozen, self.steps = freeze(network, self.input_shape)
        self.classes: int = frozen.get_submodule(self._head.name).out_features  # type: ignore[assignment]
        self.class_names = None if class_names is None else check_names(class_names, self.classes)
        guarantee = as_guarantee(guarantee)
        self.guarantee = guarantee if self.class_names is None else guarantee.bind(self.class_names)
        self.guarantee.largest_k(self.classes)  # raises if there are too few classes
        self._kept: list[FrozenNet] = []  # in a list, so that it is no submodule

    def forward(self, x: Tensor) -> Tensor:
        """Plain logits, (batch, *input_shape) → (batch, classes)."""
        return self.network(x)  # type: ignore[no-any-return]

    # -- training -----------------------------------------------------------------------------------------------------

    def start_vectors(self, seed: int = 0) -> dict[str, Tensor]:
        """The power method's first vectors: random, one for each layer that needs one, by name."""
        generator, vectors = torch.Generator().manual_seed(seed), {}
        example = next(self.parameters())
        for step in leaves(self.steps[:-1]):
            layer = self.network.get_submodule(step.name)
            shape = rule_of(layer, step.name).vector_shape(layer, step.shape)
            if shape is not None:
                vector = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
                vectors[step.name] = (vector / vector.norm()).to(example)
        return vectors

    def estimate(
        self, weights: Mapping[str, Tensor] | None, vectors: Mapping[str, Tensor], steps: int
    ) -> tuple[HeadConstants, dict[str, Tensor]]:
        """Lipschitz constants for losses, by the power method: a pure function, with gradient. It proves nothing.

        Args:
            weights: parameters and buffers by name, as `named_parameters` gives them; None for the net's own.
            vectors: those of the call before, or `start_vectors`.
            steps: power iterations for each layer (the paper: 2).

        Returns:
            The head's constants, for `instrument`, and the next vectors.
        """
        if weights is None:
            return self._estimate(vectors, steps)
        call = (_Estimate(self), {f"net.{name}": tensor for name, tensor in weights.items()}, (vectors, steps))
        return torch.func.functional_call(*call)  # type: ignore[no-any-return]

    def instrument(self, logits: Tensor, constants: HeadConstants, *, method: str = "uniform") -> Tensor:
        """The logits and ⊥, (batch, classes) → (batch, classes + 1): max f minus the margin of the guarantee."""
        return instrument(logits, constants, self.epsilon, self.guarantee, method=method)

    # -- proofs -------------------------------------------------------------------------------------------------------

    def frozen(self) -> "FrozenNet":
        """The network as it is certified and served: evaluation mode, plain float64 layers, nothing that trains.

        While the weights stay as they are it is the same object, with what was proved of it; that is decided by their
        content.
        """
        check_untouched(self)
        if type(self).forward is not CertifiedNet.forward:
            raise UnsupportedLayerError("Expected the forward of CertifiedNet, but got another: it would be left out.")
        network, steps = freeze(self.network, self.input_shape)
        kept = self._kept[0] if self._kept else None
        settings = (self.guarantee, self.epsilon, self.class_names)
        if kept is None or not kept.same(network, steps, settings):
            kept = FrozenNet(self, network, steps)
            self._kept[:] = [kept]
        return kept

    def bounds(self, *, convolutions: str | None = None) -> Bounds:
        """Proved Lipschitz constants: ``.pairs``, ``.head``, ``.layers``.

        Args:
            convolutions: ``"exact"`` (to a relative 1e-9), ``"torus"`` (cheap for any size), ``"auto"`` (exact where it
                is affordable), or None: as proved before, else ``"auto"``.
        """
        return self.frozen().bounds(convolutions=convolutions)

    def certify(
        self,
        x: Numbers,
        *,
        epsilon: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
    ) -> Certificate:
        """Certified prediction sets: proved bounds only, in float64, the rounding of the forward pass accounted for.

        Args:
            x: (batch, *input_shape) inputs. A point with NaN or ±∞ is rejected.
            epsilon: radius of the ball, if not the net's own.
            guarantee: likewise.
            method: ``"uniform"`` (the paper), ``"floating"`` or ``"joint"`` (the default).

        Returns:
            A `Certificate`. It covers the frozen network in exact arithmetic, and its float64 program: every float64
            array x' in the ball.
        """
        found: Certificate = self.frozen().certify(x, epsilon=epsilon, guarantee=guarantee, method=method)
        return found

    def predict_set(self, x: Numbers) -> tuple[Tensor, Tensor]:
        """Labels (batch,), the argmax, and certified sets (batch, classes): core and optional, empty where rejected."""
        found = self.certify(x)
        return found.ranking[:, 0], found.core | found.optional

    def extra_repr(self) -> str:
        """Shape, guarantee and epsilon, for printing."""
        return f"input_shape={self.input_shape}, guarantee={self.guarantee!r}, epsilon={self.epsilon:g}"

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _head(self) -> Step:
        head = self.steps[-1]
        assert isinstance(head, Step)
        return head

    def _estimate(self, vectors: Mapping[str, Tensor], steps: int) -> tuple[HeadConstants, dict[str, Tensor]]:
        following: dict[str, Tensor] = {}
        head = self.network.get_submodule(self._head.name)
        rows: Tensor = head.weight  # type: ignore[assignment]
        with torch.autocast(rows.device.type, enabled=False):
            scale = self._product(self.steps[:-1], vectors, steps, following)
        return HeadConstants(rows, scale), following

    def _product(
        self, chain: Steps, vectors: Mapping[str, Tensor], steps: int, following: dict[str, Tensor]
    ) -> Tensor | float:
        product: Tensor | float = 1.0
        for step in chain:
            if isinstance(step, Branch):
                product = product * (1 + self._product(step.body, vectors, steps, following))
                continue
            layer = self.network.get_submodule(step.name)
            factor, vector = rule_of(layer, step.name).estimate(layer, step.shape, vectors.get(step.name), steps)
            product = product * factor
            if vector is not None:
                following[step.name] = vector
        return product


class _Estimate(nn.Module):
    """`CertifiedNet.estimate` as a forward, so that torch can put other weights in."""

    def __init__(self, net: CertifiedNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, vectors: Mapping[str, Tensor], steps: int) -> tuple[HeadConstants, dict[str, Tensor]]:
        return self.net._estimate(vectors, steps)


class FrozenNet(CertifiedNet):
    """A network that does not change any more: plain float64 layers, proved once. Made by `CertifiedNet.frozen`."""

    def __init__(self, net: CertifiedNet, network: nn.Module, steps: Steps) -> None:
        nn.Module.__init__(self)
        self.network, self.steps = network, steps
        self.input_shape, self.classes = net.input_shape, net.classes
        self.guarantee, self.epsilon, self.class_names = net.guarantee, net.epsilon, net.class_names
        self.eval()
        self._proved: tuple[Content, str, Proof] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Plain logits in float64."""
        return self.network(x.double())  # type: ignore[no-any-return]

    def frozen(self) -> "FrozenNet":
        """Itself."""
        return self

    def same(self, network: nn.Module, steps: Steps, settings: tuple[Any, ...]) -> bool:
        """Whether this is the frozen form of a network, by content."""
        mine = (self.guarantee, self.epsilon, self.class_names)
        return self.steps == steps and mine == settings and Content.of(network).equals(Content.of(self.network))

    def train(self, mode: bool = True) -> "FrozenNet":
        """Stays in evaluation mode."""
        return super().train(False)

    def proof(self, convolutions: str | None = None) -> Proof:
        """What is proved of the weights as they are now; proved again if they, or the wish, have changed."""
        for name, layer in self.network.named_modules():
            check_untouched(layer, name)
        for step in leaves(self.steps):
            rule_of(self.network.get_submodule(step.name), step.name)
        content, wished = Content.of(self.network), convolutions not in (None, self._proved and self._proved[1])
        if self._proved is None or wished or not self._proved[0].equals(content):
            if self._proved is not None:  # whatever it has become
                self.network, self.steps = freeze(self.network, self.input_shape)
            with strict_arithmetic():
                proof = prove(self.network, self.steps, convolutions or "auto")
            self._proved = (Content.of(self.network).kept(), convolutions or "auto", proof)
        return self._proved[2]

    def bounds(self, *, convolutions: str | None = None) -> Bounds:
        """Proved Lipschitz constants: ``.pairs``, ``.head``, ``.layers``."""
        return self.proof(convolutions).bounds

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def certify(
        self,
        x: Numbers,
        *,
        epsilon: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
    ) -> Certificate:
        """As for `CertifiedNet.certify`."""
        proof = self.proof()
        inputs = self._inputs(x)
        with strict_arithmetic():
            parts = [part.to(proof.offsets) for part in torch.split(inputs, POINTS_AT_ONCE) if len(part)]
            logits = [proof.offsets.new_zeros(0, self.classes), *(self.network(part) for part in parts)]
            norms = [proof.offsets.new_zeros(0), *(row_norms(part.flatten(1)) for part in parts)]
            raw = check_logits(torch.cat(logits))
            error, room = proof.allowance(torch.cat(norms))
            found = certificate(
                raw,
                proof.bounds.head,
                self.epsilon if epsilon is None else epsilon,
                self.guarantee if guarantee is None else guarantee,
                method=method,
                error=error,
                class_names=self.class_names,
            )
        _say_if_swamped(raw, error.offset, proof)
        room = room[:, None, None]
        return replace(
            found,
            windows=torch.where(room > 0, torch.minimum(found.windows, room), 0.0),
            covers=f"the frozen network in exact arithmetic, and its float64 program as run on {raw.device.type}",
            layers=proof.bounds.layers,
        )

    def _inputs(self, x: Numbers) -> Tensor:
        inputs = as_tensor(x, "`x`").detach()
        if inputs.shape[1:] != self.input_shape or not inputs.is_floating_point() or inputs.is_meta:
            raise expected(
                f"`x` to be floating-point inputs of shape (batch, {', '.join(map(str, self.input_shape))})",
                f"shape {tuple(inputs.shape)}, {inputs.dtype}",
                "For one point, give x[None]." if inputs.shape == self.input_shape else "",
            )
        return inputs


@contextmanager
def strict_arithmetic() -> Iterator[None]:
    """Sums of products in float64 as they are written: no autocast, TF32, Winograd or FFT; all flags are restored."""
    with (
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        torch.backends.cudnn.flags(enabled=False),
        torch.backends.nnpack.flags(enabled=False),
    ):
        yield


def _say_if_swamped(logits: Tensor, offset: Tensor, proof: Proof) -> None:
    """Warn if the rounding allowance is larger than every difference of logits, at every point."""
    spread = logits.amax(dim=1) - logits.amin(dim=1)
    allowed = 2 * offset.amin(dim=1)
    if len(spread) and bool(((spread > 0) & (spread <= allowed)).all()):
        largest = sorted(proof.bounds.layers, key=lambda layer: -layer.bound)[:3]
        warnings.warn(
            f"The rounding of the forward pass, up to {float(allowed.amin()):.2g}, is larger than every difference of "
            f"logits, at most {float(spread.amax()):.2g}: nothing can be certified. The layers' Lipschitz bounds "
            f"multiply to {float(proof.bounds.head.scale):.2g}; the largest are "
            + ", ".join(f"{layer.name} ({layer.type}) {layer.bound:.3g}" for layer in largest)
            + ". Train the network with its Lipschitz constant in the loss, or scale these layers down.",
            RoundingWarning,
            stacklevel=3,
        )
