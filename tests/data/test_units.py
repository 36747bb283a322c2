"""Units of inputs: named by their range, kept by the run, compared with other numbers; float64 up to the proof."""

import json

import numpy as np
import pytest
import torch

from helpers.commands import safeset
from safeset import ArgumentError, DataWarning, UnitsWarning, load, train
from safeset.data.dataset import PIXELS, Dataset, Split
from safeset.data.embedded import digits
from safeset.data.npz import read_npz
from safeset.data.points import read_points
from safeset.data.units import check_fits
from safeset.runs.run import Run
from safeset.system.files import write_tensors
from safeset.values import far_outside

QUICK = {"epochs": 1, "guarantee": "standard"}


def save(path, factor, *, dtype=np.float32, count=240, flat=False):
    """Digits as floats from 0 to a factor."""
    data = digits().train
    x = (data.x[:count].numpy() / 255 * factor).astype(dtype)
    np.savez(path, x=x.reshape(count, -1) if flat else x, y=data.y[:count].numpy())
    return path


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Digits in several units; runs on pixels in [0, 1], on a table of the same numbers, and on raw numbers."""
    path = tmp_path_factory.mktemp("units")
    save(path / "one.npz", 1)
    save(path / "bytes.npz", 255)
    save(path / "rows.npz", 1, flat=True)
    save(path / "large-rows.npz", 255, flat=True)
    train({**QUICK, "epochs": 3, "data": {"source": str(path / "one.npz")}}, out=path / "run")
    train({**QUICK, "data": {"source": str(path / "rows.npz")}}, out=path / "table")
    train({**QUICK, "data": {"source": str(path / "bytes.npz"), "units": "raw"}}, out=path / "raw")
    return path


# -- what numbers are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(30, 8, 8), (30, 1, 8, 8), (30, 3, 8, 8)])
@pytest.mark.parametrize(
    ("low", "high", "message"),
    [(0, 255, "from 0 to 255"), (0, 16, "from 0 to 16"), (-2.1, 2.6, "from -2.1 to 2.6"), (-1, 1, "from -1 to 1")],
)
def test_images_that_are_no_pixels_stop_with_the_remedy(tmp_path, shape, low, high, message):
    x = np.random.default_rng(0).uniform(low, high, shape)
    x.flat[0], x.flat[1] = low, high
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(30) % 3)
    with pytest.raises(ArgumentError, match=rf"{message}\. Divide by 255, or give bytes \(uint8\).*--units raw"):
        read_npz(tmp_path / "a.npz")
    raw = read_npz(tmp_path / "a.npz", units="raw")
    assert raw.units == f"the units of x ({message})"
    assert len(raw.input_shape) == 3
    np.savez(tmp_path / "a.npz", x=x.reshape(30, -1), y=np.arange(30) % 3)
    assert read_npz(tmp_path / "a.npz").units == f"the units of x ({message})"  # a table is no mistake


def test_images_of_floats_in_0_1_are_pixels_as_bytes_are(tmp_path):
    floats, whole = read_npz(save(tmp_path / "f.npz", 1)), read_npz(save(tmp_path / "b.npz", 255, dtype=np.uint8))
    assert floats.units == whole.units == PIXELS
    assert floats.input_shape == whole.input_shape == (1, 8, 8)
    assert torch.allclose(floats.test.exact, whole.test.exact, atol=1 / 255)
    near = np.random.default_rng(0).uniform(-0.1, 1.1, (30, 8, 8))
    np.savez(tmp_path / "n.npz", x=near, y=np.arange(30) % 3)
    assert read_npz(tmp_path / "n.npz").units.startswith("the units of x (from -0.")


def test_bytes_can_be_taken_as_they_are(tmp_path):
    data = read_npz(save(tmp_path / "b.npz", 255, dtype=np.uint8), units="raw")
    assert (data.units, data.range) == ("the units of x (from 0 to 255)", (0, 255))


def test_a_command_stops_before_it_writes_anything(work):
    _, errors = safeset("train", "--data", "bytes.npz", "--out", "no", "--epochs", "1", cwd=work, code=1)
    assert "Divide by 255" in errors
    assert not (work / "no").exists()
    _, errors = safeset("train", "--data", "one.npz", "--units", "metres", "--out", "no", cwd=work, code=1)
    assert "`units` to be one of raw" in errors


def test_a_run_keeps_units_and_range_and_suits_epsilon_to_them(work):
    pixels, raw = Run(work / "run").read_recipe(), Run(work / "raw").read_recipe()
    assert (pixels.task.units, pixels.task.range, pixels.epsilon) == (PIXELS, (0, 1), 36 / 255)
    assert (raw.task.units, raw.task.range, raw.epsilon) == ("the units of x (from 0 to 255)", (0, 255), 36)
    assert raw.data.units == "raw"
    assert json.loads(Run(work / "raw").evaluation.read_text())["units"] == raw.task.units


@pytest.mark.parametrize("bad", ["range = [1.0]", "range = [2.0, 1.0]", "range = [nan, 1.0]", "range = [0, inf]"])
def test_ranges_that_are_none_are_reported(work, tmp_path, bad):
    text = Run(work / "run").recipe.read_text()
    assert "range = [0.0, 1.0]" in text
    (tmp_path / "recipe.toml").write_text(text.replace("range = [0.0, 1.0]", bad))
    with pytest.raises(ArgumentError, match="a pair"):
        Run(tmp_path).read_recipe()
    (tmp_path / "recipe.toml").write_text(text.replace("range = [0.0, 1.0]\n", ""))
    assert Run(tmp_path).read_recipe().task.range is None  # as older versions wrote it


# -- other data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "data", "message"),
    [
        ("run", "bytes.npz", "Divide by 255"),
        ("table", "large-rows.npz", "units of training, which were from 0 to 1, but got 240 of 240 points far outside"),
        ("raw", "one.npz", "which were from 0 to 255, but got numbers from 0 to 1 only"),
    ],
)
def test_data_in_other_units_is_not_evaluated(work, run, data, message):
    own = Run(work / run).evaluation.read_bytes()
    before = sorted((work / run).iterdir())
    _, errors = safeset("evaluate", run, "--data", data, cwd=work, code=1)
    assert message in errors
    assert Run(work / run).evaluation.read_bytes() == own
    assert sorted((work / run).iterdir()) == before


def test_pixels_are_no_raw_numbers_but_dark_images_and_small_rows_are(work, tmp_path):
    told, _ = safeset("certify", "raw", "one.npz", "--json", cwd=work, code=1)
    assert json.loads(told)["problem"].startswith(
        "Expected numbers as in training, which were in 0..255, but got numbers from 0 to 1 in x of one.npz. They look"
    )
    seen = Run(work / "raw").read_recipe().task.range
    for name, x in (
        ("dark", np.random.default_rng(0).integers(0, 2, (3, 1, 8, 8)).astype(np.float32)),
        ("black", np.zeros((3, 1, 8, 8))),
        ("grey", np.random.default_rng(0).uniform(0, 20, (3, 1, 8, 8))),
    ):
        np.savez(tmp_path / f"{name}.npz", x=x)
        points = read_points([str(tmp_path / f"{name}.npz")], input_shape=(1, 8, 8), units="raw", seen=seen, stdin=None)
        assert all(not point.problem for point in points), name
    np.savez(tmp_path / "rows.npz", x=np.full((3, 64), 0.5))
    (point, *_) = read_points([str(tmp_path / "rows.npz")], input_shape=(64,), units="raw", seen=seen, stdin=None)
    assert not point.problem
    units, sixteen = "the units of x (from 0 to 16)", (0.0, 16.0)
    check_fits(read_npz(save(tmp_path / "x.npz", 16), units="raw"), units, sixteen, columns=True)
    with pytest.raises(ArgumentError, match="numbers from 0 to 1 only"):  # a sixteenth is more than a twentieth
        check_fits(read_npz(save(tmp_path / "x.npz", 1), units="raw"), units, sixteen, columns=True)


def test_the_advice_for_a_run_is_not_to_train_with_safeset(work):
    net = load(work / "run")
    x = digits().test.exact[:1]
    told = str(net.diagnose(x, epsilon=1.0))
    assert "joint, 1 point." in told
    assert "Train for this ε or a larger one: the network was trained for less, ε = 0.1411" in told
    assert "Train longer (more epochs), for a larger ε than 0.1411" in net.diagnose(x[:1] * 0, epsilon=0.1).advice[-1]
    assert "safeset.train" not in told


def test_data_in_the_same_units_is_evaluated(work):
    save(work / "as-bytes.npz", 255, dtype=np.uint8)
    for run, data in (("run", "as-bytes.npz"), ("raw", "as-bytes.npz"), ("raw", "bytes.npz"), ("table", "rows.npz")):
        safeset("evaluate", run, "--data", data, "--out", "e.json", cwd=work)
        units = json.loads((work / "e.json").read_text())["units"]
        assert units == Run(work / run).read_recipe().task.units


def test_few_points_far_outside_are_outliers(work):
    x = torch.rand(100, 5, dtype=torch.float64)
    y = torch.arange(100) % 2
    x[7, 2] = 30.0
    data = Dataset("rows", Split(x[:80], y[:80]), Split(x[80:], y[80:]), ("a", "b"), "the units of x (from 0 to 30)")
    with pytest.warns(DataWarning, match="1 of 100 points lies far outside the range of training, 0 to 1"):
        check_fits(data, "the units of x (from 0 to 1)", (0.0, 1.0), columns=True)
    check_fits(data, "the units of the inputs", None, columns=True)  # of an older run, which knows no range
    with pytest.raises(ArgumentError, match="data in columns scaled"):
        check_fits(data, "columns scaled to [0, 1] (a 0..1)", None, columns=True)


def test_what_is_far_outside():
    rows = torch.tensor([[0.5, 0.5, 0.5], [3.0, 0.5, 0.5], [3.0, 3.0, 0.5], [12.0, 0.5, 0.5], [-12.0, 0.5, 0.5]])
    assert far_outside(rows.numpy(), (0.0, 1.0)).tolist() == [False, False, True, True, True]
    images = torch.zeros(3, 1, 2, 2)
    images[1, 0, 0, 0], images[2, 0, 0, 0] = 1.9, 2.1
    assert far_outside(images.numpy(), (0.0, 1.0)).tolist() == [False, False, True]
    assert far_outside(np.array([[7.0], [70.0]]), (5.0, 5.0)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("run", "file", "message"),
    [
        ("run", "bytes.npz", r"Expected pixels in [0, 1], but got numbers in 0.."),
        ("table", "large-rows.npz", "Expected numbers as in training, which were in 0..1, but got numbers in 0.."),
    ],
)
def test_points_in_other_units_are_not_certified(work, run, file, message):
    output, _ = safeset("certify", run, file, "--json", cwd=work, code=1)
    records = [json.loads(line) for line in output.splitlines()]
    assert all(message in record["problem"] for record in records)


# -- in Python --------------------------------------------------------------------------------------------------------


def test_a_net_of_a_run_warns_of_numbers_that_can_only_be_no_pixels(work):
    net, x = load(work / "run"), digits().test.exact[:20]
    net.certify(x + 0.9 * torch.sign(x - 0.5))  # attacks leave [0, 1]
    for frozen in (net, net.frozen()):
        with pytest.warns(UnitsWarning, match="from 0 to 255, but the network was trained on pixels in"):
            found = frozen.certify(x * 255)
        assert torch.equal(found.radii, net.certify(x * 255 / 255).radii) is False  # it is answered, not refused
    broken = x * 255
    broken[0, 0, 0, 0] = torch.nan
    for strange in (broken, x * 2 - 1):  # NaN hides nothing; normalised to [−1, 1]
        with pytest.warns(UnitsWarning, match="normalisation"):
            net.certify(strange)
    load(work / "raw").certify(x * 255)


def test_images_given_in_python_are_looked_at_too():
    x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
    assert train(QUICK, data=(x, y)).units == PIXELS
    with pytest.warns(UnitsWarning, match="from 0.* to 25.*Divide by 255"):
        net = train(QUICK, data=(x * 255, y))
    assert net.units.startswith("the units of x (from 0.")
    assert train(QUICK, data=(x.flatten(1) * 255, y)).units.startswith("the units of x")  # a table is no mistake


# -- float64 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_numbers_are_certified_as_they_are_in_the_file(tmp_path, kind):
    """The logits are (a - b, 2.5). In float32 100,000,003 is 100,000,000, and class 1 would be certified to 1.77."""
    x = 1e8 + np.random.default_rng(0).uniform(-50, 50, (40, 2))
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(40) % 2)
    (tmp_path / "x.csv").write_text(
        "a,b,y\n" + "".join(f"{a!r},{b!r},{n % 2}\n" for n, (a, b) in enumerate(x.tolist()))
    )
    data = {"source": str(tmp_path / f"x.{kind}"), **({"units": "raw"} if kind == "csv" else {})}
    net = train({**QUICK, "model": "mlp-2x32", "data": data, "epsilon": 1.5}, out=tmp_path / "run")
    state = {name: torch.zeros_like(tensor) for name, tensor in net.network.state_dict().items()}
    first, second, last = (name for name, tensor in state.items() if tensor.ndim == 2)
    state[first][1] = torch.tensor([1.0, -1.0])
    state[second][1, 1] = state[last][0, 1] = 1.0
    state[last.replace("weight", "bias")][1] = 2.5
    write_tensors(tmp_path / "run" / "model.safetensors", state, {"format": "safeset 1"})
    np.savez(tmp_path / "p.npz", x=np.array([[1e8 + 3, 1e8]]))
    (tmp_path / "p.csv").write_text("a,b\n100000003,100000000\n")
    output, _ = safeset("certify", "run", f"p.{kind}", "--json", cwd=tmp_path)
    assert not json.loads(output)["certified"]
    output, _ = safeset("certify", "run", f"p.{kind}", "--json", "--epsilon", "0.3", cwd=tmp_path)
    assert json.loads(output)["core"] == ["0"]


def test_bytes_are_divided_in_float64(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16))
    (point,) = read_points([str(tmp_path / "x.npz")], input_shape=(1, 16, 16), units=PIXELS, stdin=None)
    assert point.x.flatten().tolist() == [value / 255 for value in range(256)]
    assert Split(torch.arange(256, dtype=torch.uint8)[:, None], torch.zeros(256).long()).exact.flatten().tolist() == [
        value / 255 for value in range(256)
    ]


def test_numbers_that_float64_does_not_hold_are_reported(tmp_path):
    for bad in (np.array([[2**53 + 1, 0]]), np.array([[np.longdouble(1) + np.finfo(np.longdouble).eps, 0]])):
        np.savez(tmp_path / "x.npz", x=np.concatenate([bad, np.zeros_like(bad)]), y=[0, 1])
        first, second = read_points([str(tmp_path / "x.npz")], input_shape=(2,), units="cm", stdin=None)
        assert first.problem == "numbers with more digits than float64 holds"
        assert second.x is not None
        with pytest.raises(ArgumentError, match="numbers that float64 holds"):
            read_npz(tmp_path / "x.npz")
