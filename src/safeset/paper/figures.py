"""The figures of the paper, and of which classes go together: each by its name, from the runs that it needs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safeset.drawing.sheet import check_matplotlib
from safeset.errors import DataNotFoundError, expected, nearest
from safeset.inputs import as_device
from safeset.paper.drawing import samples, surfaces
from safeset.paper.drawing.groups import FEW, groups
from safeset.paper.networks import RUNS, runs_of
from safeset.paper.predictions import answers_of
from safeset.paper.reproduce import recipe_of
from safeset.runs.data import load_run_data
from safeset.runs.load import load
from safeset.runs.run import Run
from safeset.system.files import write_whole
from safeset.training.interruption import Interrupted
from safeset.training.train import train
from safeset.training.watch import Watch

Runs = Mapping[str, Run]  # by the last part of their rows' names


@dataclass(frozen=True)
class Figure:
    """A figure: the rows whose networks it shows, and how they become a PNG file.

    Attributes:
        rows: names of recipes, as `reproduce` trains them.
        paint: from the runs of these rows, the seed and the device.
        quick: whether what is missing is trained at once.
    """

    rows: tuple[str, ...]
    paint: Callable[[Runs, int, str | None], bytes]
    quick: bool = False

    def missing(self, runs: Path, seed: int) -> list[str]:
        """The rows that have no network of this seed."""
        return [row for row in self.rows if not runs_of(runs, row, seed)]


def draw(
    names: Sequence[str] = (),
    *,
    runs: Path = RUNS,
    out: Path = Path("docs/figures"),
    seed: int = 0,
    device: str | None = None,
    tell: Callable[[str], None] | None = None,
    watch: Watch | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> Iterator[Path]:
    """Draw figures as PNG files, ``<name>.png``.

    Args:
        names: of `FIGURES`. Without any: all whose networks are there; which are left out is told.
        runs: where `reproduce` has put the trained networks. Those of ``surfaces`` are trained if they are missing.
        out: where the files go.
        seed: of the networks, and of the draw of images.
        device: such as ``"cuda"``, to certify on.
        tell: is told what is left out, and what is trained.
        watch: is told how a training goes.
        figures: others than `FIGURES`.

    Returns:
        The paths, one after the other as they are drawn.

    Raises:
        SafesetError: at once for a name that is none, for networks that are not there, and without matplotlib.
    """
    known = FIGURES if figures is None else figures
    say = tell or (lambda text: None)
    for name in names:
        if name not in known:
            raise expected(f"figures among {', '.join(known)}", repr(name), nearest(name, known))
    check_matplotlib()
    as_device(device)
    ready = []
    for name in dict.fromkeys(names or known):
        missing = known[name].missing(runs, seed)
        if not missing or known[name].quick:
            ready.append(name)
        elif names:
            lacking, remedy = _lacking(missing, runs, seed)
            raise expected(f"the networks of {name}, seed {seed}, in {runs}", lacking, remedy)
        else:
            lacking, remedy = _lacking(missing, runs, seed)
            say(f"Left out {name}: there is {lacking}, seed {seed}, in {runs}. {remedy}")

    def trained(row: str) -> Run:
        there = runs_of(runs, row, seed)
        if there:
            return there[0]
        run = Run(runs / f"{row}-seed{seed}")
        say(f"Training {row}, seed {seed}.")
        try:
            train(recipe_of(row, {"seed": seed}), out=run.path, resume=True, device="cpu", watch=watch)
        except Interrupted as stopped:
            raise stopped.continued_by("the same safeset figures") from None
        return run

    def drawn() -> Iterator[Path]:
        out.mkdir(parents=True, exist_ok=True)
        for name in ready:
            path, figure = out / f"{name}.png", known[name]
            try:
                content = figure.paint({Path(row).name: trained(row) for row in figure.rows}, seed, device)
            except DataNotFoundError as error:
                if names:
                    raise
                say(f"Left out {name}: {error}")
                continue
            write_whole(path, content)
            yield path

    return drawn()


def _lacking(rows: Sequence[str], runs: Path, seed: int) -> tuple[str, str]:
    """What is missing, and the command that trains it."""
    where = "" if runs == RUNS else f" --runs {runs}"
    command = f"safeset reproduce {' '.join(rows)} --seeds {seed + 1} --out {runs / 'results'}{where}"
    return f"no {' and no '.join(rows)}", f"{command} trains {'them' if len(rows) > 1 else 'it'}."


# -- how each is painted ----------------------------------------------------------------------------------------------


def _surfaces(runs: Runs, seed: int, device: str | None) -> bytes:
    data = load_run_data(runs["rt2"].read_recipe())
    return surfaces.surfaces({name: load(run.path) for name, run in runs.items()}, data)


def _recovered(runs: Runs, seed: int, device: str | None, *, relaxed: str, classes: Sequence[str]) -> bytes:
    networks = {name: answers_of(run, device) for name, run in runs.items()}
    data = load_run_data(runs[relaxed].read_recipe())
    return samples.recovered(networks, data, relaxed=relaxed, classes=classes, seed=seed)


def _together(runs: Runs, seed: int, device: str | None, *, network: str) -> bytes:
    data = load_run_data(runs[network].read_recipe())
    return samples.together(answers_of(runs[network], device), data, network=network, seed=seed)


def _gathered(runs: Runs, seed: int, device: str | None, *, relaxed: str, grouped: str) -> bytes:
    networks = {name: answers_of(run, device) for name, run in runs.items()}
    data = load_run_data(runs[relaxed].read_recipe())
    return samples.gathered(networks, data, relaxed=relaxed, grouped=grouped, seed=seed)


def _groups(runs: Runs, seed: int, device: str | None, *, title: str) -> bytes:
    (run,) = runs.values()
    certificate = answers_of(run, device)["uniform"]
    superclasses = load_run_data(run.read_recipe()).groups if certificate.classes > FEW else None
    return groups(certificate, title=title, superclasses=superclasses)


def _of_groups(row: str, title: str) -> Figure:
    return Figure((row,), partial(_groups, title=f"{title}: which classes certified sets hold together"))


FIGURES = {
    "surfaces": Figure(("blobs2d/plain", "blobs2d/standard", "blobs2d/rt2"), _surfaces, quick=True),
    "eurosat": Figure(
        ("eurosat/standard", "eurosat/rt3"), partial(_recovered, relaxed="rt3", classes=("Highway", "River"))
    ),
    "cifar100": Figure(("cifar100/rt5",), partial(_together, network="rt5")),
    "superclasses": Figure(
        ("cifar100/rt5", "cifar100/superclass"), partial(_gathered, relaxed="rt5", grouped="superclass")
    ),
    "groups-eurosat": _of_groups("eurosat/rt3", "EuroSAT, RT3"),
    "groups-cifar100": _of_groups("cifar100/rt5", "CIFAR-100, RT5"),
    "groups-acasxu": _of_groups("acasxu/targeted", "ACAS Xu, neighbouring advisories"),
    "groups-tiny-imagenet": _of_groups("tiny-imagenet/rt5", "Tiny-ImageNet, RT5"),
}
