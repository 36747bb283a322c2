"""What stored numbers are about, and what differs between two of them."""

from safeset.system.fingerprint import Difference, Fingerprint

RECORD = {"weights": "3f5a", "test": "09cc", "split": "test", "epsilon": 0.5, "vra": 0.7}


def test_a_record_says_what_it_is_about():
    found = Fingerprint.of(RECORD, "split", "epsilon", "changes")
    assert found == Fingerprint({"split": "test", "epsilon": 0.5, "changes": None}, "3f5a", "09cc")
    assert found.unknown == ["changes"]


def test_every_difference_is_named_once_with_both_values():
    own = Fingerprint({"split": "test", "epsilon": 0.5}, weights="3f5a", test="09cc")
    other = Fingerprint({"epsilon": 0.25, "seed": 1}, weights="3f5a", test=None)
    assert own.differences(other) == [
        Difference("split", "test", None),
        Difference("epsilon", 0.5, 0.25),
        Difference("test", "09cc", None),
        Difference("seed", None, 1),
    ]
    assert own.differences(other, besides=("split", "seed", *other.unknown)) == [Difference("epsilon", 0.5, 0.25)]
    assert own.differences(own) == []


def test_several_networks_have_a_digest_each():
    one, other = (Fingerprint(weights={"rt5": "3f5a", "standard": each}) for each in ("77e0", "77e1"))
    assert [each.what for each in one.differences(other)] == ["weights"]
