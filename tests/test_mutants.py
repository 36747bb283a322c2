"""Mistakes that others have made, put into a copy of the source one at a time: the suite must catch each of them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# name: tests that must catch it; then file, what stands there (once), what the mutant has instead, for each edit
MUTANTS = {
    "constants × (1 − 1e-6)": [
        "certificates/test_soundness",
        (
            "program/operation.py",
            "return bound * before[0]\n\n    @abstract",
            "return bound * before[0] * (1 - 1e-6)\n\n    @abstract",
        ),
    ],
    "a tie treated by value": [
        "certificates/test_radii certificates/test_certificates",
        (
            "certificates/radii.py",
            "inside = among(ranking, logits.shape[1])",
            "inside = logits >= logits.gather(1, ranking).amin(dim=1, keepdim=True)",
        ),
    ],
    "strictness at x not checked": [
        "certificates/test_radii certificates/test_certificates",
        ("certificates/radii.py", "strict & eligible[points]", "eligible[points]"),
    ],
    "k = classes allowed": [
        "guarantees/test_guarantees",
        ("guarantees/guarantee.py", "if k >= classes:", "if k > classes:"),
    ],
    "additive epsilon in a divisor": [
        "nets/test_net lipschitz/test_forward_error lipschitz/test_known_mistakes certificates/test_radii",
        ("certificates/radii.py", "gaps / constants,", "gaps / (constants + 1e-12),"),
    ],
    "a floor in the power method": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("lipschitz/power_method.py", ".clamp(min=torch.finfo(vector.dtype).tiny)", ".clamp(min=1e-3)"),
    ],
    "circular padding taken for zero padding": [
        "lipschitz/test_bounds",
        ("lipschitz/convolution.py", "(self.size + beyond) // self.stride", "self.size // self.stride"),
    ],
    "stride ignored": [
        "lipschitz/test_layers",
        ("program/sliding.py", "Axis(n, k, s, d, before, after)", "Axis(n, k, 1, d, before, after)"),
    ],
    "stride ignored by the torus": [
        "lipschitz/test_bounds lipschitz/test_torus",
        ("lipschitz/torus.py", "divmod(rows.dilation * th, rows.stride)", "divmod(rows.dilation * th, 1)"),
    ],
    "overlapping pooling counted as 1": [
        "lipschitz/test_layers",
        ("program/sliding.py", "return Up(overlap).root()", "return Up(1.0)"),
    ],
    "normalisation ignored": [
        "lipschitz/test_layers",
        ("program/linear.py", "return Up(float(self.scale.abs().amax()))", "return Up(1.0)"),
    ],
    "residual counted as 1": [
        "lipschitz/test_layers",
        (
            "program/total.py",
            "return Up(sum(before, Up(0.0)))",
            "return before[0]",
        ),
    ],
    "residual counted as its body": [
        "lipschitz/test_layers",
        (
            "program/total.py",
            "return Up(sum(before, Up(0.0)))",
            "return before[1]",
        ),
    ],
    "a pair rebalanced by two factors": [
        "program/test_rebalancing",
        ("program/factors.py", "self._tie(*np.split(before[0], 2))", "pass"),
    ],
    "a shift that stays as it was where its scale goes on": [
        "program/test_folding",
        ("program/folding.py", "diagonal.shift / diagonal.scale", "diagonal.shift"),
    ],
    "a shortcut folded beside the middle tap": [
        "program/test_folding",
        ("program/folding.py", "height // 2, width // 2] += identity", "0, 0] += identity"),
    ],
    "biases counted as columns": [
        "program/test_merging",
        ("program/merging.py", "some, biases=False", "some, biases=True"),
    ],
    "the estimate used in certify": [
        "lipschitz/test_layers",
        (
            "program/linear.py",
            "bound = claimed(found[0])",
            "w = weight; bound = Up(float(power_method(w.mv, w.mT.mv, torch.ones_like(w[0]), 10)[0]))",
        ),
    ],
    "head constants by the Gram trick": [
        "certificates/test_radii",
        ("certificates/constants.py", '"donot_use_mm_for_euclid_dist"', '"use_mm_for_euclid_dist"'),
    ],
    "float32 accumulation without slack": [
        "certificates/test_soundness",
        ("nets/sealed.py", "return self.program.run(x)", "return self.program.run(x).float()"),
    ],
    "bounds in float32 without slack": [
        "lipschitz/test_bounds",
        (
            "lipschitz/dense.py",
            "strip = first[:, rows] @ first[:, known].mT",
            "strip = (first[:, rows].float() @ first[:, known].mT.float()).double()",
        ),
    ],
    "weights changed after the proof": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("nets/net.py", "not parametrised and before.source.equals(now)", "not parametrised"),
    ],
    "a copy that is not compared afterwards": [
        "nets/test_trust",
        ("nets/net.py", "if not sealed.source.equals(Content.of(self.network)):", "if False:"),
    ],
    "a frozen net that runs what others can change": [
        "nets/test_trust",
        ("nets/sealed.py", "copied = copy_of(network)", "copied = network"),
        ("nets/frozen.py", "return copy.deepcopy(self._sealed.layers)", "return self._sealed.layers"),
    ],
    "modes of the caller that look on": [
        "nets/test_trust",
        ("numerics/strict.py", "        without_modes(),\n", ""),
    ],
    "integers that stay integers": [
        "nets/test_trust",
        (
            "program/torch_layers.py",
            "return floating(layer.scale), floating(layer.shift)",
            "return layer.scale, layer.shift",
        ),
        (
            "program/torch_layers.py",
            "layers.ChannelAffine(scale.double(), shift.double())",
            "layers.ChannelAffine(scale, shift)",
        ),
        (
            "program/torch_layers.py",
            "ChannelAffine(layer.scale.detach().double(), layer.shift.detach().double())",
            "ChannelAffine(layer.scale.detach(), layer.shift.detach())",
        ),
    ],
    "weights known by their version counters": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("program/content.py", "torch.equal(a, b)", "a._version == b._version"),
    ],
    "values of classes shared with the network": [
        "nets/test_changes_of_captured",
        ("program/content.py", "return copy.deepcopy(value)\n", "return value\n"),
    ],
    "a large bias forgotten in the rounding": [
        "lipschitz/test_layers",
        ("lipschitz/forward_error.py", "(self.size + self.error) * alpha + bias", "(self.size + self.error) * alpha"),
    ],
    "the head's bias forgotten in the rounding": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("proofs/prove.py", "head.bias.abs()", "head.bias.abs() * 0"),
    ],
    "underflow forgotten": [
        "lipschitz/test_layers",
        ("lipschitz/forward_error.py", "underflow = Up(outputs).root() * fan_in * SUBNORMAL", "underflow = 0.0"),
    ],
    "underflow forgotten in the head": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("proofs/prove.py", "underflow = features * SUBNORMAL", "underflow = 0.0"),
    ],
    "rounding at x' forgotten": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("proofs/prove.py", "ClassError(2 * once, self.slopes)", "ClassError(once * 0, self.slopes)"),
    ],
    "overflow forgotten": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("nets/points.py", "torch.minimum(radii, room)", "radii"),
    ],
    "membership without rounding": [
        "paper/test_predictions",
        (
            "nets/points.py",
            "membership(self._logits, self._bounds.head, k, error=self._error)",
            "membership(self._logits, self._bounds.head, k, error=ClassError(*(0 * part for part in self._error)))",
        ),
    ],
    "membership without overflow": [
        "paper/test_predictions",
        (
            "nets/points.py",
            "self._within(found[:, None])[:, 0]",
            "found",
        ),
    ],
    "the (k + 1)-th least instead of the k-th": [
        "paper/test_predictions",
        ("certificates/certify_logits.py", "radii.kthvalue(k, dim=1)", "radii.kthvalue(k + 1, dim=1)"),
    ],
    "targets without rounding": [
        "paper/test_predictions",
        (
            "nets/points.py",
            "targets(self._logits, self._bounds.head, error=self._error)",
            "targets(self._logits, self._bounds.head, error=ClassError(*(0 * part for part in self._error)))",
        ),
    ],
    "the residual forgotten": [
        "lipschitz/test_bounds",
        ("lipschitz/dense.py", " + row_sum(mirrored(shifted))", ""),
        ("lipschitz/dense.py", "top * (1 + excess)", "top * (1 - 1e-9)"),
        ("lipschitz/dense.py", "if bool((info != 0).any()) or not bool(factor.isfinite().all()):", "if False:"),
    ],
    "padding of one side taken for both": [
        "lipschitz/test_bounds",
        (
            "lipschitz/convolution.py",
            "min(max(self.before, self.after), self.extent - 1)",
            "min(self.before, self.extent - 1)",
        ),
    ],
    "overflow inside the network forgotten": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        (
            "lipschitz/forward_error.py",
            "self.size * sigma + bias, self.peak.envelope(reach)",
            "self.size * sigma + bias, self.peak",
        ),
    ],
    "overflow in the head forgotten": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("proofs/prove.py", "before.peak.envelope(most)", "before.peak"),
    ],
    "the sum of a residual does not round": [
        "lipschitz/test_layers",
        ("lipschitz/forward_error.py", "summed = error * (1 + gamma(1)) + size * gamma(1)", "summed = error"),
    ],
    "rounding counted at x alone": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("proofs/prove.py", "ClassError(2 * once, self.slopes)", "ClassError(once, self.slopes)"),
    ],
    "rounding that does not grow with ε": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("proofs/prove.py", "ClassError(2 * once, self.slopes)", "ClassError(2 * once, self.slopes * 0)"),
    ],
    "magnitudes bounded by the norm": [
        "lipschitz/test_layers",
        ("program/sliding.py", "alpha=Up(max(map(kernel_norm, kernels)))", "alpha=bound"),
    ],
    "magnitudes of the first group alone": [
        "lipschitz/test_layers",
        ("program/sliding.py", "alpha=Up(max(map(kernel_norm, kernels)))", "alpha=kernel_norm(kernels[0])"),
    ],
    "proofs while subnormals are flushed": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("proofs/prove.py", 'check_subnormals(torch.device("cpu"))', "pass"),
    ],
    "a corrected rule ignored": [
        "nets/test_net nets/test_frozen lipschitz/test_forward_error nets/test_estimates",
        ("program/registry.py", "return RULES[kind][2] if kind in RULES else 0", "return 0"),
    ],
    "groups taken for one": [
        "lipschitz/test_layers",
        ("program/sliding.py", "if bound >= largest:", "if bound <= largest or largest == 0:"),
        ("program/sliding.py", "if kernel_norm(part.kernel) > largest:", "if True:"),
    ],
    "a witness believed": [
        "lipschitz/test_witnesses",
        (
            "lipschitz/witness.py",
            "if proved is not None and proved <= self.claim <= proved * (1 + CLOSE) else None",
            "",
        ),
    ],
    "what vectors lack forgotten": [
        "lipschitz/test_torus",
        ("lipschitz/waves.py", "stacked = torch.cat([image, lack], dim=1)", "stacked = image"),
        ("lipschitz/waves.py", "lack_error * (frobenius(lack) * 2 + lack_error)", "0.0"),
    ],
    "conjugate waves counted once": [
        "lipschitz/test_torus",
        (
            "lipschitz/torus.py",
            "(self.cells[0] * self.cells[1]) / frequencies[:, 2].double()",
            "frequencies[:, 2] * 0.0 + self.cells[0] * self.cells[1]",
        ),
        ("lipschitz/waves.py", "own.real * sine + own.imag * cosine", "0.0 * sine"),
    ],
    "waves in the wrong phase": [
        "lipschitz/test_torus",
        ("lipschitz/waves.py", "own.real * cosine - own.imag * sine", "own.real * cosine + own.imag * sine"),
        ("lipschitz/waves.py", "own.real * sine + own.imag * cosine", "own.real * sine - own.imag * cosine"),
    ],
    "waves without the vectors taken from all of them": [
        "lipschitz/test_torus",
        (
            "lipschitz/waves.py",
            "mirrored(among - part * (across @ across.mT))",
            "mirrored(among - 2 * part * (across @ across.mT))",
        ),
    ],
    "subclasses taken for their base": [
        "lipschitz/test_layers",
        ("program/registry.py", "return base if plain else kind", "return base"),
    ],
    "entries that are taken twice counted once": [
        "program/test_operations",
        ("program/select.py", "return Up(most).root()", "return Up(1.0)"),
    ],
    "nodes side by side counted as the largest": [
        "program/test_operations",
        ("program/joining.py", "return root_of_squares(before)", "return max(before)"),
    ],
    "a clamp that moves 0 ignored": [
        "program/test_operations",
        ("program/entries.py", "before[0].bent(bound, zero=", "before[0].bent(bound, absolute=0 * "),
    ],
    "the jump of softplus ignored": [
        "program/test_activations",
        ("program/activations.py", "(NEARLY + jump)", "NEARLY"),
    ],
    "repeated outputs of circular padding ignored": [
        "lipschitz/test_circular",
        ("lipschitz/circular.py", "(largest + torus.matrix_error) * repeated", "(largest + torus.matrix_error)"),
    ],
    "a torus too large for circular padding": [
        "lipschitz/test_circular",
        ("lipschitz/circular.py", "axis.dilation, 0, 0)", "axis.dilation, 1, 1)"),
    ],
    "squares that underflow in L2 pooling": [
        "program/test_l2_pool",
        ("program/l2_pool.py", "scaled = _aten.div.Tensor(groups, power)", "scaled, power = groups, power * 0 + 1"),
    ],
    "the skew of an isometry ignored": [
        "layers/test_orthogonal",
        ("lipschitz/dense.py", "square = row_sum(gram) + 1 + ", "square = Up(1.0) + "),
    ],
    "a step down a potential counted as 1": [
        "layers/test_potential",
        ("program/potential.py", "return Up(1.0) if square <= 2 else", "return Up(1.0) if True else"),
    ],
    "a step down a potential of ‖B‖² counted as ‖B‖² − 1 alone": [
        "layers/test_potential",
        ("program/potential.py", "Up(1.0) if square <= 2 else Up(math", "Up(0.0) if square <= 1 else Up(math"),
    ],
    "what a step down a potential loses itself ignored": [
        "lipschitz/test_layers",
        ("program/potential.py", "Rounding(entering.error * bound + lost.error,", "Rounding(entering.error * bound,"),
    ],
    "a step's shift ignored in its size": [
        "lipschitz/test_layers",
        (
            "program/potential.py",
            "zero = norm * bias_norm(self.bias) * Up(self._places(shape)).root()",
            "zero = Up(0.0)",
        ),
    ],
    "a position's bias counted in one channel": [
        "lipschitz/test_layers",
        ("program/entries.py", "return prod(shape) // self.shift.numel()", "return 1"),
    ],
    "a negative gap divided by the larger constant": [
        "certificates/test_signed_radii",
        ("certificates/signed_radii.py", "torch.where(gaps < 0, constants.low, constants.high)", "constants.high"),
    ],
    "a score rounded up at calibration": [
        "coverage/test_coverage",
        ("coverage/scores.py", '"down", 0.0), -math.inf)', '"up", 0.0), -math.inf)'),
    ],
    "the threshold of n instead of n + 1": [
        "coverage/test_ranks coverage/test_coverage",
        ("coverage/ranks.py", "math.ceil((points + 1) * (1 - alpha))", "math.ceil(points * (1 - alpha))"),
    ],
    "an ε that is not in the sets": [
        "coverage/test_coverage",
        ("coverage/scores.py", "return up(found + epsilon) if epsilon else found", "return found"),
    ],
    "NaN dropped from sets": [
        "coverage/test_coverage",
        ("coverage/scores.py", '"up", epsilon), math.inf)', '"up", epsilon), -math.inf)'),
    ],
    "a calibration used with a larger Lipschitz constant": [
        "coverage/test_coverage",
        ("coverage/checks.py", "if not proved <= scale:", "if False:"),
    ],
    "a tangent that forgets the entropy": [
        "certificates/test_signed_radii",
        ("certificates/soft_min.py", "excess - tau * entropy + steep", "excess - 2 * tau * entropy + steep"),
    ],
    "errors of a map of logits forgotten": [
        "coverage/test_fitted",
        ("coverage/logit_map.py", "total = (known + 2 * rounded)", "total = (0 * known + 2 * rounded)"),
    ],
    "a map of logits with the constant of another network": [
        "coverage/test_fitted",
        ("coverage/checks.py", "if not mapped.constant <= score.fit.constant:", "if False:"),
    ],
    "constants that onnxruntime rounds to float32": [
        "export/test_export",
        ("export/graph.py", "or not _is_delicate(array)", "or True"),
    ],
    "hooks ignored": ["lipschitz/test_layers", ("program/rules.py", "if any(hooks):", "if False:")],
}


def run_suite(source, *, tests):
    """pytest on tests that import the package from another place."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"tests/{name}.py" for name in tests)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def mutated(folder, edits):
    source = folder / "src"
    shutil.copytree(ROOT / "src" / "safeset", source / "safeset", ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in edits:
        path = source / "safeset" / name
        text = path.read_text()
        assert text.count(before) == 1, f"{name} has {text.count(before)} places with {before!r}"
        path.write_text(text.replace(before, after))
    return source


def test_every_mutant_can_be_made(tmp_path):
    for number, (_, *edits) in enumerate(MUTANTS.values()):
        mutated(tmp_path / str(number), edits)


@pytest.mark.slow
def test_the_suite_passes_without_a_mutant(tmp_path):
    done = run_suite(
        mutated(tmp_path, []),
        tests=[
            "certificates/test_soundness",
            "nets/test_net",
            "nets/test_frozen",
            "lipschitz/test_forward_error",
            "nets/test_estimates",
        ],
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, tmp_path, record_property):
    tests, *edits = MUTANTS[name]
    done = run_suite(mutated(tmp_path, edits), tests=tests.split())
    caught = re.search(r"^FAILED (\S+)", done.stdout, flags=re.MULTILINE)
    assert done.returncode == 1, f"{name} was not caught:\n{done.stdout[-2000:]}"
    assert caught, done.stdout[-2000:]
    record_property("caught_by", json.dumps(caught[1]))
