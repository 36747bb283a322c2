"""CertifiedNet: a network, a guarantee and a radius."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from safeset.capture.capture import capture, check_layers
from safeset.certificates.constants import HeadConstants
from safeset.certificates.margins import instrument
from safeset.errors import expected
from safeset.guarantees.guarantee import Guarantee
from safeset.guarantees.text import as_guarantee
from safeset.inputs import check_names, check_shape, one_epsilon
from safeset.lipschitz.witness import Witness
from safeset.nets.certifying import Certifying
from safeset.nets.estimate import estimate, parts_of, start_vectors
from safeset.nets.frozen import FrozenNet
from safeset.nets.pretrained import read_pretrained, write_pretrained
from safeset.nets.sealed import Sealed
from safeset.numerics.strict import strict_arithmetic
from safeset.program.content import Content
from safeset.proofs.prove import Proof

MOST_TRIES = 20  # to copy a network that other threads change


class CertifiedNet(Certifying):
    """A classifier whose answers are certified sets.

    Args:
        network: any module that maps (batch, *input_shape) to (batch, classes). Layers in plain sequences are known by
            their exact types; of everything else `torch.export` writes down what its forward computes. What has no
            Lipschitz constant, such as attention or layer norm, raises `UnsupportedLayerError`.
        input_shape: shape of one input, without the batch.
        guarantee: `Standard`, `TopK`, `RelaxedTopK`, `Affinity`, or a text such as ``"rt3"``.
        epsilon: radius of the L2 ball, in the units of the network's input.
        eps: the same as ``epsilon``.
        class_names: for printing and records, and for affinity sets of names.
        tighten: whether to look for smaller bounds of the same network, up to rounding: batch norm becomes part of the
            layer before it, small linear parts become one layer, and factors between layers are balanced. None: of
            networks with batch norm, and of those that are no plain sequence.

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
        epsilon: float | None = None,
        eps: float | None = None,
        class_names: Sequence[str] | None = None,
        tighten: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise expected("`network` to be a torch.nn.Module", type(network).__name__)
        if isinstance(network, CertifiedNet):
            raise expected("`network` to be a plain module", "a CertifiedNet", "Give its .network.")
        self.network = network
        self.input_shape = check_shape(input_shape)
        self.epsilon = one_epsilon(epsilon, eps)
        if tighten is not None and not isinstance(tighten, bool):
            raise expected("`tighten` to be True, False or None", repr(tighten))
        _, program, self._exported = capture(network, self.input_shape)
        weights = {} if self._exported is None else self._exported.factors
        self._parts = parts_of(network, program, weights)
        self.classes, self.products = program.classes, program.products
        self._tighten = tighten
        self.class_names = None if class_names is None else check_names(class_names, self.classes)
        guarantee = as_guarantee(guarantee)
        self.guarantee = guarantee if self.class_names is None else guarantee.bind(self.class_names)
        self.guarantee.largest_k(self.classes)  # raises if there are too few classes
        self.units = ""  # what the inputs are measured in, where a run says so
        self.trained_for: float | None = None  # the ε that `safeset.train` trains it for
        self._sealed: Sealed | None = None  # what is certified; changed by one thread at a time
        self._lock = threading.RLock()
        self._wish = "auto"  # how convolutions are proved
        self._witnesses: Mapping[str, Witness] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Plain logits, (batch, *input_shape) → (batch, classes)."""
        return self.network(x)  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        """Where it computes: that of its first weights."""
        return next(self.parameters()).device

    # -- training -----------------------------------------------------------------------------------------------------

    def start_vectors(self, seed: int = 0) -> dict[str, Tensor]:
        """The power method's first vectors: random, one for each layer that needs one, by name."""
        return start_vectors(self.network, self._parts, seed)

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
        return estimate(self.network, self._parts, inside, vectors, steps)

    def instrument(self, logits: Tensor, constants: HeadConstants, *, method: str = "uniform") -> Tensor:
        """The logits and ⊥, (batch, classes) → (batch, classes + 1): max f minus the margin of the guarantee."""
        return instrument(logits, constants, self.epsilon, self.guarantee, method=method)

    # -- files --------------------------------------------------------------------------------------------------------

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the net to a folder as Hugging Face's libraries do: ``model.safetensors``, ``config.json`` and a card.

        The architecture is code, and is not written: `from_pretrained` takes a module of the same one.

        Args:
            directory: made if it is not there; files of these names in it are replaced.
        """
        settings = {
            "input_shape": list(self.input_shape),
            "guarantee": str(self.guarantee),
            "epsilon": self.epsilon,
            "class_names": None if self.class_names is None else list(self.class_names),
            "units": self.units,
            "tighten": self._tighten,
        }
        write_pretrained(Path(directory), self.network.state_dict(), settings)

    @classmethod
    def from_pretrained(cls, directory: str | Path, *, network: nn.Module) -> "CertifiedNet":
        """The net that `save_pretrained` wrote; no pickles are read, and nothing is downloaded.

        Args:
            directory: the folder.
            network: a module of the same architecture, such as ``safeset.create_model(...)``: gets the weights.

        Raises:
            SafesetError: if a file is missing or damaged, or the network has other weights by name, shape or type. Then
                the network is as it was.
        """
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        config = read_pretrained(Path(directory), network)
        chosen = {key: config[key] for key in ("input_shape", "guarantee", "epsilon", "class_names", "tighten")}
        modes = [(module, module.training) for module in network.modules()]
        try:
            net = cls(network.eval(), **chosen)
        except BaseException:  # the network is as it was
            network.load_state_dict(before)
            for module, mode in modes:
                module.training = mode
            raise
        net.units = config["units"]
        return net

    # -- proofs -------------------------------------------------------------------------------------------------------

    def frozen(self) -> FrozenNet:
        """The network as it is certified and served: evaluation mode, plain float64, nothing that trains or changes.

        Later changes of this net do not reach it; what has been proved so far is kept.
        """
        with self._lock:
            return FrozenNet(self, self._seal(), self._wish, self._witnesses)

    def remember(self, witnesses: Mapping[str, Witness]) -> None:
        """Prove with witnesses of an earlier proof: what they confirm is not searched for. They are not believed."""
        self._witnesses = dict(witnesses)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _seal(self) -> Sealed:
        """The network as it is now, sealed: kept while nothing changes, by content, and never handed out.

        What is sealed is a copy, and afterwards the network is compared with it: a change by another thread meanwhile
        is noticed, unless it is undone layer by layer just as the comparison comes by.
        """
        self._check_itself(CertifiedNet)
        with self._lock, strict_arithmetic():
            for _ in range(MOST_TRIES):
                check_layers(self.network)
                # What a parametrisation computes may depend on more than its content: it is evaluated each time.
                parametrised = any(is_parametrized(layer) for layer in self.network.modules())
                before, now = self._sealed, Content.of(self.network)
                kept = before is not None and before.program.input_shape == tuple(self.input_shape)
                if before is not None and kept and not parametrised and before.source.equals(now):
                    return before
                sealed = Sealed.of(self.network, self.input_shape, self._tighten, self._exported)
                if not sealed.source.equals(Content.of(self.network)):
                    continue
                self._sealed = sealed.after(before)
                self._parts, self.classes = sealed.parts, sealed.program.classes
                self._exported = sealed.exported
                return self._sealed
        raise expected(
            "weights that stay the same while they are copied",
            "others each time",
            "Another thread changes the network: stop it, or certify net.frozen(), made before. Or an attribute of a "
            "module equals no copy of itself: give its class an __eq__.",
        )

    def _proved(self, convolutions: str | None = None) -> tuple[Sealed, Proof]:
        """The sealed network, and what is proved of it: once, unless the wish is another."""
        with self._lock:
            sealed, wish = self._seal(), self._wish if convolutions is None else convolutions
            proof = sealed.proof(wish, self._witnesses)
            self._wish = wish
        return sealed, proof

    def _weights(self) -> Mapping[str, Tensor]:
        """Those of the network as it is now."""
        return self.network.state_dict()

    def __getstate__(self) -> dict[str, Any]:
        """Without proofs: they are trusted only in the process that made them."""
        return {**self.__dict__, "_sealed": None, "_lock": None, "_witnesses": {}, "_exported": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """With a lock of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()
