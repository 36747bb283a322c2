"""Networks of torchvision and timm, rewritten by nobody: captured as they are, or refused with the library's line."""

import pytest
import torch
from torch import nn

from helpers.torchvision_operators import define_torchvision_operators
from safeset import CertifiedNet, UnsupportedLayerError
from safeset.capture.capture import capture
from safeset.proofs.prove import prove

define_torchvision_operators()
torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed (pip install -e '.[dev]')")
timm = pytest.importorskip("timm", reason="timm is not installed (pip install -e '.[dev]')")
zoo = torchvision.models

CLASSES = 4


def vgg():
    """VGG-11's own class and layers with batch norm, narrow, and a small classifier instead of 123 M parameters."""
    found = zoo.vgg.VGG(zoo.vgg.make_layers([8, "M", 16, 16, "M"], batch_norm=True), num_classes=CLASSES)
    found.avgpool = nn.AdaptiveAvgPool2d(2)
    found.classifier = nn.Sequential(nn.Linear(64, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, CLASSES))
    return found


SMALL = {  # and the size of their images
    "VGG": (vgg, 16),
    "MobileNetV2": (
        lambda: zoo.MobileNetV2(CLASSES, width_mult=0.25, inverted_residual_setting=[[1, 8, 1, 1], [2, 16, 2, 2]]),
        16,
    ),
    "ShuffleNetV2": (lambda: zoo.ShuffleNetV2([1, 2, 1], [8, 16, 24, 32, 48], num_classes=CLASSES), 32),
    "DenseNet": (lambda: zoo.DenseNet(8, (2, 2), 16, num_classes=CLASSES), 32),
    "timm's resnet10t": (
        lambda: timm.create_model("resnet10t", num_classes=CLASSES, channels=(8, 8, 16, 16), stem_width=8),
        16,
    ),
}
WHOLE = {
    "resnet18": lambda: zoo.resnet18(num_classes=CLASSES),
    "squeezenet1_1": lambda: zoo.squeezenet1_1(num_classes=CLASSES),
}
SLOW = {
    "vgg11_bn": lambda: zoo.vgg11_bn(num_classes=CLASSES),
    "mobilenet_v2": lambda: zoo.mobilenet_v2(num_classes=CLASSES),
    "shufflenet_v2_x0_5": lambda: zoo.shufflenet_v2_x0_5(num_classes=CLASSES),
    "densenet121": lambda: zoo.densenet121(num_classes=CLASSES),
    "googlenet": lambda: zoo.googlenet(num_classes=CLASSES, aux_logits=False, init_weights=False),
    "mnasnet0_5": lambda: zoo.mnasnet0_5(num_classes=CLASSES),
    "resnext50_32x4d": lambda: zoo.resnext50_32x4d(num_classes=CLASSES),
    "timm's resnet10t": lambda: timm.create_model("resnet10t", num_classes=CLASSES),
    "timm's repvgg_a0": lambda: timm.create_model("repvgg_a0", num_classes=CLASSES),
    "timm's regnetx_002": lambda: timm.create_model("regnetx_002", num_classes=CLASSES),
    "timm's efficientnet_lite0": lambda: timm.create_model("efficientnet_lite0", num_classes=CLASSES),
}
REFUSED = {  # the operation, what is said of it, and the file of the library in which it stands
    "vision transformer": (
        lambda: zoo.VisionTransformer(32, 8, 1, 2, 16, 16, num_classes=CLASSES),
        (
            "layer_norm",
            "layer norm has no global Lipschitz constant",
            "`x = self.ln_1(input)`",
            "vision_transformer.py",
        ),
    ),
    "ConvNeXt": (
        lambda: zoo.ConvNeXt([zoo.convnext.CNBlockConfig(8, 8, 2)], num_classes=CLASSES),
        ("layer_norm", "layer norm has no global Lipschitz constant", "x = F.layer_norm(", "convnext.py"),
    ),
    "EfficientNet": (
        lambda: zoo.EfficientNet(
            [zoo.efficientnet.MBConvConfig(1, 3, 1, 8, 8, 1)], dropout=0.0, last_channel=16, num_classes=CLASSES
        ),
        ("mul", "squeeze-and-excitation", "`return scale * input`", "misc.py"),
    ),
    "timm's vision transformer": (
        lambda: timm.models.VisionTransformer(
            32, 16, num_classes=CLASSES, embed_dim=16, depth=1, num_heads=2, class_token=False, global_pool="avg"
        ),
        ("layer_norm", "layer norm has no global Lipschitz constant", "F.layer_norm(", "norm.py"),
    ),
}


def lived_in(network, size):
    """With running statistics of a batch, as a trained network has."""
    network.train()
    with torch.no_grad():
        network(torch.rand(8, 3, size, size))
    return network.eval()


def assert_same_logits(network, found, x):
    with torch.no_grad():
        original = network.double()(x)
    assert float((found - original).abs().max() / original.abs().max()) < 1e-9


@pytest.mark.parametrize("name", SMALL)
def test_no_gradient_of_a_librarys_network_exceeds_what_is_proved(name):
    make, size = SMALL[name]
    torch.manual_seed(0)
    network = lived_in(make(), size)
    x = torch.rand(3, 3, size, size, dtype=torch.float64)
    program = capture(network, (3, size, size)).program
    assert_same_logits(network, program.run(x), x)
    pairs = prove(program, "torus").bounds.pairs
    logits = network.double()(x.requires_grad_(True))
    for class_, other in ((0, 1), (1, 2), (2, 3)):
        (gradient,) = torch.autograd.grad((logits[:, class_] - logits[:, other]).sum(), x, retain_graph=True)
        assert 0 < float(gradient.flatten(1).norm(dim=1).max()) <= float(pairs[class_, other])


def test_a_librarys_network_is_certified_as_it_is():
    torch.manual_seed(0)
    network = lived_in(vgg(), 16)
    x = torch.rand(64, 3, 16, 16, dtype=torch.float64)
    net = CertifiedNet(network, input_shape=(3, 16, 16), guarantee="standard", epsilon=1e-3)
    certificate = net.certify(x)
    assert bool(certificate.certified.any())
    for _ in range(20):
        moved = torch.randn_like(x)
        moved *= (certificate.radius / moved.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
        with torch.no_grad():
            answers = network.double()(x + moved).argmax(dim=1)
        assert bool(certificate.core[certificate.certified, answers[certificate.certified]].all())


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_network_is_captured(name):
    _test_capture(WHOLE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_large_network_is_captured(name):
    _test_capture(SLOW[name])


def _test_capture(make):
    torch.manual_seed(0)
    network = lived_in(make(), 32)
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    program = capture(network, (3, 32, 32)).program
    assert_same_logits(network, program.run(x), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "timm's resnet10t"])
def test_a_whole_network_is_certified(name):
    torch.manual_seed(0)
    network = lived_in({**WHOLE, **SLOW}[name](), 32)
    net = CertifiedNet(network, input_shape=(3, 32, 32), guarantee="standard", epsilon=1e-12)
    x = torch.rand(2, 3, 32, 32)
    certificate = net.certify(x)
    assert bool((certificate.radius > 0).all())


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_constant_is_refused_with_the_librarys_own_line(name):
    make, said = REFUSED[name]
    with pytest.raises(UnsupportedLayerError) as refusal:
        CertifiedNet(make(), input_shape=(3, 32, 32), guarantee="standard", epsilon=0.1)
    for each in said:
        assert each in str(refusal.value)
