"""What every certified network can do with points: bounds, certificates, sets, radii and a diagnosis."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.certificates.certify_logits import check_logits
from safeset.certificates.promises import shown_epsilon
from safeset.errors import UnsupportedLayerError, expected
from safeset.guarantees.guarantee import Guarantee
from safeset.inputs import Numbers, as_tensor, check_subnormals, warn_of_units
from safeset.lipschitz.witness import Witness
from safeset.nets.diagnosis import Diagnosis
from safeset.nets.explanation import Explanation, explanation
from safeset.nets.points import Measured
from safeset.nets.sealed import Sealed
from safeset.numerics.directed import row_norms
from safeset.numerics.strict import strict_arithmetic, uncompiled
from safeset.numerics.threads import FEW_PRODUCTS, one_thread
from safeset.program.rules import check_untouched
from safeset.proofs.portable import Seen
from safeset.proofs.prove import Bounds, Proof

if TYPE_CHECKING:
    from safeset.nets.frozen import FrozenNet

POINTS_AT_ONCE = {"cpu": 64, "cuda": 256}  # smaller batches let the allocator use buffers again on a CPU


class Certifying(nn.Module):
    """A network, a guarantee and a radius; subclasses say which sealed program it is now.

    Attributes:
        input_shape: of one input.
        guarantee: what is certified.
        epsilon: radius of the ball.
        classes: of the head.
        class_names: for printing and records.
        units: what the inputs are measured in, where a run says so.
        trained_for: the ε that `safeset.train` trains it for.
        network: the module inside; of a frozen net a copy as plain layers.
    """

    input_shape: tuple[int, ...]
    guarantee: Guarantee
    epsilon: float
    classes: int
    class_names: tuple[str, ...] | None
    units: str
    trained_for: float | None
    network: nn.Module

    @abstractmethod
    def frozen(self) -> "FrozenNet":
        """The network as it is now, proved once, which nothing can change."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where it computes."""

    @abstractmethod
    def _proved(self, convolutions: str | None = None) -> tuple[Sealed, Proof]:
        """The program as it is now, and what is proved of it."""

    @abstractmethod
    def _weights(self) -> Mapping[str, Tensor]:
        """Weights as they are in a file, by name: what a portable proof is about."""

    def bounds(self, *, convolutions: str | None = None) -> Bounds:
        """Proved Lipschitz constants: ``.pairs``, ``.head``, ``.layers``.

        Args:
            convolutions: ``"exact"`` (to a relative 1e-9), ``"torus"`` (by a torus alone: mostly cheaper, and looser),
                ``"auto"`` (exact where it is affordable), or None: as proved before, else ``"auto"``.
        """
        with strict_arithmetic():
            return self._proved(convolutions)[1].copied().bounds

    def witnesses(self) -> Mapping[str, Witness]:
        """With what the bounds were proved, by layer: `remember` makes the same proofs quick in another process."""
        return dict(self._proved()[1].witnesses)

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
            program = sealed.program
            if inputs.shape[1:] != program.input_shape:  # another thread may have changed it since
                raise expected(f"inputs of shape {program.input_shape}", f"shape {tuple(inputs.shape[1:])}")
            with one_thread(len(inputs) * program.products <= FEW_PRODUCTS):
                some = POINTS_AT_ONCE.get(program.device.type, 256)
                parts = [part.to(program.device, torch.float64) for part in torch.split(inputs, some) if len(part)]
                empty = torch.zeros(0, program.classes, dtype=torch.float64, device=program.device)
                norms = torch.cat([empty.new_zeros(0), *(row_norms(part.flatten(1)) for part in parts)])
                logits = check_logits(torch.cat([empty, *map(sealed.logits, parts)]))
                check_subnormals(logits.device)  # in all threads that computed the logits
                error, room = proof.allowance(norms)
                proof.warn_if_swamped(norms, logits, error)
        seen = Seen(self._weights, program, inputs, logits, proof.bounds.head)
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

    def explain(
        self,
        x: Numbers | None = None,
        y: Numbers | None = None,
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
    ) -> Explanation:
        """Where the Lipschitz bound comes from, layer by layer, and what a better proof could gain at most.

        Each layer's bound stands beside what its constant is at least, and the bound of the whole beside the steepest
        difference of logits that a search finds. What is found by search proves nothing; it limits what can be proved.

        Args:
            x: (batch, *input_shape) inputs, where the search starts, and of which is said what the bounds cost.
            y: (batch,) their labels: then that is in VRA.
            epsilon: as for `certify`, and so are the others.
            eps: the same as ``epsilon``.
            guarantee: likewise.
            method: likewise.

        >>> _ = torch.manual_seed(0)
        >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> from safeset import CertifiedNet
        >>> found = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1).explain()
        >>> [layer.type for layer in found.layers], found.lower <= found.by_layers <= found.lipschitz
        (['Linear', 'ReLU', 'Linear'], True)
        """
        if x is None:
            if y is not None:
                raise expected("`x` where there is `y`", "labels alone")
            with strict_arithmetic():
                sealed, proof = self._proved()
                return explanation(sealed.program, proof.bounds)
        return self.measure(x).explain(y, epsilon=epsilon, eps=eps, guarantee=guarantee, method=method)

    def extra_repr(self) -> str:
        """Shape, guarantee and epsilon, for printing."""
        return f"input_shape={self.input_shape}, guarantee={self.guarantee!r}, epsilon={shown_epsilon(self.epsilon)}"

    # -- inside -------------------------------------------------------------------------------------------------------

    def _check_itself(self, kind: type[nn.Module]) -> None:
        """Refuse hooks on the net, and subclasses that compute something else: it would be left out of the proof."""
        check_untouched(self)
        if type(self).forward is not kind.forward or type(self).__call__ is not nn.Module.__call__:
            raise UnsupportedLayerError(f"Expected the forward of {kind.__name__}, but got another.")

    def _inputs(self, x: Numbers) -> Tensor:
        given = as_tensor(x, "`x`")
        if type(given) not in (Tensor, nn.Parameter):  # a subclass may compute anything
            remedy = "Give x.as_subclass(torch.Tensor)."
            raise expected("`x` to be a plain tensor", f"a {type(given).__name__}", remedy)
        inputs = given.detach().clone()  # others may write into what they gave, from which more than one thing is read
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
