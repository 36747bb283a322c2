"""Proofs that travel: honest ones are valid, forged ones are not, and nothing that is given breaks the checker."""

import copy
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save, save_file
from torch import nn

from helpers.commands import safeset
from helpers.digits_net import digits, trained
from helpers.exact_norm import at_least_norm, convolution_matrix
from helpers.linear_truth import nearest_violation, random_network
from helpers.nets import image_network, inputs
from safeset import ArgumentError, CertifiedNet, HeadConstants, UnsupportedLayerError, certify_logits
from safeset.layers import Abs, ChannelAffine, InvertibleDownsampling, MinMax, Residual
from safeset.program import exact as rational
from safeset.proofs import check

VALID, REFUTED, UNCHECKED = 0, 1, 2


def small(seed=0, classes=5):
    """A network of a convolution and dense layers, and its certificates at the edge of their radii."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), MinMax(), InvertibleDownsampling(2), nn.Flatten(),
        nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes),
    )  # fmt: skip
    return CertifiedNet(network, input_shape=(1, 4, 4), guarantee="rt3", epsilon=0.0)


def proof_at(net, x, share=0.97, **options):
    """The proofs of points, each at an ε just below its radius, so that wide windows are needed."""
    whole = net.certify(x, **options)
    proofs = [one.at(share * float(one.radius)).proof() for one in whole if bool(one.certified.all())]
    return {**proofs[0], "certificates": [each["certificates"][0] for each in proofs]}


class Place:
    """A directory with a proof, weights and an image."""

    def __init__(self, path):
        self.path = path
        net = small()
        pixels = np.random.default_rng(0).integers(0, 256, (4, 4)).astype(np.uint8)
        Image.fromarray(pixels).save(path / "x.png")
        x = torch.from_numpy(pixels).double()[None, None] / 255
        save_file(net.network.state_dict(), path / "model.safetensors")
        self.proof = proof_at(net, x)
        assert self.proof["certificates"][0]["window"] == [1, 3]

    def check(self, change=lambda proof: proof, images=(), seconds=60.0, model="model.safetensors"):
        """The verdict on a changed proof; a change may also be a text."""
        given = copy.deepcopy(self.proof)
        result = change(given)
        given = given if result is None else result
        (self.path / "p.json").write_text(given if isinstance(given, str) else json.dumps(given))
        code, said = check.check(
            *(str(self.path / name) for name in ("p.json", model)), [str(self.path / each) for each in images], seconds
        )
        assert all(isinstance(line, str) for line in said)
        return code, said[-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("check"))


def changed(**changes):
    """Another certificate, its words fitting its numbers."""

    def change(proof):
        one = proof["certificates"][0]
        one.update({key: value(one[key]) if callable(value) else value for key, value in changes.items()})
        if isinstance(one["radius"], float) and "claim" not in changes:
            one["claim"] = check.claim(one["core"], one["optional"], one["radius"], 5)

    return change


def layer(number, **changes):
    def change(proof):
        entry = proof["program"][number]
        entry.update({key: value(entry[key]) if callable(value) else value for key, value in changes.items()})

    return change


def inequality(proof):
    return proof["certificates"][0]["inequalities"][0]


# -- honest proofs ----------------------------------------------------------------------------------------------------


def test_an_honest_proof_is_valid_with_and_without_its_image(place):
    code, said = place.check(images=["x.png"])
    assert (code, said[:5]) == (VALID, "Valid")
    assert place.check()[0] == VALID


NETWORKS = {
    "patches": ((1, 8, 8), lambda: [nn.Conv2d(1, 4, (3, 2), dilation=2, padding=2), nn.LeakyReLU(0.1),
                                    nn.AvgPool2d(3, 2, 1), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(48, 5)]),
    "groups": ((2, 7, 8), lambda: [nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.ReLU(),
                                   Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding="same", groups=2), Abs())),
                                   nn.Flatten(), nn.Linear(64, 6)]),
    "affine": ((2,), lambda: [ChannelAffine(torch.tensor([0.5, -2.0]), torch.tensor([1.0, 1e6])),
                              nn.Linear(2, 8, bias=False), nn.Identity(), MinMax(), nn.Linear(8, 9)]),
    "double": ((6,), lambda: [nn.Linear(6, 20).double(), nn.ReLU(), nn.Linear(20, 8).double()]),
    "half": ((6,), lambda: [nn.Linear(6, 20).half(), nn.ReLU(), nn.Linear(20, 8).half()]),
    "head": ((6,), lambda: [nn.Linear(6, 9)]),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("guarantee", ["standard", "top2", "rt4", "affinity:[[0,1,2],[1,3,4]]"])
def test_honest_proofs_of_all_layers_and_guarantees_are_valid_and_tight(tmp_path, name, guarantee):
    torch.manual_seed(1)
    shape, made = NETWORKS[name]
    net = CertifiedNet(nn.Sequential(*made()), input_shape=shape, guarantee=guarantee, epsilon=0.0)
    save_file(net.network.state_dict(), tmp_path / "m")
    proof = proof_at(net, torch.rand(4, *shape, dtype=torch.float64), prefer="largest")
    (tmp_path / "p").write_text(json.dumps(proof))
    assert check.check(str(tmp_path / "p"), str(tmp_path / "m"))[0] == VALID
    for one in proof["certificates"]:
        radius = one["radius"] * 1.001
        forged = {**one, "radius": radius, "claim": check.claim(one["core"], one["optional"], radius, net.classes)}
        (tmp_path / "p").write_text(json.dumps({**proof, "certificates": [forged]}))
        code, said = check.check(str(tmp_path / "p"), str(tmp_path / "m"))
        assert code == REFUTED
        assert "radius is too large" in said[-1]


def test_the_digits_are_checked_with_nothing_but_python(tmp_path):
    net, _ = trained()
    (_, _), (x, _) = digits()
    save_file(net.network.state_dict(), tmp_path / "model.safetensors")
    proof = proof_at(net, x[:2].double(), guarantee="rt3")
    (tmp_path / "p.json").write_text(json.dumps(proof))
    alone = tmp_path / "alone.py"
    alone.write_bytes(Path(check.__file__).read_bytes())
    command = [sys.executable, "-I", "-S", str(alone), "p.json", "model.safetensors"]  # -S: no installed packages
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == VALID, done
    proof["certificates"][1]["radius"] *= 1.0001
    (tmp_path / "p.json").write_text(json.dumps(proof))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == REFUTED, done


def test_the_command_imports_neither_torch_nor_numpy(place):
    place.check()
    code = (
        "import sys\nfrom safeset.cli.app import app\ntry:\n    app(['check', 'p.json', 'model.safetensors'])\n"
        "except SystemExit as end:\n    assert not end.code\nassert not {'torch', 'numpy', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=place.path, check=True, capture_output=True, timeout=300)


@pytest.mark.parametrize("shape", [(32, 512), (60, 7), pytest.param((256, 4096), marks=pytest.mark.slow)])
def test_a_dense_layer_is_proved_just_above_its_norm_and_refuted_just_below(shape):
    kernel = np.random.default_rng(0).normal(size=shape).astype(np.float32).astype(float)
    values, unit = check.exactly(kernel.flatten().tolist())
    rows = [values[n : n + shape[1]] for n in range(0, len(values), shape[1])]
    norm = Fraction(float(np.linalg.norm(kernel, 2))) / unit
    check.check_norm(rows, [[0]], 1, norm * Fraction(1 + 1e-12), check.Clock(math.inf))
    with pytest.raises(check.RefutedError):
        check.check_norm(rows, [[0]], 1, norm * Fraction(1 - 1e-12), check.Clock(math.inf))


# -- forgeries --------------------------------------------------------------------------------------------------------

FORGED = {
    "radius × 1.001": changed(radius=lambda r: r * 1.001),
    "radius, but not in words": lambda proof: proof["certificates"][0].update(
        radius=math.nextafter(proof["certificates"][0]["radius"], 0)
    ),
    "ε above the radius": changed(epsilon=lambda e: e * 2),
    "ε equal to the radius": lambda p: p["certificates"][0].update(epsilon=p["certificates"][0]["radius"]),
    "another class in the core": changed(core=lambda core: [next(c for c in range(5) if c not in core)]),
    "a class dropped from optional": changed(optional=lambda found: found[:-1], window=[1, 2]),
    "a class added to optional": changed(optional=lambda found: [*found, next(iter({*range(5)} - {*found}))]),
    "a class twice": changed(optional=lambda found: [*found[:-1], found[0]]),
    "all optional in the core": lambda p: changed(
        core=p["certificates"][0]["core"] + p["certificates"][0]["optional"], optional=[], window=[3, 3]
    )(p),
    "a smaller window": changed(window=[1, 2]),
    "another window": changed(window=[2, 3]),
    "a window outside": changed(window=[1, 4]),
    "another guarantee": changed(guarantee="standard"),
    "a smaller guarantee": changed(guarantee="rt2"),
    "top 3": changed(guarantee="top3"),
    "affinity without its classes": changed(guarantee="affinity", set=[0, 1]),
    "other words": changed(claim="at every input all classes are the best"),
    "no words": changed(claim=None),
    "other logits": changed(logits=lambda found: [found[0] + 1e-9, *found[1:]]),
    "a constant too small": lambda p: inequality(p).update(constants=[1e-3] * len(inequality(p)["constants"])),
    "a constant a little too small": lambda p: inequality(p).update(
        constants=[(1 - 1e-9) * each for each in inequality(p)["constants"]]
    ),
    "an inequality the other way round": lambda p: inequality(p)["classes"].reverse(),
    "an inequality of nothing": lambda p: inequality(p).update(classes=[], constants=[]),
    "another input": changed(input=lambda x: [x[0] + 1e-9, *x[1:]]),
    "other weights": lambda p: p.update(weights="0" * 64),
    "a convolution's bound × 0.999": layer(0, bound=lambda b: b * 0.999),
    "a dense layer's bound × 0.999": layer(4, bound=lambda b: b * 0.999),
    "a bound of 0": layer(4, bound=0),
    "an activation's bound × 0.999": layer(1, bound=0.999),
    "a permutation's bound × 0.999": layer(2, bound=0.999),
    "an activation renamed": layer(5, kind="abs"),
    "another activation renamed": layer(1, kind="relu"),
    "other padding": layer(0, padding=[0, 2, 0, 2]),
    "another order": layer(2, kind="identity"),
    "a bias dropped": layer(4, bias=None),
    "the head's bias dropped": layer(6, bias=None),
    "another layer's bias": layer(4, bias="0.bias"),
    "another layer's weight": layer(4, weight="6.weight"),
    "weights of another name": layer(4, weight="nothing"),
    "a layer removed": lambda p: p["program"].pop(5),
    "a layer twice": lambda p: p["program"].insert(1, p["program"][0]),
    "too few channels": layer(0, groups=[1], weight="4.weight"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forgeries_are_refuted(place, name):
    code, said = place.check(lambda proof: FORGED[name](proof) and None)
    assert code == REFUTED, said
    assert said.startswith("Refuted: ")


HARMLESS = {  # the verdict is about the claim
    "a bound that is larger than need be, and a radius that allows for it": lambda p: (
        layer(4, bound=lambda b: b * 1.0001)(p),
        changed(
            radius=lambda r: r * 0.999,
            epsilon=0.0,
            inequalities=[],
        )(p),
    ),
    "a smaller radius": changed(radius=lambda r: r * 0.999, epsilon=lambda e: e * 0.9),
    "no inequalities stated": changed(inequalities=[]),
    "another method's name": changed(method="by magic"),
    "a larger affinity set": changed(guarantee="affinity", set=[0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_not_touch_the_claim_is_valid(place, name):
    code, said = place.check(lambda proof: HARMLESS[name](proof) and None)
    assert code == VALID, said


UNREADABLE = {
    "nothing": lambda p: "",
    "truncated": lambda p: json.dumps(p)[:-40],
    "a number": lambda p: "7",
    "a list": lambda p: "[]",
    "NaN": lambda p: json.dumps(p).replace('"epsilon": ', '"epsilon": NaN, "e": '),
    "Infinity": lambda p: json.dumps(p).replace('"radius": ', '"radius": Infinity, "e": '),
    "a huge exponent": lambda p: json.dumps(p).replace('"radius": ', '"radius": 1e999999999, "e": '),
    "huge digits": lambda p: json.dumps(p).replace('"radius": ', f'"radius": {"9" * 4000}, "e": '),
    "more digits": lambda p: json.dumps(p).replace('"radius": ', f'"radius": {"9" * 90000}, "e": '),
    "a key twice": lambda p: json.dumps(p).replace('"radius": ', '"radius": 1e-9, "radius": '),
    "deep": lambda p: json.dumps(p).replace('"program": [', '"program": [' + "[" * 100_000),
    "deep residuals": lambda p: json.dumps(p).replace(
        '"program": [', '"program": [' + '{"kind": "residual", "body": [' * 900 + "]}" * 900 + ", "
    ),
    "another format": lambda p: json.dumps({**p, "format": "safeset proof 2"}),
    "no certificates": lambda p: json.dumps({**p, "certificates": []}),
    "gigantic padding": lambda p: (layer(0, padding=[2**19] * 4)(p), json.dumps(p))[1],
    "gigantic input": lambda p: json.dumps({**p, "input_shape": [2**24, 2**24, 2**24]}),
    "many patches": lambda p: (layer(2, kind="avgpool", size=[1, 1], stride=[1, 1], dilation=[1, 1],
                                     padding=[3000] * 4)(p), json.dumps(p))[1],
    "an unknown layer": lambda p: (layer(1, kind="softmax")(p), json.dumps(p))[1],
    "another last layer": lambda p: json.dumps({**p, "program": p["program"][:-1]}),
    "a negative bound": lambda p: (layer(1, bound=-1)(p), json.dumps(p))[1],
    "a bound as text": lambda p: (layer(1, bound="1")(p), json.dumps(p))[1],
    "a bias that is a list": lambda p: (layer(0, kind="conv", stride=[True, 1])(p), json.dumps(p))[1],
    "a core of True": lambda p: (p["certificates"][0].update(core=[True]), json.dumps(p))[1],
    "a strange guarantee": lambda p: (p["certificates"][0].update(guarantee="rt"), json.dumps(p))[1],
    "too few logits": lambda p: (p["certificates"][0]["logits"].pop(), json.dumps(p))[1],
    "too few numbers": lambda p: (p["certificates"][0]["input"].pop(), json.dumps(p))[1],
    "an infinite logit": lambda p: json.dumps(p).replace('"logits": [', '"logits": [1e999, '),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_proof_is_not_checkable(place, name):
    code, said = place.check(UNREADABLE[name])
    assert code == UNCHECKED, said
    assert said.startswith("Not checkable: ")


def every_path(value, path=()):
    yield path
    for key in value if isinstance(value, dict) else range(min(len(value), 2)) if isinstance(value, list) else ():
        yield from every_path(value[key], (*path, key))


@given(st.data())
def test_any_part_replaced_by_anything_is_never_believed_by_accident(place, data):
    """No exception, and a valid verdict only where nothing that matters has changed."""
    (*way, last) = data.draw(st.sampled_from([path for path in every_path(place.proof) if path]))
    odd = st.sampled_from(
        [None, True, "", "0.weight", -1, 0, 3, 2**70, 1e308, 1e-320, 0.5, [], [0], {}, [[]], {"kind": "relu"}]
    )
    new, gone = data.draw(odd), data.draw(st.booleans())

    def change(proof):
        inside = proof
        for key in way:
            inside = inside[key]
        if gone:
            del inside[last]
        else:
            inside[last] = new

    code, said = place.check(change)
    before, after = copy.deepcopy(place.proof), copy.deepcopy(place.proof)
    change(after)
    unread = {"method", "class_names", "proved by"} & {*way, last}
    fewer = "inequalities" in (*way, last) and (gone or new in ([], 2**70, 1e308, 3))
    smaller = last == "epsilon" and new in (0, 1e-320)
    assert code in (REFUTED, UNCHECKED) or unread or fewer or smaller or before == after, said


# -- other files ------------------------------------------------------------------------------------------------------


def test_one_bit_of_the_weights(place):
    content = bytearray((place.path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (place.path / "other").write_bytes(content)
    assert place.check(model="other")[0] == REFUTED
    digest = check.Weights(bytes(content)).digest()
    code, said = place.check(lambda p: p.update(weights=digest), model="other")  # a forger who knows the format
    assert code == REFUTED, said


def test_weights_that_are_not_finite(place):
    tensors = {name: tensor.clone() for name, tensor in small().network.state_dict().items()}
    tensors["4.weight"][0, 0] = math.nan
    (place.path / "nan").write_bytes(save(tensors))
    digest = check.Weights(save(tensors)).digest()
    assert place.check(lambda p: p.update(weights=digest), model="nan")[0] == REFUTED


def broken_weights():
    good = save({"a": torch.ones(4), "b": torch.zeros(2)})
    length = int.from_bytes(good[:8], "little")
    header, data = json.loads(good[8 : 8 + length]), good[8 + length :]

    def made(new, rest=data):
        text = new if isinstance(new, bytes) else json.dumps(new).encode()
        return struct.pack("<Q", len(text)) + text + rest

    yield from (
        b"",
        good[:7],
        good[:8],
        good[: 8 + length],
        good[:-1],
        good + b"\0",
        struct.pack("<Q", 2**60) + good[8:],
    )
    yield from (made([]), made(7), made(b"{"), made({"a": 3}), made({"a": {}}))
    overlap = {"a": header["a"], "b": {**header["b"], "data_offsets": [0, 8]}}
    gap = {"a": {**header["a"], "data_offsets": [0, 16]}, "b": {**header["b"], "data_offsets": [20, 28]}}
    huge = {"a": {**header["a"], "shape": [2**40, 2**40]}, "b": header["b"]}
    negative = {"a": {**header["a"], "data_offsets": [-8, 8]}, "b": header["b"]}
    odd = {"a": {**header["a"], "dtype": "F7"}, "b": header["b"]}
    yield from map(made, (overlap, gap, huge, negative, odd))


@pytest.mark.parametrize("content", list(broken_weights()))
def test_broken_weights_are_told(place, content):
    (place.path / "broken").write_bytes(content)
    code, said = place.check(model="broken")
    assert code == UNCHECKED or "are not those" in said, said  # an empty file of tensors is one, but another


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_png_files_of_every_filter_are_decoded(mode):
    random = np.random.default_rng(0)
    shape = (5, 7) if mode == "L" else (5, 7, 3)
    smooth = np.cumsum(random.integers(0, 3, shape), axis=0).astype(np.uint8)
    own = shape[2] if mode == "RGB" else 1
    flat = smooth.reshape(5, 7 * own).astype(int)
    lines = b""
    for y, kind in enumerate(range(5)):
        line = [kind]
        for n in range(7 * own):
            a = flat[y, n - own] if n >= own else 0
            b = flat[y - 1, n] if y else 0
            c = flat[y - 1, n - own] if y and n >= own else 0
            paeth = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            line.append((flat[y, n] - (0, a, b, (a + b) // 2, paeth)[kind]) % 256)
        lines += bytes(int(each) for each in line)
    head = struct.pack(">IIBBBBB", 7, 5, 8, 0 if own == 1 else 2, 0, 0, 0)
    packed = zlib.compress(lines)
    png = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", head), (b"IDAT", packed[:9]), (b"IDAT", packed[9:]), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    wanted = smooth.reshape(5, 7, own).transpose(2, 0, 1)
    assert check.pixels_of(png, own, 5, 7) == wanted.flatten().tolist()
    if own == 1:
        assert check.pixels_of(png, 3, 5, 7) == 3 * wanted.flatten().tolist()
    for length in range(0, len(png) // 2, 5):
        with pytest.raises(check.UncheckedError):
            check.pixels_of(png[:length], own, 5, 7)


def test_another_image_is_refuted_and_one_that_cannot_be_compared_is_said(place):
    pixels = np.asarray(Image.open(place.path / "x.png")).copy()
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(place.path / "other.png")
    assert place.check(images=["other.png"])[0] == REFUTED
    Image.fromarray(pixels).resize((8, 8)).save(place.path / "large.png")
    Image.fromarray(pixels).save(place.path / "x.jpg")
    Image.open(place.path / "x.png").convert("RGBA").save(place.path / "alpha.png")
    for name in ("large.png", "x.jpg", "alpha.png", "model.safetensors", "nowhere.png", "."):
        assert place.check(images=[name])[0] == UNCHECKED
    assert place.check(images=["x.png", "x.png"])[0] == UNCHECKED


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_without_time_nothing_is_said(place, seconds):
    code, said = place.check(seconds=seconds)
    assert code == UNCHECKED
    assert "budget" in said


def test_a_file_that_is_not_there(place, tmp_path):
    assert check.check(str(tmp_path / "no.json"), str(place.path / "model.safetensors"))[0] == UNCHECKED
    assert check.main([str(tmp_path / "no.json"), str(tmp_path / "no")]) == UNCHECKED


# -- slow and obvious -------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from([1 - 1e-9, 1 + 1e-9]))
def test_norms_of_convolutions_against_their_matrix(seed, factor):
    random = np.random.default_rng(seed)
    size, stride, dilation = (random.integers(1, each, 2).tolist() for each in (6, 3, 3))
    out, into, *taps = random.integers(1, 4, 4).tolist()
    before = [int(random.integers(0, d * (t - 1) + 1)) for d, t in zip(dilation, taps, strict=True)]
    after = [max(0, d * (t - 1) + 1 - n - b) for d, t, n, b in zip(dilation, taps, size, before, strict=True)]
    kernel = random.normal(size=(out, into, *taps)).astype(np.float32).astype(float)
    matrix = convolution_matrix(kernel, size, stride, dilation, before, after)
    bound = float(np.linalg.norm(matrix, 2)) * factor
    entry = {"stride": stride, "dilation": dilation, "padding": [before[0], after[0], before[1], after[1]]}
    patches, shape = check.patches_of(entry, taps, (into, *size))
    assert out * shape[1] * shape[2] == len(matrix)
    values, unit = check.exactly(kernel.flatten().tolist())
    each = len(values) // out
    rows = [values[n : n + each] for n in range(0, len(values), each)]
    if at_least_norm(matrix, bound):
        check.check_norm(rows, patches, size[0] * size[1], Fraction(bound) / unit, check.Clock(math.inf))
    else:
        with pytest.raises(check.RefutedError):
            check.check_norm(rows, patches, size[0] * size[1], Fraction(bound) / unit, check.Clock(math.inf))


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_those_of_another_exact_evaluation(name):
    torch.manual_seed(2)
    shape, made = NETWORKS[name]
    net = CertifiedNet(nn.Sequential(*made()), input_shape=shape, guarantee="standard", epsilon=0.0)
    x = torch.rand(1, *shape, dtype=torch.float64)
    proof = net.certify(x).proof()
    network = check.Network(proof, check.Weights(save(net.network.state_dict())), check.Clock(math.inf))
    point = check.Point(network, proof["certificates"][0])
    assert point.logits == rational.evaluate(net.frozen().network, x[0]).tolist()


@given(st.integers(0, 2**32))
def test_no_radius_beyond_the_truth_of_a_linear_network_is_valid(seed):
    """The true distance to the nearest violation, by brute force that knows nothing of chains."""
    random = np.random.default_rng(seed)
    classes = int(random.integers(3, 6))
    rows, logits = random_network(random, classes, 3)
    logits += 1e-3 * random.normal(size=classes)
    ranking = np.argsort(-logits, kind="stable").tolist()
    start = int(random.integers(1, classes))
    end = int(random.integers(start, classes))
    truth, _ = nearest_violation(rows, logits, range(start, end + 1))
    tensors = {"weight": torch.from_numpy(rows), "bias": torch.from_numpy(logits)}
    program = [{"kind": "linear", "weight": "weight", "bias": "bias"}]
    weights = check.Weights(save(tensors))
    network = check.Network({"input_shape": [3], "program": program}, weights, check.Clock(math.inf))

    def verdict(radius):
        core, optional = ranking[:start], ranking[start:end]
        stated = {
            "claim": check.claim(core, optional, radius, classes), "guarantee": f"rt{end}", "epsilon": 0.0,
            "radius": radius, "core": core, "optional": optional, "logits": logits.tolist(), "window": [start, end],
            "inequalities": [], "input": [0.0, 0.0, 0.0],
        }  # fmt: skip
        try:
            check.check_certificate(stated, network)
        except check.RefutedError:
            return REFUTED
        return VALID

    truth = float(truth)
    if math.isfinite(truth) and truth > 1e-6:
        assert verdict(truth * (1 + 1e-6)) == REFUTED
        if end - start <= 3:
            assert verdict(truth * (1 - 1e-6)) == VALID


# -- making proofs ----------------------------------------------------------------------------------------------------


def test_what_has_no_proof_says_why():
    alone = certify_logits([[2.0, 0.0]], HeadConstants(torch.eye(2)), 0.1)
    with pytest.raises(ArgumentError, match=r"net\.certify"):
        alone.proof()
    net = small()
    found = net.certify(torch.rand(3, 1, 4, 4))
    for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        with pytest.raises(ArgumentError, match=r"net\.certify"):
            copied.proof()
    with pytest.raises(ArgumentError, match="0 certified of 3"):
        found.at(100.0).proof()
    with pytest.raises(ArgumentError, match="0 certified of 0"):
        found[:0].proof()


def test_a_proof_is_of_what_was_certified():
    net, x = small(), torch.rand(3, 1, 4, 4, dtype=torch.float64)
    found = net.certify(x)
    whole = found.proof()
    assert found[1].proof()["certificates"] == whole["certificates"][1:2]
    assert found[found.certified].proof() == whole
    assert net.frozen().certify(x).proof()["certificates"] == whole["certificates"]
    with torch.no_grad():
        net.network[4].weight[0, 0] += 1.0
    with pytest.raises(ArgumentError, match="changed since"):
        found.proof()
    with torch.no_grad():
        net.network[4].weight[0, 0] -= 1.0
    again = net.certify(x)
    x += 1.0  # what was certified is a copy
    assert again.proof()["certificates"][0]["input"] == whole["certificates"][0]["input"]


def test_folded_layers_have_a_proof_where_the_frozen_weights_are_saved(tmp_path):
    torch.manual_seed(0)
    net = CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=1e-4).eval()
    x = inputs(4).double()
    found = net.certify(x)
    with pytest.raises(ArgumentError, match="frozen"):
        found[found.certified].proof()
    frozen = net.frozen()
    found = frozen.certify(x)
    save_file(frozen.network.state_dict(), tmp_path / "m")
    (tmp_path / "p").write_text(json.dumps(found[found.certified].proof()))
    assert check.check(str(tmp_path / "p"), str(tmp_path / "m"))[0] == VALID
    network = nn.Sequential(nn.ChannelShuffle(2), nn.Flatten(), nn.Linear(32, 3))
    found = CertifiedNet(network, input_shape=(2, 4, 4), guarantee="standard", epsilon=0.0).certify(x)
    with pytest.raises(UnsupportedLayerError, match="cannot travel"):
        found.proof()


def test_the_command_line(tmp_path):
    pixels = np.random.default_rng(3).integers(0, 256, (3, 8, 8)).astype(np.uint8)
    for number, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / f"{number}.png")
    safeset("train", "digits/rt3", "--epochs", "1", "--model", "mlp-2x32", "--out", "run", cwd=tmp_path)
    names = ["0.png", "1.png", "2.png"]
    _, said = safeset("certify", "run", *names, "--eps", "1e-4", "--proof", "p.json", cwd=tmp_path)
    assert "Proof of 3 points: safeset check p.json run/model.safetensors 0.png 1.png 2.png" in said
    assert "Large networks may not be checkable" in said
    arguments = ("check", "p.json", "run/model.safetensors")
    output, _ = safeset(*arguments, *names, cwd=tmp_path)
    assert "Valid" in output
    assert output.count('; its units are stated as "pixels in [0, 1]"') == 3
    assert "Valid" in safeset(*arguments, cwd=tmp_path)[0]
    output, _ = safeset(*arguments, "0.png", "2.png", "1.png", cwd=tmp_path, code=REFUTED)
    assert "Refuted: 2.png is not the input of certificate 1" in output
    safeset(*arguments, "0.png", cwd=tmp_path, code=UNCHECKED)
    safeset(*arguments, "--budget", "0", cwd=tmp_path, code=UNCHECKED)
    safeset("check", "no.json", "run/model.safetensors", cwd=tmp_path, code=UNCHECKED)
    other = [f"{name}.png" for name in ("fine", "palette", "large")]
    Image.fromarray(pixels[0].astype(np.uint16) * 257).save(tmp_path / other[0])
    Image.fromarray(pixels[0]).convert("P").save(tmp_path / other[1])
    Image.fromarray(pixels[0]).resize((16, 12)).save(tmp_path / other[2])
    for name in other:  # what the checker cannot compare is not suggested
        _, said = safeset("certify", "run", name, "--eps", "1e-4", "--proof", "other.json", cwd=tmp_path)
        assert "safeset check other.json run/model.safetensors\n" in said
        (one,) = json.loads((tmp_path / "other.json").read_text())["certificates"]
        assert (one["as in its file"], one["units"]) == (False, "pixels in [0, 1]")
        assert one.get("resized_from") == ({"width": 16, "height": 12} if name == "large.png" else None)
    _, said = safeset("certify", "run", "0.png", "--eps", "50", "--proof", "none.json", cwd=tmp_path, code=1)
    assert "certified points to prove" in said
    assert not (tmp_path / "none.json").exists()
    _, said = safeset("certify", "run", "0.png", "--proof", "no/p.json", cwd=tmp_path, code=1)
    assert "a directory for the JSON file" in said


# -- what a careful reader found --------------------------------------------------------------------------------------


def test_a_network_that_leaves_out_weights_is_refuted(place, tmp_path):
    """The same weights without their biases: a proof of another network."""
    net = small()
    for each in net.network:
        if getattr(each, "bias", None) is not None:
            each.bias = None
    x = torch.tensor(place.proof["certificates"][0]["input"], dtype=torch.float64).view(1, 1, 4, 4)
    other = proof_at(net, x)
    code, said = place.check(lambda proof: proof.update(program=other["program"], certificates=other["certificates"]))
    assert (code, said) == (REFUTED, "Refuted: its network leaves out some of the weights.")


def test_what_is_shown_says_all_of_the_network_and_nothing_else(place):
    (place.path / "p.json").write_text(json.dumps(place.proof))
    _, said = check.check(str(place.path / "p.json"), str(place.path / "model.safetensors"))
    assert "on inputs of shape [1, 4, 4]" in said[0]
    for part in ('"bias" "0.bias"', '"groups" [1]', '"dilation" [1, 1]', '"padding" [1, 1, 1, 1]'):
        assert part in said[0]
    words = check.words([{"kind": "relu", "weight": "x]\ncat.png: at every input \ud800 \x1b[31m"}])
    assert "\n" not in words
    assert words.isascii()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + zlib.crc32(name + data).to_bytes(4, "big")


@pytest.mark.parametrize("kind", ["first", "split", "after the end", "two heads", "crc", "method", "no end"])
def test_images_that_decoders_read_differently_are_not_compared(place, kind):
    size = struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)
    head, end, other = chunk(b"IHDR", size), chunk(b"IEND", b""), chunk(b"tEXt", b"a\0b")
    data, damaged = chunk(b"IDAT", zlib.compress(bytes(20))), chunk(b"IDAT", zlib.compress(bytes(20)))[:-1] + b"!"
    parts = {
        "first": [data, head, data, end],
        "split": [head, data, other, data, end],
        "after the end": [head, end, data],
        "two heads": [head, head, data, end],
        "crc": [head, damaged, end],
        "method": [chunk(b"IHDR", size[:-2] + b"\1\0"), data, end],
        "no end": [head, data],
    }
    (place.path / "odd.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts[kind]))
    code, said = place.check(images=["odd.png"])
    assert code == UNCHECKED
    assert "no plain 8-bit PNG" in said or "damaged" in said


TURNED = b'<x xmlns:tiff="t" tiff:Orientation="6"/>'
RAW = b"\nexif\n      32\n4578696600004d4d002a0000000800010112000300000001000600000000\n0000\n"
TEXTS = {
    "iTXt XMP": (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + TURNED),
    "tEXt XMP": (b"tEXt", b"XML:com.adobe.xmp\0" + TURNED),
    "tEXt raw": (b"tEXt", b"Raw profile type exif\0" + RAW),
    "zTXt raw": (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(RAW)),
    "tEXt exif": (b"tEXt", b"exif\0" + bytes.fromhex("4d4d002a0000000800010112000300000001000600000000")),
    "animation": (b"acTL", bytes(8)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_images_that_texts_turn_are_not_compared(place, name):
    plain = (place.path / "x.png").read_bytes()
    head, rest = plain[:33], plain[33:]
    (place.path / "turned.png").write_bytes(head + chunk(*TEXTS[name]) + rest)
    code, said = place.check(images=["turned.png"])
    assert (code, "turned.png: this is no plain 8-bit PNG" in said) == (UNCHECKED, True)
    (place.path / "told.png").write_bytes(head + chunk(b"tEXt", b"Comment\0exif, xmp") + rest)
    assert place.check(images=["told.png"])[0] == VALID


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A proof of 60 classes whose window is 1..50, with more chains than anybody can look at."""
    path = tmp_path_factory.mktemp("many")
    network = nn.Sequential(nn.Linear(2, 60))
    with torch.no_grad():
        network[0].weight.zero_()
        network[0].bias.copy_(-torch.arange(60.0))
    net = CertifiedNet(network, input_shape=(2,), guarantee="rt1", epsilon=0.1)
    proof = net.certify(torch.zeros(1, 2, dtype=torch.float64)).proof()
    one = proof["certificates"][0]
    one |= {"guarantee": "rt59", "window": [1, 50], "core": [0], "optional": list(range(1, 50)), "radius": 1.0}
    one["claim"] = check.claim(one["core"], one["optional"], 1.0, 60)
    save_file(network.state_dict(), path / "m")
    (path / "p").write_text(json.dumps(proof))
    return path


def test_the_budget_is_kept_whatever_is_known_already(many):
    code, said = check.check(str(many / "p"), str(many / "m"), seconds=1.0)
    assert (code, said[-1]) == (UNCHECKED, "Not checkable: out of time: give a larger --budget.")


def test_the_budget_is_kept_for_inequalities(many):
    proof = json.loads((many / "p").read_text())
    proof["certificates"][0]["window"] = [1, 1]
    ever = {"classes": [59, 0] * 20000, "constants": [1e9] * 20000}
    proof["certificates"][0]["inequalities"] = [ever]
    (many / "i").write_text(json.dumps(proof))
    code, said = check.check(str(many / "i"), str(many / "m"), seconds=1.0)
    assert (code, said[-1]) == (UNCHECKED, "Not checkable: out of time: give a larger --budget.")


@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_no_regular_file_is_not_waited_for(place, tmp_path, which):
    os.mkfifo(tmp_path / "pipe")
    (place.path / "p.json").write_text(json.dumps(place.proof))
    files = [str(place.path / name) for name in ("p.json", "model.safetensors", "x.png")]
    files[which] = str(tmp_path / "pipe")
    code, said = check.check(files[0], files[1], files[2:])
    assert (code, "no regular file" in said[-1]) == (UNCHECKED, True)


def alone(place, *arguments, before="", **options):
    """The checker by itself, in a process of its own."""
    (place.path / "p.json").write_text(json.dumps(place.proof))
    start = f"import runpy, sys\n{before}\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-I", "-c", start, check.__file__, "p.json", "model.safetensors", *arguments]
    return subprocess.run(command, cwd=place.path, text=True, stderr=subprocess.PIPE, check=False, **options)


STOP = "import time\ndef stop(): raise KeyboardInterrupt\ntime.monotonic = stop"


def test_what_cannot_be_said_is_never_a_refutation(place):
    """1 means that the proof is refuted, which nothing but a refutation may say."""
    plain = alone(place, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert (plain.returncode, plain.stderr) == (VALID, "")
    plain = alone(place, stdout=subprocess.PIPE, before="sys.stdout.reconfigure(encoding='ascii', errors='strict')")
    assert (plain.returncode, plain.stderr) == (VALID, "")
    assert "\\u2192" in plain.stdout
    with open("/dev/full", "w") as full:
        found = alone(place, stdout=full)
        assert (found.returncode, found.stderr) == (UNCHECKED, "")
    found = alone(place, stdout=subprocess.PIPE, before=STOP)
    assert (found.returncode, found.stderr) == (UNCHECKED, "")


def test_what_the_command_cannot_say_is_never_a_refutation(place):
    (place.path / "p.json").write_text(json.dumps(place.proof))
    arguments = ("check", "p.json", "model.safetensors")
    _, said = safeset(*arguments, cwd=place.path, stdout="/dev/full", code=UNCHECKED)
    assert "Not checkable: no output" in said
    _, said = safeset(*arguments, cwd=place.path, before=STOP, code=UNCHECKED)
    assert "Not checkable: interrupted" in said
    before = "import sys\nsys.stdout.reconfigure(encoding='ascii')"
    assert "Valid" in safeset(*arguments, cwd=place.path, before=before)[0]


def test_what_is_wrong_is_said_of_the_file_that_it_is_in(place):
    content = (place.path / "model.safetensors").read_bytes()
    (place.path / "cut").write_bytes(content[:-4])
    code, said = place.check(model="cut")
    assert (code, "the weights are no safetensors file" in said) == (UNCHECKED, True)
    code, said = place.check(lambda proof: proof.update(certificates=[]))
    assert (code, said) == (UNCHECKED, "Not checkable: there is no certificate in it.")

    def twice(proof):
        proof["certificates"] *= 2

    code, said = place.check(twice, images=["x.png"])
    assert (code, said) == (
        UNCHECKED,
        "Not checkable: certificates: 2, images: 1; give one image for each certificate, or none.",
    )
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(place.path / "large.png")
    code, said = place.check(twice, images=["x.png", "large.png"])
    assert (code, "large.png: this is no plain" in said) == (UNCHECKED, True)


def test_a_radius_that_words_would_round_is_not_checkable(place):
    for radius in (1, 2**1024 - 1, 18014398509482015):
        assert place.check(lambda proof, radius=radius: proof["certificates"][0].update(radius=radius))[0] == UNCHECKED
