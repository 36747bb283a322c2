"""The command line, as a user has it: real processes, real files, messages instead of tracebacks."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.commands import safeset
from safeset import load, train
from safeset.certificates.promises import shown
from safeset.cli import show_answers
from safeset.data.embedded import digits
from safeset.runs.run import Run


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A directory with a trained run, images of digits and a broken one."""
    path = tmp_path_factory.mktemp("cli")
    train({"data": {"source": "digits"}, "epochs": 3, "guarantee": "rt3", "epsilon": 0.3}, out=path / "run")
    test = digits().test
    for place in range(3):
        Image.fromarray(test.x[place, 0].numpy()).save(path / f"{place}.png")
    (path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    np.savez(path / "some.npz", x=test.x[:2].numpy())
    return path


# -- help -------------------------------------------------------------------------------------------------------------


def test_certifying_imports_no_more_than_it_needs(work):
    """A compiler (a second and more), libraries of the embedded data and of figures stay out of a cold start."""
    code = (
        "import sys\nfrom safeset.cli import app as cli\nsys.argv = ['safeset', 'certify', 'run', '0.png']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch._dynamo', 'sympy', 'mpmath', 'sklearn', 'scipy', 'matplotlib', 'safeset.training.loop'}\n"
        "print('imported:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=work, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_help_names_the_commands_and_does_not_import_torch(tmp_path):
    output, _ = safeset("--help", cwd=tmp_path)
    for command in ("train", "evaluate", "certify", "data", "models", "version"):
        assert command in output
    code = (
        "import sys\nfrom safeset.cli import app as cli\nsys.argv = ['safeset', 'train', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\nassert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_version_and_models(tmp_path):
    assert safeset("version", cwd=tmp_path)[0].startswith("safeset 0.")
    output, _ = safeset("models", cwd=tmp_path)
    assert "cnn-2c2f" in output
    assert "cifar100/superclass" in output


# -- train ------------------------------------------------------------------------------------------------------------


def test_training_on_a_folder_of_photos_with_train_and_test_and_names(tmp_path):
    generator = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        for name, brightness in (("dark room", 30), ("bright day", 200), ("dusk", 110)):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for place in range(count):
                size = (int(generator.integers(17, 40)), int(generator.integers(17, 40)), 3)
                pixels = np.clip(brightness + generator.integers(-20, 20, size), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{place}.jpg")
    flags = ("--guarantee", "rt2", "--epsilon", "0.05", "--epochs", "4", "--size", "16", "--out", "runs/photos")
    output, errors = safeset("train", "--data", "photos", *flags, cwd=tmp_path)
    assert "12 test points" in output
    assert "epoch 4/4" in errors
    assert "VRA" in output
    recipe = Run(tmp_path / "runs" / "photos").read_recipe()
    assert recipe.task.class_names == ("bright day", "dark room", "dusk")
    assert (recipe.data.size, recipe.model, recipe.guarantee) == (16, "cnn-2c2f", "rt2")
    answer, _ = safeset("certify", "runs/photos", "photos/test/dusk", "--json", cwd=tmp_path)
    records = [json.loads(line) for line in answer.splitlines()]
    assert len(records) == 4
    assert all(set(record["core"]) <= set(recipe.task.class_names) for record in records)

    (tmp_path / "photos" / "train" / "dusk" / "broken.jpg").write_bytes(b"\xff\xd8\xff no jpeg")
    _, errors = safeset("train", "--data", "photos", "--out", "other", cwd=tmp_path, code=1)
    assert "1 bad file" in errors
    assert "broken.jpg" in errors
    assert "--skip-bad" in errors
    assert not (tmp_path / "other").exists()
    safeset("train", "--data", "photos", "--skip-bad", "--size", "16", "--epochs", "1", "--out", "other", cwd=tmp_path)


def test_training_on_a_table_and_certifying_rows_from_standard_input(tmp_path):
    generator = np.random.default_rng(0)
    lines = ["height,weight,kind"]
    for _ in range(300):
        height, weight = generator.uniform(100, 200), generator.uniform(40, 90)
        kind = ("short", "middle", "tall")[int((height - 100) // 34)]
        lines.append(f"{height},{weight},{kind}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    safeset("train", "--data", "people.csv", "--epochs", "40", "--epsilon", "0.02", cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    rows = b"weight,name,height\n60,ann,110\n60,bob,190\nsixty,eve,150\n"
    output, errors = safeset("certify", run, "-", "--json", cwd=tmp_path, stdin=rows, code=1)
    first, second, third = map(json.loads, output.splitlines())
    assert first["core"][0] == "short"
    assert second["core"][0] == "tall"
    assert "has 'sixty' for 'weight'" in third["problem"]
    assert "1 of the points could not be read" in errors
    recipe = Run(run).read_recipe()
    low, high = recipe.data.ranges["height"]
    net = load(run)
    x = np.array([[(110 - low) / (high - low), 0]])
    assert list(recipe.data.ranges) == ["height", "weight"]
    assert net.class_names[int(net.certify(x).ranking[0, 0])] == "short"
    _, errors = safeset("certify", run, "-", cwd=tmp_path, stdin=b"height\n1\n", code=1)
    assert "none named weight" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Expected something to train on, but got nothing"),
        (["digits/rt9"], "Did you mean 'digits/rt3'"),
        (["--data", "digit"], "Did you mean 'digits'"),
        (["--data", "digits", "--guarantee", "rt10"], "1..9"),
        (["--data", "digits", "--guarantee", "affinity:none.toml"], "none.toml"),
        (["--data", "digits", "--epsilon", "nan"], "`epsilon` to be a finite number"),
        (["--data", "digits", "--model", "cnn"], "`model` to be one of"),
        (["--data", "digits", "--loss", "trade"], "Did you mean 'trades'"),
        (["--data", "digits", "--set", "optimiser.rat=1"], "Did you mean 'rate'"),
        (["--data", "digits", "--set", "nonsense"], "--set KEY=VALUE"),
        (["--data", "digits", "--device", "cuda:99"], "a device of this machine"),
        (["--data", "digits", "--model", "cnn-2c2f", "--size", "32"], "options that digits has, but got 'size'"),
        (["--data", "cifar100"], "safeset data get cifar100"),
        (["--data", "digits", "--out", "/proc/nowhere"], "directory that can be written"),
    ],
)
def test_mistakes_in_training_are_messages(tmp_path, arguments, message):
    _, errors = safeset("train", *arguments, cwd=tmp_path, code=1, SAFESET_DATA=str(tmp_path / "none"))
    assert message in errors
    assert not (tmp_path / "runs").exists()


def test_usage_errors_are_reported_and_exit_2(tmp_path):
    _, errors = safeset("train", "--epochs", "many", cwd=tmp_path, code=2)
    assert "--epochs" in errors
    _, errors = safeset("evaluat", cwd=tmp_path, code=2)
    assert "evaluat" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_says_how_to_go_on(tmp_path, number):
    command = [sys.executable, "-m", "safeset", "train", "digits/rt3", "--epochs", "2000", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while "epoch 1/" not in (line := process.stderr.readline()):
        assert line, "it ended too early"
    time.sleep(0.2)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert "safeset train --resume --out run" in errors
    assert output == ""
    _, errors = safeset("evaluate", "run", cwd=tmp_path)
    assert "has not ended (epoch" in errors
    assert "--resume" in errors
    _, errors = safeset("train", "digits/rt3", "--out", "run", cwd=tmp_path, code=1)
    assert "continue with --resume" in errors
    _, errors = safeset("train", "--resume", "--out", "run", "--epochs", "3", cwd=tmp_path, code=1)
    assert "`epochs` 2000, but got 3" in errors


def test_resuming_needs_only_the_directory(tmp_path):
    path = tmp_path / "run"
    command = [sys.executable, "-m", "safeset", "train", "digits/rt3", "--epochs", "3", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while "epoch 1/" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    output, errors = safeset("train", "--resume", "--out", "run", cwd=tmp_path)
    assert "Continuing in epoch" in errors
    assert "599 test points" in output
    assert Run(path).has_ended
    _, errors = safeset("train", "--resume", "--out", "run", cwd=tmp_path)
    assert "has ended already" in errors


# -- evaluate ---------------------------------------------------------------------------------------------------------


def test_evaluate_prints_a_row_for_each_method_and_radius_and_writes_json(work):
    output, _ = safeset(
        *("evaluate", "run", "--epsilon", "0.05,0.3", "--method", "uniform,joint", "--per-class"),
        "--out",
        "e.json",
        cwd=work,
    )
    result = json.loads((work / "e.json").read_text())
    assert [(row["method"], row["epsilon"]) for row in result["rows"]] == [
        ("uniform", 0.05),
        ("joint", 0.05),
        ("uniform", 0.3),
        ("joint", 0.3),
    ]
    for row in result["rows"]:
        assert f"{row['vra']:.3f}" in output
        assert sum(part["points"] for part in row["classes"].values()) == row["points"] == 599
        weighted = sum(part["vra"] * part["points"] for part in row["classes"].values())
        assert weighted == pytest.approx(599 * row["vra"])
    assert result["rows"][0]["vra"] >= result["rows"][2]["vra"]
    assert {"commit", "seconds", "device", "dtype", "bound_method", "recipe", "seed", "points"} <= result.keys()


def test_evaluate_takes_another_guarantee_and_other_data(work):
    safeset("evaluate", "run", "--guarantee", "standard", "--method", "joint", "--out", "s.json", cwd=work)
    result = json.loads((work / "s.json").read_text())
    assert result["guarantee"] == "standard"
    assert result["rows"][0]["core_size"] == 1.0
    _, errors = safeset("evaluate", "run", "--data", "blobs2d", cwd=work, code=1)
    assert "data as trained on: (1, 8, 8) and 10 classes" in errors
    _, errors = safeset("evaluate", "run", "--epsilon", "0.1;0.2", cwd=work, code=1)
    assert "one or more numbers" in errors
    _, errors = safeset("evaluate", "run", "--method", "float", cwd=work, code=1)
    assert "Did you mean 'floating'" in errors
    _, errors = safeset("evaluate", "nowhere", cwd=work, code=1)
    assert "the directory of a run" in errors


# -- certify ----------------------------------------------------------------------------------------------------------


def test_certify_goes_on_past_bad_files_and_exits_non_zero(work):
    output, errors = safeset("certify", "run", "0.png", "bad.png", "none.png", "1.png", cwd=work, code=1)
    assert output.count("not read") == 2
    assert output.index("0.png") < output.index("1.png")
    assert "bad.png" in errors
    assert "none.png: No such file" in errors
    assert "2 of the points could not be read" in errors
    safeset("certify", "run", "0.png", "1.png", cwd=work)


def test_certify_says_what_the_library_says(work):
    output, _ = safeset("certify", "run", "0.png", "2.png", "some.npz", "--json", "--epsilon", "0.2", cwd=work)
    records = [json.loads(line) for line in output.splitlines()]
    assert [record["name"] for record in records] == ["0.png", "2.png", "some.npz[0]", "some.npz[1]"]
    inputs = digits().test.exact[[0, 2, 0, 1]]
    certificate = load(work / "run").certify(inputs, epsilon=0.2)
    for record, expected in zip(records, certificate.records(), strict=True):
        told = {"name": record["name"], "units": "pixels in [0, 1]"}
        assert record == {**expected, **told, "resized_from": None, "composited": False, "grey": False}
        assert record["prefer"] == "smallest"
    output, _ = safeset("certify", "run", "0.png", "--json", "--epsilon", "0.01", "--prefer", "largest", cwd=work)
    assert json.loads(output)["core"] == certificate[0].at(0.01).preferring("largest").records()[0]["core"]
    _, errors = safeset("certify", "run", "0.png", "--prefer", "larger", cwd=work, code=1)
    assert "`prefer` to be one of smallest, largest" in errors


def test_the_table_prints_the_promise_of_the_very_answer(work):
    """Of {4, 1} the radius to which nothing else enters the two best, not the one to which both stay in the three."""
    output, _ = safeset("certify", "run", "some.npz", "--epsilon", "0.05", "--prefer", "largest", cwd=work)
    text, _ = safeset("certify", "run", "some.npz", "--epsilon", "0.05", "--prefer", "largest", "--csv", cwd=work)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert "ε = 0.05 (L2, pixels in [0, 1]), rt3, joint: the largest certified answers" in output
    for row in rows:
        assert row["promise"] in output
        assert float(row["core_radius"]) <= float(row["radius"])
        assert row["promise"].endswith(f"below {shown(float(row['core_radius']))}")
    assert any(float(row["core_radius"]) < float(row["radius"]) for row in rows)


def test_certify_says_what_became_of_an_image(work):
    Image.new("RGBA", (20, 10), (200, 0, 0, 128)).save(work / "wide.png")
    output, _ = safeset("certify", "run", "wide.png", "0.png", cwd=work)
    assert "–" not in output  # what is not there is not said, in a block least of all
    assert "wide.png (resized from 20 × 10 pixels, width × height)" in output
    assert "0.png (resized" not in output
    record, own = map(json.loads, safeset("certify", "run", "wide.png", "0.png", "--json", cwd=work)[0].splitlines())
    assert (record["resized_from"], record["composited"]) == ({"width": 20, "height": 10}, True)
    assert (own["resized_from"], own["composited"]) == (None, False)
    cells = show_answers._certificate_cells({**own, "grey": True})
    assert cells[0] == "0.png (grey, repeated in 3 channels: a change of its greys counts √3 times)"
    text, _ = safeset("certify", "run", "wide.png", "0.png", "--csv", cwd=work)
    assert [row["resized_from"] for row in csv.DictReader(io.StringIO(text))] == ["20 × 10 pixels, width × height", ""]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("run/model.safetensors", "a file of the run itself"),
        ("run/evaluation.json", "a file of the run itself"),
        ("run/checkpoint.safetensors", "a file of the run itself"),
        ("0.png", "which is to be read"),
        ("run/../0.png", "which is to be read"),
        ("1.png", "which is there and has another ending"),
        ("link.json", "a file of the run itself"),
    ],
)
def test_a_proof_replaces_nothing_else(work, target, message):
    (work / "link.json").unlink(missing_ok=True)
    (work / "link.json").symlink_to(work / "run" / "model.safetensors")
    existed = (work / target).exists()
    before = (work / target).read_bytes() if existed else b""
    _, errors = safeset("certify", "run", "0.png", "--eps", "0.01", "--proof", target, cwd=work, code=1)
    assert f"{target}, {message}" in errors
    assert "Choose another name for the JSON file. Nothing was written." in errors
    assert (work / target).exists() == existed
    assert not existed or (work / target).read_bytes() == before


def test_an_evaluation_replaces_nothing_else(work):
    before = (work / "run" / "model.safetensors").read_bytes()
    for target in ("run/model.safetensors", "run/bounds.json", "1.png"):
        _, errors = safeset("evaluate", "run", "--method", "joint", "--out", target, cwd=work, code=1)
        assert "Choose another name for the JSON file" in errors
    assert (work / "run" / "model.safetensors").read_bytes() == before


def test_a_rate_below_one_is_never_shown_as_one():
    row = {"vra": 0.99962, "accuracy": 1.0, "core_size": 1.999}
    assert show_answers.rates(row, {"": "vra", " ": "accuracy", "  ": "core_size"}) == ["0.999", "1.000", "2.00"]


def test_certify_says_on_a_terminal_what_takes_so_long(work):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "safeset", "certify", "run", "0.png", "--json"]
    done = subprocess.run(
        command, cwd=work, stdout=subprocess.PIPE, stderr=end, env={**os.environ, "TERM": "xterm"}, check=True
    )
    os.close(end)
    assert "proving the network's bounds" in os.read(terminal, 100_000).decode()
    os.close(terminal)
    output, errors = safeset("certify", "run", "0.png", "--json", cwd=work)
    assert done.stdout.decode() == output
    assert errors == ""


def test_certify_writes_csv(work):
    output, _ = safeset("certify", "run", "0.png", "bad.png", "--csv", cwd=work, code=1)
    good, bad = csv.DictReader(io.StringIO(output))
    record = json.loads(safeset("certify", "run", "0.png", "--json", cwd=work)[0])
    assert good["name"] == "0.png"
    assert good["core"] == "|".join(record["core"])
    assert float(good["core_radius"]) == record["core_radius"]
    assert good["promise"] == record["promise"]
    assert (good["prefer"], good["units"]) == ("smallest", "pixels in [0, 1]")
    assert bad["problem"]
    _, errors = safeset("certify", "run", "0.png", "--csv", "--json", cwd=work, code=1)
    assert "one of --json and --csv" in errors


def test_certify_reads_an_image_or_names_from_standard_input(work):
    image = (work / "0.png").read_bytes()
    first = json.loads(safeset("certify", "run", "-", "--json", cwd=work, stdin=image)[0])
    named = json.loads(safeset("certify", "run", "-", "--json", cwd=work, stdin=b"0.png\n")[0])
    assert {**first, "name": ""} == {**named, "name": ""}
    assert first["name"] == "-"
    _, errors = safeset("certify", "run", "-", cwd=work, stdin=b"", code=1)
    assert "nothing of the kind" in errors


def test_a_closed_pipe_is_no_traceback(work):
    files = " ".join(["0.png"] * 200)
    command = f"{sys.executable} -m safeset certify run {files} --json | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=work, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 141
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


# -- data -------------------------------------------------------------------------------------------------------------


def test_data_is_listed_and_shown(tmp_path):
    output, _ = safeset("data", "list", cwd=tmp_path, SAFESET_DATA=str(tmp_path))
    for name in ("digits", "blobs2d", "eurosat", "cifar100", "tiny-imagenet", "acasxu"):
        assert name in output
    assert "safeset data get eurosat" in output
    output, _ = safeset("data", "show", "digits", "--out", "d.png", cwd=tmp_path)
    assert "1,198 training points, 599 test points, 10 classes" in output
    with Image.open(tmp_path / "d.png") as image:
        assert np.asarray(image).std() > 20
    safeset("data", "show", "blobs2d", "--out", "b.png", cwd=tmp_path)
    with Image.open(tmp_path / "b.png") as image:
        assert len(image.getcolors(maxcolors=1 << 20)) > 4
    _, errors = safeset("data", "show", "nothing", cwd=tmp_path, code=1)
    assert "nothing is there" in errors


def test_data_get_says_what_to_put_where(tmp_path):
    _, errors = safeset("data", "get", "acasxu", cwd=tmp_path, code=1, SAFESET_DATA=str(tmp_path))
    assert str(tmp_path / "acasxu") in errors
    _, errors = safeset("data", "get", "eurosatt", cwd=tmp_path, code=1)
    assert "Did you mean 'eurosat'" in errors


def test_the_module_s_recipes_are_found_from_anywhere(tmp_path):
    assert Path(tmp_path).exists()
    output, _ = safeset("train", "blobs2d/rt2", "--epochs", "2", "--out", "plane", cwd=tmp_path)
    assert "2,000 test points" in output
