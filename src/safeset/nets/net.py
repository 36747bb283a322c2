"""CertifiedNet: a network, a guarantee and a radius."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from safeset.certificates.certificate import Certificate
from safeset.certificates.certify_logits import check_logits
from safeset.certificates.constants import HeadConstants
from safeset.certificates.margins import instrument
from safeset.errors import UnsupportedLayerError, expected
from safeset.guarantees.guarantee import Guarantee, as_guarantee
from safeset.inputs import (
    Numbers,
    as_tensor,
    check_names,
    check_shape,
    check_subnormals,
    one_epsilon,
    warn_of_units,
)
from safeset.lipschitz.rules import check_untouched
from safeset.lipschitz.witness import Witness
from safeset.nets.diagnosis import Diagnosis
from safeset.nets.estimate import estimate, start_vectors
from safeset.nets.points import Measured
from safeset.nets.proof import Bounds, Proof
from safeset.nets.sealed import Sealed
from safeset.numerics.directed import row_norms
from safeset.numerics.strict import strict_arithmetic, uncompiled
from safeset.numerics.threads import FEW_PRODUCTS, one_thread
from safeset.program.from_modules import Content, check_layers, freeze
from safeset.proofs.portable import Seen

POINTS_AT_ONCE = {"cpu": 64, "cuda": 256}  # on a CPU fewer: what they need is then kept, not fetched anew each time
MOST_TRIES = 20  # to copy a network that other threads change


class CertifiedNet(nn.Module):
    """A classifier whose answers are certified sets.

    Args:
        network: any supported layers, the last one a linear head: plain `torch.nn` modules in `nn.Sequential`, and
            those of `safeset.layers`. Each is known by its exact type; anything else raises `UnsupportedLayerError`.
        input_shape: shape of one input, without the batch.
        guarantee: `Standard`, `TopK`, `RelaxedTopK`, `Affinity`, or a text such as ``"rt3"``.
        epsilon: radius of the L2 ball, in the units of the network's input.
        eps: the same as ``epsilon``.
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
        epsilon: float | None = None,
        eps: float | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise expected("`network` to be a torch.nn.Module", type(network).__name__)
        self.network = network
        self.input_shape = check_shape(input_shape)
        self.epsilon = one_epsilon(epsilon, eps)
        _, self._steps, self.classes = freeze(network, self.input_shape)
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

    # -- training -----------------------------------------------------------------------------------------------------

    def start_vectors(self, seed: int = 0) -> dict[str, Tensor]:
        """The power method's first vectors: random, one for each layer that needs one, by name."""
        return start_vectors(self.network, self._steps, seed)

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
        return estimate(self.network, self._steps, inside, vectors, steps)

    def instrument(self, logits: Tensor, constants: HeadConstants, *, method: str = "uniform") -> Tensor:
        """The logits and ⊥, (batch, classes) → (batch, classes + 1): max f minus the margin of the guarantee."""
        return instrument(logits, constants, self.epsilon, self.guarantee, method=method)

    # -- proofs -------------------------------------------------------------------------------------------------------

    def frozen(self) -> "FrozenNet":
        """The network as it is certified and served: evaluation mode, plain float64 layers, nothing that trains.

        A copy that later changes of this net do not reach, with what has been proved of it so far.
        """
        with self._lock:
            return FrozenNet(self, *self._certified().copied())

    def bounds(self, *, convolutions: str | None = None) -> Bounds:
        """Proved Lipschitz constants: ``.pairs``, ``.head``, ``.layers``.

        Args:
            convolutions: ``"exact"`` (to a relative 1e-9), ``"torus"`` (by a torus alone: mostly cheaper, and looser),
                ``"auto"`` (exact where it is affordable), or None: as proved before, else ``"auto"``.
        """
        bounds = self._proved(convolutions)[1].bounds  # whose tensors stay with the proof
        head = HeadConstants(bounds.head.rows.clone(), bounds.head.scale)
        return replace(bounds, head=head)

    def witnesses(self) -> Mapping[str, Witness]:
        """With what the bounds were proved, by layer: `remember` makes the same proofs quick in another process."""
        return self._proved()[1].witnesses

    def remember(self, witnesses: Mapping[str, Witness]) -> None:
        """Prove with witnesses of an earlier proof: what they confirm is not searched for. They are not believed."""
        self._witnesses = dict(witnesses)

    @uncompiled
    def measure(self, x: Numbers) -> Measured:
        """What `certify` and the others say of points comes from this: the network runs once for all of them.

        Args:
            x: (batch, *input_shape) inputs.

        Returns:
            Points that have ``certificate``, ``membership_radii`` and ``target_table``, of the net as it is now.
        """
        with strict_arithmetic():
            inputs = self._inputs(x)
            sealed, proof = self._proved()
            with one_thread(len(inputs) * sealed.products <= FEW_PRODUCTS):
                some = POINTS_AT_ONCE.get(sealed.device.type, 256)
                parts = [part.to(sealed.device, torch.float64) for part in torch.split(inputs, some) if len(part)]
                empty = torch.zeros(0, sealed.classes, dtype=torch.float64, device=sealed.device)
                norms = torch.cat([empty.new_zeros(0), *(row_norms(part.flatten(1)) for part in parts)])
                logits = check_logits(torch.cat([empty, *map(sealed.logits, parts)]))
                check_subnormals(logits.device)  # in all threads that computed the logits
                error, room = proof.allowance(norms)
                proof.warn_if_swamped(norms, logits, error)
        seen = Seen(self, sealed, inputs, logits, proof.bounds.head)
        about = (self.epsilon, self.guarantee, self.class_names, seen, self.trained_for)
        return Measured(logits, proof.bounds, error, room, *about)

    def certify(
        self,
        x: Numbers,
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
        prefer: str = "smallest",
    ) -> Certificate:
        """Certified prediction sets: proved bounds only, in float64, the rounding of the forward pass accounted for.

        Args:
            x: (batch, *input_shape) inputs. A point with NaN or ±∞ is rejected.
            epsilon: radius of the ball, if not the net's own.
            eps: the same as ``epsilon``.
            guarantee: likewise.
            method: ``"uniform"`` (the paper), ``"floating"`` or ``"joint"`` (the default).
            prefer: which certified answer is shown, ``"smallest"`` or ``"largest"``.

        Returns:
            A `Certificate`. It covers the frozen network in exact arithmetic, and its float64 program: every float64
            array x' in the ball.
        """
        points = self.measure(x)
        return points.certificate(epsilon=epsilon, eps=eps, guarantee=guarantee, method=method, prefer=prefer)

    def membership_radii(self, x: Numbers, k: int) -> Tensor:
        """For each class, the radius below which it stays among the k best (Jia et al., 2020), proved as by `certify`.

        Args:
            x: (batch, *input_shape) inputs.
            k: fewer than the classes.

        Returns:
            (batch, classes) float64; 0 for a class that is not safely among the k best at x. At every ε below the least
            of the k best classes' radii, they stay the k best.
        """
        return self.measure(x).membership_radii(k)

    def target_table(self, x: Numbers) -> Tensor:
        """The directed table: below entry [j, i] class i cannot overtake class j; proved as by `certify`.

        Args:
            x: (batch, *input_shape) inputs.

        Returns:
            (batch, classes, classes) float64; 0 where i is not safely below j at x, ∞ on the diagonal.
        """
        return self.measure(x).target_table()

    def predict_set(
        self,
        x: Numbers,
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
        prefer: str = "smallest",
    ) -> tuple[Tensor, Tensor]:
        """Labels (batch,), the argmax, and certified sets (batch, classes): core and optional, empty where rejected.

        Arguments as for `certify`. The label of a point whose logits are NaN is −1.
        """
        found = self.certify(x, epsilon=epsilon, eps=eps, guarantee=guarantee, method=method, prefer=prefer)
        return found.ranking[:, 0], found.whole

    def diagnose(
        self,
        x: Numbers,
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
    ) -> Diagnosis:
        """Why so many of the points are certified, or so few: the median radius, the costliest layer, what to do.

        Arguments as for `certify`. Print what comes back: it explains itself.
        """
        return self.measure(x).diagnose(epsilon=epsilon, eps=eps, guarantee=guarantee, method=method)

    def extra_repr(self) -> str:
        """Shape, guarantee and epsilon, for printing."""
        return f"input_shape={self.input_shape}, guarantee={self.guarantee!r}, epsilon={self.epsilon:g}"

    # -- inside -------------------------------------------------------------------------------------------------------

    def _certified(self) -> Sealed:
        """The network as it is now, sealed: kept while nothing changes, by content, and never handed out.

        What is sealed is a copy, and afterwards the network is compared with it: so it is what the network was at one
        moment, even if other threads change it meanwhile.
        """
        self._check_itself()
        with self._lock:
            for _ in range(MOST_TRIES):
                check_layers(self.network, self._steps)
                # What a parametrisation computes may depend on more than its content: it is evaluated each time.
                parametrised = any(is_parametrized(layer) for layer in self.network.modules())
                before, now = self._sealed, Content.of(self.network, self.input_shape)
                if before is not None and not parametrised and before.source.equals(now):
                    return before
                sealed = Sealed.of(self.network, self.input_shape)
                if not sealed.source.equals(Content.of(self.network, self.input_shape)):
                    continue
                self._sealed = sealed.after(before)
                self._steps, self.classes = sealed.steps, sealed.classes
                return self._sealed
        raise expected(
            "weights that stay the same while they are copied",
            "others each time",
            "Another thread changes the network: stop it, or certify net.frozen(), made before.",
        )

    def _proved(self, convolutions: str | None = None) -> tuple[Sealed, Proof]:
        """The sealed network, and what is proved of it: once, unless the wish is another."""
        with self._lock:
            sealed, wish = self._certified(), self._wish if convolutions is None else convolutions
            proof = sealed.proof(wish, self._witnesses)
            self._wish = wish
        return sealed, proof

    def _check_itself(self) -> None:
        """Refuse hooks on the net, and subclasses that compute something else: it would be left out of the proof."""
        check_untouched(self)
        kind = FrozenNet if isinstance(self, FrozenNet) else CertifiedNet
        if type(self).forward is not kind.forward or type(self).__call__ is not nn.Module.__call__:
            raise UnsupportedLayerError(f"Expected the forward of {kind.__name__}, but got another.")

    def __getstate__(self) -> dict[str, Any]:
        """Without proofs: they are trusted only in the process that made them."""
        return {**self.__dict__, "_sealed": None, "_lock": None, "_witnesses": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """With a lock of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()

    def _inputs(self, x: Numbers) -> Tensor:
        given = as_tensor(x, "`x`")
        if type(given) not in (Tensor, nn.Parameter):  # a subclass may compute anything
            remedy = "Give x.as_subclass(torch.Tensor)."
            raise expected("`x` to be a plain tensor", f"a {type(given).__name__}", remedy)
        inputs = given.detach()
        if inputs.shape[1:] != self.input_shape or not inputs.is_floating_point() or inputs.is_meta:
            raise expected(
                f"`x` to be floating-point inputs of shape (batch, {', '.join(map(str, self.input_shape))})",
                f"shape {tuple(inputs.shape)}, {inputs.dtype}",
                "For one point, give x[None]."
                if inputs.shape == self.input_shape
                else "Pixels as bytes are x.float() / 255; epsilon is in the same units."
                if not inputs.is_floating_point()
                else "",
            )
        warn_of_units(inputs, self.units)
        return inputs


class FrozenNet(CertifiedNet):
    """A network that does not change any more: plain float64 layers, proved once. Made by `CertifiedNet.frozen`."""

    def __init__(self, net: CertifiedNet, network: nn.Module, sealed: Sealed) -> None:
        nn.Module.__init__(self)
        self.network, self._steps, self._sealed = network, sealed.steps, sealed
        self.input_shape, self.classes = net.input_shape, net.classes
        self.guarantee, self.epsilon, self.class_names = net.guarantee, net.epsilon, net.class_names
        self.units, self.trained_for = net.units, net.trained_for
        self._wish, self._witnesses = net._wish, net._witnesses
        self._lock = threading.RLock()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Plain logits in float64."""
        return self.network(x.double())  # type: ignore[no-any-return]

    def frozen(self) -> "FrozenNet":
        """Itself."""
        return self

    def proof(self, convolutions: str | None = None) -> Proof:
        """What is proved of the weights as they are now; proved again if they, or the wish, have changed."""
        return self._proved(convolutions)[1]

    def _certified(self) -> Sealed:
        with self._lock:
            before, sealed = self._sealed, super()._certified()
            if sealed is not before:  # whatever it has become is frozen too
                self.network, self._sealed = sealed.copied()
                sealed = self._sealed
            return sealed

    def train(self, mode: bool = True) -> "FrozenNet":
        """Stays in evaluation mode."""
        return super().train(False)
