"""The analyses of the paper's text, against sets and loops."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from safeset import Affinity, ArgumentError, certify_logits
from safeset.certificates.constants import HeadConstants
from safeset.certificates.margins import METHODS
from safeset.paper.predictions import WAYS, Answers
from safeset.paper.shares import ROWS, analysis, together
from safeset.paper.table import PAPER, PAPER_SAYS, share_lines

NAMES = ("Highway", "River", "Forest", "Pasture", "Sea", "Crop", "City")
SETS = Affinity([[0, 1], [2, 3, 4]])
EPSILON = 0.2


def answers(seed, guarantee, points=60):
    """Those of random logits of a random head, with labels that are often right."""
    make = np.random.default_rng(seed)
    rows = make.normal(size=(7, 4))
    logits = torch.tensor(make.normal(size=(points, 4)) @ rows.T)
    head = HeadConstants(torch.tensor(rows), 1.0)
    labels = torch.where(
        torch.tensor(make.random(points) < 0.7), logits.argmax(1), torch.tensor(make.integers(7, size=points))
    )
    certificates = {
        way: certify_logits(
            logits, head, EPSILON, guarantee, method=way if way in METHODS else "uniform", class_names=NAMES
        )
        for way in WAYS
    }
    k = certificates["uniform"].windows.shape[1]
    radii = torch.tensor(make.random((2, points, k)))
    return Answers(labels, certificates, radii[0], radii[1], dict.fromkeys(METHODS, 1e-6), {})


def sets_of(certificate):
    """The whole answer at each point as a set of names; None where it is rejected."""
    return [set(each["core"]) | set(each["optional"]) if each["certified"] else None for each in certificate.records()]


def share(hits, among):
    return sum(hits[place] for place in among) / len(among) if among else None


def networks_of(data, seed, *guarantees):
    """Answers of every row of a data set at the same points."""
    found = {
        row: answers(seed + place, each) for place, (row, each) in enumerate(zip(ROWS[data], guarantees, strict=True))
    }
    labels = next(iter(found.values())).labels
    return {row: replace(each, labels=labels) for row, each in found.items()}


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_eurosat(seed):
    networks = networks_of("eurosat", seed, "standard", "rt3", SETS, Affinity([[0, 1, 5], [2, 3]]))
    labels = networks["rt3"].labels.tolist()
    found = analysis("eurosat", networks)["shares"]
    for way in METHODS:
        standard, relaxed = sets_of(networks["standard"][way]), sets_of(networks["rt3"][way])
        for label, name in enumerate(("Highway", "River")):
            some = [place for place in range(60) if labels[place] == label]
            lost = [place for place in some if standard[place] is None]
            expected = share([one is None for one in standard], some)
            assert found[f"{name} images that standard rejects"][way] == expected
            expected = share([one is not None for one in relaxed], lost)
            assert found[f"of these, certified by RT3: {name}"][way] == expected
        rivers = [place for place in range(60) if labels[place] == 1 and relaxed[place] is not None]
        expected = share([one is not None and "Highway" in one for one in relaxed], rivers)
        assert found["River images certified by RT3, with Highway in the set"][way] == expected
        vra = {row: networks[row][way].verified(torch.tensor(labels)).double().mean().item() for row in networks}
        for row in ("highway-river", "highway-river-agriculture"):
            gain = vra["rt3"] - vra["standard"]
            got = found[f"of RT3's gain in VRA, recovered by {row}"][way]
            assert got == (pytest.approx((vra[row] - vra["standard"]) / gain) if gain else None)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_cifar100(seed):
    networks = networks_of("cifar100", seed, "standard", "rt5", SETS)
    found = analysis("cifar100", networks)["shares"]
    groups = [{NAMES[each] for each in one} for one in ({0, 1}, {2, 3, 4}, {5}, {6})]
    every = range(60)
    for way in METHODS:
        standard, relaxed, grouped = (sets_of(networks[row][way]) for row in ROWS["cifar100"])
        fits = [one is not None and any(one <= group for group in groups) for one in relaxed]
        lost = [place for place in every if standard[place] is None]
        top1 = (networks["rt5"][way].windows[:, 0, 0] > EPSILON).tolist()
        kept = [place for place in every if relaxed[place] is not None]
        known = [one is not None for one in grouped]
        rejected = 1 - len(kept) / 60
        expected = {
            "points that standard rejects, certified top-1 by RT5": share(top1, lost),
            "RT5's sets that lie in a superclass": share(fits, kept),
            "more rejected by RT5 if only such sets counted, points": 1 - sum(fits) / 60 - rejected,
            "more rejected by superclass than by RT5, points": 1 - sum(known) / 60 - rejected,
            "RT5's sets that match no superclass, certified by superclass": share(
                known, [p for p in kept if not fits[p]]
            ),
            "the same, points that RT5 rejects counted too": share(known, [p for p in every if not fits[p]]),
        }
        for name in ("more rejected by RT5 if only such sets counted", "more rejected by superclass than by RT5"):
            expected[f"{name}, relative"] = expected[f"{name}, points"] / rejected if rejected else None
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name][way] == (None if value is None else pytest.approx(value, abs=1e-12)), name


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_membership_and_pairs(seed):
    networks = networks_of("tiny-imagenet", seed, "standard", "rt5")
    result = analysis("tiny-imagenet", networks)
    relaxed, found = networks["rt5"], result["membership"]
    assert found["k"] == [1, 2, 3, 4, 5]
    robust = [
        [(relaxed["uniform"].windows[place, k, k] > EPSILON).item() for k in range(5)] for place in range(60)
    ]  # [point][k − 1]
    for k in range(5):
        assert found["top_k"][k] == sum(each[k] for each in robust) / 60
        assert found["label_stays"][k] == sum(each[k].item() > EPSILON for each in relaxed.stays) / 60
        assert found["all_stay"][k] == sum(each[k].item() > EPSILON for each in relaxed.all_stay) / 60
        for way in METHODS:  # relaxed top-k of the same logits
            windows = relaxed[way].windows
            hold = [any(windows[p, a, b] > EPSILON for a in range(k + 1) for b in range(a, k + 1)) for p in range(60)]
            assert found["relaxed"][way][k] == sum(hold) / 60
    for k in range(4):
        assert found["not_next"][k] == sum(each[k] and not each[k + 1] for each in robust) / 60
    for way in METHODS:
        count = {}
        for one in sets_of(relaxed[way]):
            for pair in combinations([name for name in NAMES if name in (one or ())], 2):
                count[pair] = count.get(pair, 0) + 1
        pairs = {(one, two): times for one, two, times in result["together"]["rt5"][way]}
        assert all(count[pair] == times for pair, times in pairs.items())
        assert sorted(pairs.values(), reverse=True) == sorted(count.values(), reverse=True)[: len(pairs)]


def test_acasxu_has_both_definitions():
    networks = {"targeted": answers(3, Affinity([[0, 1], [1, 2], [3, 4]]))}
    result = analysis("acasxu", networks)
    for way in METHODS:
        rates = networks["targeted"].rates(way)
        shares = {name: each[way] for name, each in result["shares"].items()}
        assert list(shares.values()) == pytest.approx([1 - rates["rejection"], rates["vra"], rates["vra_top1"]])
    assert result["membership"] is None
    assert result["seconds_per_point"]["targeted"]["joint"] == 1e-6


def test_classes_one_by_one():
    networks = networks_of("tiny-imagenet", 0, "standard", "rt5")
    found, labels = analysis("tiny-imagenet", networks)["classes"], networks["rt5"].labels.tolist()
    for row, each in networks.items():
        for label, name in enumerate(NAMES):
            own = [place for place in range(60) if labels[place] == label]
            assert found[row][name]["share"] == len(own) / 60
            for way in METHODS:
                hits = [name in record["core"] for record in each[way].preferring("largest").records()]
                assert found[row][name][way] == share(hits, own)


def test_answers_at_other_points_are_refused():
    networks = networks_of("tiny-imagenet", 0, "standard", "rt5")
    networks["rt5"] = replace(networks["rt5"], labels=networks["rt5"].labels.flip(0))
    with pytest.raises(ArgumentError, match="same points"):
        analysis("tiny-imagenet", networks)


def test_the_paper_s_word_stands_beside_the_data_set_that_it_is_about():
    share = "points that standard rejects, certified top-1 by RT5"
    found = {"shares": {share: dict.fromkeys(METHODS, 0.25)}}
    lines = share_lines([{"data": data, **found} for data in ("cifar100", "tiny-imagenet")])
    assert [line[3] for line in lines] == ["0.05", "–"]


def test_names_agree():
    assert {f"{data}/{row}" for data, rows in ROWS.items() for row in rows} == set(PAPER)
    for data, kinds in (("eurosat", ("standard", "rt3", SETS, SETS)), ("cifar100", ("standard", "rt5", SETS))):
        assert PAPER_SAYS[data].keys() <= analysis(data, networks_of(data, 0, *kinds))["shares"].keys()
    assert together(answers(0, "standard")["uniform"]) == []
