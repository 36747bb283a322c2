"""The paper's figures, and those of classes that go together: each by its name, from the runs that it needs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safeset.drawing.sheet import check_matplotlib
from safeset.errors import DataNotFoundError, expected, nearest
from safeset.inputs import as_device
from safeset.paper.drawing import samples, surfaces
from safeset.paper.drawing.groups import FEW, draw_groups
from safeset.paper.networks import RUNS, runs_of
from safeset.paper.predictions import answers_of
from safeset.paper.rows import recipe_of
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
        paint: makes the file, from the runs of these rows, the seed and the device.
        quick: whether missing networks are trained in passing.
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
        names: of `FIGURES`. Without any: all whose networks are there; ``tell`` is called with the others.
        runs: where `reproduce` has put the trained networks. Those of ``surfaces`` are trained if they are missing.
        out: where the files go.
        seed: of the networks, and of the draw of images.
        device: such as ``"cuda"``, to certify on.
        tell: is called with what is left out, and what is trained.
        watch: is called while a network is trained.
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
    ready = {name: known[name] for name in dict.fromkeys(names or known)}
    for name, figure in list(ready.items()):
        missing = figure.missing(runs, seed)
        if missing and not figure.quick:
            _lacks(name, missing, runs, seed, None if names else say)
            del ready[name]
    return _draw_all(ready, runs, out, seed, device, watch, say, skip=not names)


def _lacks(name: str, rows: Sequence[str], runs: Path, seed: int, say: Callable[[str], None] | None) -> None:
    """Say which networks a figure lacks, and the command that trains them; without ``say`` it is an error."""
    where = "" if runs == RUNS else f" --runs {runs}"
    command = f"safeset reproduce {' '.join(rows)} --seeds {seed + 1} --out {runs / 'results'}{where}"
    lacking, remedy = f"no {' and no '.join(rows)}", f"{command} trains {'them' if len(rows) > 1 else 'it'}."
    if say is None:
        raise expected(f"the networks of {name}, seed {seed}, in {runs}", lacking, remedy)
    say(f"Left out {name}: there is {lacking}, seed {seed}, in {runs}. {remedy}")


def _draw_all(
    figures: Mapping[str, Figure],
    runs: Path,
    out: Path,
    seed: int,
    device: str | None,
    watch: Watch | None,
    say: Callable[[str], None],
    *,
    skip: bool,
) -> Iterator[Path]:
    """Draw one figure after the other; with ``skip``, those without their data are left out."""
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = out / f"{name}.png"
        try:
            networks = {Path(row).name: _find_or_train(row, runs, seed, watch, say) for row in figure.rows}
            content = figure.paint(networks, seed, device)
        except DataNotFoundError as error:
            if not skip:
                raise
            say(f"Left out {name}: {error}")
            continue
        write_whole(path, content)
        yield path


def _find_or_train(row: str, runs: Path, seed: int, watch: Watch | None, say: Callable[[str], None]) -> Run:
    """Find the run of a row and a seed, or train it."""
    trained = runs_of(runs, row, seed)
    if trained:
        return trained[0]
    run = Run(runs / f"{row}-seed{seed}")
    say(f"Training {row}, seed {seed}.")
    try:
        train(recipe_of(row, {"seed": seed}), out=run.path, resume=True, device="cpu", watch=watch)
    except Interrupted as stopped:
        raise stopped.continued_by("the same safeset figures") from None
    return run


# -- how each is painted ----------------------------------------------------------------------------------------------


def _paint_surfaces(runs: Runs, seed: int, device: str | None) -> bytes:
    data = load_run_data(runs["rt2"].read_recipe())
    return surfaces.draw_surfaces({name: load(run.path) for name, run in runs.items()}, data)


def _paint_recovered(runs: Runs, seed: int, device: str | None, *, relaxed: str, classes: Sequence[str]) -> bytes:
    networks = {name: answers_of(run, device) for name, run in runs.items()}
    data = load_run_data(runs[relaxed].read_recipe())
    return samples.draw_recovered(networks, data, relaxed=relaxed, classes=classes, seed=seed)


def _paint_together(runs: Runs, seed: int, device: str | None, *, network: str) -> bytes:
    data = load_run_data(runs[network].read_recipe())
    return samples.draw_together(answers_of(runs[network], device), data, network=network, seed=seed)


def _paint_gathered(runs: Runs, seed: int, device: str | None, *, relaxed: str, grouped: str) -> bytes:
    networks = {name: answers_of(run, device) for name, run in runs.items()}
    data = load_run_data(runs[relaxed].read_recipe())
    return samples.draw_gathered(networks, data, relaxed=relaxed, grouped=grouped, seed=seed)


def _paint_groups(runs: Runs, seed: int, device: str | None, *, title: str) -> bytes:
    (run,) = runs.values()
    certificate = answers_of(run, device)["uniform"]
    superclasses = load_run_data(run.read_recipe()).groups if certificate.classes > FEW else None
    return draw_groups(certificate, title=title, superclasses=superclasses)


def _of_groups(row: str, title: str) -> Figure:
    return Figure((row,), partial(_paint_groups, title=f"{title}: which classes certified sets hold together"))


FIGURES = {
    "surfaces": Figure(("blobs2d/plain", "blobs2d/standard", "blobs2d/rt2"), _paint_surfaces, quick=True),
    "eurosat": Figure(
        ("eurosat/standard", "eurosat/rt3"), partial(_paint_recovered, relaxed="rt3", classes=("Highway", "River"))
    ),
    "cifar100": Figure(("cifar100/rt5",), partial(_paint_together, network="rt5")),
    "superclasses": Figure(
        ("cifar100/rt5", "cifar100/superclass"), partial(_paint_gathered, relaxed="rt5", grouped="superclass")
    ),
    "groups-eurosat": _of_groups("eurosat/rt3", "EuroSAT, RT3"),
    "groups-cifar100": _of_groups("cifar100/rt5", "CIFAR-100, RT5"),
    "groups-acasxu": _of_groups("acasxu/targeted", "ACAS Xu, neighbouring advisories"),
    "groups-tiny-imagenet": _of_groups("tiny-imagenet/rt5", "Tiny-ImageNet, RT5"),
}
