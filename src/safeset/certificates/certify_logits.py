"""From logits and Lipschitz constants, wherever they come from, to certificates."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.constants import HeadConstants, Lipschitz, MatrixConstants, as_constants
from safeset.certificates.margins import METHODS, best_classes
from safeset.certificates.radii import AffineError, PairError, target_radii, window_radii
from safeset.errors import expected, nearest
from safeset.guarantees.guarantee import Guarantee, TopK
from safeset.guarantees.text import as_guarantee
from safeset.inputs import Numbers, as_tensor, check_epsilon, check_names, check_subnormals, one_epsilon
from safeset.numerics.strict import plainly
from safeset.numerics.threads import few_logits, one_thread

Error = AffineError | tuple[float | Tensor, float | Tensor] | float | Tensor | None


@plainly
def certify_logits(
    logits: Numbers,
    lipschitz: Lipschitz,
    epsilon: float | None = None,
    guarantee: Guarantee | str = "standard",
    *,
    eps: float | None = None,
    method: str | None = None,
    error: Error = None,
    class_names: Sequence[str] | None = None,
    prefer: str = "smallest",
) -> Certificate:
    """Certified prediction sets from logits and Lipschitz constants, wherever they come from.

    Args:
        logits: (batch, classes) f(x), taken as exact unless ``error`` says otherwise. A row with NaN or ±∞ is rejected.
        lipschitz: a symmetric (classes, classes) matrix K of upper bounds of the Lipschitz constants of f_j − f_i, in
            the L2 norm (the diagonal is ignored, +∞ is "unknown"), or ``HeadConstants(rows, scale)`` of a linear head,
            or one finite number L ≥ 0 that bounds the Lipschitz constant of the whole map x → f(x), L2 to L2: every
            K_ji is then √2·L, rounded up, since f_j − f_i = ⟨e_j − e_i, f⟩ and ‖e_j − e_i‖ = √2.
        epsilon: radius of the closed L2 ball, in the units of the network's input.
        guarantee: `Standard`, `TopK`, `RelaxedTopK`, `Affinity`, or a text such as ``"rt3"``.
        eps: the same as ``epsilon``.
        method: ``"uniform"`` (the paper), ``"floating"`` or ``"joint"``, each at least as strong as the one before. By
            default ``"joint"`` for `HeadConstants`; ``"floating"`` for a matrix or a number: ``"joint"`` needs rows.
        error: rounding error of each computed f_j − f_i at radius ε: a number or tensor e₀, or (e₀, slope) for
            e₀ + slope·ε; tensors are (batch,), or broadcast to (batch, classes, classes). By default 0.
        class_names: for printing and records, and for affinity sets of names.
        prefer: which certified answer is shown, ``"smallest"`` or ``"largest"``.

    Returns:
        A `Certificate` in float64, on the device of the logits.

    Raises:
        ArgumentError: for constants that are NaN, negative, asymmetric or misshapen, a negative or infinite epsilon, a
            guarantee that needs more classes.

    >>> certificate = certify_logits(torch.tensor([[2.0, 1.9, 0.0]]), torch.ones(3, 3), 0.5, "rt2")
    >>> print(certificate)
    Certificate(1 of 1 points certified, RelaxedTopK(2), epsilon=0.5, method='floating', prefer='smallest')
      0: {0, 1} below 1.899
    >>> certify_logits([[2.0, 0.5, 0.0]], lipschitz=2.5, eps=0.1).radius  # 1.5 / (√2 · 2.5)
    tensor([0.4243], dtype=torch.float64)
    """
    epsilon = one_epsilon(epsilon, eps)
    raw = check_logits(logits)
    with one_thread(few_logits(raw)):
        constants = as_constants(lipschitz, raw.shape[1]).checked(raw.shape[1], raw.device)
        error = check_error(error, raw)
        found = certificate(raw, constants, epsilon, guarantee, method=method, error=error, class_names=class_names)
    return found.preferring(prefer)


def certificate(
    raw: Tensor,
    constants: HeadConstants | MatrixConstants,
    epsilon: float,
    guarantee: Guarantee | str,
    *,
    method: str | None,
    error: PairError,
    class_names: Sequence[str] | None,
) -> Certificate:
    """The certificate of checked logits, constants and errors."""
    classes = raw.shape[1]
    guarantee = as_guarantee(guarantee)
    if class_names is not None:
        class_names = check_names(class_names, classes)
        guarantee = guarantee.bind(class_names)
    k = guarantee.largest_k(classes)
    method = check_method(method, constants)
    epsilon = check_epsilon(epsilon)
    with one_thread(few_logits(raw)):
        check_subnormals(raw.device)  # here too: another thread, or another time, may have another mode than the caller
        # Rank what can be ranked, so that accuracy is right beside ±∞; a row with NaN ranks nowhere.
        unranked = raw.isnan().any(dim=1)
        ranking = best_classes(raw.masked_fill(unranked[:, None], 0.0), k)
        eligible = guarantee.eligible(ranking, classes)
        finite = raw.isfinite().all(dim=1)
        windows = window_radii(
            raw.masked_fill(~finite[:, None], 0.0),
            ranking,
            eligible & finite[:, None],
            constants,
            method,
            error=error,
        )
    return Certificate(
        windows=windows,
        ranking=ranking.masked_fill(unranked[:, None], -1),
        eligible=eligible,
        classes=classes,
        epsilon=epsilon,
        guarantee=guarantee,
        method=method,
        class_names=class_names,
    )


@plainly
def membership_radii(
    logits: Numbers,
    lipschitz: Lipschitz,
    k: int,
    *,
    error: Error = None,
) -> Tensor:
    """For each class, the radius below which it stays among the k best: the k-th least of {t_ji : i ≠ j}.

    The property of Jia et al. (2020), here deterministic. Arguments as for `certify_logits`; k < classes.

    Returns:
        (batch, classes) float64; 0 for a class that is not safely among the k best at x.

    >>> membership_radii(torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(3, 3), 2).round(decimals=9)
    tensor([[2., 1., 0.]], dtype=torch.float64)
    """
    raw = check_logits(logits)
    constants = as_constants(lipschitz, raw.shape[1]).checked(raw.shape[1], raw.device)
    return membership(raw, constants, k, error=check_error(error, raw))


@plainly
def target_table(
    logits: Numbers,
    lipschitz: Lipschitz,
    *,
    error: Error = None,
) -> Tensor:
    """The directed table t_ji: below entry [j, i] class i cannot overtake class j. Any cost matrix is answered from it.

    Arguments as for `certify_logits`.

    Returns:
        (batch, classes, classes) float64; 0 where i is not safely below j at x, ∞ on the diagonal.

    >>> target_table(torch.tensor([[2.0, 1.0]]), torch.ones(2, 2)).round(decimals=9)
    tensor([[[inf, 1.],
             [0., inf]]], dtype=torch.float64)
    """
    raw = check_logits(logits)
    constants = as_constants(lipschitz, raw.shape[1]).checked(raw.shape[1], raw.device)
    return targets(raw, constants, error=check_error(error, raw))


def membership(raw: Tensor, constants: HeadConstants | MatrixConstants, k: int, *, error: PairError) -> Tensor:
    """`membership_radii` of checked logits, constants and errors."""
    k = TopK(k).largest_k(raw.shape[1])
    with one_thread(few_logits(raw)):
        check_subnormals(raw.device)
        return torch.stack([radii.kthvalue(k, dim=1).values for radii in _targets(raw, constants, error)], dim=1)


def memberships(raw: Tensor, constants: HeadConstants | MatrixConstants, k: int, *, error: PairError) -> Tensor:
    """The same for 1, 2, …, k: (batch, k, classes)."""
    k = TopK(k).largest_k(raw.shape[1])
    with one_thread(few_logits(raw)):
        check_subnormals(raw.device)
        least = (radii.topk(k, dim=1, largest=False).values for radii in _targets(raw, constants, error))
        return torch.stack(list(least), dim=2)


def targets(raw: Tensor, constants: HeadConstants | MatrixConstants, *, error: PairError) -> Tensor:
    """`target_table` of checked logits, constants and errors."""
    with one_thread(few_logits(raw)):
        check_subnormals(raw.device)
        return torch.stack(list(_targets(raw, constants, error)), dim=1)


def check_logits(logits: Numbers) -> Tensor:
    """Logits in float64, detached, if they are real numbers of shape (batch, classes)."""
    raw = as_tensor(logits, "`logits`").detach()
    if raw.ndim != 2 or raw.shape[1] < 2 or raw.is_meta:
        raise expected(
            "`logits` to be real numbers of shape (batch, classes) with at least 2 classes",
            f"shape {tuple(raw.shape)}, {raw.dtype}",
            "For one point, give logits[None]." if raw.ndim == 1 else "",
        )
    with one_thread(few_logits(raw)):
        check_subnormals(raw.device)
        return raw.double()


def check_method(method: str | None, constants: HeadConstants | MatrixConstants) -> str:
    """The method, or the best one for the constants."""
    factored = isinstance(constants, HeadConstants)
    if method is None:
        return "joint" if factored else "floating"
    if method not in METHODS:
        raise expected(f"`method` to be one of {', '.join(METHODS)}", repr(method), nearest(method, METHODS))
    if method == "joint" and not factored:
        raise expected(
            "HeadConstants(rows, scale) for the method 'joint', which needs the angles between the head's rows",
            "a matrix of constants",
            "Use method='floating'.",
        )
    return method


def check_error(error: Error, logits: Tensor) -> AffineError:
    """Offset and slope, each 0 or a float64 view of shape (batch, classes, classes)."""
    batch, classes = logits.shape

    def part(value: float | Tensor, name: str) -> float | Tensor:
        tensor = as_tensor(value, f"the {name} of `error`").detach().to(logits.device, torch.float64)
        if not bool(((tensor >= 0) & (tensor < math.inf)).all()):
            raise expected(f"the {name} of `error` to be finite and ≥ 0", value)
        if tensor.ndim == 0 and not tensor:
            return 0.0
        try:
            whole = (tensor[:, None, None] if tensor.ndim == 1 else tensor).expand(batch, classes, classes)
        except RuntimeError:
            shapes = f"({batch},) or to broadcast to ({batch}, {classes}, {classes})"
            raise expected(f"the {name} of `error` to have shape {shapes}", f"shape {tuple(tensor.shape)}") from None
        return torch.maximum(whole, whole.mT) if tensor.ndim > 1 else whole  # f_j − f_i errs as much as f_i − f_j

    if isinstance(error, tuple):
        if len(error) != 2:
            raise expected("`error` to be an offset, or a pair (offset, slope)", f"{len(error)} values")
        return AffineError(part(error[0], "offset"), part(error[1], "slope"))
    if isinstance(error, list):
        raise expected(
            "`error` to be a number, a tensor or a pair (offset, slope)", "a list", "Use a tuple for a pair."
        )
    return AffineError(0.0 if error is None else part(error, "offset"))


def _targets(raw: Tensor, constants: HeadConstants | MatrixConstants, error: PairError) -> Iterator[Tensor]:
    """Rows of the target table, class by class; all 0 where a logit is not finite."""
    finite = raw.isfinite().all(dim=1, keepdim=True)
    for radii in target_radii(raw.masked_fill(~finite, 0.0), constants, error=error):
        yield torch.where(finite, radii, 0.0)
