"""Every command that a page or a message names is run as it stands, in a place where everything is tiny."""

import ast
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.commands import safeset
from helpers.loopback import serving
from helpers.workplace import FIGURES, QUICK, RESULTS, SERVED_ONCE, archives_at, commands, furnish

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]
SMALL = ("--set", "model=mlp-2x32", "--set", "epochs=1")


@dataclass(frozen=True)
class Typed:
    """How a command is run.

    Attributes:
        more: arguments that make it quick.
        new: a directory of ``--out`` that must not be there yet.
        needs: ``results`` or ``server``, which most commands do without.
        before: Python to run first.
    """

    more: tuple[str, ...] = ()
    new: str | None = None
    needs: str | None = None
    before: str = ""


PLAIN = Typed()
# Commands, as they stand in pages; those of torchrun without it, which tests/system/test_workers.py starts.
DOCUMENTED = {
    "train --data photos/ --guarantee rt3 --epsilon 0.25 --out runs/photos": Typed(QUICK, new="runs/photos"),
    "train --resume --out runs/photos": PLAIN,
    "train --data photos/ --guarantee rt3 --epsilon 0.25 --validation --out runs/photos": Typed(
        QUICK, new="runs/photos"
    ),
    "train --data photos/ --guarantee rt3 --epsilon 0.25 --calibrate 0.2 --out runs/photos": Typed(
        QUICK, new="runs/photos"
    ),
    "calibrate runs/photos --alpha 0.1": PLAIN,
    "suggest runs/photos": PLAIN,
    "suggest-affinity runs/photos --out sets.toml": Typed(("--overwrite",)),
    "train --data photos/ --guarantee affinity:sets.toml --epsilon 0.25 --out runs/sets": Typed(QUICK),
    "train digits/shift-rt3 --out runs/digits": Typed(("--set", "epochs=1", "--set", "teacher.epochs=1")),
    "train cifar100/rt5": Typed(QUICK),
    "train cifar100/rt5 --out runs/rt5": Typed(QUICK, new="runs/rt5"),
    "train blobs2d/rt2": Typed(("--epochs", "1")),
    "train --data points.csv --network mynets:small --out runs/mine": Typed(("--epochs", "1")),
    "evaluate runs/photos": PLAIN,
    "evaluate runs/photos --epsilon 0.05,0.25 --per-class": PLAIN,
    "evaluate runs/rt5 --epsilon 0.05,0.141": PLAIN,
    "evaluate runs/demo/rt3 --epsilon 0.2,0.5,0.8 --per-class": PLAIN,
    "certify runs/photos a.jpg b.png": PLAIN,
    "certify runs/photos a.jpg b.png more/": PLAIN,
    "certify runs/rt5 photos/ --json": PLAIN,
    "certify runs/photos b.png --proof proof.json": PLAIN,
    "check proof.json runs/photos/model.safetensors b.png": PLAIN,
    "certify model.onnx b.png --epsilon 0.1": PLAIN,
    "evaluate model.onnx --data photos/ --epsilon 0.05,0.1": PLAIN,
    "audit model.onnx --data photos/ --epsilon 0.1 --out audit.json": Typed(("--points", "2", "--budget", "0.05")),
    "export runs/photos photos.onnx": PLAIN,
    "verify net.nnet property.vnnlib": PLAIN,
    "verify property2.vnnlib --network f=net.nnet": PLAIN,
    "supports --vnnlib-versions": PLAIN,
    "report runs/photos": PLAIN,
    "report runs/photos runs/rt5 --out comparison.html": PLAIN,
    "plot runs/photos --out curves.svg": PLAIN,
    "audit runs/photos": Typed(("--points", "2", "--budget", "0.05")),
    "data list": PLAIN,
    "data show photos/": PLAIN,
    "data get eurosat": Typed(needs="server"),
    "data get cifar100": Typed(needs="server"),
    "data get tiny-imagenet": Typed(needs="server"),
    "data get eurosat cifar100 tiny-imagenet": Typed(needs="server"),
    "reproduce": Typed(needs="results"),
    "reproduce eurosat": Typed(needs="results"),
    "reproduce acasxu": Typed(needs="results"),
    "reproduce cifar100/rt5 --seeds 1 --out mine --runs mine/runs": Typed(SMALL),
    "reproduce blobs2d/rt2 --seeds 3 --out results/sizes": Typed(("--set", "epochs=1")),
    "figures": Typed(before=FIGURES),
    "certify eurosat/rt3 a.jpg": PLAIN,
    "serve eurosat/rt3": Typed(("--port", "0"), before=SERVED_ONCE),
    "serve runs/photos": Typed(("--port", "0"), before=SERVED_ONCE),
    "serve runs/photos --proof": Typed(("--port", "0"), before=SERVED_ONCE),
    "serve runs/photos --host 0.0.0.0": Typed(("--port", "0"), before=SERVED_ONCE),
    "models": PLAIN,
    "version": PLAIN,
}
# Commands that only messages name.
SUGGESTED = {
    "train --data bytes.npz --units raw": Typed((*QUICK, "--epsilon", "1")),
    "calibrate runs/calibrated --overwrite": PLAIN,
    "calibrate runs/calibrated --data unseen/ --overwrite": PLAIN,
    "suggest-affinity runs/photos --data photos/": PLAIN,
}
STANDS_FOR = {"RECIPE": "blobs2d/rt2", "ROW": "blobs2d/rt2", "NAME": "blobs2d"}  # in pages
# Commands in the strings of the sources, each up to what ends it, and what somebody would then type.
PRINTED = {
    "calibrate {one}{again}": ["calibrate runs/photos --alpha 0.1"],
    "calibrate {run.path}{again}": ["calibrate runs/photos --alpha 0.1", "calibrate runs/calibrated --overwrite"],
    "calibrate {run.path} --data {source}{again}": ["calibrate runs/calibrated --data unseen/ --overwrite"],
    "certify {asked.model} PHOTO…": ["certify runs/photos a.jpg b.png"],
    "certify {asked.out} PHOTO…": ["certify runs/photos a.jpg b.png"],
    "certify {one} FILE…{again}": ["certify runs/photos a.jpg b.png"],
    "check {command}": ["check proof.json runs/photos/model.safetensors b.png"],
    "data get {get}": ["data get eurosat"],
    "data get {self.name}": ["data get eurosat"],
    "data list), a folder, an .npz or a .csv file.": ["data list"],
    "evaluate writes it again.": ["evaluate runs/photos"],
    "evaluate {out / 'rt3'} --epsilon 0.2,0.5,0.8 --per-class": [
        "evaluate runs/demo/rt3 --epsilon 0.2,0.5,0.8 --per-class"
    ],
    "evaluate {one} --per-class{again}": ["evaluate runs/photos --epsilon 0.05,0.25 --per-class"],
    "evaluate {run.path} writes it again": ["evaluate runs/photos"],
    "evaluate {run.path} writes one": ["evaluate runs/photos"],
    "reproduce {' '.join(rows)} {flags(changes)}": ["reproduce eurosat"],
    "reproduce {' '.join(rows)} --seeds {seed + 1} --out {runs / 'results'}{where}": [
        "reproduce cifar100/rt5 --seeds 1 --out mine --runs mine/runs"
    ],
    "report {asked.out}": ["report runs/photos"],
    "serve {asked.model}": ["serve runs/photos"],
    "suggest RUN": ["suggest runs/photos"],
    "suggest-affinity RUN --data FILE": ["suggest-affinity runs/photos --data photos/"],
    "train --resume --out {path}": ["train --resume --out runs/photos"],
    "train --resume --out {run.path}": ["train --resume --out runs/photos"],
    "train --resume --out {whole.path}": ["train --resume --out runs/photos"],
    "train --units raw": ["train --data bytes.npz --units raw"],
    "train makes one, and safeset models lists those that come with safeset.": ["models"],
}


def said(text):
    """The commands in a text: each from its name to whatever ends it."""
    for found in re.finditer(r"(?<![\w.-])(?:\S*bin/|-m )?safeset ([a-z][^`#>&|;\n]*)", text.replace("\\\n", " ")):
        yield " ".join(found[1].split())


def is_name(text):
    """Whether a text is the name of a command and nothing else."""
    return text.removesuffix(" …") in commands()


def of_pages():
    """What the pages tell people to type: in blocks of shell, in the output of our programs, and inside of lines."""
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"^```(?:sh|text)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            yield from said(block)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`([^`\n]+)`", prose):
            yield from said(code)


def of_sources():
    """What the programs print: their strings but for docstrings, with the names of what is filled in."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        docs = {id(node.body[0].value) for node in ast.walk(tree) if hasattr(node, "body") and _has_docstring(node)}
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                filled = [
                    f"{{{ast.unparse(part.value)}}}" if hasattr(part, "conversion") else part.value
                    for part in node.values
                ]
                yield from said("".join(filled))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
                yield from said(node.value)


def _has_docstring(node):
    first = node.body[0] if isinstance(node.body, list) and node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("documented"))


@pytest.fixture
def work(furnished, tmp_path):
    shutil.copytree(furnished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def run(command, work, how=PLAIN, code=0):
    """Type a command."""
    environment = {"SAFESET_DATA": str(work / "data")}
    if how.new:
        shutil.rmtree(work / how.new)
    if how.needs == "results":
        shutil.copytree(RESULTS, work / "results")
    if how.needs != "server":
        return safeset(*shlex.split(command), *how.more, cwd=work, code=code, before=how.before, **environment)
    with serving() as server:
        environment = {"SAFESET_DATA": str(work / "nowhere")}
        return safeset(*shlex.split(command), cwd=work, code=code, before=archives_at(server), **environment)


def test_every_command_in_the_pages_is_known():
    found = {" ".join(STANDS_FOR.get(word, word) for word in command.split()) for command in of_pages()}
    unknown = {command for command in found if command not in DOCUMENTED and not is_name(command)}
    assert not unknown, "give each a line in DOCUMENTED"
    assert set(DOCUMENTED) <= found, "these are in no page any more"


def test_every_command_in_messages_is_known():
    found = {command for command in of_sources() if command.split()[0] in {name.split()[0] for name in commands()}}
    unknown = {command for command in found if command not in PRINTED and not is_name(command)}
    assert not unknown, "give each a line in PRINTED"
    assert set(PRINTED) <= found, "these are printed no more"
    typed = {command for several in PRINTED.values() for command in several}
    assert set(SUGGESTED) <= typed <= set(DOCUMENTED) | set(SUGGESTED)


@pytest.mark.parametrize(("command", "how"), {**DOCUMENTED, **SUGGESTED}.items())
def test_a_documented_command_works(work, command, how):
    run(command, work, how)


# -- what is printed, typed as it stands ------------------------------------------------------------------------------


def test_what_a_training_of_several_seeds_suggests(work):
    output, _ = run("train --data photos/ --seeds 3 --seed 2 --out runs/s3", work, Typed(QUICK))
    first, second = re.search(r"Next: safeset (.*), safeset (.*)", output).groups()
    assert (first, second) == ("certify runs/s3/seed2 FILE…", "evaluate runs/s3/seed2 --per-class")
    run(first.replace("FILE…", "a.jpg b.png"), work)
    run(second, work)
    for command in ("certify runs/s3 a.jpg", "evaluate runs/s3", "audit runs/s3"):
        _, errors = run(command, work, code=1)
        assert "runs/s3, which holds 3 seeds. Name one of them: runs/s3/seed2." in errors


def test_what_a_training_suggests_that_kept_points_for_calibration(work):
    output, _ = run("train --data photos/ --calibrate 0.5 --out runs/kept", work, Typed(QUICK))
    (first,) = re.findall(r"Next: safeset (.*?), safeset certify", output)
    assert first == "calibrate runs/kept"
    run(first, work)


def test_what_missing_networks_suggest(work):
    _, errors = run("figures groups-cifar100 --runs mine", work, code=1)
    (command,) = re.findall(r"safeset (reproduce .*) trains it\.", errors)
    run(command, work, Typed(SMALL))
    run("figures groups-cifar100 --runs mine", work)


def test_what_missing_data_suggests(work):
    shutil.rmtree(work / "data")
    _, errors = run("train cifar100/rt5", work, code=1)
    (command,) = re.findall(r"`safeset (.*)` downloads it", errors)
    run(command, work, Typed(needs="server"))
    output, _ = run("data list", work)
    for command in re.findall(r"safeset (data get \S+)", output):
        run(command, work, Typed(needs="server"))


def test_what_images_in_other_units_suggest(work):
    _, errors = run("train --data bytes.npz", work, code=1)
    (command,) = re.findall(r"`safeset (.*)` takes the numbers as they are", errors)
    run(f"{command} --data bytes.npz --epsilon 1", work, Typed(QUICK))


def test_a_mistake_in_several_names_is_reported_before_anything_is_downloaded(work):
    _, errors = run("data get eurosat eurosatt", work, Typed(needs="server"), code=1)
    assert "Did you mean 'eurosat'" in errors
    assert not (work / "nowhere").exists()
