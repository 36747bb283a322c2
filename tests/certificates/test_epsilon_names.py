"""The radius by either of its names: ``epsilon`` and ``eps``, --epsilon and --eps."""

import json

import numpy as np
import pytest
import torch

from helpers.commands import safeset
from helpers.nets import image_network, inputs
from safeset import ArgumentError, CertifiedNet, certify_logits, train

LOGITS = [[2.0, 1.0, 0.0]]


def test_eps_is_epsilon_in_python():
    net = CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", eps=0.01)
    assert net.epsilon == 0.01
    x = inputs(2)
    assert net.certify(x).epsilon == 0.01
    assert net.certify(x, eps=0.02).epsilon == 0.02
    assert net.measure(x).certificate(eps=0.02).epsilon == 0.02
    assert net.certify(x).at(eps=0.03).epsilon == 0.03
    wide, narrow = net.predict_set(x, eps=100.0)[1], net.predict_set(x, eps=0.0)[1]
    assert (wide.any(), narrow.any()) == (torch.tensor(False), torch.tensor(True))
    assert certify_logits(LOGITS, 1.0, eps=0.3).epsilon == 0.3
    assert certify_logits(LOGITS, 1.0, epsilon=0.3, eps=0.3, guarantee="rt2").epsilon == 0.3


def test_two_different_ones_are_refused_and_so_is_none():
    net = CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", eps=0.01)
    for call in (
        lambda: CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.1, eps=0.2),
        lambda: net.certify(inputs(2), epsilon=0.1, eps=0.2),
        lambda: net.predict_set(inputs(2), epsilon=0.1, eps=0.2),
        lambda: certify_logits(LOGITS, 1.0, 0.1, eps=0.2),
        lambda: certify_logits(LOGITS, 1.0, 0.1).at(0.1, eps=0.2),
    ):
        with pytest.raises(ArgumentError, match=r"epsilon=0\.1 and eps=0\.2"):
            call()
    for call in (
        lambda: CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2"),
        lambda: certify_logits(LOGITS, 1.0),
        lambda: certify_logits(LOGITS, 1.0, 0.1).at(),
    ):
        with pytest.raises(ArgumentError, match="`epsilon`, the radius"):
            call()
    with pytest.raises(ArgumentError, match="finite number ≥ 0"):
        certify_logits(LOGITS, 1.0, eps=-1)


def test_the_command_line_takes_both(tmp_path):
    train({"data": {"source": "blobs2d", "points": 100}, "epochs": 1, "epsilon": 0.1, "batch": 100}, out=tmp_path / "r")
    np.savez(tmp_path / "p.npz", x=np.full((1, 2), 0.5))
    output, _ = safeset("certify", "r", "p.npz", "--eps", "0.25", "--json", cwd=tmp_path)
    assert json.loads(output)["epsilon"] == 0.25
    safeset("evaluate", "r", "--eps", "0.25,0.5", "--epsilon", "0.25,0.5", "--out", "e.json", cwd=tmp_path)
    assert {row["epsilon"] for row in json.loads((tmp_path / "e.json").read_text())["rows"]} == {0.25, 0.5}
    safeset("train", "--data", "blobs2d", "--epochs", "1", "--eps", "0.2", "--out", "s", cwd=tmp_path)
    assert "epsilon = 0.2" in (tmp_path / "s" / "recipe.toml").read_text()
    for arguments, message in (
        (("certify", "r", "p.npz", "--eps", "0.1", "--epsilon", "0.2"), "0.1 and 0.2"),
        (("evaluate", "r", "--epsilon", "0.1", "--eps", "0.2"), "0.1 and 0.2"),
        (("train", "--data", "blobs2d", "--eps", "0.1", "--epsilon", "0.2"), "0.1 and 0.2"),
        (("certify", "r", "p.npz", "--eps", "0.1,0.2"), "one number"),
        (("certify", "r", "p.npz", "--eps", "tiny"), "'tiny'"),
    ):
        _, errors = safeset(*arguments, cwd=tmp_path, code=1)
        assert message in errors
