"""Records of certificates: what is written of each point, as plain values, from its windows and its best classes."""

from collections.abc import Sequence
from typing import Any

from safeset.certificates.promises import Answer, answers, promise


def record_of(
    best: Sequence[Any], windows: Sequence[Sequence[float]], *, epsilon: float, guarantee: str, method: str, prefer: str
) -> dict[str, Any]:
    """The record of one point.

    Args:
        best: names of the best classes, best first.
        windows: (K, K) radii.
        epsilon: radius of the ball.
        guarantee: its text.
        method: by which the windows were proved.
        prefer: which answer is shown.
    """
    ladder = answers(windows, prefer)
    answer = next((each for each in ladder if each.radius > epsilon), Answer(-1, -1, 0.0))
    core, optional = answer.split(best)
    return {
        "certified": bool(core),
        "core": core,
        "optional": optional,
        "radius": max(map(max, windows)),
        "core_radius": answer.radius,
        "promise": promise(core, optional, answer.radius) if core else _less(best, ladder),
        "answers": [
            dict(zip(("core", "optional"), each.split(best), strict=True), radius=each.radius) for each in ladder
        ],
        "epsilon": epsilon,
        "guarantee": guarantee,
        "method": method,
        "prefer": prefer,
    }


def _less(best: Sequence[Any], ladder: Sequence[Answer]) -> str:
    """What holds where the guarantee does not hold at ε: the promise that reaches farthest, if there is one."""
    if not ladder:
        return "no certificate: not even without a change"
    return f"no certificate at ε; what does hold: {promise(*ladder[-1].split(best), ladder[-1].radius)}"
