"""Points of the unit circle, each coordinate within u = 2⁻⁵³ of the true one."""

from functools import lru_cache

import torch
from torch import Tensor

FIXED = 200  # bits behind the point
PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D008  # ⌊π·2²⁰⁰⌋


@lru_cache(maxsize=64)
def circle(period: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of 2πq/period, q = 0, …, period − 1.

    In integers, in units of 2⁻²⁰⁰: e^(2πi/period) by its power series, which ends where terms vanish, and its powers
    one after another. Each operation errs by a few units, so that all of them together stay far below 2⁻⁶⁴.
    """
    angle = 2 * PI // period
    turn, term, place = [0, 0], 1 << FIXED, 0  # real and imaginary part of one step
    while term:
        turn[place % 2] += -term if place % 4 > 1 else term
        place += 1
        term = (term * angle >> FIXED) // place
    points = [(1 << FIXED, 0)]
    for _ in range(1, period):
        x, y = points[-1]
        points.append((x * turn[0] - y * turn[1] >> FIXED, x * turn[1] + y * turn[0] >> FIXED))
    table = [[part / (1 << FIXED) for part in point] for point in points]
    cosines, sines = torch.tensor(table, dtype=torch.float64, device="cpu").unbind(1)
    return cosines, sines
