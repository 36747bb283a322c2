"""What a trained network answers at its test points, by every method: tables, analyses and figures are made of it."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.certify_logits import certify_logits
from safeset.certificates.constants import HeadConstants
from safeset.certificates.margins import METHODS
from safeset.data.dataset import Dataset, Split
from safeset.errors import SafesetError, expected
from safeset.evaluation import POINTS_AT_ONCE, SHARES, SIZES, Metrics
from safeset.guarantees.text import parse
from safeset.inputs import as_device
from safeset.nets.frozen import FrozenNet
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.data import load_run_data
from safeset.runs.load import load
from safeset.runs.run import Run
from safeset.system.files import read_tensors, write_tensors
from safeset.system.fingerprint import Fingerprint
from safeset.system.provenance import provenance, weights_digest
from safeset.system.untrusted import parse_json, read_json_table

ESTIMATE = "estimate"  # `uniform` with the power method's constants, which prove nothing
WAYS = (*METHODS, ESTIMATE)
ITERATIONS = 500
NAME = "answers.safetensors"
RATES = {"vra": "vra", "rejection": "rejection_rate", "accuracy": "accuracy"}


@dataclass(frozen=True, eq=False)
class Answers:
    """Certificates and labels of the same points.

    Attributes:
        labels: (n,) true classes.
        certificates: by each of `WAYS`, with the largest answers, which the paper's tables and texts count.
        stays: (n, K) the radius below which the label stays among the k best, k = 1..K: what Jia et al. certify.
        all_stay: (n, K) the radius below which each of the k best classes stays among the k best.
        seconds: to certify a point by each of `METHODS`, in batches.
        about: what they were made with: digests of weights and points, how the bounds were proved, the device …
    """

    labels: Tensor
    certificates: Mapping[str, Certificate]
    stays: Tensor
    all_stay: Tensor
    seconds: Mapping[str, float]
    about: Mapping[str, Any]

    def __getitem__(self, way: str) -> Certificate:
        return self.certificates[way]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def fingerprint(self) -> Fingerprint:
        """The network, the points and the values of the recipe that the answers are about."""
        one = self["uniform"]
        recipe = {"epsilon": one.epsilon, "guarantee": one.guarantee, "class_names": one.class_names}
        return Fingerprint.of({**self.about, **recipe}, "split", *recipe)

    def rates(self, way: str) -> dict[str, float]:
        """The metrics of `safeset.evaluation`, and the VRA of the paper's appendix.

        ``vra_top1`` counts points that are certified and whose best class is the label; ``vra`` those whose label is
        in the core. ``rejection`` is ``rejection_rate`` under its name in published results.
        """
        certificate = self[way]
        numbers = Metrics().update(certificate, self.labels).compute()
        best = certificate.certified & (certificate.ranking[:, 0] == self.labels)
        named = {**{name: numbers[rate] for name, rate in RATES.items()}, "vra_top1": int(best.sum()) / len(self)}
        return named | {name: numbers[name] for name in (*SHARES, *SIZES)}

    def write(self, path: Path) -> None:
        """Write the answers as a safetensors file."""
        one = self["uniform"]
        tensors = {"labels": self.labels, "ranking": one.ranking, "eligible": one.eligible}
        tensors |= {way: self[way].windows for way in WAYS} | {"stays": self.stays, "all_stay": self.all_stay}
        texts = {
            "guarantee": str(one.guarantee),
            "epsilon": repr(one.epsilon),
            "class_names": json.dumps(one.class_names),
            "seconds": json.dumps(dict(self.seconds)),
            "about": json.dumps(dict(self.about)),
        }
        write_tensors(path, tensors, texts)

    @staticmethod
    def read(path: Path) -> "Answers":
        """Read the answers that `write` wrote."""
        tensors, texts = read_tensors(path)
        try:
            names = tuple(parse_json(texts["class_names"], "the names"))
            guarantee = parse(texts["guarantee"]).bind(names)
            certificates = {
                way: Certificate(
                    windows=tensors[way],
                    ranking=tensors["ranking"],
                    eligible=tensors["eligible"],
                    classes=len(names),
                    epsilon=float(texts["epsilon"]),
                    guarantee=guarantee,
                    method="uniform" if way == ESTIMATE else way,
                    class_names=names,
                    prefer="largest",
                )
                for way in WAYS
            }
            kept = {name: tensors[name] for name in ("labels", "stays", "all_stay")}
            seconds, about = (parse_json(texts[name], name) for name in ("seconds", "about"))
            found = Answers(certificates=certificates, seconds=dict(seconds), about=dict(about), **kept)
            found._check()
            return found
        except (KeyError, TypeError, ValueError, SafesetError) as error:
            raise expected(f"answers at {path}", f"something else ({error})", "Remove it.") from None

    def _check(self) -> None:
        """Raise an error for tensors that do not fit each other."""
        one = self["uniform"]
        n, k = one.ranking.shape
        whole, real = torch.int64, torch.float64
        wanted = {"labels": (self.labels, (n,), whole), "ranking": (one.ranking, (n, k), whole)}
        wanted |= {"eligible": (one.eligible, (n, k), torch.bool), "stays": (self.stays, (n, k), real)}
        wanted |= {"all_stay": (self.all_stay, (n, k), real)}
        wanted |= {way: (self[way].windows, (n, k, k), real) for way in WAYS}
        for name, (tensor, shape, dtype) in wanted.items():
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.isnan().any():
                raise ValueError(f"{name} of shape {tuple(tensor.shape)}")
        if not n or self.labels.min() < 0 or max(self.labels.max(), one.ranking.max()) >= one.classes:
            raise ValueError("no points, or classes that are not there")


def answers_of(run: Run, device: str | None = None, *, data: Dataset | None = None) -> Answers:
    """The answers of a run's network at its test points: those stored beside it, or new ones, which are stored then.

    Args:
        run: a run whose training has ended.
        device: such as ``"cuda"``, to certify on.
        data: the run's data, where it is at hand.
    """
    path = run.path / NAME
    try:
        stored = Answers.read(path) if path.exists() else None
    except SafesetError:
        if not run.model.is_file():
            raise
        stored = None
    recipe = run.read_recipe()
    wanted = _fingerprint(run, recipe, data)
    if stored and not wanted.differences(stored.fingerprint, besides=() if data else ("test",)):
        return stored
    net = load(run.path).to(as_device(device))
    points = load_run_data(recipe) if data is None else data
    made = answer(net, points.test)
    found = replace(made, about={"data": points.name, "split": recipe.split, **made.about})
    with suppress(OSError):  # Answers are stored to save time; without the file they are made again.
        found.write(path)
    return found


def _fingerprint(run: Run, recipe: FittedRecipe, data: Dataset | None) -> Fingerprint:
    """What the answers of a run must be about; without the data, its test points are left open."""
    names = recipe.task.class_names
    guarantee = parse(recipe.guarantee).bind(names)
    said = {"split": recipe.split, "epsilon": recipe.epsilon, "guarantee": guarantee, "class_names": names}
    return Fingerprint(said, weights_of(run), data.test.digest() if data else None)


def weights_of(run: Run) -> str | None:
    """The digest of a run's weights; of a run without its model, as its evaluation says."""
    return weights_digest(read_tensors(run.model)[0]) if run.model.is_file() else evaluation_of(run).weights


def evaluation_of(run: Run) -> Fingerprint:
    """The weights and the test points that a run's last evaluation is about, as far as it says so."""
    found = read_json_table(run.evaluation)
    return Fingerprint.of({key: str(found[key]) for key in ("weights", "test") if key in found})


def answer(net: CertifiedNet, test: Split) -> Answers:
    """Certify labelled points with a net, by every method."""
    device = net.device
    constants, frozen = estimate_constants(net), net.frozen()
    _warm_up(frozen, test, device)
    certificates: dict[str, list[Certificate]] = {way: [] for way in WAYS}
    seconds = dict.fromkeys(METHODS, 0.0)
    stays, all_stay = [], []
    for places in torch.split(torch.arange(len(test)), POINTS_AT_ONCE):
        part = test[places].to(device)
        started = time.perf_counter()
        points = frozen.measure(part.exact)
        shared = time.perf_counter() - started
        for method in METHODS:
            started = time.perf_counter()
            certificates[method].append(points.certificate(method=method).to("cpu"))
            seconds[method] += shared + time.perf_counter() - started
        by_estimate = certify_logits(
            points.logits, constants, net.epsilon, net.guarantee, method="uniform", class_names=net.class_names
        )
        certificates[ESTIMATE].append(by_estimate.to("cpu"))
        ranking = certificates["uniform"][-1].ranking.to(device)
        of_label, of_all = _membership(points.membership_table(ranking.shape[1]), part.y, ranking)
        stays.append(of_label)
        all_stay.append(of_all)
    return Answers(
        labels=test.y.cpu(),
        certificates={way: _join(parts).preferring("largest") for way, parts in certificates.items()},
        stays=torch.cat(stays),
        all_stay=torch.cat(all_stay),
        seconds={method: total / len(test) for method, total in seconds.items()},
        about={
            "bound_method": sorted({layer.method for layer in frozen.bounds().layers}),
            "dtype": "float64",
            **provenance(device),
            "test": test.digest(),
            "weights": weights_digest(net.network.state_dict()),
        },
    )


def _warm_up(net: FrozenNet, test: Split, device: torch.device) -> None:
    """Prove the bounds and certify a batch, so that the clock measures neither proofs nor first calls."""
    if len(test):
        points = net.measure(test[torch.arange(min(len(test), POINTS_AT_ONCE))].to(device).exact)
        for method in METHODS:
            points.certificate(method=method)


def _membership(radii: Tensor, labels: Tensor, ranking: Tensor) -> tuple[Tensor, Tensor]:
    """The radii of `Answers.stays` and `Answers.all_stay`, (points, k) each, from those of all classes."""
    k = ranking.shape[1]
    of_label = radii[torch.arange(len(labels)), :, labels]
    ranked = radii.gather(2, ranking.clamp(min=0)[:, None, :].expand(-1, k, -1))  # (points, k, ranks)
    among_best = torch.ones(k, k, dtype=torch.bool, device=ranking.device).tril()
    return of_label.cpu(), torch.where(among_best, ranked, torch.inf).amin(dim=2).cpu()


@torch.no_grad()
def estimate_constants(net: CertifiedNet) -> HeadConstants:
    """The head's constants by 500 iterations of the power method: below the truth, in these networks by thousandths."""
    constants, _ = net.estimate(None, net.start_vectors(), ITERATIONS)
    return HeadConstants(constants.rows.double(), float(constants.scale))


def _join(parts: list[Certificate]) -> Certificate:
    def whole(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    return replace(parts[0], windows=whole("windows"), ranking=whole("ranking"), eligible=whole("eligible"))
