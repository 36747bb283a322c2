import json
from pathlib import Path

import numpy as np
import pytest
import torch

from safeset import Affinity, ArgumentError, Standard
from safeset.guarantees.affinity import from_hierarchy
from safeset.guarantees.text import parse

EUROSAT = [
    "annual crop",
    "forest",
    "herbaceous vegetation",
    "highway",
    "industrial",
    "pasture",
    "permanent crop",
    "residential",
    "river",
    "sea lake",
]
WORDNET = Path(__file__).parents[3] / "shared" / "data" / "tiny-imagenet-200.is_a.tsv"


def test_highway_river():
    bound = Affinity(everyone_with=["river", "highway"]).bind(EUROSAT)
    assert set(bound.sets) == {tuple(sorted({c, 3, 8})) for c in range(10)}
    assert bound.largest_k(10) == 3
    assert Affinity(everyone_with=[8, 3]).largest_k(10) == 3
    assert bound == Affinity(everyone_with=[8, 3]).bind(EUROSAT)


def test_highway_river_agriculture():
    bound = Affinity([["annual crop", "permanent crop"]], everyone_with=["river", "highway"]).bind(EUROSAT)
    assert (0, 3, 6, 8) in bound.sets
    assert (0, 3, 8) not in bound.sets
    assert {(c, 3, 8) for c in (1, 2)} <= set(bound.sets)
    assert (3, 8, 9) in bound.sets
    assert bound.largest_k(10) == 4


def test_groups():
    assert Affinity.from_groups([0, 1, 0, 1]) == Affinity([[0, 2], [1, 3]])
    assert Affinity.from_groups({3: "a", 1: "a", 0: "b"}) == Affinity([[0], [1, 3]])
    for groups in (np.array([0, 1, 0]), torch.tensor([0, 1, 0]), list(torch.tensor([0, 1, 0]))):
        assert Affinity.from_groups(groups) == Affinity([[0, 2], [1]])


def test_neighbours():
    advisories = ["clear", "weak left", "weak right", "strong left", "strong right"]
    order = ["strong left", "weak left", "clear", "weak right", "strong right"]
    assert Affinity.from_neighbours(order).bind(advisories) == Affinity([[3, 1], [1, 0], [0, 2], [2, 4]])


class TestHierarchy:
    #        thing
    #       /     \
    #   animal    pet      (dog and cat have two parents)
    #   /  |  \  /  |
    #  cow cat dog  robot
    EDGES = (
        ("thing", "animal"),
        ("thing", "pet"),
        ("animal", "cow"),
        ("animal", "cat"),
        ("animal", "dog"),
        ("pet", "cat"),
        ("pet", "dog"),
        ("pet", "robot"),
    )

    def test_by_number_of_leaves(self):
        sets = from_hierarchy(self.EDGES, max_leaves=3)
        assert sets == [["cat", "cow", "dog"], ["cat", "dog", "robot"]]
        assert from_hierarchy(self.EDGES, max_leaves=2) == [["cat"], ["cow"], ["dog"], ["robot"]]

    def test_by_depth(self):
        assert from_hierarchy(self.EDGES, depth=1) == [["cat", "cow", "dog"], ["cat", "dog", "robot"]]
        assert from_hierarchy(self.EDGES, depth=0) == [["cat", "cow", "dog", "robot"]]
        # A leaf beside the chosen depth stays alone.
        shallow = [*self.EDGES, ("thing", "stone")]
        guarantee = Affinity.from_hierarchy(shallow, depth=2).bind(["cow", "cat", "dog", "robot", "stone"])
        assert guarantee.largest_k(5) == 1

    def test_depth_is_by_the_shortest_way(self):
        edges = [*self.EDGES, ("thing", "cow")]
        assert ["cow"] in from_hierarchy(edges, depth=1)

    def test_the_root_would_be_all_classes(self):
        guarantee = Affinity.from_hierarchy(self.EDGES, max_leaves=4)
        with pytest.raises(ArgumentError, match="a set of all 4 classes"):
            guarantee.bind(["cow", "cat", "dog", "robot"])

    def test_cycles(self):
        with pytest.raises(ArgumentError, match=r"without cycles, but got (a → b → c → a|b → c → a|c → a)"):
            from_hierarchy([("a", "b"), ("b", "c"), ("c", "a")], max_leaves=2)
        with pytest.raises(ArgumentError, match="without cycles"):
            from_hierarchy([("a", "a")], depth=1)

    @pytest.mark.parametrize(
        "options", [{}, {"max_leaves": 2, "depth": 1}, {"max_leaves": 0}, {"depth": -1}, {"depth": 9}, {"depth": True}]
    )
    def test_bad_choices(self, options):
        with pytest.raises(ArgumentError, match="Expected"):
            from_hierarchy(self.EDGES, **options)

    @pytest.mark.parametrize("edges", [[], [("a",)], ["ab"], [("a", "b"), 3], None, [("a", [])]])
    def test_bad_edges(self, edges):
        with pytest.raises(ArgumentError, match="Expected"):
            from_hierarchy(edges, max_leaves=2)

    def test_deep_chains(self):
        edges = [(f"n{depth}", f"n{depth + 1}") for depth in range(5000)] + [("n0", "other")]
        assert from_hierarchy(edges, max_leaves=1) == [["n5000"], ["other"]]

    @pytest.mark.skipif(not WORDNET.exists(), reason=f"needs {WORDNET.name} of the shared data")
    def test_wordnet(self, tmp_path):
        (tmp_path / "is_a.tsv").write_text(WORDNET.read_text())
        (tmp_path / "sets.toml").write_text('hierarchy = { edges = "is_a.tsv", max_leaves = 20 }')
        guarantee = Affinity.from_file(tmp_path / "sets.toml")
        leaves = sorted({leaf for one in guarantee.sets for leaf in one})
        assert len(leaves) == 200
        assert 1 < guarantee.bind(leaves).largest_k(200) <= 20


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ('sets = [["river", "highway"], ["annual crop", "permanent crop"]]', [[3, 8], [0, 6]]),
            ('groups = { forest = "plants", pasture = "plants", river = "water" }', [[1, 5], [8]]),
            ('neighbours = ["forest", "pasture", "river"]', [[1, 5], [5, 8]]),
            ('sets = [["forest", "river"]]\nneighbours = ["pasture", "highway"]', [[1, 8], [3, 5]]),
            (
                '[hierarchy]\nedges = [["a", "forest"], ["a", "river"], ["b", "a"], ["b", "pasture"]]\ndepth = 1',
                [[1, 8], [5]],
            ),
        ],
    )
    def test_toml_and_json_say_the_same(self, tmp_path, text, wanted):
        import tomllib

        (tmp_path / "sets.toml").write_text(text)
        (tmp_path / "sets.json").write_text(json.dumps(tomllib.loads(text)))
        for name in ("sets.toml", "sets.json"):
            guarantee = parse(f"affinity:{tmp_path / name}")
            assert guarantee.bind(EUROSAT) == Affinity(wanted)
            assert parse(str(guarantee)) == guarantee

    def test_everyone_with(self, tmp_path):
        (tmp_path / "a.toml").write_text('everyone_with = ["river", "highway"]')
        assert Affinity.from_file(tmp_path / "a.toml").bind(EUROSAT) == Affinity(everyone_with=[3, 8]).bind(EUROSAT)

    def test_indices_as_keys(self, tmp_path):
        (tmp_path / "a.toml").write_text('groups = { 0 = "x", 2 = "x", 1 = "y" }')
        guarantee = Affinity.from_file(tmp_path / "a.toml")
        assert guarantee.largest_k(4) == 2
        assert guarantee.bind(["a", "b", "c", "d"]) == Affinity([[0, 2], [1]])
        assert guarantee.bind(["2", "0", "1", "d"]) == Affinity([[0, 1], [2]])  # names come first
        with pytest.raises(ArgumentError, match=r"0\.\.1"):
            guarantee.bind(["a", "b"])

    def test_other_suffixes(self, tmp_path):
        (tmp_path / "a.yaml").write_text("sets: [[0, 1]]")
        with pytest.raises(ArgumentError, match=r"toml or \.json"):
            Affinity.from_file(tmp_path / "a.yaml")

    def test_a_json_list_is_sets(self, tmp_path):
        (tmp_path / "a.json").write_text("[[0, 1], [2]]")
        assert Affinity.from_file(tmp_path / "a.json") == Affinity([[0, 1], [2]])

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.toml", 'set = [["a"]]', "'set'. Did you mean 'sets'"),
            ("a.toml", 'neighbors = ["a", "b"]', "Did you mean 'neighbours'"),
            ("a.toml", "sets = [[]]", "an empty one"),
            ("a.toml", "sets = 3", "lists"),
            ("a.toml", "sets = [3]", "a collection of classes"),
            ("a.toml", 'sets = ["ab"]', "a collection of classes"),
            ("a.toml", "sets = [[0, 0]]", "0 again"),
            ("a.toml", 'sets = [["a", 0]]', "both"),
            ("a.toml", "sets = [[1.5]]", "1.5"),
            ("a.toml", "", "one or more of"),
            ("a.toml", "sets = [[", "TOML"),
            ("a.toml", "neighbours = [[1], [2]]", "indices or names"),
            ("a.json", "[[" + "9" * 5000 + "]]", "JSON"),
            ("a.json", "{", "JSON"),
            ("a.json", '"x"', "one or more of"),
            ("a.toml", 'neighbours = ["a"]', "at least two"),
            ("a.toml", 'neighbours = ["a", "b", "a"]', "'a' again"),
            ("a.toml", "groups = 3", "map each class"),
            ("a.toml", "groups = { a = [1] }", "a name or a number"),
            ("a.toml", "hierarchy = 3", "`edges`"),
            ("a.toml", "hierarchy = { edges = 3, depth = 1 }", "a list or a file"),
            ("a.toml", 'hierarchy = { edges = [["a", "b"]], max_leafs = 1 }', "Did you mean 'max_leaves'"),
            ("a.toml", "hierarchy = { edges = [[[], 1]], depth = 1 }", "names or indices"),
            ("a.toml", 'hierarchy = { edges = "missing.tsv", depth = 1 }', "missing.tsv"),
        ],
    )
    def test_what_is_wrong_is_said(self, tmp_path, name, text, message):
        (tmp_path / name).write_text(text)
        with pytest.raises(ArgumentError, match="Expected") as error:
            Affinity.from_file(tmp_path / name)
        assert message in str(error.value)

    @pytest.mark.parametrize("path", [None, 3])
    def test_not_a_path(self, path):
        with pytest.raises(ArgumentError, match="path"):
            Affinity.from_file(path)

    def test_missing_and_binary_files(self, tmp_path):
        with pytest.raises(ArgumentError, match="No such file"):
            parse(f"affinity:{tmp_path / 'nothing.toml'}")
        (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ArgumentError, match="UTF-8"):
            Affinity.from_file(tmp_path / "b.toml")

    def test_edges_with_a_broken_line(self, tmp_path):
        (tmp_path / "e.tsv").write_text("a\tb\n\nonly one\n")
        (tmp_path / "a.toml").write_text('hierarchy = { edges = "e.tsv", depth = 1 }')
        with pytest.raises(ArgumentError, match="line 3"):
            Affinity.from_file(tmp_path / "a.toml")

    def test_inline_text_does_not_read_files(self):
        with pytest.raises(ArgumentError, match="written out"):
            parse('affinity:{"hierarchy": {"edges": "/etc/passwd", "depth": 1}}')


class TestBinding:
    def test_strangers(self):
        with pytest.raises(ArgumentError, match=r"'rivr'\. Did you mean 'river'"):
            Affinity([["rivr", "highway"]]).bind(EUROSAT)

    def test_names_may_come_one_by_one(self):
        assert Affinity([["a", "c"]]).bind(name for name in "abc") == Affinity([[0, 2]])

    def test_names_are_a_list(self):
        with pytest.raises(ArgumentError, match="a list of names"):
            Affinity([["a"]]).bind("abc")

    def test_repeated_names(self):
        with pytest.raises(ArgumentError, match="'a' twice"):
            Affinity([["a"]]).bind(["a", "b", "a"])

    def test_names_must_be_bound_before_use(self):
        with pytest.raises(ArgumentError, match="Bind names first"):
            Affinity([["river", "highway"]]).largest_k(10)

    def test_others_bind_to_themselves(self):
        assert Standard().bind(EUROSAT) == Standard()

    @pytest.mark.parametrize(
        "sets",
        [[], [[]], [[0, 0]], [[-1]], [[True]], [["a", 1]], [["a"], [1]], [3], "abc", ["abc"], {"a": "b"}, 5, [[None]]],
    )
    def test_bad_sets(self, sets):
        with pytest.raises(ArgumentError, match="Expected"):
            Affinity(sets)
