r"""Train, evaluate, audit and pack the small models that come with safeset: models/<data>/<row>/ of the repository.

    PYTHONPATH=src python benchmarks/package_models.py eurosat/rt3 eurosat/highway-river-agriculture --device cuda

does it for those that are named, or for all. Runs are kept in runs/models/: an interrupted training goes on, one that
has ended is not repeated. A model is packed only if its audit passed and it is small enough. To try the script itself:

    SAFESET_DATA=FEW python benchmarks/package_models.py eurosat/rt3 --trial --runs /tmp/runs --into /tmp/models

with few images of each class in FEW; a trial trains for an epoch, and packs whatever comes of it.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from common import ROOT
from safeset.recipes.recipe import Recipe
from safeset.runs.card import card
from safeset.runs.data import load_run_data
from safeset.runs.library import LARGEST, LARGEST_TOGETHER
from safeset.runs.load import load_run
from safeset.runs.run import Run
from safeset.system.untrusted import read_json

RECIPES = {
    "acasxu/targeted": "acasxu/small-targeted",
    "cifar100/rt5": "cifar100/small-rt5",
    "cifar100/superclass": "cifar100/small-superclass",
    "eurosat/highway-river-agriculture": "eurosat/small-highway-river-agriculture",
    "eurosat/rt3": "eurosat/small-rt3",
}
SOURCES = {
    "acasxu": "Points are uniform in the ranges of network 1_1 of Katz et al., Reluplex (CAV 2017), labelled by it.",
    "cifar100": "Trained on CIFAR-100: Krizhevsky, Learning multiple layers of features from tiny images (2009).",
    "eurosat": "Trained on EuroSAT (MIT license): Helber, Bischke, Dengel, Borth, EuroSAT: a novel dataset and deep "
    "learning benchmark for land use and land cover classification (IEEE JSTARS 2019).",
}
PACKED = ("recipe.toml", "model.safetensors", "bounds.json", "evaluation.json", "audit.json")
LARGEST_WITNESSES = 2**18  # bytes: more are found again sooner than they are downloaded
SOME = 2000  # test points whose radii the card summarises


def main() -> None:
    """Do it for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--points", type=int, help="audited; by default all")
    parser.add_argument("--budget", type=float, default=10.0, help="minutes of the audit")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "models")
    parser.add_argument("--into", type=Path, default=ROOT / "models")
    parser.add_argument("--trial", action="store_true", help="one epoch")
    asked = parser.parse_args()
    if not set(asked.names) <= set(RECIPES):
        parser.error(f"expected names among {', '.join(RECIPES)}")
    for name in asked.names or RECIPES:
        run = Run(asked.runs / name)
        make(name, run, asked)
        pack(name, run, asked.into / name, trial=asked.trial)
    packed = sum(file.stat().st_size for file in asked.into.rglob("*") if file.is_file())
    print(f"All models: {packed / 1e6:.1f} MB of {LARGEST_TOGETHER / 1e6:.1f}")
    if packed > LARGEST_TOGETHER:
        sys.exit("That is too much for every wheel.")


def make(name: str, run: Run, asked: argparse.Namespace) -> None:
    """Train, evaluate and audit a run, each if that is not done."""
    device = ["--device", asked.device] if asked.device else []
    if not run.has_ended:
        begun = ["--resume"] if run.has_begun else [RECIPES[name], "--seed", str(asked.seed)]
        teacher = Recipe.read(ROOT / "recipes" / f"{RECIPES[name]}.toml").teacher
        fewer = ["--epochs", "1", *(["--set", "teacher.epochs=1"] if teacher else [])] if asked.trial else []
        safeset("train", *begun, "--out", str(run.path), *fewer, *device)
    epsilon = run.read_recipe().epsilon
    radii = ",".join(f"{factor * epsilon:.6g}" for factor in (0.5, 2)) + f",{epsilon!r}"
    safeset("evaluate", str(run.path), "--epsilon", radii, *device)
    some = ["--points", str(asked.points)] if asked.points else []
    safeset("audit", str(run.path), "--budget", str(asked.budget), *some, *device)


def pack(name: str, run: Run, target: Path, *, trial: bool) -> None:
    """Copy what a model needs, with a card that also has radii and the audit."""
    audit = read_json(run.path / "audit.json")
    if audit["verdict"] != "passed" and not trial:
        sys.exit(f"{name} is not packed: its audit is {audit['verdict']}: {'; '.join(audit['reasons'])}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in PACKED:
        shutil.copyfile(run.path / file, target / file)
    if run.witnesses.is_file() and run.witnesses.stat().st_size <= LARGEST_WITNESSES:
        shutil.copyfile(run.witnesses, target / run.witnesses.name)
    evaluation = read_json(run.evaluation)
    evaluation["rows"].sort(key=lambda row: row["epsilon"])
    text = card(run.read_recipe(), evaluation, run.records())
    (target / "README.md").write_text(f"{text}\n{used(name)}\n{radii(run)}\n{audited(audit)}\n{origin(name, run)}")
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{name}: {size / 1e6:.2f} MB in {target}")
    if size > LARGEST:
        sys.exit(f"That is more than {LARGEST / 1e6:.1f} MB.")


def used(name: str) -> str:
    """How it is used."""
    return (
        f'## Use\n\n`safeset.load("{name}")` in Python; `safeset certify {name} FILE…` and `safeset evaluate {name}` '
        "in a shell.\n"
    )


def radii(run: Run) -> str:
    """How far certificates hold: quantiles over test points."""
    net, recipe = load_run(run)[0], run.read_recipe()
    split = load_run_data(recipe).test
    some = split[torch.arange(0, len(split), max(1, len(split) // SOME))]
    found = net.frozen().certify(some.exact).radius
    shares = (0.1, 0.25, 0.5, 0.75, 0.9)
    values = torch.quantile(found, torch.tensor(shares, dtype=found.dtype)).tolist()
    return (
        f"## Radii\n\nHow far the guarantee holds (joint, in {recipe.task.units}), of {len(some):,} test points; "
        f"trained for {recipe.epsilon:g}:\n\n| share of points | {' | '.join(f'{share:.0%}' for share in shares)} |\n"
        f"|{'---|' * (1 + len(shares))}\n| radius at most | {' | '.join(f'{value:.3g}' for value in values)} |\n"
    )


def audited(audit: dict[str, Any]) -> str:
    """What the auditor found."""
    attack = audit["attack"]
    return (
        f"## Audit\n\n{audit['verdict'].capitalize()} ({audit['seconds']:.0f} s on {audit['device']}): "
        f"{attack['answers']:,} answers at {audit['points']:,} test points attacked, "
        f"{len(audit['violations'])} violations; every bound and window proved again in integers. "
        f"All of it: `audit.json`.\n"
    )


def origin(name: str, run: Run) -> str:
    """Where data and weights are from."""
    recipe = Recipe.read(run.recipe)
    return (
        f"## Origin\n\n{SOURCES[name.partition('/')[0]]}\n\n"
        f"Made by `python benchmarks/package_models.py {name} --seed {recipe.seed}` (recipe `{RECIPES[name]}`).\n"
    )


def safeset(*arguments: str) -> None:
    """Run a command of safeset, whose exit code must be 0."""
    print(f"$ safeset {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "safeset", *arguments], check=True)


if __name__ == "__main__":
    main()
