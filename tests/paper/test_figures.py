"""The paper's figures: what is chosen for them, in exact cases and against loops; that they are drawn; mistakes."""

import io
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.commands import safeset
from helpers.strategies import guarantees, logits, matrices
from safeset import Affinity, ArgumentError, CertifiedNet, HeadConstants, SafesetError, certify_logits, load, train
from safeset.data.embedded import blobs2d, digits
from safeset.drawing import sheet
from safeset.drawing.stripes import CLASSES, REJECTED, plane, stripe_sets
from safeset.errors import DataNotFoundError
from safeset.paper import figures
from safeset.paper.drawing import choices, samples
from safeset.paper.drawing.groups import ACROSS, INSIDE, draw_groups
from safeset.paper.drawing.surfaces import draw_surfaces
from safeset.paper.figures import FIGURES, Figure, draw
from safeset.paper.networks import runs_of
from safeset.paper.predictions import answers_of
from safeset.paper.rows import recipe_of
from safeset.recipes.library import list_recipes
from safeset.runs.run import Run

METHODS = ["uniform", "floating"]  # those that a matrix of constants allows


@st.composite
def certificates(draw):
    """A certificate of three points, by any guarantee."""
    values = draw(logits())
    guarantee, _ = draw(guarantees(values.shape[1]))
    matrix, epsilon = draw(matrices(values.shape[1])), draw(st.sampled_from([0.0, 0.05, 0.5]))
    return certify_logits(values, matrix, epsilon, guarantee, method=draw(st.sampled_from(METHODS)))


def random_certificate(points=200, classes=7, guarantee="rt3", seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(points, classes, generator=generator, dtype=torch.float64)
    head = HeadConstants(torch.randn(classes, 4, generator=generator, dtype=torch.float64))
    labels = torch.randint(classes, (points,), generator=generator)
    return certify_logits(values, head, 0.1, guarantee, method="joint"), labels


def picture(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def has(pixels, colour):
    """Which pixels have a colour."""
    return (pixels == np.array(list(bytes.fromhex(colour[1:])), dtype=np.uint8)).all(axis=-1)


# -- what is chosen ---------------------------------------------------------------------------------------------------


def test_the_smallest_safe_set_is_not_the_largest():
    # Constants 1, ε = .5: top-1 and top-2 robust; only top-2; nothing; by floating [1, 2] alone.
    values = [[3.0, 1.5, 0.0, -1.0], [2.0, 1.9, 0.0, -1.0], [2.0, 1.9, 1.8, 1.7], [2.0, 1.8, 1.4, 0.0]]
    uniform = certify_logits(values, torch.ones(4, 4), 0.5, "rt2", method="uniform")
    assert uniform.preferring("largest").core.sum(dim=1).tolist() == [2, 2, 0, 0]
    assert choices.smallest_sets(uniform).sum(dim=1).tolist() == [1, 2, 0, 0]
    floating = certify_logits(values, torch.ones(4, 4), 0.5, "rt2", method="floating")
    assert choices.smallest_sets(floating)[3].tolist() == [True, True, False, False]


@given(certificates())
def test_the_smallest_safe_set_ends_the_first_proved_window(certificate):
    found = choices.smallest_sets(certificate)
    assert found.any(dim=1).equal(certificate.certified)
    for place in range(len(certificate)):
        proved = (certificate.windows[place] > certificate.epsilon).nonzero().tolist()
        least = min((b + 1 for _, b in proved), default=0)
        assert set(found[place].nonzero()[:, 0].tolist()) == set(certificate.ranking[place, :least].tolist())
    assert not (found & ~certificate.preferring("largest").whole).any()  # never more than the largest answer holds


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 8), st.integers(0, 5))
def test_a_draw_is_of_points_that_qualify(points, count, seed):
    found = choices.some_of(torch.tensor(points, dtype=torch.bool), count, seed)
    assert len(found) == len(set(found)) == min(count, sum(points))
    assert all(points[place] for place in found)
    assert found == choices.some_of(torch.tensor(points, dtype=torch.bool), count, seed)


def test_a_draw_does_not_favour_the_first():
    points = torch.ones(1000, dtype=torch.bool)
    means = [np.mean(choices.some_of(points, 20, seed)) for seed in range(20)]
    assert 400 < np.mean(means) < 600
    assert len(set(means)) > 15


def test_what_the_samples_show_against_loops():
    relaxed, labels = random_certificate()
    strict, _ = random_certificate(guarantee="standard")
    sets = Affinity([[0, 1, 2], [3, 4], [5, 6]])
    grouped, _ = random_certificate(guarantee=sets, seed=1)
    records = [certificate.records() for certificate in (relaxed, strict, grouped)]
    chosen = {"recovered": [], "several": [], "gathered": []}
    for place, (one, plain, other) in enumerate(zip(*records, strict=True)):
        inside = any({*one["core"], *one["optional"]} <= set(members) for members in sets.sets)
        if one["certified"] and not plain["certified"]:
            chosen["recovered"].append(place)
        if len(one["core"]) > 1 and relaxed.ranking[place, 0] == labels[place]:
            chosen["several"].append(place)
        if one["certified"] and not inside and other["certified"]:
            chosen["gathered"].append(place)
    assert all(3 < len(places) < 150 for places in chosen.values())
    assert choices.is_recovered(strict, relaxed).nonzero()[:, 0].tolist() == chosen["recovered"]
    assert choices.has_several_classes(relaxed, labels).nonzero()[:, 0].tolist() == chosen["several"]
    assert choices.is_gathered(relaxed, grouped).nonzero()[:, 0].tolist() == chosen["gathered"]
    wanted = [label in (2, 5) for label in labels.tolist()]
    assert choices.has_label(labels, list("abcdefg"), ["f", "c"]).tolist() == wanted


@given(certificates())
def test_counts_and_shares_against_loops(certificate):
    found, part = choices.counts(certificate), choices.shares(choices.counts(certificate))
    sets = [{*record["core"], *record["optional"]} for record in certificate.records()]
    for row in range(certificate.classes):
        own = sum(row in one for one in sets)
        for column in range(certificate.classes):
            both = sum({row, column} <= one for one in sets)
            assert found[row, column] == both
            assert part[row, column] == both / own if own else part[row, column].isnan()


def test_classes_that_go_together_stand_together():
    table = torch.diag(torch.full((6,), 10))
    for one, other, times in ((0, 3, 8), (3, 5, 6), (1, 4, 7)):
        table[one, other] = table[other, one] = times
    assert choices.side_by_side(table) == [0, 3, 5, 1, 4, 2]
    order = choices.side_by_side(choices.counts(random_certificate(classes=12)[0]))
    assert sorted(order) == list(range(12))


def test_names_in_a_set_stand_in_order_with_what_may_join():
    values = [[2.0, 1.8, 1.4, 0.0]]
    certificate = certify_logits(values, torch.ones(4, 4), 0.5, "rt2", method="floating")
    certificate = certificate.named(["AnnualCrop", "maple_tree", "River", "d"])
    first, second = samples.set_names(certificate, 0, label=1)
    assert (first.text, first.bold, first.optional) == ("Annual Crop", False, False)
    assert (second.text, second.bold, second.optional) == ("maple tree", True, True)


# -- surfaces ---------------------------------------------------------------------------------------------------------


def test_the_plane_is_covered_by_square_cells():
    grid = plane(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 1.0]), 4)
    assert grid[:, :, 0].tolist() == [[-0.75, -0.25, 0.25, 0.75]] * 2
    assert grid[:, :, 1].tolist() == [[0.25] * 4, [0.75] * 4]


@pytest.mark.parametrize("stripe", [1, 4])
@pytest.mark.parametrize("code", range(16))
def test_a_place_has_the_colour_of_a_class_of_its_set(code, stripe):
    members = [place for place in range(4) if code >> place & 1]
    sets = torch.tensor([place in members for place in range(4)]).expand(12, 12, -1)
    shown = [CLASSES[member] for member in members] or [REJECTED]
    pixels = stripe_sets(sets, stripe).tolist()
    for row in range(12):
        for column in range(12):
            assert bytes(pixels[row][column]).hex() == shown[(row + column) // stripe % len(shown)][1:]


def test_there_is_a_line_between_different_sets():
    sets = torch.zeros(5, 8, 4, dtype=torch.bool)
    sets[:, 4:, 1] = True
    pixels = stripe_sets(sets)
    assert has(pixels, REJECTED)[:, :4].all()
    assert has(pixels, "#ffffff")[:, 4].all()
    assert has(pixels, CLASSES[1])[:, 5:].all()


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A directory of runs in the plane, trained for a few epochs."""
    path = tmp_path_factory.mktemp("plane")
    for row in FIGURES["surfaces"].rows:
        train(recipe_of(row, {"epochs": 6}), out=path / f"{row}-seed0", device="cpu")
    return path


def test_surfaces(flat, tmp_path):
    nets = {row.partition("/")[2]: load(runs_of(flat, row, 0)[0].path) for row in FIGURES["surfaces"].rows}
    data = blobs2d()
    pixels = picture(draw_surfaces(nets, data, across=120))
    assert pixels.shape[1] == sheet.WIDTH * sheet.DOTS
    middle = pixels.shape[1] // 2
    top, bottom = pixels[: len(pixels) // 3], pixels[len(pixels) // 3 : 2 * len(pixels) // 3]
    plain, gloro, relaxed = top[:, middle:], bottom[:, :middle], bottom[:, middle:]
    for panel in (plain, gloro, relaxed):
        assert all(has(panel, colour).mean() > 0.005 for colour in CLASSES)
    assert has(plain, REJECTED).mean() < 0.001  # dots of letters
    assert has(gloro, REJECTED).mean() > 0.05  # where classes meet
    assert has(relaxed, REJECTED).mean() < has(gloro, REJECTED).mean() / 2
    grid = plane(torch.tensor([-0.7, -0.1]), torch.tensor([-0.5, 0.1]), 4).flatten(0, 1)  # between a and b
    assert not choices.smallest_sets(nets["standard"].certify(grid)).any()
    both = choices.smallest_sets(nets["rt2"].certify(grid, method="joint"))
    assert both[:, :2].all(dim=1).any()
    assert not both[:, 2:].any()


# -- images and groups ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A directory of runs of digits, trained for a few epochs."""
    path = tmp_path_factory.mktemp("digits")
    for row in ("standard", "rt3", "lookalikes"):
        recipe = recipe_of(f"digits/{row}", {"epochs": 6, "epsilon": 0.2, "model": "mlp-2x32"})
        train(recipe, out=path / "digits" / f"{row}-seed0", device="cpu")
    return path


def stand_ins():
    """Figures of digits, painted as those of the paper's data are."""
    return {
        "highways": Figure(
            ("digits/standard", "digits/rt3"), partial(figures._paint_recovered, relaxed="rt3", classes=("4", "8"))
        ),
        "several": Figure(("digits/rt3",), partial(figures._paint_together, network="rt3")),
        "both": Figure(
            ("digits/rt3", "digits/lookalikes"), partial(figures._paint_gathered, relaxed="rt3", grouped="lookalikes")
        ),
        "groups": Figure(("digits/rt3",), partial(figures._paint_groups, title="Digits")),
    }


def test_figures_are_drawn_from_runs(quick, tmp_path):
    paths = list(draw(runs=quick, out=tmp_path / "a" / "b", device="cpu", figures=stand_ins()))
    assert [path.name for path in paths] == ["highways.png", "several.png", "both.png", "groups.png"]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(path.name for path in paths)
    first = [path.read_bytes() for path in paths]
    for content in first:
        pixels = picture(content)
        assert pixels.shape[1] == sheet.WIDTH * sheet.DOTS
        assert (pixels[:10] == 255).all()
        assert len(content) < 400_000
    (again,) = draw(["several"], runs=quick, out=tmp_path, device="cpu", figures=stand_ins())
    assert again.read_bytes() == first[1]  # always the same


def test_surfaces_of_several_radii_are_refused(flat):
    nets = {row.partition("/")[2]: load(runs_of(flat, row, 0)[0].path) for row in FIGURES["surfaces"].rows}
    old = nets["standard"]
    nets["standard"] = CertifiedNet(old.network, input_shape=(2,), guarantee="standard", epsilon=2 * old.epsilon)
    with pytest.raises(ArgumentError, match="networks of one ε to compare"):
        draw_surfaces(nets, blobs2d(), across=20)


def test_the_images_are_those_that_were_drawn(quick):
    answers, data = answers_of(runs_of(quick, "digits/rt3", 0)[0]), digits()
    pixels = picture(samples.draw_together(answers, data, network="rt3", seed=3, rows=1))
    points = choices.has_several_classes(answers["uniform"], answers.labels)
    chosen = choices.some_of(points, samples.COLUMNS, 3)
    assert len(chosen) == samples.COLUMNS
    wide = (sheet.WIDTH - 2 * sheet.MARGIN) / samples.COLUMNS
    top = round((sheet.MARGIN + 0.32) * sheet.DOTS)
    for column, place in enumerate(chosen):
        left = round((sheet.MARGIN + (column + 0.5) * wide) * sheet.DOTS) - 96
        middles = pixels[top + 12 : top + 192 : 24, left + 12 : left + 192 : 24, 0]  # of pixels 24 dots wide
        assert (middles == data.test.x[place, 0].numpy()).all()
        assert answers["uniform"].core[place].sum() > 1
        assert answers["uniform"].ranking[place, 0] == data.test.y[place]


def test_nothing_that_qualifies_is_reported(quick):
    answers, data = answers_of(runs_of(quick, "digits/rt3", 0)[0]), digits()
    networks = {"standard": answers, "rt3": answers}  # whatever one rejects, the other does too
    pixels = picture(samples.draw_recovered(networks, data, relaxed="rt3", classes=("4",), seed=0))
    assert len(pixels) < 400


def test_networks_at_other_points_are_refused(quick, tmp_path):
    answers, data = answers_of(runs_of(quick, "digits/rt3", 0)[0]), digits()
    with pytest.raises(ArgumentError, match="answers of rt3 at the 1,198 test points of digits"):
        samples.draw_together(
            answers, type(data)("digits", data.test, data.train, data.class_names, ""), network="rt3", seed=0
        )


@pytest.mark.parametrize("classes", [7, 30])
def test_groups_where_nothing_is_certified(classes):
    ties = torch.zeros(5, classes, dtype=torch.float64)
    certificate = certify_logits(ties, HeadConstants(torch.eye(classes, dtype=torch.float64)), 0.1, "rt3")
    assert not certificate.certified.any()
    pixels = picture(draw_groups(certificate, title="None", superclasses=[str(place // 5) for place in range(classes)]))
    assert not has(pixels, INSIDE).any()
    assert not has(pixels, ACROSS).any()


def test_groups_of_many_classes():
    certificate, _ = random_certificate(points=300, classes=30)
    names = [f"class_{place}" for place in range(30)]
    plain = picture(draw_groups(certificate.named(names), title="Many"))
    above = picture(
        draw_groups(certificate.named(names), title="Many", superclasses=[str(place // 5) for place in range(30)])
    )
    blue, orange = "#0072b2", "#d55e00"
    assert has(plain, blue).mean() > 0.01
    assert not has(plain, orange).any()
    assert has(above, orange).mean() > 0.01


# -- the command ------------------------------------------------------------------------------------------------------


def test_every_figure_is_of_recipes_that_come_with_safeset():
    assert {row for figure in FIGURES.values() for row in figure.rows} <= set(list_recipes())


def test_surfaces_train_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "recipe_of", lambda row, changes: recipe_of(row, {**changes, "epochs": 1}))
    figure = Figure(("blobs2d/rt2",), lambda runs, seed, device: str(sorted(runs)).encode(), quick=True)
    told = []
    (path,) = draw(runs=tmp_path / "runs", out=tmp_path, seed=4, tell=told.append, figures={"quick": figure})
    assert told == ["Training blobs2d/rt2, seed 4."]
    assert path.read_bytes() == b"['rt2']"
    assert Run(tmp_path / "runs" / "blobs2d" / "rt2-seed4").read_recipe().seed == 4


def test_what_is_left_out_is_reported(tmp_path):
    told = []
    draw(runs=tmp_path, tell=told.append)  # nothing is drawn before it is asked for
    assert len(told) == len(FIGURES) - 1
    for line, (name, figure) in zip(told, list(FIGURES.items())[1:], strict=True):
        assert line.startswith(f"Left out {name}: there is no {figure.rows[0]}")
        assert (
            f"safeset reproduce {' '.join(figure.rows)} --seeds 1 --out {tmp_path}/results --runs {tmp_path} trains"
            in line
        )


def test_the_command(quick, tmp_path):
    shutil.copytree(runs_of(quick, "digits/rt3", 0)[0].path, tmp_path / "runs" / "paper" / "eurosat" / "rt3-seed0")
    output, errors = safeset("figures", "groups-eurosat", "--device", "cpu", cwd=tmp_path)
    assert output == "Drawn: docs/figures/groups-eurosat.png\n"
    assert errors == ""
    assert picture((tmp_path / "docs" / "figures" / "groups-eurosat.png").read_bytes()).std() > 10


def test_mistakes_of_the_command(tmp_path):
    _, errors = safeset("figures", "superclases", cwd=tmp_path, code=1)
    assert errors.startswith("error: Expected figures among surfaces, eurosat,")
    assert errors.endswith("but got 'superclases'. Did you mean 'superclasses'?\n")
    _, errors = safeset("figures", "surfaces", "eurosat", "--seed", "2", cwd=tmp_path, code=1)
    assert errors == (
        "error: Expected the networks of eurosat, seed 2, in runs/paper, but got no eurosat/standard and no "
        "eurosat/rt3. safeset reproduce eurosat/standard eurosat/rt3 --seeds 3 --out runs/paper/results trains them.\n"
    )
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')")  # `python -m` looks here first
    _, errors = safeset("figures", "surfaces", cwd=tmp_path, code=1)
    assert errors == (
        "error: Expected matplotlib, which draws the figures, but got none. pip install 'safeset[report]' brings it.\n"
    )
    assert not (tmp_path / "docs").exists()
    assert not (tmp_path / "runs").exists()


def test_without_matplotlib_nothing_begins(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SafesetError, match=r"pip install 'safeset\[report\]'"):
        draw(["surfaces"], runs=tmp_path, out=tmp_path)


def test_a_figure_without_its_data_is_left_out(tmp_path):
    def none(runs, seed, device):
        raise DataNotFoundError("Expected photographs, but nothing is there.")

    others, told = {"one": Figure((), none), "two": Figure((), lambda *_: b"two")}, []
    assert list(draw(out=tmp_path, figures=others, tell=told.append)) == [tmp_path / "two.png"]
    assert told == ["Left out one: Expected photographs, but nothing is there."]
    with pytest.raises(DataNotFoundError):
        list(draw(["one"], out=tmp_path, figures=others))
