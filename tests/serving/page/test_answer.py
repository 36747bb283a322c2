"""What the page says: it is the certificate's word about the very input, and norms are never too small."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from safeset.certificates.promises import PREFERENCES
from safeset.report.gallery import answer_lines
from safeset.serving.batching import BusyError
from safeset.serving.page.answer import change_at, norm_of, promised_at


def numbers_of(shown, place):
    return shown.form.numbers_of(shown.samples()[0][place].x)


def ask(shown, numbers, changed=None, epsilon=0.3, prefer="smallest", alpha=None):
    found = shown.answer(numbers, changed, epsilon=epsilon, prefer=prefer, alpha=alpha)
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3, 1.0])
def test_the_answer_is_the_certificates(digits, epsilon, prefer):
    for sample in digits.samples()[0]:
        certificate = digits.net.certify(sample.x[None], epsilon=epsilon, prefer=prefer)
        said = ask(digits, digits.form.numbers_of(sample.x), epsilon=epsilon, prefer=prefer)
        assert said["lines"] == answer_lines(certificate, digits.units)
        assert said["certified"] == bool(certificate.certified[0])
        if said["certified"]:
            for role in ("core", "optional"):
                wanted = [certificate.names[index] for index in getattr(certificate, role)[0].nonzero()[:, 0].tolist()]
                assert sorted(bar["name"] for bar in said["bars"] if bar["role"] == role) == sorted(wanted)


def test_bars_reach_beyond_epsilon_exactly_where_that_is_proved(digits):
    seen = set()
    for place, sample in enumerate(digits.samples()[0]):
        radii = digits.net.measure(sample.x[None]).target_table()[0]
        said = ask(digits, numbers_of(digits, place), epsilon=0.2)
        names = [bar["name"] for bar in said["bars"]]
        index = dict(zip(digits.net.certify(sample.x[None]).names, range(10), strict=True))
        core = [index[bar["name"]] for bar in said["bars"] if bar["role"] == "core"]
        assert len(names) == len(set(names)) == 10
        for bar in said["bars"]:
            reach = bar["reach"]
            assert float(bar["reach_text"]) <= reach
            seen.add((said["certified"], bar["role"]))
            if bar["role"] == "out":
                assert reach >= float(radii[core, index[bar["name"]]].min())
                assert reach > 0.2
            elif bar["role"] == "optional":
                assert reach == float(radii[core, index[bar["name"]]].min())
            elif said["certified"]:
                assert reach > 0.2
    assert {(True, "core"), (True, "out"), (True, "optional"), (False, "core"), (False, "optional")} <= seen


def test_inside_the_ball_every_change_keeps_the_promise_and_far_outside_some_break_it(digits):
    kinds = set()
    generator = torch.Generator().manual_seed(1)
    for place, sample in enumerate(digits.samples()[0][:10]):
        for norm in (0.1, 0.29, 0.5, 2.0):
            noise = torch.randn(64, generator=generator, dtype=torch.float64)
            changed = (sample.x.flatten() + norm * noise / noise.norm()).tolist()
            said = ask(digits, numbers_of(digits, place), changed)
            change, exact = said["change"], norm_of(torch.tensor(changed, dtype=torch.float64) - sample.x.flatten())
            assert change["norm"] == exact
            if said["certified"] and norm < 0.3:
                assert change["kind"] == "inside"
            kinds.add(change["kind"])
    assert {"inside", "broken"} <= kinds
    assert "false" not in kinds


def test_norms_are_rounded_up():
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-300, 1e-8, 1.0, 1e100):
        x, changed = scale * torch.randn(2, 50, generator=generator, dtype=torch.float64)
        exact = sum((Fraction(b) - Fraction(a)) ** 2 for a, b in zip(x.tolist(), changed.tolist(), strict=True))
        norm = norm_of(changed - x)
        assert exact <= Fraction(norm) ** 2 <= exact * (1 + Fraction(1, 10**12))
    assert norm_of(torch.zeros(3, dtype=torch.float64)) == 0


def test_a_false_certificate_would_be_shown_as_one(digits):
    """Radii that nobody proved, and the place where the attack breaks them."""
    x = digits.samples()[0][0].x
    found = digits.attack(digits.form.numbers_of(x), epsilon=0.3, prefer="smallest")
    moved = digits.form.input_of(found["numbers"])
    points = digits.net.measure(torch.stack([x, moved]))
    certificate = points.certificate()[0]
    assert change_at(points, certificate, x, moved, "L2")["kind"] in ("broken", "open")
    false = replace(certificate, windows=certificate.windows * 100)
    said = change_at(points, false, x, moved, "L2")
    assert said["kind"] == "false"
    assert "report it" in said["words"]


def test_an_attack_breaks_nothing_that_is_proved_and_says_where_it_broke(digits):
    kinds = set()
    for place, sample in enumerate(digits.samples()[0][:3]):
        for epsilon in (0.1, 3.0):
            numbers = numbers_of(digits, place)
            found = digits.attack(numbers, epsilon=epsilon, prefer="smallest")
            said = ask(digits, numbers, found["numbers"], epsilon=epsilon)
            promised = promised_at(digits.net.certify(sample.x[None], epsilon=epsilon))
            assert found["kind"] in {True: ("held",), False: ("broken", "unbroken")}[said["certified"]]
            if "No change was found" in found["words"]:
                assert said["change"]["kind"] in ("inside", "open")
                continue
            assert said["change"]["kind"] == "broken"
            assert said["change"]["norm"] >= promised.answer.radius
            assert str(said["change"]["norm_text"]).split(" ")[0] in found["words"]
            kinds.add(found["kind"])
    assert {"held", "broken"} <= kinds


def test_an_attack_out_of_time_says_so(digits):
    found = digits.attack(numbers_of(digits, 0), epsilon=0.3, prefer="smallest", seconds=0.0)
    assert (found["kind"], found["numbers"]) == ("stopped", None)
    assert "says nothing" in found["words"]


def test_two_attacks_at_once_are_refused(digits):
    with digits._attacks, pytest.raises(BusyError, match="try again"):
        digits.attack(numbers_of(digits, 0), epsilon=0.3, prefer="smallest")


def test_coverage_has_its_own_level(digits):
    few, many = (ask(digits, numbers_of(digits, 9), alpha=alpha)["set"]["classes"] for alpha in (0.5, 0.02))
    assert set(few) <= set(many)
    assert len(few) < len(many)


def test_a_table_is_shown_in_its_own_units(table):
    fields = table.about["fields"]
    assert [field["name"] for field in fields] == ["<b>x</b>", "y", "colour"]
    assert fields[2]["place"] == 2
    assert len(fields[2]["texts"]) == 3
    low, high = table.form.ranges["y"]
    assert (fields[1]["low"], fields[1]["high"]) == (low, high)
    numbers = numbers_of(table, 0)
    moved = [*numbers[:1], numbers[1] + 0.01 * (high - low), *numbers[2:]]
    assert math.isclose(ask(table, numbers, moved)["change"]["norm"], 0.01, rel_tol=1e-9)


def test_nothing_is_changed_yet(digits):
    said = ask(digits, numbers_of(digits, 0))["change"]
    assert (said["kind"], said["norm"]) == ("unchanged", 0)
