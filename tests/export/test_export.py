"""Exported files certify as Python does: on whole test sets, for every guarantee and method, and for bad inputs."""

import json
import math
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import safeset
from helpers.digits_net import digits, trained
from helpers.nets import image_network, inputs
from safeset import Affinity, CertifiedNet, Coverage, RelaxedTopK, Standard, TopK, create_model
from safeset.errors import ArgumentError
from safeset.export.file import find_exported
from safeset.export.to_onnx import export_onnx

LOOKALIKES = Affinity([[1, 4, 7], [3, 5, 8, 9]])
GUARANTEES = [Standard(), TopK(2), RelaxedTopK(3), RelaxedTopK(6), LOOKALIKES, Affinity(everyone_with=[8])]


def exported(net, path, **options):
    export_onnx(net, path, **options)
    return find_exported(path)


def compare(model, net, x, epsilon, *, prefer="smallest", **options):
    """Sets must be identical, radii within 1e-6."""
    certificate = net.certify(x, epsilon=epsilon, prefer=prefer, **options)
    found = model.run(x.double().numpy(), epsilon)
    assert np.array_equal(found["certified"], certificate.certified.numpy())
    assert np.array_equal(found["core"], certificate.core.numpy())
    assert np.array_equal(found["optional"], certificate.optional.numpy())
    wanted = certificate.windows.numpy()
    assert np.array_equal(np.isinf(found["windows"]), np.isinf(wanted))
    finite = np.isfinite(wanted)
    assert np.abs(found["windows"] - wanted)[finite].max(initial=0) <= 1e-6
    assert found["windows"].shape == wanted.shape
    return certificate, found


@pytest.fixture(scope="module")
def net():
    return trained()[0]


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
def test_the_whole_test_set_of_digits(net, tmp_path, guarantee, method):
    _, (x, _) = digits()
    model = exported(net, tmp_path / "m.onnx", guarantee=guarantee, method=method)
    for epsilon in (0.0, 0.1, 0.3):
        certificate, _ = compare(model, net, x, epsilon, guarantee=guarantee, method=method)
        assert certificate.certified.sum() > 0
    assert (~certificate.certified).any()


def test_largest_answers(net, tmp_path):
    _, (x, _) = digits()
    model = exported(net, tmp_path / "m.onnx", guarantee="rt3", prefer="largest")
    certificate, _ = compare(model, net, x, 0.2, guarantee="rt3", prefer="largest")
    smallest = certificate.preferring("smallest")
    assert not torch.equal(certificate.core, smallest.core)


def test_a_network_with_shortcuts_batch_norm_and_other_layers(tmp_path):
    torch.manual_seed(3)
    network = image_network().eval()
    net = CertifiedNet(network, input_shape=(2, 4, 4), guarantee="rt3", epsilon=0.01)
    x = inputs(64)
    model = exported(net, tmp_path / "m.onnx")
    certificate, found = compare(model, net, x, 0.001)
    assert certificate.certified.any()
    assert np.abs(found["logits"] - net.frozen()(x).numpy()).max() < 1e-12


@pytest.mark.parametrize("name", ["cnn-2c2f", "shift-net"])
def test_a_cnn_and_a_shift_net(tmp_path, name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"depth": 4, "width": 32, "patch": 2, "dense": 1} if name == "shift-net" else {}
        network = create_model(name, input_shape=(1, 8, 8), classes=10, **sizes)
    net = CertifiedNet(network, input_shape=(1, 8, 8), guarantee="rt5", epsilon=0.01)
    _, (x, _) = digits()
    model = exported(net, tmp_path / "m.onnx")
    radius = float(net.certify(x).radius.median())
    certificate, _ = compare(model, net, x, radius)
    assert 0.2 < certificate.certified.double().mean() < 0.8


def test_smooth_activations_and_what_they_assume(tmp_path):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4))
    net = CertifiedNet(network, input_shape=(5,), guarantee="rt2", epsilon=0.01)
    model = exported(net, tmp_path / "m.onnx")
    assert "assuming that exp" in model.says["covers"]
    compare(model, net, torch.rand(50, 5), 0.01)


def test_more_classes_and_larger_k(tmp_path):
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 100))
    net = CertifiedNet(network, input_shape=(8,), guarantee="rt12", epsilon=0.001)
    model = exported(net, tmp_path / "m.onnx")
    x = torch.rand(40, 8)
    compare(model, net, x, float(net.certify(x).radius.median()))


def test_equal_rows_of_the_head_and_ties(tmp_path):
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    with torch.no_grad():
        network[2].weight[1] = network[2].weight[0]
        network[2].bias[:] = torch.tensor([1.0, 0.5, 0.5, 0.0, 0.0])
    net = CertifiedNet(network, input_shape=(3,), guarantee="rt3", epsilon=0.01)
    model = exported(net, tmp_path / "m.onnx")
    compare(model, net, torch.rand(30, 3), 0.01)
    with torch.no_grad():
        network[2].weight[:] = 0
        network[2].bias[:] = torch.tensor([1.0, 1.0, 0.5, 0.5, 0.25])
    model = exported(net, tmp_path / "m.onnx")  # constant logits, and ties
    certificate, found = compare(model, net, torch.rand(3, 3), 0.01)
    assert certificate.core[0].tolist() == found["core"][0].tolist() == [True, True, False, False, False]


def cancelling(guarantee, size=1e6):
    """A net whose logits are small differences of large numbers: what is rounded is far more than their last digits."""
    generator = torch.Generator().manual_seed(5)
    network = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6)).double()
    with torch.no_grad():
        for each in network.parameters():
            each.copy_(torch.randn(each.shape, generator=generator, dtype=torch.float64) / 4)
        network[0].bias += size
        network[2].weight -= network[2].weight.mean(dim=1, keepdim=True)
        middle = torch.full((1, 6), 0.5, dtype=torch.float64)
        network[2].bias -= network(middle)[0] - torch.linspace(0.1, 0, 6, dtype=torch.float64)
    net = CertifiedNet(network, input_shape=(6,), guarantee=guarantee, epsilon=0.01)
    return net, torch.rand(100, 6, generator=generator, dtype=torch.float64)


OF_SIX = [Standard(), TopK(2), TopK(5), RelaxedTopK(3), RelaxedTopK(5), Affinity([[0, 1, 2], [2, 3], [1, 2, 4, 5]])]


@pytest.mark.parametrize("guarantee", OF_SIX, ids=str)
@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
def test_a_radius_of_python_s_is_no_radius_of_a_file(tmp_path, guarantee, method):
    net, x = cancelling(guarantee)
    model = exported(net, tmp_path / "m.onnx", method=method)
    windows = net.certify(x, method=method).windows.numpy()
    found = model.run(x.numpy(), 0.0)["windows"]
    assert (found <= windows).all()
    assert (found > 0).any()
    radii = np.unique(windows[windows > 0])
    for epsilon in radii[:: len(radii) // 3].tolist():
        certified = net.certify(x, epsilon=epsilon, method=method).certified.numpy()
        assert not (model.run(x.numpy(), epsilon)["certified"] & ~certified).any()


def test_no_class_of_python_s_coverage_set_is_missing_in_a_file(tmp_path):
    net, x = cancelling("standard")
    y = net.frozen()(x).argmax(dim=1)
    coverage = Coverage.calibrate(net, x[:40], y[:40], k=2)
    model = exported(net, tmp_path / "m.onnx", coverage=coverage)
    missing = (coverage.thresholds - coverage.scores(x)).flatten()  # the radii at which a class comes in
    for epsilon in missing[missing > 0][::20].tolist():
        for near in (epsilon, math.nextafter(epsilon, 1.0)):
            there = model.run(x.numpy(), near)["coverage_set"]
            assert not (coverage.sets(x, near).numpy() & ~there).any()


@pytest.mark.parametrize("by_class", [False, True])
def test_no_class_is_missing_where_a_set_would_be_empty(tmp_path, by_class):
    net, x = cancelling("standard")
    frozen = net.frozen()
    y = frozen(x).argmax(dim=1)
    coverage = Coverage.calibrate(net, x[:40], y[:40], alpha=0.5, by_class=by_class)
    model = exported(net, tmp_path / "m.onnx", coverage=coverage)
    near, far, own = x[40:70], x[70:], y[40:70]
    for _ in range(60):  # to where two classes are the best, and rounding alone decides which one is
        middle = (near + far) / 2
        same = (frozen(middle).argmax(dim=1) == own)[:, None]
        near, far = torch.where(same, middle, near), torch.where(same, far, middle)
    border = torch.cat([near, far])
    assert not coverage.sets(border, allow_empty=True).any(dim=1).all()
    found = model.run(border.numpy(), 0.0)["coverage_set"]
    assert not (coverage.sets(border).numpy() & ~found).any()
    assert found.sum(axis=1).mean() < 3
    missing = (coverage.thresholds - coverage.scores(border)).amin(dim=1)  # here the file has a class, Python none
    for epsilon in missing[missing > 0].tolist():
        near = math.nextafter(epsilon, 0.0)
        there = model.run(border.numpy(), near)["coverage_set"]
        assert not (coverage.sets(border, near).numpy() & ~there).any()


def test_what_is_never_certified(net, tmp_path):
    model = exported(net, tmp_path / "m.onnx", guarantee="rt3")
    _, (x, _) = digits()
    x = x[:8].double().numpy().copy()
    for place, number in enumerate((math.nan, math.inf, -math.inf, 1e308, 1e300)):
        x[place, 0, 3, 3] = number
    found = model.run(x, 0.0)
    assert not found["certified"][:5].any()
    assert not found["windows"][:5].any()
    assert not found["core"][:5].any()
    assert found["certified"][5:].all()  # nothing of one point reaches another
    assert np.isnan(found["logits"][:3]).all()
    for epsilon in (math.nan, -0.1, -math.inf, math.inf):
        found = model.run(x, epsilon)
        assert not found["certified"].any()
        assert not (found["core"] | found["optional"]).any()


def test_flushed_subnormals_certify_nothing(net, tmp_path):
    model = exported(net, tmp_path / "m.onnx")
    _, (x, _) = digits()
    x = x.double().numpy()
    assert model.run(x, 0.1)["certified"].any()
    torch.set_flush_denormal(True)  # the mode of this thread, in which one session of one thread computes
    try:
        found = model.run(x, 0.1)
    finally:
        torch.set_flush_denormal(False)
    assert not found["certified"].any()
    assert not found["windows"].any()


def test_batches_of_any_size_and_optimised_sessions_agree(net, tmp_path):
    model = exported(net, tmp_path / "m.onnx", guarantee="rt3")
    _, (x, _) = digits()
    x = x[:50].double().numpy()
    whole = model.run(x, 0.2)
    assert model.run(x[:0], 0.2)["core"].shape == (0, 10)
    alone = [model.run(x[place : place + 1], 0.2) for place in range(50)]
    usual = onnxruntime.InferenceSession(model.content, providers=["CPUExecutionProvider"])  # with all optimisations
    names = list(whole)
    again = dict(zip(names, usual.run(names, {"x": x, "epsilon": np.array(0.2)}), strict=True))
    for name in ("certified", "core", "optional"):
        assert np.array_equal(whole[name], np.concatenate([each[name] for each in alone]))
        assert np.array_equal(whole[name], again[name])


@pytest.mark.parametrize("method", ["floating", "joint"])
@pytest.mark.parametrize(
    "activation",
    [nn.Hardswish(), nn.LeakyReLU(1 - 1e-9), nn.GELU(), nn.Softplus()],
    ids=lambda part: type(part).__name__,
)
def test_onnxruntime_optimises_nothing_away(tmp_path, activation, method):
    # It takes 1 + 2u for 1 and the smallest number for 0, and multiplies by 1/6 in float32.
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 8), activation, nn.Linear(8, 6)).double()
    net = CertifiedNet(network, input_shape=(8,), guarantee="rt4", epsilon=0.01)
    x = torch.randn(300, 8, dtype=torch.float64)
    coverage = Coverage.calibrate(net, x[:100], torch.arange(100) % 6)
    model = exported(net, tmp_path / "m.onnx", method=method, coverage=coverage)
    as_written = model.run(x.numpy(), 0.01)
    usual = onnxruntime.InferenceSession(model.content, providers=["CPUExecutionProvider"])  # with all optimisations
    names = list(as_written)
    for name, found in zip(names, usual.run(names, {"x": x.numpy(), "epsilon": np.array(0.01)}), strict=True):
        assert np.array_equal(found, as_written[name]), name


@pytest.mark.parametrize("options", [{}, {"k": 2}, {"by_class": True, "alpha": 0.3}], ids=str)
def test_coverage_sets(net, tmp_path, options):
    _, (x, y) = digits()
    coverage = Coverage.calibrate(net, x[:300], y[:300], **options)
    model = exported(net, tmp_path / "m.onnx", coverage=coverage)
    x = x[300:]
    for epsilon in (0.0, 0.1, 0.3):
        found = model.run(x.double().numpy(), epsilon)["coverage_set"]
        assert np.array_equal(found, coverage.sets(x, epsilon).numpy())
    bad = x[:2].double().numpy().copy()
    bad[0, 0, 0, 0] = math.nan
    assert model.run(bad, 0.1)["coverage_set"][0].all()  # nothing is known: every class may be true
    assert model.run(bad, -1.0)["coverage_set"].all()


def test_other_calibrations_are_refused(net, tmp_path):
    _, (x, y) = digits()
    soft = Coverage.calibrate(net, x[:100], y[:100], score="soft-min")
    with pytest.raises(ArgumentError, match="score 'membership'"):
        export_onnx(net, tmp_path / "m.onnx", coverage=soft)
    other = CertifiedNet(create_model("cnn-1c1f", input_shape=(1, 8, 8), classes=10), input_shape=(1, 8, 8),
                         guarantee="standard", epsilon=0.1)  # fmt: skip
    with pytest.raises(ArgumentError, match="calibration of this network"):
        export_onnx(other, tmp_path / "m.onnx", coverage=Coverage.calibrate(net, x[:100], y[:100]))
    assert not list(tmp_path.iterdir())


def test_float32_says_that_nothing_is_proved(net, tmp_path):
    model = exported(net, tmp_path / "m.onnx", precision="float32")
    assert not model.is_proved
    assert "nothing here is proved" in model.says["covers"]
    _, (x, _) = digits()
    found = model.run(x.numpy(), 0.2)
    assert found["windows"].dtype == np.float32
    wanted = net.certify(x, epsilon=0.2).windows.numpy()
    assert np.abs(found["windows"] - wanted).max() < 1e-3


def test_what_a_file_says_of_itself(net, tmp_path):
    says = export_onnx(net, tmp_path / "m.onnx", epsilon=0.25, guarantee="rt3")
    stored = {each.key: each.value for each in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(stored["safeset"]) == says
    assert (says["guarantee"], says["epsilon"], says["method"]) == ("rt3", 0.25, "joint")
    assert says["program"] == net.frozen().program.digest()
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"), full_check=True)


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=str)
def test_tables_of_guarantees_say_which_k_are_eligible(guarantee):
    generator = torch.Generator().manual_seed(0)
    k = guarantee.largest_k(10)
    ranking = torch.stack([torch.randperm(10, generator=generator)[:k] for _ in range(500)])
    ranking = torch.cat([ranking, torch.tensor([[3, 5, 8, 9, 0, 1][:k], [1, 4, 7, 0, 2, 3][:k]])])
    sizes, sets = guarantee.tables(10)
    inside = (~sets.T[ranking]).cumsum(dim=1) == 0  # (batch, K, sets)
    assert torch.equal(inside.any(dim=2) & sizes, guarantee.eligible(ranking, 10))


def test_a_guarantee_without_tables_is_refused(net, tmp_path):
    class Own(Standard):
        tables = safeset.Guarantee.tables

    with pytest.raises(ArgumentError, match="a guarantee with `tables`"):
        export_onnx(net, tmp_path / "m.onnx", guarantee=Own())


def test_mistakes_are_named(net, tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match=r"ends in \.onnx"):
        export_onnx(net, tmp_path / "m.bin")
    with pytest.raises(ArgumentError, match="float64, float32"):
        export_onnx(net, tmp_path / "m.onnx", precision="float16")
    with pytest.raises(ArgumentError, match="smallest, largest"):
        export_onnx(net, tmp_path / "m.onnx", prefer="least")
    huge = CertifiedNet(nn.Sequential(*(nn.Linear(4, 4, dtype=torch.float64) for _ in range(3))), input_shape=(4,),
                        guarantee="standard", epsilon=0.1, tighten=False)  # fmt: skip
    with torch.no_grad():
        for layer in huge.network:
            layer.weight *= 1e150
    with pytest.raises(ArgumentError, match="bounds that are finite"):
        export_onnx(huge, tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ArgumentError, match="pip install 'safeset\\[onnx\\]'"):
        export_onnx(net, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_runtime_that_computes_something_else_is_noticed(net, tmp_path, monkeypatch):
    from safeset.export import activations, operations  # noqa: F401

    monkeypatch.setattr(operations, "NOTHING", 0)  # the first pixel is taken for the outside
    rule = operations._places
    monkeypatch.setattr(operations, "_places", lambda *given, **more: (rule(*given, **more)[0][::-1], rule(*given)[1]))
    with pytest.raises(safeset.SafesetError, match="nothing was written"):
        export_onnx(net, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
