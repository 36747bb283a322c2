"""How much the rows of a convolution overlap, and its norm: for layers that rescale their weights while they train.

These are formulas for training, with gradient. What a certificate says of the weights that they make is proved apart.
"""

import torch
from torch import Tensor, nn

SQUARINGS = 6


def overlaps(kernel: Tensor) -> Tensor:
    """|A||Aᵀ| of a convolution's Gram matrix AAᵀ, summed over shifts: (n, m, h, w) → (n, n).

    Entry ij is Σ over shifts of |Σ over channels and taps of k_i[t]·k_j[t + shift]|, so a row sum is at least that of
    the operator on any image, zeros around it: it bounds the largest eigenvalue (Prach and Lampert, 2022). A matrix
    (n, m) is a kernel of one tap.
    """
    if kernel.ndim == 2:
        return (kernel @ kernel.mT).abs()
    height, width = kernel.shape[2:]
    return nn.functional.conv2d(kernel, kernel, padding=(height - 1, width - 1)).abs().sum(dim=(2, 3))


def norm(kernel: Tensor) -> Tensor:
    """Slightly more than the norm of a matrix, (n, m), or of a convolution, (n, m, h, w), on large images.

    ‖A‖² ≤ ‖(AAᵀ)^(2^k)‖_F^(1/2^k), by repeated squaring; a convolution is looked at at some frequencies.
    """
    if kernel.ndim == 4:
        sides = [8 * (side - 1) or 1 for side in kernel.shape[2:]]
        kernel = torch.fft.fft2(kernel, s=sides).permute(2, 3, 0, 1)
    wide = kernel if kernel.shape[-2] <= kernel.shape[-1] else kernel.mT
    power = wide @ wide.mH
    exponent: Tensor | float = 0.0
    for squaring in range(SQUARINGS + 1):
        size = torch.linalg.matrix_norm(power).clamp(min=torch.finfo(kernel.dtype).tiny)
        exponent = exponent + size.log() / 2**squaring
        power = power / size[..., None, None]
        power = power @ power
    return (torch.as_tensor(exponent).amax() / 2).exp()
