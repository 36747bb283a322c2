"""The benchmark of affinity sets: its numbers are those of an evaluation, on points that chose nothing."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from safeset import Affinity, ArgumentError, train
from safeset.data.embedded import digits
from safeset.evaluation import evaluate
from safeset.runs.load import load_run
from safeset.runs.run import Run

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
GROUPS = {"round": "0689", "straight": "147", "bent": "235", "open": "01"}


@pytest.fixture(scope="module")
def gains():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        for name in ("common", "affinity_gains"):
            patch.delitem(sys.modules, name, raising=False)
        import affinity_gains

        yield affinity_gains


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("gains")
    table = {"data": {"source": "digits"}, "epochs": 3, "guarantee": "rt3", "epsilon": 0.3}
    train(table, out=path / "run")
    train({**table, "validation": True}, out=path / "validated")
    return path


def asked(**changes):
    return Namespace(**{"device": None, "k": None, "pairs": 3, "hierarchy": None, "heights": [], **changes})


def test_pairs_are_chosen_on_points_that_are_in_no_number(gains, work):
    whole = digits()
    found = gains.measure(work / "run", asked())
    assert (found["chosen_on"]["points"], found["reported_on"]["points"]) == (
        len(whole.test) // 3,
        len(whole.test) - len(whole.test) // 3,
    )
    choice, _, rest, _ = gains.split_points(Run(work / "run").read_recipe(), whole)
    places = {tuple(x.flatten().tolist()) for x in choice.x}
    assert not any(tuple(x.flatten().tolist()) in places for x in rest.x)
    held = gains.measure(work / "validated", asked())
    assert held["chosen_on"]["digest"] == whole.for_choices().test.digest()
    assert held["reported_on"]["digest"] == whole.test.digest()


def test_numbers_are_those_of_an_evaluation(gains, work):
    net, _ = load_run(Run(work / "run"))
    _, _, rest, _ = gains.split_points(Run(work / "run").read_recipe(), whole := digits())
    found = gains.measure(work / "run", asked())
    standard, relaxed, *_, most = found["rows"]
    sets = Affinity(most["together"])  # no three of them are paired with each other, so that each pair is a set
    assert (standard["name"], relaxed["name"], most["pairs"]) == ("standard", "rt3", 3)
    assert most["largest"] == 2
    for row, guarantee in ((standard, "standard"), (relaxed, "rt3"), (most, sets.bind(whole.class_names))):
        for own in evaluate(net, rest, guarantee=guarantee, methods=gains.METHODS):
            assert row[own["method"]] == {name: own[name] for name in row[own["method"]]}
            assert row["baseline"] == own["baseline"]
    for way in gains.METHODS:
        assert (standard["recovered"][way], relaxed["recovered"][way]) == (0.0, 1.0)
        assert most["recovered"][way] == pytest.approx(
            (most[way]["vra"] - standard[way]["vra"]) / (relaxed[way]["vra"] - standard[way]["vra"])
        )


def test_a_hierarchy_beside_sets_of_the_same_sizes(gains, work, tmp_path):
    edges = [("all", name) for name in GROUPS] + [(name, leaf) for name, some in GROUPS.items() for leaf in some]
    (tmp_path / "is_a.tsv").write_text("".join(f"{parent}\t{child}\n" for parent, child in edges))
    found = gains.measure(work / "run", asked(hierarchy=tmp_path / "is_a.tsv", heights=[1, 2, 4], k=2))
    net, _ = load_run(Run(work / "run"))
    standard, relaxed, *rows = found["rows"]
    assert relaxed["name"] == "rt2"
    assert [row["pairs"] for row in rows] == [0, 0, 1, 1, 13, 13]
    assert [row["alone"] for row in rows] == [10, 10, 8, 8, 0, 0]
    assert rows[0]["joint"] == standard["joint"]  # each class alone
    sets = Affinity([list(map(int, some)) for some in GROUPS.values()])
    for own in evaluate(net, digits().test, guarantee=sets, methods=gains.METHODS):
        assert rows[-2][own["method"]] == {name: own[name] for name in rows[-2][own["method"]]}
    assert rows[-1]["largest"] == rows[-2]["largest"] == 4


def test_published_numbers_are_replaced_by_their_own_command_alone(gains, work, tmp_path, monkeypatch):
    """Others, such as those of --pairs 2, need a name of their own."""
    monkeypatch.setattr(gains, "ROOT", tmp_path)
    published = tmp_path / "results" / "affinity" / "digits.json"
    given = asked(run=work / "run", name=None)
    assert gains.file_of(given, "python a") == "affinity/digits.json"
    published.parent.mkdir(parents=True)
    published.write_text('{"command": "python a"}')
    assert gains.file_of(given, "python a") == "affinity/digits.json"
    with pytest.raises(ArgumentError, match=r"a --name for these numbers.*digits\.json has those of: python a"):
        gains.file_of(given, "python a --pairs 2")
    assert gains.file_of(asked(run=work / "run", name="mine"), "python a --pairs 2") == "affinity/mine.json"
    assert gains.file_of(asked(run=work / "run", name="digits"), "python b") == "affinity/digits.json"
