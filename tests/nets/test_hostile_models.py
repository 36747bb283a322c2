"""Runs from elsewhere: nothing in them is executed, believed or followed, and nothing broken is certified."""

import json
import math
import os
import pickle
import shutil
import signal
import struct

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from helpers.accidents import Accident
from helpers.commands import safeset
from helpers.own_files import Trap, photos
from safeset import ArgumentError, SafesetError, load, train
from safeset.data.embedded import digits
from safeset.data.images import cache_folder, read_folder
from safeset.runs.certify_files import certify_files
from safeset.runs.run import Run
from safeset.system.files import read_tensors

RECIPE = {"data": {"source": "digits"}, "epochs": 1, "guarantee": "rt3", "epsilon": 0.1, "model": "mlp-2x32"}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "run"
    train(RECIPE, out=path)
    return path


@pytest.fixture
def run(original, tmp_path):
    """A copy of a small run, to be spoilt."""
    shutil.copytree(original, tmp_path / "run")
    return Run(tmp_path / "run")


def safetensors(header, data=b""):
    """A file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def changed(run, name, new):
    """Another tensor in the model."""
    tensors = load_file(run.model)
    tensors[name] = new(tensors[name])
    save_file(tensors, run.model)


# -- tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 200, -1000, -1])
def test_a_truncated_model_is_told(run, length):
    run.model.write_bytes(run.model.read_bytes()[:length])
    with pytest.raises(
        SafesetError, match=r"Expected a safetensors file at .*model\.safetensors, but got something else"
    ):
        load(run.path)


def test_bytes_behind_the_model_are_told(run):
    run.model.write_bytes(run.model.read_bytes() + b"more")
    with pytest.raises(SafesetError, match="a file of another size"):
        load(run.path)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40, 10**6])
def test_headers_longer_than_the_file_are_not_read(run, length):
    run.model.write_bytes(struct.pack("<Q", length) + run.model.read_bytes()[8:])
    with pytest.raises(SafesetError, match="no header of a file"):
        load(run.path)


def test_a_huge_file_is_judged_by_its_header(run):
    os.truncate(run.model, 2**40)  # sparse; to read it would need a terabyte
    with pytest.raises(SafesetError, match="a file of another size"):
        load(run.path)
    run.model.write_bytes(safetensors({"0.weight": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}))
    os.truncate(run.model, run.model.stat().st_size + 2**40)  # as large as its header says
    with pytest.raises(ArgumentError, match=r"Expected '0\.weight' of shape none .* but got \(274877906944,\)"):
        load(run.path)
    with run.model.open("r+b") as file:
        file.write(struct.pack("<Q", 2**30))  # a header of a gigabyte, all of it there
    with pytest.raises(SafesetError, match="no header of a file"):
        load(run.path)


def test_a_recipe_that_claims_a_huge_network_is_held_against_the_model_before_it_is_built(run):
    text = run.recipe.read_text()
    run.recipe.write_text(text.replace("input_shape = [1, 8, 8]", "input_shape = [1, 2000000000]"))
    with pytest.raises(ArgumentError, match=r"'1\.weight' of shape \(32, 2000000000\) .* but got \(32, 64\)"):
        load(run.path)
    run.recipe.write_text(text.replace("input_shape = [1, 8, 8]", f"input_shape = [1, {2**40}, {2**40}]"))
    with pytest.raises(ArgumentError, match="the shape of one input"):
        load(run.path)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("overflow", {"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}),
        ("negative", {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        ("offsets", {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
        ("no offsets", {"a": {"dtype": "F32", "shape": [1]}}),
        ("four bits", {"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}),
        ("nothing known", {"a": {"dtype": "Q7", "shape": [1], "data_offsets": [0, 4]}}),
        ("metadata", {"__metadata__": {"format": 3}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        ("no table", b"[]"),
        ("deep", b'{"a":' * 3000 + b"1" + b"}" * 3000),
        ("long number", b'{"a":' + b"9" * 5000 + b"}"),
        ("bytes", b"\xff\xfe\x00\x01"),
    ],
)
def test_headers_that_lie_are_told(tmp_path, name, header):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors(header, b"\0" * 4))
    with pytest.raises(SafesetError, match="Expected a safetensors file"):
        read_tensors(path)


def test_metadata_may_be_none(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(safetensors({"__metadata__": None}))
    assert read_tensors(tmp_path / "x.safetensors") == ({}, {})


@pytest.mark.parametrize(
    ("name", "new", "message"),
    [
        ("1.weight", lambda old: old.T.contiguous(), r"Expected '1\.weight' of shape \(32, 64\) .* but got \(64, 32\)"),
        ("1.weight", lambda old: old[None], r"but got \(1, 32, 64\)"),
        ("../../etc/passwd", None, r"Expected '\.\./\.\./etc/passwd' of shape none"),
        ("/etc/passwd", None, "of shape none"),
        ("1.weight\x1b[2J", None, r"'1\.weight\\x1b\[2J' of shape none"),
        ("x" * 10**6, None, "'x{80}' of shape none"),
        ("1.weight", lambda old: old.long(), r"'1\.weight' of .* to be of type torch\.float32, but got torch\.int64"),
        ("1.bias", lambda old: old.bool(), r"but got torch\.bool"),
        ("1.bias", lambda old: old.to(torch.complex64), r"but got torch\.complex64"),
    ],
)
def test_other_tensors_than_the_recipe_s_are_refused(run, name, new, message):
    tensors = load_file(run.model)
    tensors[name] = new(tensors[name]) if new else torch.zeros(2)
    save_file(tensors, run.model)
    with pytest.raises(ArgumentError, match=message):
        load(run.path)


def test_a_missing_tensor_is_named(run):
    tensors = load_file(run.model)
    del tensors["3.bias"]
    save_file(tensors, run.model)
    with pytest.raises(ArgumentError, match=r"Expected '3\.bias' of shape \(32,\) .*, but got none"):
        load(run.path)


def spoilt(number):
    def new(old):
        old = old.clone()
        old.view(-1)[5] = number
        return old

    return new


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["1.weight", "5.bias"])
def test_weights_that_are_not_finite_are_never_certified(run, name, number):
    changed(run, name, spoilt(number))
    with pytest.raises(ArgumentError, match=rf"finite weights in '{name}' of .*, but got NaN or infinite ones"):
        load(run.path)
    own = torch.nn.Linear(2, 2)
    run.recipe.write_text(run.recipe.read_text().replace('"mlp-2x32"', '"own"'))
    save_file({"weight": torch.eye(2), "bias": torch.tensor([0.0, number])}, run.model)
    before = own.weight.clone()
    with pytest.raises(ArgumentError, match="finite weights in 'bias'"):
        load(run.path, network=own)
    assert torch.equal(own.weight, before)  # not half loaded


def test_weights_that_overflow_are_not_finite(run):
    changed(run, "1.weight", lambda old: spoilt(1e300)(old.double()))
    with pytest.raises(ArgumentError, match=r"finite weights in '1\.weight'"):
        load(run.path)
    changed(run, "1.weight", lambda old: spoilt(0.5)(old).half())
    assert load(run.path).network[1].weight.dtype == torch.float32


def test_what_is_certified_of_the_largest_weights_is_true(run):
    changed(run, "5.weight", spoilt(3e38))
    net, x = load(run.path).frozen(), digits().test.inputs[:20].double()
    found = net.certify(x, guarantee="standard")
    assert found.radii.max() > 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        way = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        near = x + way / way.flatten(1).norm(dim=1)[:, None, None, None] * 0.999 * found.radii.view(-1, 1, 1, 1)
        assert torch.equal(net(near).argmax(dim=1)[found.radii[:, 0] > 0], found.ranking[found.radii[:, 0] > 0, 0])


# -- pickles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pickle", "torch", "inside"])
@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors"])
def test_a_pickle_with_another_suffix_is_refused_unread(run, tmp_path, kind, name):
    trap = Trap(tmp_path / "sprung")
    if kind == "torch":
        torch.save(trap, run.path / name)
    else:
        content = pickle.dumps(trap)
        (run.path / name).write_bytes(safetensors(content) if kind == "inside" else content)
    if name.startswith("model"):
        with pytest.raises(SafesetError, match="Expected a safetensors file"):
            load(run.path)
    else:
        run.evaluation.unlink()
        with pytest.raises(SafesetError, match="Expected a safetensors file"):
            train(RECIPE, out=run.path, resume=True)
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(FileNotFoundError):  # the trap is one
        os.rmdir(tmp_path / "sprung")
    pickle.loads(pickle.dumps(trap))
    assert (tmp_path / "sprung").exists()


def test_a_pickle_in_the_cache_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_CACHE", str(tmp_path / "cache"))
    photos(tmp_path / "pets")
    read_folder(tmp_path / "pets")
    (cache,) = cache_folder().iterdir()
    cache.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert len(read_folder(tmp_path / "pets").train) == 16
    assert not (tmp_path / "sprung").exists()


# -- recipes ----------------------------------------------------------------------------------------------------------


def certified(run):
    return list(certify_files(run.path, ["some.npz"], stdin=None))


@pytest.mark.parametrize(
    "guarantee",
    [
        'guarantee = "affinity:{outside}/sets.json"',
        'guarantee = " Affinity: {outside}/sets.json"',
        'guarantee = "affinity:../outside/sets.json"',
        'guarantee = "affinity:sets.json"',
        'guarantee = "affinity:/etc/passwd"',
        "guarantee = {{ hierarchy = {{ edges = '{outside}/edges.tsv', depth = 1 }} }}",
        "guarantee = {{ hierarchy = {{ edges = '../outside/edges.tsv', depth = 1 }} }}",
        'guarantee = \'affinity:{{"hierarchy": {{"edges": "{outside}/edges.tsv", "depth": 1}}}}\'',
    ],
)
def test_a_run_s_recipe_names_no_file_but_its_data(run, tmp_path, monkeypatch, guarantee):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "sets.json").write_text('[["1", "7"]]')
    (outside / "edges.tsv").write_text("root\tx\nroot\ty\nx\t1\nx\t7\ny\t2\n")
    (run.path / "sets.json").symlink_to(outside / "sets.json")
    monkeypatch.chdir(tmp_path)
    text = run.recipe.read_text()
    run.recipe.write_text(text.replace('guarantee = "rt3"', guarantee.format(outside=outside)))
    assert run.recipe.read_text() != text
    for command in (load, lambda path: Run(path).read_recipe(), lambda path: certified(Run(path))):
        with pytest.raises(ArgumentError, match="written out"):
            command(run.path)


def test_certify_says_that_a_run_s_guarantee_is_to_be_written_out(run, tmp_path):
    (tmp_path / "sets.json").write_text('[["1", "7"]]')
    run.recipe.write_text(run.recipe.read_text().replace('"rt3"', '"affinity:sets.json"'))
    _, errors = safeset("certify", "run", "x.png", cwd=tmp_path, code=1)
    assert "written out" in errors


def test_certify_does_not_look_for_the_data(run, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.csv")  # to open it would take for ever
    text = run.recipe.read_text().replace('source = "digits"', f'source = "{tmp_path}/pipe.csv"')
    run.recipe.write_text(text)
    seen = []
    plain = os.stat
    monkeypatch.setattr(os, "stat", lambda path, *more, **options: (seen.append(str(path)), plain(path, *more))[1])
    assert load(run.path).classes == 10
    assert any("recipe.toml" in path for path in seen)  # it would be seen
    assert not any("pipe.csv" in path for path in seen)


CLASSES = 'class_names = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 0.1", "epsilon = nan", "`epsilon` to be a finite number"),
        ("epsilon = 0.1", "epsilon = -0.1", "`epsilon` to be a finite number"),
        ("epsilon = 0.1", "epsilon = 1e999", "`epsilon` to be a finite number"),
        ("epsilon = 0.1", "epsilon = 0x" + "f" * 9999, "at most 64 bits"),
        ("epsilon = 0.1", "epsilon = " + "9" * 9999, "to be TOML"),
        ("epsilon = 0.1", "epsilon" + ".a" * 100_000 + " = 1", "keys of at most 50 parts"),
        ("epsilon = 0.1", "epsilon" + '."="' * 100_000 + " = 1", "keys of at most 50 parts"),
        ("epsilon = 0.1", "epsilon = " + "[" * 99 + "]" * 99, "at most 50 tables and lists"),
        ("epsilon = 0.1", "epsilon = " + "[" * 99_999, "to be TOML"),
        ("epsilon = 0.1", "# " + "x" * 2**24, "at most 16,777,216 bytes"),
        ("epsilon = 0.1", "x = '" + "y" * 99_999 + "'", "among data, guarantee"),
        ('guarantee = "rt3"', 'guarantee = "rt10"', "1..9"),
        ('guarantee = "rt3"', 'guarantee = "rt0"', "≥ 1"),
        ('guarantee = "rt3"', "guarantee = { sets = [[0, 10]] }", r"0\.\.9"),
        ('guarantee = "rt3"', 'guarantee = { sets = [["' + "9" * 5000 + '"]] }', "one of the 10 classes"),
        ('model = "mlp-2x32"', 'model = "os.system"', "`model` to be one of"),
        ('model = "mlp-2x32"', 'model = "mlp-3x1000"', r"'1\.weight' of shape|'1\.bias' of shape"),
        ("input_shape = [1, 8, 8]", "input_shape = []", "`input_shape`"),
        ("input_shape = [1, 8, 8]", "input_shape = [0]", "`input_shape`"),
        ("input_shape = [1, 8, 8]", "input_shape = [-64]", "`input_shape`"),
        (CLASSES, 'class_names = ["0"]', "`classes` to be an integer ≥ 2"),
        (CLASSES, CLASSES.replace('"9"', '"8"'), "'8' twice"),
        (CLASSES, CLASSES.replace(', "9"', ""), "of shape"),
        ('source = "digits"', 'source = "digits"\nranges = { a = [0, 1] }', "a range for each"),
        ('source = "digits"', 'source = "digits"\nranges = { a = [-1e308, 1e308] }', "pairs"),
        ('source = "digits"', 'source = "digits"\nseed = -1', "`seed`"),
        ("[task]", "[task", "to be TOML"),
    ],
)
def test_recipes_of_runs_that_cannot_be_meant_are_told(run, old, new, message):
    text = run.recipe.read_text()
    assert old in text
    run.recipe.write_text(text.replace(old, new))
    with pytest.raises(ArgumentError, match=message) as error:
        load(run.path)
    assert len(str(error.value)) < 4000


@pytest.mark.parametrize("name", ["recipe.toml", "model.safetensors"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "bytes"])
def test_what_should_be_a_file_is_one(run, name, kind):
    path = run.path / name
    path.unlink()
    make = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "bytes": lambda: path.write_bytes(b"\xff\xfe"),
    }
    make[kind]()
    with pytest.raises(SafesetError, match="Expected"):
        load(run.path)


def test_stored_bounds_are_not_believed(run, original):
    x = digits().test.inputs[:50]
    honest = load(original).certify(x)
    bounds = json.loads(run.bounds.read_text())
    bounds["before_the_head"] = 1e-9
    for layer in bounds["layers"]:
        layer["bound"] = 1e-9
    for lie in (json.dumps(bounds), "{", "null"):
        run.bounds.write_text(lie)
        found = load(run.path).certify(x)
        assert torch.equal(found.radii, honest.radii)
    assert honest.certified.any()


def test_names_cannot_write_to_the_terminal(run, tmp_path):
    text = run.recipe.read_text().replace(CLASSES, CLASSES.replace('"0"', '"\\u001b]0;owned\\u0007\\u202e"'))
    run.recipe.write_text(text.replace("epsilon = 0.1", "epsilon = 0.0"))
    Image.fromarray(digits().test.x[digits().test.y == 0][0, 0].numpy()).save(tmp_path / "0.png")
    output, _ = safeset("certify", "run", "0.png", cwd=tmp_path)
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "\\x1b]0;owned\\x07\\u202e" in output


# -- what else lies in a run ------------------------------------------------------------------------------------------


def test_nothing_is_written_through_links(run, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(victim)
    with pytest.raises(SafesetError, match="a directory that can be written"):
        train(RECIPE, out=run.path, resume=True)
    (run.path / ".lock").unlink()
    for name in ("evaluation.json", "metrics.jsonl", "README.md", "model.safetensors", "bounds.json"):
        (run.path / name).unlink()
        if name not in ("evaluation.json", "model.safetensors"):
            (run.path / name).symlink_to(victim)
    watch = Accident(1, lambda: run.model.symlink_to(victim))
    train(RECIPE, out=run.path, resume=True, watch=watch)
    assert victim.read_text() == "precious"
    assert run.has_ended


@pytest.mark.parametrize(
    "line",
    [
        '{"epoch": "1"}',
        '{"epoch": null, "seconds": {}}',
        '{"epoch": 1}',
        "[" * 99_999,
        '{"epoch": 1, "seconds": "<b>"}',
        "\x00",
        "nan",
    ],
)
def test_metrics_that_safeset_did_not_write_are_passed_over(run, line):
    good = run.metrics.read_text()
    run.metrics.write_text(f"{line}\n{good}")
    assert [record["epoch"] for record in run.records()] == [1]
    run.forget(1)
    assert run.metrics.read_text() == good


def test_an_evaluation_that_safeset_did_not_write_is_told(run, tmp_path):
    run.evaluation.write_text('{"rows": [{}], "guarantee": "rt3"}')
    _, errors = safeset("train", "--resume", "--out", "run", cwd=tmp_path, code=1)
    assert "safeset evaluate writes it again" in errors


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A run that was interrupted."""
    path = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(SafesetError, match="Interrupted"):
        train(RECIPE, out=path, watch=Accident(3, lambda: signal.raise_signal(signal.SIGTERM)))
    return path


def without(group):
    def change(tensors, texts):
        for name in [name for name in tensors if name.startswith(group)]:
            del tensors[name]

    return change


@pytest.mark.parametrize(
    "change",
    [
        without("parameters/"),
        without("random/"),
        without("vectors/"),
        lambda tensors, texts: tensors.update({"random/cpu": torch.zeros(3, dtype=torch.uint8)}),
        lambda tensors, texts: tensors.update({"optimiser/x.exp_avg": torch.zeros(1)}),
        lambda tensors, texts: tensors.update({"optimiser/0.exp_avg": torch.zeros(3, 3)}),
        lambda tensors, texts: texts.update({"position": "[]"}),
        lambda tensors, texts: texts.update({"position": '{"epoch": "x"}'}),
        lambda tensors, texts: texts.update({"position": '{"epoch": -1, "seconds": 0.0}'}),
        lambda tensors, texts: texts.update({"position": '{"what": 1}'}),
        lambda tensors, texts: texts.update({"position": "{"}),
        lambda tensors, texts: texts.update({"position": '{"losses": ["x"], "seconds": 1.0}'}),
        lambda tensors, texts: texts.update({"version": "0"}),
    ],
)
def test_a_checkpoint_that_safeset_did_not_write_is_refused(checkpoint, tmp_path, change):
    shutil.copytree(checkpoint, tmp_path / "run")
    path = Run(tmp_path / "run").checkpoint
    tensors, texts = read_tensors(path)
    change(tensors, texts)
    save_file(tensors, path, texts)
    with pytest.raises(SafesetError, match="Expected"):
        train(RECIPE, out=tmp_path / "run", resume=True)
    assert not Run(tmp_path / "run").model.exists()


def test_a_checkpoint_as_it_was_is_continued(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "run")
    train(RECIPE, out=tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").has_ended
