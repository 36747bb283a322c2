"""Every command in a real terminal, narrow and wide: its bars are drawn, nothing is cut, and the cursor comes back."""

import io
import json
import re
import shutil
import signal

import pytest
import typer
from rich.console import Console

from helpers.commands import safeset
from helpers.loopback import serving
from helpers.workplace import BEFORE, QUICK, RESULTS, archives_at, commands, furnish
from safeset.cli.app import app
from safeset.runs.run import Run
from safeset.terminal import console
from safeset.terminal.bars import Bar

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor, while something moves
INTERRUPT = (
    "import os, signal\nfrom safeset.terminal.console import TrainingWatch\nwhole = TrainingWatch.step\n"
    "def step(self, loss):\n    whole(self, loss)\n"
    "    if self.done == 2:\n        os.kill(os.getpid(), signal.SIGINT)\n"
    "TrainingWatch.step = step"
)
STOP = (
    "import os, signal\nfrom safeset.terminal.bars import Bar\n"
    "Bar.show = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGINT)"
)

# Of each command: what to type, and texts that must be there, at any width; "━" for those that draw a bar.
CASES = {
    "train": [
        (
            ["train", "blobs2d/rt2", "--epochs", "2", "--out", "new"],
            *("━", "Training on 4,000 points", "training VRA", "epoch 2/2: loss", "2,000 test points", "joint"),
        ),
        (["train", "--data", "photos/", *QUICK, "--out", "new"], "━", "decoding", "epoch 1/1", "VRA", "Next:"),
        (["train", "--data", "photos/", *QUICK, "--seeds", "2", "--out", "new"], "━", "means of 2 seeds", "±"),
        (["train", "--resume", "--out", "runs/photos"], "━", "has ended already", "VRA"),
    ],
    "evaluate": [
        (["evaluate", "runs/photos"], "━", "uniform", "floating", "joint", "Written to"),
        (["evaluate", "runs/photos", "--per-class", "--epsilon", "0.1,0.25"], "━", "harbour", "meadow"),
        (["evaluate", "runs/photos", "--guarantee", "standard"], "━", "--out FILE"),
        (["evaluate", "runs/photos", "--json"], "━", '"rejection_rate"'),
        (["evaluate", "runs/calibrated"], "━", "Sets that cover ≥ 60 %", "guaranteed", "under attack", "one class"),
        (["evaluate", "runs/photos", "--csv"], "━", "method,epsilon,vra"),
        (["evaluate", "model.onnx", "--data", "photos/", "--epsilon", "0.1"], "━", "standard", "--out FILE"),
    ],
    "certify": [
        (["certify", "runs/photos", "a.jpg", "b.png", "more/"], "━", "proving", "a.jpg", "b.png", "more/c.png"),
        (["certify", "runs/photos", "photos/dusk", "--epsilon", "0.0001"], "━", "{", "}", "photos/dusk/07.png"),
        (["certify", "runs/photos", "a.jpg", "--json"], "━", '"certified"'),
        (
            ["certify", "runs/calibrated", "a.jpg", "b.png"],
            *("━", "coverage set", "Certified: no perturbation of L2 norm", "Covers: with probability ≥ 60 %", "0.25"),
        ),
        (["certify", "runs/photos", "a.jpg", "--csv"], "━", "name,certified,core"),
        (["certify", "model.onnx", "a.jpg", "--epsilon", "0.001"], "━", "proving", "a.jpg", "stays the best class"),
    ],
    "calibrate": [
        (["calibrate", "runs/photos", "--alpha", "0.4"], "━", "5 points", "at random", "probability ≥ 60 %"),
        (["calibrate", "runs/calibrated", "--by-class", "--overwrite"], "━", "Every class is in every set", "Written"),
        (["calibrate", "runs/calibrated", "--overwrite", "--json"], "━", '"drawn"'),
    ],
    "suggest": [
        (["suggest", "runs/photos"], "━", "standard", "rt3", "To start from", "Drawn: runs/photos/suggest.png"),
        (["suggest", "runs/photos", "--json"], "━", '"suggested"'),
    ],
    "suggest-affinity": [
        (["suggest-affinity", "runs/photos", "--out", "a.toml"], "━", "standard", "rt3", "of the gain", "a.toml"),
        (["suggest-affinity", "runs/photos", "--json"], "━", '"recovered"'),
    ],
    "audit": [
        (["audit", "runs/photos", "--points", "2", "--budget", "0.05"], "━", "class names", "same", "Written"),
        (
            ["audit", "runs/calibrated", "--points", "2", "--budget", "0.05"],
            *("━", "calibration", "Attack on coverage", "labels reach their threshold", "Written"),
        ),
        (
            ["audit", "model.onnx", "--data", "photos/", "--epsilon", "0.001", "--points", "2", "--budget", "0.05"],
            *("━", "Bounds, proved again", "conv", "Not written"),
        ),
    ],
    "check": [
        (["check", "proof.json", "runs/photos/model.safetensors", "b.png"], "The network", "b.png: at every", "Valid"),
    ],
    "report": [(["report", "runs/photos"], "━", "Written: runs/photos/report.html", "it is one file")],
    "export": [(["export", "runs/photos", "new.onnx"], "━", "Written: new.onnx", "rt3 by joint", "Covered:")],
    "plot": [(["plot", "runs/photos"], "━", "Drawn: runs/photos/plot.png")],
    "serve": [
        (
            ["serve", "runs/photos", "--port", "0"],
            *("━", "proving", "photos is served at http://127.0.0.1:", "Ctrl-C", "Stopped. Of 0 requests"),
        )
    ],
    "verify": [
        (["verify", "net.nnet", "property.vnnlib"], "━", "sat", "(X_0", "Confirmed exactly."),
        (["verify", "property2.vnnlib", "--network", "f=net.nnet"], "━", "sat", "X real [1,2]"),
    ],
    "supports": [(["supports"], "vnnlib-versions: 1.0 2.0"), (["supports", "--onnx-element-types"], "real")],
    "reproduce": [
        (
            ["reproduce", "blobs2d/standard", "blobs2d/rt2", "--seeds", "1", "--set", "epochs=1", "--out", "mine"],
            *("━", "epoch 1/1", "blobs2d/standard", "blobs2d/rt2", "the paper", "power method", "rejection"),
        ),
        (
            ["reproduce", "--out", RESULTS / "paper", "--analyses", RESULTS / "analyses" / "paper"],
            *("eurosat/highway-river-agriculture", "0.749 ± 0.003", "tiny-imagenet/rt5"),
        ),
    ],
    "figures": [(["figures", "surfaces"], "━", "Training blobs2d/rt2", "Drawn: docs/figures/surfaces.png")],
    "models": [(["models"], "cnn-2c2f", "cifar100/superclass")],
    "version": [(["version"], "safeset 0."), (["--version"], "safeset 0.")],
    "data list": [(["data", "list"], "photographs, 64 × 64 pixels, 200 classes", "safeset data get tiny-imagenet")],
    "data show": [
        (["data", "show", "blobs2d"], "4,000 training points", "Picture:"),
        (["data", "show", "photos/"], "━", "harbour", "24 training points"),
    ],
    "data get": [(["data", "get", "eurosat", "tiny-imagenet"], "━", "eurosat is in", "tiny-imagenet is in")],
}  # fmt: skip
NARROW = ("evaluate runs/photos --guarantee", "certify runs/photos photos", "data list", "data get", "reproduce --out")
SLOW = ("figures",)
TRIED = [
    pytest.param(case, columns, id=f"{typed}-{columns}", marks=[pytest.mark.slow] * (columns > 80))
    for cases in CASES.values()
    for case in cases
    for typed in [" ".join(map(str, case[0]))]
    for columns in (40, 80, 200)
    if columns > 40 or typed.startswith(NARROW)
    if columns < 200 or not typed.startswith(SLOW)
]


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("terminal"))


@pytest.fixture
def work(furnished, tmp_path):
    shutil.copytree(furnished, tmp_path, ignore=shutil.ignore_patterns(".cache"), dirs_exist_ok=True)
    return tmp_path


def squeezed(text):
    """What can be read, wherever the lines break."""
    return "".join(text.split())


def plain(screen):
    return CONTROL.sub("", screen).replace("\r", "")


def test_every_command_is_tried():
    assert set(CASES) == set(commands())
    for command, cases in CASES.items():
        assert any(" ".join(map(str, typed)).startswith(command) for typed, *_ in cases)


@pytest.mark.parametrize("typed", ["", "data", *commands()])
def test_help_names_every_option_in_full(tmp_path, typed):
    command = typer.main.get_command(app)
    for name in typed.split():
        command = command.commands[name]
    screen = plain(safeset(*typed.split(), "--help", cwd=tmp_path, terminal=80)[0])
    assert max(map(len, screen.splitlines())) <= 80
    for parameter in command.params:
        for text in (*(name for name in parameter.opts if name[0] == "-"), *(parameter.help or "").split()):
            assert text in screen


@pytest.mark.parametrize(("case", "columns"), TRIED)
def test_a_command_in_a_terminal(work, case, columns):
    typed, *texts = case
    wanted = "nowhere" if typed[:2] in (["data", "get"], ["data", "list"]) else "data"
    with serving() as server:
        before = archives_at(server) if typed[:2] == ["data", "get"] else BEFORE.get(typed[0], "")
        screen, _ = safeset(*typed, cwd=work, terminal=columns, before=before, SAFESET_DATA=str(work / wanted))
    for text in texts:
        assert squeezed(text) in squeezed(plain(screen)), (text, screen)
    assert "…" not in plain(screen).replace("FILE…", ""), screen
    assert ("━" in screen) == (HIDE in screen) == ("━" in texts), screen
    assert screen.rfind(HIDE) <= screen.rfind(SHOW)


def test_what_is_covered_breaks_between_words(work):
    screen, _ = safeset("certify", "runs/calibrated", "a.jpg", cwd=work, terminal=80)
    lines = plain(screen).splitlines()
    (first,) = (place for place, line in enumerate(lines) if line.startswith("Covers: "))
    assert len(lines) > first + 1
    assert max(map(len, lines[first:])) <= 80, screen


# -- bars -------------------------------------------------------------------------------------------------------------


def test_an_interrupted_training_gives_the_terminal_back_and_says_what_to_type(work):
    typed = ("train", "--data", "photos/", "--model", "mlp-2x32", "--epochs", "4", "--out", "new")
    screen, _ = safeset(*typed, cwd=work, terminal=80, before=INTERRUPT, code=128 + signal.SIGINT)
    assert screen.rfind(HIDE) < screen.rfind(SHOW)
    (command,) = re.findall(r"continue with:\s+safeset (.*)", plain(screen))
    screen, _ = safeset(*command.split(), cwd=work, terminal=80)
    assert "━" in screen
    assert re.search("epoch [34]/4", plain(screen))
    assert Run(work / "new").has_ended


@pytest.mark.parametrize("moment", ["TrainingWatch.introduce", "TrainingWatch.begin"])
def test_a_training_that_is_interrupted_before_its_first_step_says_so(work, moment):
    before = (
        "import os, signal\nfrom safeset.terminal.console import TrainingWatch\n"
        f"{moment} = lambda *given: os.kill(os.getpid(), signal.SIGINT)"
    )
    typed = ("train", "--data", "photos/", "--model", "mlp-2x32", "--epochs", "1", "--out", "unborn")
    _, errors = safeset(*typed, cwd=work, before=before, code=130)
    assert errors.endswith("Interrupted. Nothing is trained or saved yet: to begin, run the same command again.\n")
    assert not Run(work / "unborn").has_begun
    safeset(*typed, cwd=work)
    shutil.rmtree(work / "unborn")


def test_an_interrupted_evaluation_gives_the_terminal_back(work):
    screen, _ = safeset("evaluate", "runs/photos", cwd=work, terminal=80, before=STOP, code=130)
    assert "━" in screen
    assert "Interrupted." in screen
    assert screen.rfind(HIDE) < screen.rfind(SHOW)


def test_bars_on_the_terminal_leave_answers_in_their_file(work):
    (work / "e.json").touch()
    screen, _ = safeset("evaluate", "runs/photos", "--json", cwd=work, terminal=80, stdout=str(work / "e.json"))
    assert "━" in screen
    assert json.loads((work / "e.json").read_text()) == json.loads((work / "runs/photos/evaluation.json").read_text())


@pytest.fixture
def screen():
    return Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)


def test_bars_share_a_display(screen):
    with Bar(screen, "the outer one", total=3) as outer:
        with Bar(screen, "the inner one") as inner:
            outer.show(1)
            inner.close()
            inner.show(2, what="too late")
        outer.show(2, what="still here", total=4)
        screen.print("a line")
        Bar._shared.refresh()
    outer.close()
    shown = screen.file.getvalue()
    assert shown.count(HIDE) == shown.count(SHOW) == 1
    assert shown.index("the outer one") < shown.index("the inner one") < shown.index("still here")
    assert "a line\n" in shown
    assert "too late" not in shown
    with Bar(screen, "the next one"):
        outer.close()  # of another display: it does no harm
        outer.show(1, what="too late")
    assert screen.file.getvalue().count(HIDE) == 2
    assert "too late" not in screen.file.getvalue()


def test_the_text_of_a_bar_is_shown_as_it_is_and_whole(screen):
    text = "[bold]{brackets} " + "and many more words " * 8
    with Bar(screen, text, total=1):
        pass
    assert squeezed(text) in squeezed(plain(screen.file.getvalue()).replace("⠋", "").replace("━", ""))


def test_a_download_says_how_far_it_is(screen, monkeypatch):
    monkeypatch.setattr(console, "err", screen)
    with console.transfer("eurosat") as report:
        report(1_250_000, 94_658_721)
        Bar._shared.refresh()
    assert "eurosat: 1.2 of 94.7 MB" in screen.file.getvalue()
