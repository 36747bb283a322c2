"""Which proof a convolution gets: in blocks of image rows, or by a torus, with singular vectors or without; by cost."""

import math
from dataclasses import replace

import torch

from safeset.lipschitz.block_cholesky import BlockGram, block_bound, search_block_proof
from safeset.lipschitz.convolution import Convolution
from safeset.lipschitz.krylov import Ritz, moved, top_eigenvectors
from safeset.lipschitz.torus import Torus
from safeset.lipschitz.waves import Waves
from safeset.lipschitz.witness import Witness, claimed
from safeset.numerics.directed import Up

AFFORDABLE = {"cpu": 1e12, "cuda": 1e15}  # floating-point operations for one exact bound: well under a minute
LANCZOS_COST = 5e9  # of the search for the shift of a proof in blocks
VECTORS = 48  # singular vectors that are looked for
WAVE_PRODUCTS = 3e10  # multiplications for the overlaps of the waves that are set apart
EXACT = 1e-9
LITTLE_MORE = 3  # times what a torus costs: an exact bound is worth that
FEW = 2e10  # floating-point operations of a proof in blocks that is quick: a second, less than a search takes
DEAR = 1e11  # floating-point operations of a torus from which on fewer of its waves are set apart, if that is all
FEWER = 0.3  # of the way down from the norm that a torus without singular vectors goes for waves
STEEP = 0.25  # a torus that gives away more of the squared norm is too far off for singular vectors to mend

Proved = tuple[Up, Witness]


def exact_bound(convolution: Convolution) -> Up:
    """An upper bound of the spectral norm, to a relative 1e-9."""
    return convolution_proof(convolution, "exact")[0]


def torus_bound(convolution: Convolution) -> Up:
    """An upper bound of the spectral norm by a torus alone."""
    return convolution_proof(convolution, "torus")[0]


def method_of(witness: Witness) -> str:
    """How close a bound is that was proved with this: ``exact``, or ``torus``."""
    return "torus" if witness.kind == "torus" and witness.vectors is None else "exact"


def convolution_proof(convolution: Convolution, wish: str) -> Proved:
    """A bound of the spectral norm: ``exact`` to a relative 1e-9, by a ``torus`` alone, or ``auto``, by cost."""
    scaled, exponent = convolution.unit_scaled()
    if not bool((scaled.kernel != 0).any()):
        return Up(0.0), Witness("blocks", 0.0, 0.0)
    squared, witness = _search(scaled, wish)
    bound = claimed(squared.root().shifted(exponent))
    return bound, replace(witness, claim=float(bound))


def confirmed_bound(convolution: Convolution, wish: str, witness: Witness) -> Up | None:
    """The bound that a witness claims, proved; None if it is not what is wished, too expensive, or wrong."""
    scaled, exponent = convolution.unit_scaled()
    blocks = BlockGram.cheapest(scaled)
    if wish not in ("auto", method_of(witness)) or not bool((scaled.kernel != 0).any()):
        return None
    if wish == "auto" and witness.kind == "blocks" and blocks.cost > _affordable(Torus.smaller(scaled)):
        return None

    def prove(given: Witness) -> Up | None:
        if given.kind == "blocks":
            squared = block_bound(blocks, given.shift)
        else:
            torus = Torus.smaller(scaled)
            if given.vectors is not None and given.vectors.shape[1:] != torus.shape:
                return None
            waves = torus.waves(given.shift)
            squared = None if waves is None else waves.bound(given.vectors, given.gap)
        return None if squared is None else squared.root().shifted(exponent)

    return witness.confirmed(prove) if witness.kind in ("blocks", "torus") else None


def cost(convolution: Convolution, witness: Witness | None = None) -> float:
    """Floating-point operations of the proof that ``auto`` tries first, about; or of that by a witness."""
    blocks, torus = BlockGram.cheapest(convolution), Torus.smaller(convolution)
    if witness is not None:
        with_vectors = witness.vectors is not None
        return blocks.cost if witness.kind == "blocks" else _check_cost(torus) if with_vectors else 2 * torus.cost
    return _search_cost(torus) if _prefers_torus(torus, blocks) else LANCZOS_COST + blocks.cost


def refinement(convolution: Convolution) -> tuple[float, float]:
    """What an exact bound takes beyond one by a torus alone, about, and the part of the squared norm that it may gain.

    The first is in floating-point operations.
    """
    torus = Torus.smaller(convolution)
    return cost(convolution) - torus.cost, _steepness(torus)


def _affordable(torus: Torus) -> float:
    """Floating-point operations that an exact bound may cost; more where that by the torus alone is dear too."""
    return max(AFFORDABLE.get(torus.convolution.kernel.device.type, 0.0), LITTLE_MORE * torus.cost)


def _check_cost(torus: Torus) -> float:
    """With singular vectors that are known: products with the operator, slow in float64; ∞ where they cannot help."""
    if _steepness(torus) > STEEP:
        return math.inf
    kernel, pixels = torus.convolution.kernel, math.prod(torus.convolution.outputs[1:])
    return 2e9 + torus.cost + VECTORS / 2 * 20.0 * kernel.numel() * pixels


def _prefers_torus(torus: Torus, blocks: BlockGram) -> bool:
    """Whether an exact proof is searched for by singular vectors: it is searched for once, and checked many times."""
    is_quick = blocks.cost < min(FEW, _search_cost(torus) - LANCZOS_COST)
    return _check_cost(torus) < blocks.cost and not is_quick


def _steepness(torus: Torus) -> float:
    """What the torus gives away of the squared norm, about, twice: much where the kernel is wide for the image."""
    axes = (torus.convolution.rows, torus.convolution.columns)
    return sum(((axis.extent - 1) / axis.size) ** 2 for axis in axes)


def _search_cost(torus: Torus) -> float:
    """With the search for them: products with the operator, and a basis that is kept orthogonal."""
    kernel, pixels = torus.convolution.kernel, math.prod(torus.convolution.outputs[1:])
    return _check_cost(torus) + 400 * 4.0 * kernel.numel() * pixels + 1e6 * math.prod(torus.shape)


def _search(scaled: Convolution, wish: str) -> Proved:
    """A bound of ‖A‖², and with what it was proved."""
    blocks, torus = BlockGram.cheapest(scaled), Torus.smaller(scaled)
    most = _affordable(torus)
    wanted = wish == "exact" or (wish == "auto" and min(blocks.cost, _search_cost(torus)) <= most)
    if not wanted or _prefers_torus(torus, blocks):
        squared, witness = _by_torus(torus, VECTORS if wanted else 0)
        if not wanted or witness.vectors is not None or (wish == "auto" and blocks.cost > most):
            return squared, witness
    squared, shift = search_block_proof(blocks)
    return squared, Witness("blocks", 0.0, shift)


def _by_torus(torus: Torus, count: int) -> Proved:
    """A bound of ‖A‖² by a torus, and if ``count`` singular vectors suffice, an exact one."""
    size, steep = math.prod(torus.shape), min(STEEP, _steepness(torus))
    single = Torus(replace(torus.convolution, kernel=torus.convolution.kernel.float()), torus.outputs)
    ritz = top_eigenvectors(
        lambda block: single.gram(block.view(-1, *torus.shape))[1].flatten(1),
        size,
        max(1, count),
        device=torus.convolution.kernel.device,
        gap=max(steep, 1e-6) / 8,
        close=1e-10 if count else 1e-2,
    )
    waves = _waves(torus, float(ritz.values[0]), steep if count or torus.cost < DEAR else FEWER * steep)
    if count:
        squared, witness = _with_vectors(waves, ritz)
        if witness is not None:
            return squared, witness
    return waves.bound(None, 0), Witness("torus", 0.0, waves.shift)


def _waves(torus: Torus, top: float, steep: float) -> Waves:
    """Waves that are stretched by more than a little less than the operator's norm; not more than are affordable."""
    most = int((WAVE_PRODUCTS / math.prod(torus.shape)) ** 0.5 / 2)
    shift, raised = top * (1 - steep), 1e-9
    while (waves := torus.waves(shift)) is None or len(waves.vectors) > most:
        if waves is None:
            shift, raised = shift * (1 + raised), 16 * raised
        else:
            shift = float(waves.stretched().sort(descending=True).values[most // 2])
    return waves


def _with_vectors(waves: Waves, ritz: Ritz) -> tuple[Up, Witness | None]:
    """The bound with as few of the vectors as make it exact, if there are."""
    shape = waves.torus.shape
    orthonormal = torch.linalg.qr(ritz.vectors.double().mT).Q.mT  # in float32 they are so to 1e-7 only
    image, _ = waves.torus.gram(orthonormal.reshape(-1, *shape))
    top = float(torch.linalg.matrix_norm(image.flatten(1), 2)) ** 2
    among, across, size = waves.overlaps(ritz.vectors.double().mT)
    largest, bound = float(ritz.values[0]), Up(math.inf)  # in float32, as what moves it
    for k in sorted({1, 2, 4, 8, 12, 16, 24, 32, 48, len(ritz.values)}):
        if k > len(ritz.values):
            break
        gap = top - float(waves.bound_without((among, across[:, :k], size), Up(k).root(), Up(1e-9)))
        if gap <= 0 or moved(ritz, k, gap / 2) > largest * (1 + EXACT / 4):
            continue
        exponent = math.ceil(-math.log(gap / 2, 4))
        vectors = ritz.vectors[:k].view(-1, *shape).clone()
        bound = min(bound, squared := waves.bound(vectors, exponent))
        if squared <= top * (1 + 2 * EXACT):
            return squared, Witness("torus", 0.0, waves.shift, exponent, vectors)
    return bound, None
