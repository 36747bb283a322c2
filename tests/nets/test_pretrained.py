"""Nets in folders as Hugging Face lays them out, and nets that torch.export writes down."""

import io
import json

import pytest
import torch
from torch import nn

from helpers.nets import image_network, inputs
from safeset import Affinity, CertifiedNet, RelaxedTopK
from safeset.errors import SafesetError
from safeset.program.content import same_tensors

NAMES = ["cat", "dog", "cow", "emu", "fox"]


def made(guarantee="rt3", seed=0):
    torch.manual_seed(seed)
    network = image_network().eval()
    network[2].running_var.fill_(0.5)
    net = CertifiedNet(network, input_shape=(2, 4, 4), guarantee=guarantee, epsilon=0.01, class_names=NAMES)
    net.units = "pixels in [0, 1]"
    return net


@pytest.mark.parametrize("guarantee", [RelaxedTopK(3), Affinity([["cat", "dog"], ["cow", "emu", "fox"]])], ids=str)
def test_what_is_saved_is_what_comes_back(tmp_path, guarantee):
    net = made(guarantee)
    net.save_pretrained(tmp_path / "net")
    assert sorted(each.name for each in (tmp_path / "net").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    other = made(seed=1).network
    again = CertifiedNet.from_pretrained(tmp_path / "net", network=other)
    assert same_tensors(again.network.state_dict(), net.network.state_dict())
    assert (again.guarantee, again.epsilon, again.class_names, again.units) == (
        net.guarantee,
        net.epsilon,
        net.class_names,
        net.units,
    )
    found, wanted = again.certify(inputs()), net.certify(inputs())
    assert torch.equal(found.windows, wanted.windows)
    assert found.records() == wanted.records()
    card = (tmp_path / "net" / "README.md").read_text()
    assert "library_name: safeset" in card
    assert "cat, dog, cow" in card


def damage(folder, name):
    weights, config = folder / "model.safetensors", folder / "config.json"
    values = json.loads(config.read_text())
    if name == "a bit of a weight":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif name == "half a file":
        weights.write_bytes(weights.read_bytes()[:-40])
    elif name == "a pickle":
        torch.save({"x": torch.zeros(2)}, weights)
    elif name == "no weights":
        weights.unlink()
    elif name == "no configuration":
        config.unlink()
    elif name == "no JSON":
        config.write_text("{")
    else:
        key, value = name
        config.write_text(json.dumps({**values, key: value}))


@pytest.mark.parametrize(
    "name",
    [
        *("a bit of a weight", "half a file", "a pickle", "no weights", "no configuration", "no JSON"),
        *[("epsilon", "x"), ("epsilon", -1), ("epsilon", None), ("guarantee", "rt9"), ("guarantee", 3), ("format", 2)],
        *[("class_names", ["a"]), ("class_names", "abcde"), ("input_shape", [3, 4, 4]), ("tighten", "no"), ("more", 1)],
        ("weights", "0" * 64),
    ],
    ids=str,
)
def test_damaged_folders_are_refused_and_change_nothing(tmp_path, name):
    made().save_pretrained(tmp_path)
    damage(tmp_path, name)
    network = made(seed=1).network.train()
    network[0].eval()
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    with pytest.raises(SafesetError):
        CertifiedNet.from_pretrained(tmp_path, network=network)
    assert same_tensors(before, network.state_dict())
    assert [module.training for module in network.modules()] == modes


def test_a_folder_names_no_file_of_this_machine(tmp_path):
    made().save_pretrained(tmp_path)
    (tmp_path / "sets.toml").write_text('sets = [["cat", "dog"]]')
    damage(tmp_path, ("guarantee", f"affinity:{tmp_path / 'sets.toml'}"))
    with pytest.raises(SafesetError, match="affinity sets written out"):
        CertifiedNet.from_pretrained(tmp_path, network=made(seed=1).network)


def test_another_architecture_or_precision_is_refused_and_left_as_it_was(tmp_path):
    made().save_pretrained(tmp_path)
    with pytest.raises(SafesetError, match="of shape"):
        CertifiedNet.from_pretrained(tmp_path, network=nn.Sequential(nn.Linear(3, 4)))
    other = made(seed=1).network.double()
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(SafesetError, match=r"of type torch\.float32"):
        CertifiedNet.from_pretrained(tmp_path, network=other)
    assert same_tensors(before, other.state_dict())


def test_torch_export_writes_down_the_logits_and_reads_them_again():
    net, x = made(), inputs()
    batch = torch.export.Dim("batch")
    with torch.no_grad():  # as for inference: MinMax writes in place there
        program = torch.export.export(net, (x,), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    with torch.no_grad():
        for points in (x, x[:3]):
            assert torch.equal(again(points), net(points))
