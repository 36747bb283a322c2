"""Recipes: TOML and back, mistakes named, every row of the paper's table there with its hyper-parameters."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safeset import Affinity, ArgumentError, Recipe
from safeset.certificates.margins import METHODS
from safeset.data.augmentation import FLIPS, Augmentation
from safeset.data.dataset import Dataset, Split
from safeset.data.embedded import digits
from safeset.losses import LOSSES, RELAXATIONS
from safeset.recipes.library import assemble_recipe, find_recipe, list_recipes, recipe_folder
from safeset.recipes.schedules import Schedule
from safeset.recipes.sections import OPTIMISERS, Data, Loss, Optimiser, Task
from safeset.recipes.toml import override

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
positive = st.floats(1e-6, 1e6)
shapes = st.sampled_from(["", "half", "after half", "cosine"])
schedules = st.builds(Schedule, positive, positive, shapes, st.sampled_from([0.0, 0.1, 0.25]))
losses = st.builds(
    Loss, st.sampled_from(LOSSES), schedules, st.sampled_from(METHODS[:2]), st.integers(0, 9)
) | st.builds(
    Loss,
    st.just("emma"),
    radius=schedules,
    temperature=positive,
    floor=st.floats(0.001, 1),
    relaxation=st.sampled_from(list(RELAXATIONS)),
    relaxed=st.floats(0, 1),
    anneal=st.floats(0, 9),
)
some = st.none() | st.floats(1e-3, 0.999)
optimisers = st.builds(
    Optimiser, st.sampled_from(OPTIMISERS[:-1]), schedules, st.floats(0, 1), clip=some, average=some
) | st.builds(Optimiser, st.just("muon"), schedules, rate_of_others=some, rate_of_positions=some)
recipes = st.builds(
    Recipe,
    data=st.builds(
        Data,
        source=texts,
        size=st.none() | st.integers(1, 999),
        label=st.none() | texts,
        ranges=st.none() | st.dictionaries(texts, st.tuples(st.floats(-5, 0), st.floats(0, 5)), min_size=1),
        skip_bad=st.booleans(),
    ),
    guarantee=st.sampled_from([None, "standard", "rt3", "top2", "affinity:groups", 'affinity:{"sets":[["a","ü\\""]]}']),
    epsilon=st.none() | st.floats(0, 1e3),
    model=st.sampled_from([None, "cnn-2c2f"]),
    epochs=st.integers(1, 999),
    batch=st.none() | st.integers(1, 999),
    seed=st.integers(0, 999),
    validation=st.booleans(),
    augmentation=st.builds(Augmentation, st.sampled_from(FLIPS), st.booleans(), st.integers(0, 9)),
    loss=losses,
    optimiser=optimisers,
    task=st.none() | st.builds(Task, st.just((1, 8, 8)), st.just(("a", "b\n")), texts),
)


@given(recipes)
def test_a_recipe_is_the_same_after_a_trip_through_toml(recipe):
    table = tomllib.loads(recipe.text())
    again = Recipe.from_table(table)
    if recipe.guarantee and "sets" in recipe.guarantee:
        assert again.guarantee == recipe.guarantee
    assert again == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 5\n[data]\nsource = 'digits'", "'epoch'. Did you mean 'epochs'"),
        ("[data]\nsource = 'digits'\nsiz = 5", r"keys of \[data\].*'siz'. Did you mean 'size'"),
        ("flips = 'both'\n[data]\nsource = 'digits'", "but got 'flips'"),
        ("epochs = '5'\n[data]\nsource = 'digits'", "`epochs` to be an integer, but got '5'"),
        ("epochs = 0\n[data]\nsource = 'digits'", "`epochs` to be an integer ≥ 1, but got 0"),
        ("epochs = true\n[data]\nsource = 'digits'", "`epochs` to be an integer, but got True"),
        ("epsilon = -1.0\n[data]\nsource = 'digits'", "`epsilon` to be a finite number ≥ 0, but got -1.0"),
        ("epsilon = nan\n[data]\nsource = 'digits'", "`epsilon` to be a finite number ≥ 0, but got nan"),
        ("guarantee = 'tr3'\n[data]\nsource = 'digits'", "a guarantee: standard, top3, rt3"),
        ("model = 'cnn-2c2'\n[data]\nsource = 'digits'", "Did you mean 'cnn-2c2f'"),
        ("seed = -1\n[data]\nsource = 'digits'", "`seed` to be an integer"),
        ("[data]\nsource = 'digits'\n[loss]\nname = 'trade'", r"In \[loss\].*Did you mean 'trades'"),
        ("[data]\nsource = 'digits'\n[loss]\nmargins = 'float'", "Did you mean 'floating'"),
        ("[data]\nsource = 'digits'\n[loss]\nweight = '1 => 2'", "In `loss.weight`: Expected a schedule"),
        ("[data]\nsource = 'digits'\n[optimiser]\nname = 'adm'", "Did you mean 'adam'"),
        ("[data]\nsource = 'digits'\n[optimiser]\nrate = '1e-3 -> 0 after half'", "exponential schedule"),
        ("[data]\nsource = 'digits'\n[optimiser]\nrate = '1e-3 -> 0 cosin'", "Did you mean 'cosine'"),
        ("[data]\nsource = 'digits'\n[optimiser]\nrate = '1e-3, warm-up 2'", r"a share of the training in \[0, 1\)"),
        ("[data]\nsource = 'digits'\n[optimiser]\nclip = 0", "`clip` to be a finite norm above 0, but got 0"),
        ("[data]\nsource = 'digits'\n[optimiser]\naverage = 1.0", r"`average` to be a decay in \[0, 1\)"),
        ("[data]\nsource = 'digits'\n[optimiser]\nrate_of_others = 1.0", "only with the optimiser muon"),
        ("[data]\nsource = 'digits'\n[optimiser]\nname = 'muon'\nrate = '0 -> 1'", "starts above 0"),
        ("[data]\nsource = 'digits'\n[optimiser]\nname = 'muon'\nweight_decay = 1", "no `weight_decay` with muon"),
        ("[data]\nsource = 'digits'\n[loss]\ntemperature = 4.0", "`temperature` only with the loss emma"),
        ("[data]\nsource = 'digits'\n[loss]\nname = 'emma'\ntemperature = 0", "finite number above 0"),
        ("[data]\nsource = 'digits'\n[loss]\nname = 'emma'\nfloor = 2", r"share of a margin in \(0, 1\]"),
        ("[data]\nsource = 'digits'\n[loss]\nname = 'emma'\nrelaxed = 2", r"`relaxed` to be a share in \[0, 1\]"),
        ("[data]\nsource = 'digits'\n[loss]\nname = 'emma'\nanneal = -1", "`anneal` to be a number ≥ 0"),
        ("[data]\nsource = 'digits'\n[loss]\nname = 'emma'\nrelaxation = 'dorp'", "Did you mean 'drop'"),
        ("[data]\nsource = 'digits'\n[augmentation]\nflips = 'horisontal'", "Did you mean 'horizontal'"),
        ("[data]\nsource = 'digits'\n[augmentation]\nshift = -1", "number of pixels ≥ 0"),
        ("[data]\nsource = 'x.csv'\n[data.ranges]\na = [2, 1]", "pairs"),
        ("[data]\nsource = 'x.csv'\nranges = 5", "`data.ranges` to be a table, but got 5"),
        ("[data]\nsize = 5", "`data.source`, but got none"),
        ("data = 'digits'", "`data` to be a table, but got 'digits'"),
        ("[data]\nsource = 'digits'\n[guarantee]\nset = [[1, 2]]", "Did you mean 'sets'"),
        ("epochs = ", "to be TOML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=message):
        Recipe.read(path)


def test_a_recipe_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(ArgumentError, match="No such file"):
        Recipe.read(tmp_path / "none.toml")
    with pytest.raises(ArgumentError, match="Did you mean 'cifar100/rt5'"):
        find_recipe("cifar10/rt5")


def test_data_in_the_place_of_a_recipe_is_told_its_flag(tmp_path):
    table = tmp_path / "own.csv"
    table.write_text("a,b,label\n1,2,cat\n")
    for name in ("digits", str(tmp_path), str(table)):
        with pytest.raises(ArgumentError, match=re.escape(f"--data {name}")):
            find_recipe(name)


PAPER = {  # the paper's table of hyper-parameters: epochs, batch, rate, loss, weight
    "eurosat/standard": ("standard", 200, 256, "0.001 -> 1e-06 after half", "trades", "0.01 -> 1.2 log half"),
    "eurosat/rt3": ("rt3", 200, 256, "0.001 -> 1e-06 after half", "trades", "1.0 -> 1.2"),
    "eurosat/highway-river": (None, 200, 256, "0.001 -> 1e-06 after half", "cross-entropy", None),
    "eurosat/highway-river-agriculture": (None, 200, 256, "0.001 -> 1e-06 after half", "cross-entropy", None),
    "cifar100/standard": ("standard", 200, 256, "0.001 -> 1e-06 after half", "trades", "0.01 -> 1.2 log half"),
    "cifar100/rt5": ("rt5", 200, 256, "0.001 -> 1e-06 after half", "trades", "0.01 -> 1.2 log half"),
    "cifar100/superclass": (None, 200, 256, "0.001 -> 1e-06 after half", "trades", "0.01 -> 1.2 log half"),
    # The paper's 200 epochs at 2.5e-5 do not reach its VRA: chosen on validation data, docs/paper.md.
    "tiny-imagenet/rt5": ("rt5", 30, 256, "0.0003 -> 5e-06 after half", "trades", "1.0 -> 10.0 half"),
    "acasxu/targeted": (None, 100, 128, "0.001 -> 5e-06 after half", "cross-entropy", None),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_rows_have_its_hyper_parameters(name):
    guarantee, epochs, batch, rate, loss, weight = PAPER[name]
    recipe = Recipe.read(find_recipe(name))
    assert guarantee is None or recipe.guarantee == guarantee
    assert (recipe.epochs, recipe.batch, str(recipe.optimiser.rate)) == (epochs, batch, rate)
    assert (recipe.optimiser.name, recipe.loss.name, recipe.loss.power_steps) == ("adam", loss, 2)
    assert weight is None or str(recipe.loss.weight) == weight
    assert recipe.loss.margins == "uniform"
    assert recipe.epsilon == (0.01 if name.startswith("acasxu") else 0.141)
    assert recipe.data.source == name.partition("/")[0]


def test_every_recipe_reads_and_is_in_the_wheel():
    assert len(list_recipes()) >= 16
    for name in list_recipes():
        recipe = Recipe.read(find_recipe(name))
        assert Recipe.from_table(tomllib.loads(recipe.text())) == recipe
    assert recipe_folder().name == "recipes"


def fake(names, groups=None, identifiers=None):
    split = Split(torch.zeros(len(names), 3, 64, 64, dtype=torch.uint8), torch.arange(len(names)))
    return Dataset("fake", split, split, tuple(names), "pixels", groups, identifiers)


EUROSAT = ("AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture", "PermanentCrop")
EUROSAT += ("Residential", "River", "SeaLake")


def test_eurosat_s_affinity_sets_are_the_paper_s():
    data = fake(EUROSAT)

    def sets(name):
        fitted = Recipe.read(find_recipe(name)).fit(data)
        return {frozenset(one) for one in fitted.table()["guarantee"]["sets"]}

    together = {"Highway", "River"}
    assert sets("eurosat/highway-river") == {frozenset({name, *together}) for name in EUROSAT}
    crops = {"AnnualCrop", "PermanentCrop"}
    expected = {frozenset({name, *together, *(crops if name in crops else ())}) for name in EUROSAT}
    found = sets("eurosat/highway-river-agriculture")
    for one in expected:  # each promised set lies in one of the recipe's, and each of those is promised
        assert any(one <= other for other in found)
    assert found <= expected


def test_acas_xu_s_neighbours_are_adjacent():
    names = ("clear of conflict", "weak left", "weak right", "strong left", "strong right")
    recipe = Recipe.read(find_recipe("acasxu/targeted"))
    resolved = recipe.resolve_guarantee(fake(names))
    assert resolved == Affinity([[3, 1], [1, 0], [0, 2], [2, 4]])


def test_a_data_set_s_own_groups_and_identifiers_bind():
    data = fake(["rose", "bus", "orchid"], groups=("flowers", "vehicles", "flowers"))
    recipe = Recipe(Data("fake"), guarantee="affinity:groups")
    assert recipe.resolve_guarantee(data) == Affinity([[0, 2], [1]])
    with pytest.raises(ArgumentError, match="which has none"):
        recipe.resolve_guarantee(fake(["a", "b"]))
    data = fake(["rose", "bus", "orchid"], identifiers=("n1", "n2", "n3"))
    assert Recipe(Data("fake"), guarantee='affinity:{"sets":[["n1","n3"]]}').resolve_guarantee(data) == Affinity(
        [[0, 2]]
    )
    with pytest.raises(ArgumentError, match="'n9'"):
        Recipe(Data("fake"), guarantee='affinity:{"sets":[["n1","n9"]]}').resolve_guarantee(data)


@given(
    st.permutations(["ash", "bee", "cat", "dog"]),
    st.sets(st.sets(st.integers(0, 3), min_size=1, max_size=3).map(frozenset), min_size=1),
)
def test_fitted_sets_read_again_are_the_same_in_whatever_order_the_classes_are_named(names, sets):
    data = fake(names)
    fitted = Recipe(Data("fake"), guarantee=str(Affinity(sets))).fit(data)
    again = Recipe.from_table(tomllib.loads(fitted.text()))
    assert again.table() == fitted.table()
    assert again.resolve_guarantee(data) == fitted.resolve_guarantee(data) == Affinity(sets)


def test_a_name_that_no_file_can_have_is_a_name(tmp_path):
    assert Recipe.from_table({"data": {"source": 400 * "9"}}, tmp_path).data.source == 400 * "9"


def test_fitting_leaves_nothing_open_and_writes_affinity_sets_out():
    recipe = Recipe(Data("digits"), guarantee='affinity:{"everyone_with":["0"]}').fit(digits())
    assert None not in (recipe.epsilon, recipe.model, recipe.batch, recipe.task)
    assert ["0", "1"] in recipe.table()["guarantee"]["sets"]
    assert recipe.task == Task((1, 8, 8), tuple("0123456789"), "pixels in [0, 1]", (0.0, 1.0))
    assert Recipe.from_table(tomllib.loads(recipe.text())).fit(digits()) == recipe
    default = Recipe(Data("digits")).fit(digits())
    assert (default.guarantee, default.model) == ("rt3", "cnn-1c1f")
    again = Recipe.from_table(tomllib.loads(default.text()))
    assert again.as_fitted() == default
    assert again.text() == default.text()
    assert Recipe(Data("digits")).as_fitted() is None
    two = fake(["a", "b"])
    assert Recipe(Data("x")).fit(two).guarantee == "standard"
    assert Recipe(Data("eurosat")).fit(two).model == "cnn-2c2f"
    with pytest.raises(ArgumentError, match="below the 8 pixels"):
        Recipe(Data("digits"), augmentation=Augmentation(shift=8)).fit(digits())


def test_flags_override_and_other_data_brings_its_own_options(tmp_path):
    recipe = assemble_recipe("acasxu/targeted", {"epochs": 3, "data.points": 100, "loss.name": "trades"})
    assert (recipe.epochs, recipe.data.points, recipe.data.network, recipe.loss.name) == (3, 100, "1_1", "trades")
    other = assemble_recipe("acasxu/targeted", {"data.source": "digits", "guarantee": "rt3"})
    assert other.data == Data("digits")
    with pytest.raises(ArgumentError, match="something to train on, but got nothing"):
        assemble_recipe(None, {"epochs": 3})
    with pytest.raises(ArgumentError, match="Did you mean 'margins'"):
        assemble_recipe("digits/rt3", {"loss.margin": "joint"})
    assert override({"a": {"b": 1}}, {"a.c": 2}) == {"a": {"b": 1, "c": 2}}


def test_files_beside_a_recipe_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "sets.toml").write_text('sets = [["1", "7"]]')
    (folder / "points.csv").write_text("a,y\n1,x\n2,y\n")
    (folder / "recipe.toml").write_text('guarantee = "affinity:sets.toml"\n[data]\nsource = "points.csv"')
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.read(Path("mine/recipe.toml"))
    assert recipe.guarantee == 'affinity:{"sets":[["1","7"]]}'
    assert Path(recipe.data.source) == Path("mine/points.csv")
