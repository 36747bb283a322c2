"""deel-torchlip and orthogonium as installed: captured as they are, bounded by our proofs, not by their claims."""

import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch import nn

from safeset import CertifiedNet, UnsupportedLayerError
from safeset.capture.capture import capture

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("deel.torchlip", reason="deel-torchlip is not installed (pip install -e '.[dev]')")
    pytest.importorskip("orthogonium", reason="orthogonium is not installed (pip install -e '.[dev]')")

from helpers.lipschitz_libraries import IMAGE, LAYERS, REFUSED, Flat, lived_in, ortho, proved, steepest, torchlip

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchlip_digits.py"
# What is claimed and cannot be seen layer by layer: a bound of the parts together is larger.
LOOSE = {
    "SpectralConvTranspose2d": 2.0,  # a convolution of the image with zeros between its pixels
    "LayerCentering": 2.01,
    "LayerCentering2D": 2.01,
    "ConcatResidual of AdaptiveOrthoConv2d": 1.42,
    "SDPBasedLipschitzDense": 6.0,
    "SDPBasedLipschitzResBlock": 3.0,
    "AOCLipschitzResBlock": 3.01,
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_bounded_by_proof(name):
    layer = LAYERS[name]
    torch.manual_seed(0)
    network = lived_in(layer.make(), layer.shape)
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    program = capture(network, layer.shape).program
    assert all(torch.equal(value, weights[key]) for key, value in network.state_dict().items())
    x = torch.randn(3, *layer.shape, dtype=torch.float64)
    with torch.no_grad():
        original = network(x.float())  # some parametrisations insist on float32, and on changing buffers here
    assert float((program.run(x) - original).abs().max()) <= 1e-4 * float(original.abs().max())
    bound, least = proved(program), steepest(program, x)
    assert least <= bound * (1 + 1e-12)  # the Jacobian is rounded
    assert bound <= max(least * 1.01, LOOSE.get(name, 1.001))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_written_as_a_choice_is_refused_with_its_line(name):
    make, said = REFUSED[name]
    with pytest.raises(UnsupportedLayerError) as refusal:
        capture(Flat(make()).eval(), IMAGE)
    assert said in str(refusal.value)


def test_their_own_plain_form_of_batch_centring_is_captured():
    network = lived_in(torchlip.BatchCentering(IMAGE[0]), IMAGE)
    plain = torchlip.vanilla_model(network)
    program = capture(plain, IMAGE).program
    x = torch.randn(2, *IMAGE, dtype=torch.float64)
    torch.testing.assert_close(program.run(x), plain.double()(x))


@pytest.mark.parametrize("library", ["deel-torchlip", "orthogonium"])
def test_a_whole_network_is_certified(library):
    torch.manual_seed(0)
    if library == "deel-torchlip":
        network = torchlip.Sequential(
            torchlip.SpectralConv2d(1, 8, 3, padding=1),
            torchlip.GroupSort2(),
            torchlip.ScaledL2NormPool2d(2),
            nn.Flatten(),
            torchlip.SpectralLinear(128, 16),
            torchlip.FullSort(),
            torchlip.FrobeniusLinear(16, 4),
        )
    else:
        network = nn.Sequential(
            ortho.AdaptiveOrthoConv2d(1, 8, 3, padding=1, stride=2),
            ortho.MaxMin(),
            ortho.AdaptiveOrthoConv2d(8, 8, 3, padding=1),
            ortho.MaxMin(),
            nn.Flatten(),
            ortho.OrthoLinear(128, 4),
        )
    network.train()
    network(torch.rand(4, 1, 8, 8))
    net = CertifiedNet(network.eval(), input_shape=(1, 8, 8), guarantee="rt2", epsilon=1e-3)
    certificate = net.certify(torch.rand(8, 1, 8, 8))
    assert float(net.bounds().head.scale) <= 1.001  # as claimed, and proved
    assert bool(certificate.certified.all())


def test_the_example_certifies_their_trained_network():
    spec = spec_from_file_location("torchlip_digits", EXAMPLE)
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    said = example.said(epochs=2)
    assert "deel-torchlip says 1" in said
    assert "relaxed top-2" in said
    assert "{1,4,7}" in said
    assert "With probability ≥ 90 %" in said
    *_, clean, _, robust = (line.split() for line in said.splitlines())
    assert float(clean[1]) > 0.8  # 0.9 on average
    assert float(clean[2]) < float(robust[2]) <= 10  # classes in a set
