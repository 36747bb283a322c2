"""What users hand over, made into tensors and numbers, or named as a mistake."""

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.errors import UnitsWarning, callers_level, expected, some_of
from safeset.numerics.strict import uncompiled
from safeset.values import PIXELS as PIXELS
from safeset.values import SCALED as SCALED
from safeset.values import as_count as as_count
from safeset.values import check_names as check_names
from safeset.values import far_outside
from safeset.values import is_text as is_text

MOST_NUMBERS = 2**31  # of one input
Numbers = Tensor | np.ndarray | list[list[float]]


def as_tensor(numbers: object, what: str) -> Tensor:
    """A dense tensor of real numbers: arrays and nested lists in their own precision, Python's floats in float64."""
    try:
        tensor = numbers if isinstance(numbers, Tensor) else torch.as_tensor(np.asarray(numbers))
    except (TypeError, ValueError, RuntimeError) as error:
        raise expected(f"{what} to be a tensor or an array of numbers", f"{type(numbers).__name__} ({error})") from None
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise expected(f"{what} to hold real numbers", tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise expected(f"{what} to be a dense tensor", f"{tensor.layout}, {tensor.dtype}", "Call .to_dense() first.")
    return tensor


def all_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite. Their sum says so without a table of booleans, unless it overflows."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def as_number(value: Any) -> float | None:
    """A real number, also from a tensor or an array of one; None if it is none. Too large a one is ∞.

    >>> as_number(torch.tensor(0.5)), as_number(True), as_number("0.5")
    (0.5, None, None)
    """
    if isinstance(value, Tensor):
        value = value.detach().item() if value.numel() == 1 else None
    elif isinstance(value, np.ndarray | np.generic):
        value = value.item() if value.size == 1 else None
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        return None
    try:
        return float(value) + 0.0  # no −0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_written(value: Any) -> int | float | Fraction | None:
    """The same, but integers and fractions, which float64 may round, as they are: to be compared exactly.

    >>> as_written(2**53 + 1), as_written(np.int64(2**53 + 1)), as_written(0.5)
    (9007199254740993, 9007199254740993, 0.5)
    """
    number = as_number(value)
    if number is None:
        return None
    exact = value.item() if isinstance(value, Tensor | np.ndarray | np.generic) else value
    return exact if isinstance(exact, int | Fraction) else number


def check_epsilon(epsilon: object) -> float:
    """ε as a float, if it can be a radius."""
    radius = as_number(epsilon)
    if radius is None or not 0 <= radius < math.inf:
        raise expected("`epsilon` to be a finite number ≥ 0", repr(epsilon)[:80])
    return radius


def one_epsilon(epsilon: object, eps: object, default: float | None = None) -> float:
    """The radius, which callers may give as ``epsilon`` or as ``eps``; the default if they give neither.

    >>> one_epsilon(None, 0.1), one_epsilon(0.1, 0.1), one_epsilon(None, None, 0.3)
    (0.1, 0.1, 0.3)
    """
    return check_epsilon(given_epsilon(epsilon, eps, default))


def given_epsilon(epsilon: object, eps: object, default: float | None = None) -> Any:
    """The same as it was given, for whoever rounds it in a direction of their own.

    >>> given_epsilon(None, Fraction(1, 3))
    Fraction(1, 3)
    """
    given = [each for each in (epsilon, eps) if each is not None]
    radii = [check_epsilon(each) for each in given]
    if len(set(radii)) > 1:
        raise expected("one radius: `eps` is `epsilon`", f"epsilon={radii[0]:g} and eps={radii[1]:g}", "Give one.")
    if not given and default is None:
        raise expected("`epsilon`, the radius of the ball in the units of the network's input", "none")
    return given[0] if given else default


def check_shape(shape: object) -> tuple[int, ...]:
    """The shape of one input: a few integers ≥ 1, of less than 2³¹ numbers."""
    given = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    sizes = tuple(map(as_count, given))
    if not sizes or None in sizes or math.prod(sizes) > MOST_NUMBERS:  # type: ignore[arg-type]
        remedy = "Leave out the batch."
        raise expected("`input_shape` to be the shape of one input, such as (3, 32, 32)", repr(shape)[:80], remedy)
    return sizes  # type: ignore[return-value]


def warn_of_units(x: Tensor, units: str) -> None:
    """Warn of inputs that can only be in other units than the network's, where these are a part of [0, 1].

    It is no error: the certificate is true of these points as they are.
    """
    if not units.startswith((PIXELS, SCALED)) or not x.numel():
        return
    low, high = x.aminmax()
    if low > -1 and high < 2:
        return
    finite = x.double().nan_to_num(0.5, 0.5, 0.5)
    if units.startswith(PIXELS):
        strange = ((finite <= -1) | (finite >= 2)).flatten(1).any(dim=1)  # attacks may leave [0, 1], but not so far
        remedy = "divide bytes by 255, and leave normalisation to the network"
    else:
        strange = torch.from_numpy(far_outside(finite.cpu().numpy(), (0.0, 1.0))).to(finite.device)
        remedy = "give them in the units of training, each column scaled by its range there"
    if bool(strange.any()):
        ends = x[strange][x[strange].isfinite()]
        warnings.warn(
            f"{some_of(int(strange.sum()), len(x), 'points', 'lies', 'lie')} far outside, from {ends.min():g} to "
            f"{ends.max():g}, but the network was trained on {units}, the units of ε: {remedy}. The certificates are "
            "true of the points as they were given.",
            UnitsWarning,
            stacklevel=callers_level(),
        )


def as_device(device: torch.device | str | None) -> torch.device:
    """A device that this machine has; by default a GPU if there is one."""
    here = ["cpu", *(f"cuda:{place}" for place in range(torch.cuda.device_count()))]
    if device is None:
        return torch.device("cuda" if len(here) > 1 else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise expected("a device such as cpu or cuda:0", repr(device)) from None
    if str(found) not in (*here, "cuda" if len(here) > 1 else "cpu"):
        raise expected("a device of this machine", repr(str(found)), f"It has {', '.join(here)}.")
    return found


@uncompiled
def check_subnormals(device: torch.device) -> None:
    """Refuse to prove anything where numbers below 2⁻¹⁰²² are flushed to zero: radii would come out as ∞.

    Each thread has a mode of its own, so the product is long enough for all of torch's threads, those that are in use
    here (`threads.one_thread`). The number itself is made of bits: a literal would be rounded by the very mode that is
    looked for.
    """
    if device.type != "cpu":
        return
    threads = torch.get_num_threads()
    smallest = torch.ones(2**15 * threads if threads > 1 else 64, dtype=torch.int64).view(torch.float64)
    if not bool((smallest * 1.0 != 0).all()):
        remedy = "Do not call torch.set_flush_denormal(True) in a process that certifies; its threads keep the mode."
        raise expected("subnormal numbers to be kept", "them flushed to zero", remedy)
