"""CertifiedNet: a network, a guarantee and a radius."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from safeset.arithmetic import strict_arithmetic
from safeset.certificates import Certificate
from safeset.certify import certificate, check_logits
from safeset.constants import HeadConstants
from safeset.errors import UnsupportedLayerError, expected
from safeset.estimation import estimate, start_vectors
from safeset.freezing import Content, Step, freeze, leaves
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
        self.classes: int = self._count(frozen)
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
        return start_vectors(self.network, self.steps, seed)

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
        prefix = "network."
        inside = {name.removeprefix(prefix): tensor for name, tensor in (weights or {}).items()}
        return estimate(self.network, self.steps, inside, vectors, steps)

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
        network, self.steps = freeze(self.network, self.input_shape)
        self.classes = self._count(network)
        kept = self._kept[0] if self._kept else None
        if kept is None or not kept.is_frozen_from(self, network):
            kept = FrozenNet(self, network)
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

    def _count(self, network: nn.Module) -> int:
        head = network.get_submodule(self._head.name)
        assert isinstance(head, nn.Linear)
        return head.out_features


class FrozenNet(CertifiedNet):
    """A network that does not change any more: plain float64 layers, proved once. Made by `CertifiedNet.frozen`."""

    def __init__(self, net: CertifiedNet, network: nn.Module) -> None:
        nn.Module.__init__(self)
        self.network, self.steps = network, net.steps
        self.input_shape, self.classes = net.input_shape, net.classes
        self.guarantee, self.epsilon, self.class_names = net.guarantee, net.epsilon, net.class_names
        self.eval()
        self._proved: tuple[Content, tuple[int, ...], str, Proof] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Plain logits in float64."""
        return self.network(x.double())  # type: ignore[no-any-return]

    def frozen(self) -> "FrozenNet":
        """Itself."""
        return self

    def is_frozen_from(self, net: CertifiedNet, network: nn.Module) -> bool:
        """Whether this is the frozen form of a net, given what its network is now when frozen."""
        settings = ("input_shape", "classes", "steps", "guarantee", "epsilon", "class_names")
        return all(getattr(self, name) == getattr(net, name) for name in settings) and Content.of(network).equals(
            Content.of(self.network)
        )

    def train(self, mode: bool = True) -> "FrozenNet":
        """Stays in evaluation mode."""
        return super().train(False)

    def proof(self, convolutions: str | None = None) -> Proof:
        """What is proved of the weights as they are now; proved again if they, or the wish, have changed."""
        content, shape, before, proof = self._proved or (None, None, "auto", None)
        wish = before if convolutions is None else convolutions
        same = content is not None and content.equals(Content.of(self.network)) and shape == self.input_shape
        if same:  # but hooks, and methods of classes, may have come since
            for name, layer in self.network.named_modules():
                check_untouched(layer, name)
            for step in leaves(self.steps):
                rule_of(self.network.get_submodule(step.name), step.name)
        if proof is None or not same or wish != before:
            with torch.inference_mode(False), strict_arithmetic():
                self.network, self.steps = freeze(self.network, self.input_shape)  # whatever it has become
                self.classes = self._count(self.network)
                proof = prove(self.network, self.steps, wish)
                self._proved = (Content.of(self.network).kept(), self.input_shape, wish, proof)
        return proof

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
            sizes = [proof.offsets.new_zeros(0), *(row_norms(part.flatten(1)) for part in parts)]
            raw, norms = check_logits(torch.cat(logits)), torch.cat(sizes)
            error, room = proof.allowance(norms)
            found = certificate(
                raw,
                proof.bounds.head,
                self.epsilon if epsilon is None else epsilon,
                self.guarantee if guarantee is None else guarantee,
                method=method,
                error=error,
                class_names=self.class_names,
            )
        proof.warn_if_swamped(norms, raw, error)
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
