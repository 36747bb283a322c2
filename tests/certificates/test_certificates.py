"""Certificates as their users see them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.reference import answer, eligible_ks, ranking, window_table
from helpers.strategies import guarantees, logits, matrices
from safeset import Affinity, ArgumentError, HeadConstants, RelaxedTopK, SafesetError, certify_logits
from safeset.certificates.certificate import Certificate

BAD_LABELS = [
    [0, 1],
    [0, 1, 3],
    [0, 1, -1],
    [0.0, 1.0, 2.0],
    [[0], [1], [2]],
    None,
    "abc",
    [True, False, True],
    [1j] * 3,
]
HEAD = HeadConstants(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.1, 0.0]], dtype=torch.float64))


@given(data=st.data(), values=logits(), epsilon=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
def test_answers_are_those_of_the_definition(data, values, epsilon):
    classes = values.shape[1]
    matrix = data.draw(matrices(classes))
    guarantee, kind = data.draw(guarantees(classes))
    method = data.draw(st.sampled_from(["uniform", "floating"]))
    labels = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=3, max_size=3)))
    certificate = certify_logits(values, matrix, epsilon, guarantee, method=method)
    verified, correct = certificate.verified(labels), certificate.correct(labels)
    for point, row in enumerate(values.tolist()):
        order = ranking(row)
        table = {
            (a + 1, b + 1): certificate.windows[point, a, b].item()
            for a in range(certificate.windows.shape[1])
            for b in range(a, certificate.windows.shape[1])
        }
        assert verified[point].item() == (labels[point].item() in answer(table, order, epsilon, "largest")[0])
        assert correct[point].item() == (labels[point].item() in order[: max(eligible_ks(kind, order))])
        for prefer in ("smallest", "largest"):
            view = certificate.preferring(prefer)
            core, optional, radius = answer(table, order, epsilon, prefer)
            assert set(view.core[point].nonzero()[:, 0].tolist()) == core
            assert set(view.optional[point].nonzero()[:, 0].tolist()) == optional
            assert view.core_radius[point].item() == radius
            assert view.certified[point].item() == bool(core)
            assert view.verified(labels)[point].item() == verified[point].item()
            record = view.records()[point]
            assert record["core"] == [c for c in order if c in core]
            assert record["optional"] == [c for c in order if c in optional]
            assert record["core_radius"] == radius
            assert record["certified"] == bool(core)


@given(data=st.data(), values=logits(), method=st.sampled_from(["uniform", "floating"]))
def test_the_answers_of_a_record_are_those_at_every_epsilon(data, values, method):
    classes = values.shape[1]
    guarantee, _ = data.draw(guarantees(classes))
    certificate = certify_logits(values, data.draw(matrices(classes)), 0.0, guarantee, method=method)
    for prefer in ("smallest", "largest"):
        for point, record in enumerate(certificate.preferring(prefer).records()):
            before, sizes = 0.0, []
            for each in record["answers"]:
                assert each["radius"] > before
                for epsilon in (before, np.nextafter(each["radius"], 0)):
                    there = certificate[point].at(epsilon).preferring(prefer).records()[0]
                    assert [there[key] for key in ("core", "optional", "core_radius")] == list(each.values())
                before = each["radius"]
                sizes.append(len(each["core"]) + len(each["optional"]))
            assert before == record["radius"]
            if before < math.inf:
                assert not certificate[point].at(before).certified.any()
            if prefer == "smallest":
                assert sizes == sorted(sizes)  # answers only grow with ε


def test_a_preference_is_one_of_two():
    certificate = certify_logits([[1.0, 0.0]], torch.ones(2, 2), 0.1, "standard")
    assert certificate.prefer == "smallest"
    for wrong in ("small", None, 1, ["smallest"]):
        with pytest.raises(ArgumentError, match="smallest, largest"):
            certificate.preferring(wrong)
        with pytest.raises(ArgumentError, match="smallest, largest"):
            certify_logits([[1.0, 0.0]], torch.ones(2, 2), 0.1, "standard", prefer=wrong)


def test_uniform_is_the_papers_definition():
    """k* is the largest k with a positive margin; VRA asks for the label in F^k*."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(8, 5))
    matrix = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    values = rng.normal(size=(500, 8))
    certificate = certify_logits(values, HeadConstants(torch.tensor(rows)), 0.1, RelaxedTopK(4), method="uniform")
    for point, row in enumerate(values):
        order = np.argsort(-row)
        margins = [min(row[j] - row[i] - 0.1 * matrix[j, i] for j in order[:k] for i in order[k:]) for k in range(1, 5)]
        positive = [k for k, margin in enumerate(margins, start=1) if margin > 0]
        wanted = set(order[: max(positive)].tolist()) if positive else set()
        largest = certificate[point].preferring("largest")
        assert set(largest.core[0].nonzero()[:, 0].tolist()) == wanted
        assert not largest.optional.any()
        smallest = set(order[: min(positive)].tolist()) if positive else set()
        assert set(certificate.core[point].nonzero()[:, 0].tolist()) == smallest


class TestTheWorkedExample:
    """RT2, floating: logits 1, .8, .75 and rows (0,0), (1,0), (.1,0)."""

    certificate = certify_logits([[1.0, 0.8, 0.75]], HEAD, 0.1, "rt2", method="floating")

    def test_at_a_tenth(self):
        assert self.certificate.core.tolist() == [[True, False, False]]
        assert not self.certificate.optional.any()
        assert self.certificate.core_radius.item() == pytest.approx(0.2)
        assert self.certificate.radius.item() == pytest.approx(2.5)
        assert self.certificate.radii[0].tolist() == pytest.approx([2.5, 0.05 / 0.9])

    def test_at_other_radii_without_a_new_pass(self):
        small, large, beyond = (self.certificate.at(epsilon) for epsilon in (0.01, 1.0, 3.0))
        assert small.core.tolist() == [[True, False, False]]
        assert small.core_radius.item() == pytest.approx(0.2)
        assert small.preferring("largest").core.tolist() == [[True, True, False]]
        assert small.preferring("largest").core_radius.item() == pytest.approx(0.05 / 0.9)
        assert large.core.tolist() == [[True, False, False]]
        assert large.optional.tolist() == [[False, True, False]]
        assert large.core_radius.item() == pytest.approx(2.5)
        assert not beyond.certified.any()
        assert not beyond.core.any()
        assert beyond.core_radius.item() == 0
        assert self.certificate.epsilon == 0.1

    def test_prints_with_names(self):
        named = self.certificate.at(1.0).named(["cat", "dog", "cow"])
        assert str(named).splitlines()[1] == "  0: {cat} (may also include dog) below 2.499"
        assert str(self.certificate.at(9.0)).splitlines()[1] == "  0: ⊥ no certificate"
        wanted = "Certificate(1 of 1 points certified, RelaxedTopK(2), epsilon=1, method='floating', prefer='smallest')"
        assert repr(named) == wanted

    def test_records(self):
        (record,) = self.certificate.at(1.0).named(["cat", "dog", "cow"]).records()
        assert record == {
            "certified": True,
            "core": ["cat"],
            "optional": ["dog"],
            "radius": pytest.approx(2.5),
            "core_radius": pytest.approx(2.5),
            "promise": "cat stays among the 2 best classes, and only cat or dog can be the best, for every change "
            "below 2.499",
            "answers": [
                {"core": ["cat"], "optional": [], "radius": pytest.approx(0.2)},
                {"core": ["cat"], "optional": ["dog"], "radius": pytest.approx(2.5)},
            ],
            "epsilon": 1.0,
            "guarantee": "rt2",
            "method": "floating",
            "prefer": "smallest",
        }

    def test_the_promise_is_that_of_the_answer(self):
        """Beside {cat} stands its own radius, .2, and not 2.5, to which cat stays among the two best."""
        (record,) = self.certificate.named(["cat", "dog", "cow"]).records()
        assert record["promise"] == "cat stays the best class for every change below 0.1999"
        assert record["core_radius"] == pytest.approx(0.2)
        assert record["radius"] == pytest.approx(2.5)

    def test_what_holds_of_a_rejected_point_is_no_answer(self):
        """ "Only cat stays" would read as if no other class did."""
        (record,) = self.certificate.at(9.0).named(["cat", "dog", "cow"]).records()
        assert record["promise"] == (
            "no certificate at ε; what does hold: cat stays among the 2 best classes, and only cat or dog can be the "
            "best, for every change below 2.499"
        )

    def test_says_what_it_covers(self):
        assert "given logits" in self.certificate.covers


class TestBatches:
    certificate = certify_logits(
        torch.randn(30, 6, generator=torch.Generator().manual_seed(0)), torch.ones(6, 6), 0.1, "rt3"
    )

    @pytest.mark.parametrize("index", [slice(3, 9), slice(None, None, 2), [1, 4], torch.arange(30) > 20])
    def test_slices(self, index):
        part = self.certificate[index]
        for name in ("certified", "core", "optional", "radii", "radius", "core_radius", "ranking"):
            assert torch.equal(getattr(part, name), getattr(self.certificate, name)[index])

    @pytest.mark.parametrize("index", [0, -1, 29, np.int64(4), torch.tensor(4), np.array(4)])
    def test_single_points(self, index):
        assert len(self.certificate[index]) == 1
        assert torch.equal(self.certificate[index].core[0], self.certificate.core[index])

    @pytest.mark.parametrize("index", [True, None, (0.5,), 1.0, "0", [[1, 2]], np.array([1.5]), ["a"], np.array(True)])
    def test_not_an_index(self, index):
        with pytest.raises(ArgumentError, match="a slice"):
            self.certificate[index]

    def test_out_of_range(self):
        with pytest.raises(IndexError):
            self.certificate[30]

    def test_no_points(self):
        assert len(self.certificate[[]]) == len(self.certificate[5:5]) == 0

    def test_backwards(self):
        assert torch.equal(self.certificate[::-1].core, self.certificate.core.flip(0))

    def test_iterates(self):
        assert [len(part) for part in self.certificate] == [1] * 30
        assert torch.equal(torch.cat([part.core for part in self.certificate]), self.certificate.core)

    def test_prints_the_first_twenty(self):
        assert len(str(self.certificate).splitlines()) == 22
        assert str(self.certificate).endswith("… 10 more")

    def test_moves(self):
        moved = self.certificate.to("meta")
        assert moved.core.device.type == "meta"
        assert isinstance(moved, Certificate)

    def test_is_frozen(self):
        with pytest.raises(AttributeError):
            self.certificate.epsilon = 0.2

    def test_an_empty_batch(self):
        for method in ("uniform", "floating", "joint"):
            empty = certify_logits(torch.zeros(0, 3), HEAD, 0.1, "rt2", method=method)
            assert empty.core.shape == (0, 3)
            assert empty.radius.shape == (0,)
            assert empty.records() == []
            assert str(empty).startswith("Certificate(0 of 0")


class TestHostileLogits:
    @pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_that_row_is_rejected_and_no_other(self, bad, place, method):
        values = torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
        values[1, place] = bad
        certificate = certify_logits(values, HEAD, 0.0, "rt2", method=method)
        assert certificate.certified.tolist() == [True, False, True]
        assert (certificate.windows[1] == 0).all()
        assert not certificate.core[1].any()
        assert not certificate.windows.isnan().any()
        assert certificate.records()[1]["core"] == []

    def test_accuracy_beside_them(self):
        values = torch.tensor([[1.0, math.inf, 0.0], [1.0, -math.inf, 0.0], [1.0, math.nan, 0.0]])
        certificate = certify_logits(values, HEAD, 0.0, "standard")
        assert certificate.correct(torch.tensor([1, 0, 0])).tolist() == [True, True, False]
        assert certificate.correct(torch.tensor([1, 0, 1])).tolist() == [True, True, False]

    def test_logits_near_the_largest_number(self):
        certificate = certify_logits([[1.7e308, -1.7e308, 0.0]], torch.ones(3, 3), 0.0, "rt2")
        assert not certificate.windows.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_any_dtype_is_certified_in_float64(dtype):
    values = torch.tensor([[3.0, 1.0, 0.0]]).to(dtype)
    certificate = certify_logits(values, torch.ones(3, 3).to(dtype), 0.5, "rt2")
    assert certificate.windows.dtype == torch.float64
    assert torch.equal(certificate.windows, certify_logits(values.double(), np.ones((3, 3)), 0.5, "rt2").windows)


def test_numpy_and_lists_are_welcome():
    plain = certify_logits([[3.0, 1.0, 0.0]], [[0, 1, 1], [1, 0, 1], [1, 1, 0]], 0.5, "rt2")
    assert torch.equal(plain.windows, certify_logits(np.array([[3.0, 1.0, 0.0]]), np.ones((3, 3)), 0.5, "rt2").windows)
    head = HeadConstants(np.eye(3), np.float64(1.0))
    assert certify_logits([[3.0, 1.0, 0.0]], head, 0.5, "rt2").method == "joint"
    assert plain.method == "floating"


def test_gradients_are_left_alone():
    values = torch.randn(4, 3, requires_grad=True)
    head = HeadConstants(torch.randn(3, 2, requires_grad=True), torch.tensor(1.0, requires_grad=True))
    certificate = certify_logits(values, head, 0.1, "rt2")
    assert not certificate.windows.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": torch.zeros(3)}, r"logits\[None\]"),
        ({"logits": torch.zeros(3, 1)}, "at least 2 classes"),
        ({"logits": torch.zeros(2, 3, 4)}, "shape"),
        ({"logits": [[1.0, 2.0], [3.0]]}, "an array of numbers"),
        ({"logits": [["a", "b", "c"]]}, "an array of numbers"),
        ({"logits": torch.zeros(2, 3).to_sparse()}, "dense"),
        ({"logits": torch.zeros(2, 3, device="meta")}, "real numbers"),
        ({"lipschitz": torch.ones(3, 3).to_sparse()}, "dense"),
        ({"lipschitz": "abc"}, "an array of numbers"),
        ({"lipschitz": None}, "an array of numbers"),
        ({"logits": torch.zeros(2, 3, dtype=torch.complex64)}, "real numbers"),
        ({"logits": torch.zeros(2, 3, dtype=torch.bool)}, "real numbers"),
        ({"lipschitz": torch.ones(2, 2)}, r"\(3, 3\) tensor"),
        ({"lipschitz": torch.ones(3)}, r"\(3, 3\) tensor"),
        ({"lipschitz": torch.ones(3, 3, dtype=torch.complex64)}, "real numbers"),
        ({"lipschitz": -torch.ones(3, 3)}, r"≥ 0, but got -1.0 for the pair \(0, 1\)"),
        ({"lipschitz": torch.full((3, 3), math.nan)}, "nan for the pair"),
        ({"lipschitz": torch.arange(9.0).reshape(3, 3)}, "symmetric"),
        ({"lipschitz": torch.tensor([[0, 1, 1], [math.inf, 0, 1], [1, 1, 0]])}, "symmetric"),
        ({"lipschitz": HeadConstants(torch.ones(2, 4))}, "each of the 3 classes"),
        ({"lipschitz": HeadConstants(torch.full((3, 4), math.nan))}, "finite `rows`"),
        ({"lipschitz": HeadConstants(torch.full((3, 4), math.inf))}, "finite `rows`"),
        ({"lipschitz": HeadConstants(torch.ones(3, 4), torch.tensor(-1.0))}, "`scale`"),
        ({"lipschitz": HeadConstants(torch.ones(3, 4), torch.tensor(math.nan))}, "`scale`"),
        ({"epsilon": -1}, "`epsilon` to be a finite number ≥ 0, but got -1"),
        ({"epsilon": -1e-300}, "`epsilon`"),
        ({"epsilon": math.inf}, "`epsilon`"),
        ({"epsilon": math.nan}, "`epsilon`"),
        ({"epsilon": "0.1"}, "`epsilon`"),
        ({"epsilon": True}, "`epsilon`"),
        ({"epsilon": np.True_}, "`epsilon`"),
        ({"epsilon": torch.tensor(True)}, "`epsilon`"),
        ({"epsilon": torch.ones(2)}, "`epsilon`"),
        ({"epsilon": 1j}, "`epsilon`"),
        ({"epsilon": 10**400}, "`epsilon`"),
        ({"epsilon": None}, "`epsilon`"),
        ({"guarantee": RelaxedTopK(3)}, r"1..2 \(classes − 1\), but got 3"),
        ({"guarantee": "top3"}, r"1..2 \(classes − 1\), but got 3"),
        ({"guarantee": Affinity([[0, 1, 2]])}, "all 3 classes"),
        ({"guarantee": Affinity([["a", "b"]])}, "Bind names first"),
        ({"guarantee": 3}, "`guarantee`"),
        ({"method": "join"}, "Did you mean 'joint'"),
        ({"method": "joint"}, "HeadConstants"),
        ({"guarantee": Affinity([["a", "x"]]), "class_names": ["a", "b", "c"]}, "'x'"),
        ({"class_names": ["a", "b"]}, "3 classes, but got 2 names"),
        ({"class_names": "abc"}, "a list of names"),
        ({"class_names": 3}, "a list of names"),
        ({"class_names": ["a", "b", "a"]}, "'a' twice"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, message):
    good = {"logits": torch.zeros(2, 3), "lipschitz": torch.ones(3, 3), "epsilon": 0.1, "guarantee": "rt2"}
    with pytest.raises(ArgumentError, match=message) as error:
        certify_logits(**{**good, **arguments})
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, SafesetError)
    assert str(error.value).startswith("Expected ")


@pytest.mark.parametrize(
    "arguments", [{"rows": torch.ones(3)}, {"rows": torch.ones(3, 0)}, {"rows": torch.ones(3, 2, dtype=torch.int64)}]
)
def test_bad_heads(arguments):
    with pytest.raises(ArgumentError, match="`rows`"):
        HeadConstants(**arguments)


@pytest.mark.parametrize(
    "scale", [-1.0, math.nan, torch.ones(2), None, "1", True, torch.tensor(True), 1j, [1.0], torch.tensor(1j)]
)
def test_bad_scales(scale):
    with pytest.raises(ArgumentError, match="`scale`"):
        HeadConstants(torch.ones(3, 2), scale)


@pytest.mark.parametrize("number", [0.7, np.float64(0.7), np.array(0.7), torch.tensor(0.7, dtype=torch.float64)])
def test_numbers_in_any_dress(number):
    plain = certify_logits([[3.0, 1.0, 0.0]], HeadConstants(torch.eye(3), 0.7), 0.7, "rt2")
    other = certify_logits([[3.0, 1.0, 0.0]], HeadConstants(torch.eye(3), number), number, "rt2")
    assert torch.equal(plain.windows, other.windows)
    assert other.epsilon == 0.7
    assert isinstance(other.epsilon, float)


@pytest.mark.parametrize("labels", BAD_LABELS, ids=str)
def test_bad_labels(labels):
    certificate = certify_logits(torch.zeros(3, 3), torch.ones(3, 3), 0.1, "rt2")
    with pytest.raises(ArgumentError, match="labels"):
        certificate.verified(labels)


def test_names_bind_affinity_sets(tmp_path):
    (tmp_path / "sets.toml").write_text('sets = [["cat", "dog"]]')
    names = ["dog", "cow", "cat"]
    certificate = certify_logits([[3.0, 0.0, 2.9]], HEAD, 0.2, f"affinity:{tmp_path / 'sets.toml'}", class_names=names)
    assert certificate.guarantee == Affinity([[0, 2]])
    assert "cow" not in certificate.records()[0]["core"]


def test_labels_may_be_lists():
    certificate = certify_logits([[3.0, 1.0, 0.0]], torch.ones(3, 3), 0.1, "standard")
    assert certificate.verified([0]).tolist() == [True]


class TestWhatGloroGetsWrong:
    """Each found by running it (peers); here each is right."""

    def test_tied_logits_are_not_certified(self):
        assert certify_logits([[1.0, 1.0]], torch.zeros(2, 2), 0.0, "standard").radius.item() == 0

    def test_a_tie_at_rank_k_is_not_certified(self):
        certificate = certify_logits([[3.0, 1.0, 1.0, 0.0]], torch.zeros(4, 4), 0.1, "top2")
        assert not certificate.certified.any()

    def test_k_equal_to_the_classes(self):
        with pytest.raises(ArgumentError):
            certify_logits([[3.0, 1.0]], torch.ones(2, 2), 0.1, "rt2")

    def test_the_loosest_k(self):
        values = [[9.0, 8.9, 8.8, 8.7, 8.6, 0.0]]
        certificate = certify_logits(values, torch.ones(6, 6), 0.05, "rt5", method="uniform")
        assert certificate.preferring("largest").core.sum().item() == 5

    def test_tiny_weights_are_not_zero(self):
        rows = torch.tensor([[1e-200, 0.0], [0.0, 1e-200]], dtype=torch.float64)
        radius = certify_logits([[1e-200, 0.0]], HeadConstants(rows), 0.0, "standard").radius.item()
        assert radius == pytest.approx(math.sqrt(0.5))
        rows = torch.tensor([[1.0, 1e-170], [1.0, 0.0]], dtype=torch.float64)  # underflows beside a 1
        radius = certify_logits([[1e-170, 0.0]], HeadConstants(rows), 0.0, "standard").radius.item()
        assert radius == pytest.approx(1.0)


def test_reference_tables_for_the_worked_example():
    """The reference itself, once by hand."""
    matrix = [[0, 1, 0.1], [1, 0, 0.9], [0.1, 0.9, 0]]
    table = window_table([1.0, 0.8, 0.75], matrix, ("rt", 2), "floating")
    assert table == pytest.approx({(1, 1): 0.2, (1, 2): 2.5, (2, 2): 0.05 / 0.9})
