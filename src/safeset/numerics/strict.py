"""Arithmetic that is what it says: the setting in which proofs are made and certified networks run."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

ELEMENTS_AT_ONCE = 2**27  # of the patches of images; 1 GB

Given = ParamSpec("Given")
Found = TypeVar("Found")

_STRICT = threading.Lock()
_strict_now: list[bool] = []  # what cuDNN was before, once for each that is inside


@contextmanager
def strict_arithmetic() -> Iterator[None]:
    """Float64 as it is written, sums of products in some order; all that is changed is restored.

    Without autocast, nothing but cuDNN knows other ways (Winograd, FFT) in float64: torch's own convolutions are used
    instead, and on a GPU, where these take one point at a time, products of matrices. The flag is the process's, so the
    last thread out restores it. Modes of the caller, which could put anything in the place of torch's functions, are
    set aside.
    """
    with _STRICT:
        _strict_now.append(_strict_now[0] if _strict_now else torch.backends.cudnn.enabled)
        torch.backends.cudnn.enabled = False
    try:
        with plain_arithmetic(), Instead(_PRODUCTS):
            yield
    finally:
        with _STRICT:
            before = _strict_now.pop()
            if not _strict_now:
                torch.backends.cudnn.enabled = before


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """What `strict_arithmetic` is without convolutions: no modes of the caller, no autocast, no gradients."""
    with (
        without_modes(),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


@contextmanager
def without_modes() -> Iterator[None]:
    """While it is active, torch's functions are torch's own: no mode of the caller stands in for them."""
    aside = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        with _disable_current_modes():
            yield
    finally:
        for mode in reversed(aside):
            torch._C._push_on_torch_function_stack(mode)


def uncompiled(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The function, as it is written even when its caller is compiled: no compiler may rewrite a proof.

    `torch.compiler.disable` imports the compiler, which takes longer than a small network takes to certify. So it is
    called only where a compiler has been imported already: without one, nothing is compiled.
    """
    disabled: list[Callable[Given, Found]] = []

    @functools.wraps(function)
    def as_written(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    as_written._torchdynamo_disable = True  # type: ignore[attr-defined]  # the compiler does not look inside
    return as_written


def plainly(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The function in `plain_arithmetic`, whatever modes and compilers its caller has."""

    @functools.wraps(function)
    def within(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        with plain_arithmetic():
            return function(*args, **kwargs)

    return uncompiled(within)


class Instead(TorchFunctionMode):
    """While active, other functions stand in for some of torch's own; they themselves see torch as it is.

    Args:
        others: what is called instead, by what would be.
    """

    def __init__(self, others: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch instead of each of its functions."""
        return self.others.get(function, function)(*args, **(kwargs or {}))


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv2d` as products of the kernel with the patches of many images at once: sums in some order, as there.

    (batch, channels, height, width) → (batch, out, height', width').
    """
    if isinstance(padding, str):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    (down, right), (above, left), (apart, aside) = (
        (each, each) if isinstance(each, int) else tuple(each) for each in (stride, padding, dilation)
    )
    out, _, height, width = weight.shape
    kernel = weight.reshape(groups, out // groups, -1)  # (groups, out / groups, taps)
    parts = []
    per_point = max(1, weight[0].numel() * groups * x.shape[2] * x.shape[3] // (down * right))
    for part in torch.split(x, max(1, ELEMENTS_AT_ONCE // per_point)):
        padded = torch.constant_pad_nd(part, (left, left, above, above))
        rows = padded.unfold(2, (height - 1) * apart + 1, down)[..., ::apart]
        patches = rows.unfold(3, (width - 1) * aside + 1, right)[..., ::aside]
        # (batch, channels, height', width', kernel height, kernel width) → (groups, taps, batch · height' · width')
        columns = patches.permute(1, 4, 5, 0, 2, 3).reshape(groups, kernel.shape[2], -1)
        products = torch.bmm(kernel, columns).view(out, len(part), *patches.shape[2:4])
        parts.append(products.transpose(0, 1))
    found = torch.cat(parts).contiguous()
    return found if bias is None else found + bias[:, None, None]


def _on_a_gpu(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return (convolved if x.is_cuda and x.ndim == 4 else torch.conv2d)(x, *args, **kwargs)


_PRODUCTS = {torch.conv2d: _on_a_gpu}
