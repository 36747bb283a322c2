"""A scikit-learn classifier of tables whose answers are certified sets."""

import math
import warnings
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.coverage.coverage import Coverage
from safeset.coverage.ranks import as_level
from safeset.data.dataset import CALIBRATION_SEED, Dataset, Split
from safeset.errors import DataWarning, UnitsWarning, expected
from safeset.guarantees.guarantee import Guarantee
from safeset.inputs import as_count, as_number, given_epsilon
from safeset.models import mlp
from safeset.recipes.defaults import TABLE_EPSILON
from safeset.recipes.recipe import OWN_DATA, Recipe
from safeset.recipes.schedules import Schedule
from safeset.recipes.sections import Data, Optimiser
from safeset.training.train import train
from safeset.training.watch import Silent, Watch

LEAST_STEPS, LEAST_EPOCHS = 300, 10  # by default
SMALLEST_BATCH, LARGEST_BATCH = 8, 256  # by default; ten or more steps in an epoch where there are points enough


class SafesetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Dense layers, trained for certified sets: `fit`, `predict`, `score`, and `predict_set` for the sets.

    Each column is scaled to [0, 1] by its least and its largest value in the training data, so ``epsilon`` is an L2
    radius in scaled units: 0.05 is a twentieth of one column's range, or less of several at once. A column of one value
    becomes its distance from it.

    Args:
        guarantee: a guarantee or its text, such as ``"rt3"``; by default relaxed top-3, with fewer classes top-2 or
            standard.
        epsilon: radius of the ball, in scaled units.
        hidden: even widths of the layers before the head; none for a linear classifier.
        epochs: how often each point is seen; by default at least 10, and about 300 steps.
        batch: points in a step; by default a tenth of them, between 8 and 256.
        learning_rate: of Adam, in the first half of the epochs; it falls to a hundredth in the second.
        method: ``"uniform"`` (the paper), ``"floating"`` or ``"joint"`` (the default).
        conformal_alpha: for sets that hold the *true* class with probability ≥ 1 − α, also after a change within ε:
            rows are then held out at random to calibrate with, and `predict_set` gives these sets (`Coverage`).
        conformal_share: of the rows, to be held out for it.
        random_state: decides the weights to start from, the order of the points, and which rows are held out.
        device: such as ``"cuda"``.
        verbose: whether to show how the training goes.

    Attributes:
        classes_: the labels, sorted; columns of sets, logits and probabilities are in this order.
        n_features_in_: number of columns.
        ranges_: (columns, 2) the least and the largest value of each in training.
        units_: what ``epsilon`` is measured in, in words.
        net_: the trained `CertifiedNet`, frozen, on scaled points.
        calibration_: with ``conformal_alpha``: the calibration as plain values; ``coverage_`` is the `Coverage` itself.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> model = SafesetClassifier(epsilon=0.05, epochs=10, random_state=0).fit(x, y)
    >>> labels, sets = model.predict_set(x)
    >>> sets.shape
    (150, 3)
    """

    def __init__(
        self,
        guarantee: Guarantee | str | None = None,
        epsilon: float = TABLE_EPSILON,
        *,
        hidden: tuple[int, ...] = (32, 32),
        epochs: int | None = None,
        batch: int | None = None,
        learning_rate: float = 0.01,
        method: str | None = None,
        conformal_alpha: float | None = None,
        conformal_share: float = 0.2,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.guarantee = guarantee
        self.epsilon = epsilon
        self.hidden = hidden
        self.epochs = epochs
        self.batch = batch
        self.learning_rate = learning_rate
        self.method = method
        self.conformal_alpha = conformal_alpha
        self.conformal_share = conformal_share
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803  (scikit-learn's name)
        """Train on rows (n, columns) of numbers and their labels (n,).

        With ``conformal_alpha`` some rows are held out: neither weights nor the ranges of the columns know of them.
        """
        table, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise expected("labels of at least two classes", f"one class, {str(self.classes_[0])!r}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        whole, used, held = table, *self._draw(len(table), seed)
        table = table[used]
        low, high = table.min(axis=0), table.max(axis=0)
        with np.errstate(over="ignore"):
            measurable = np.isfinite(high - low).all()
        if not measurable:
            raise expected("columns that can be scaled to [0, 1]", "one whose range is too large for a number")
        self.ranges_ = np.stack([low, high], axis=1)
        self.units_ = f"columns scaled to [0, 1] by the ranges of {len(table):,} training rows"
        split = Split(self._scale(table).float(), torch.from_numpy(places[used]))
        data = Dataset("table", split, split, tuple(map(str, self.classes_)), self.units_)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = nn.Sequential(*mlp(*self.hidden)(data.input_shape, data.classes))
        net = train(self._recipe(len(table), seed), network=network, data=data, device=self.device, watch=self._watch())
        self.net_ = net.frozen()
        for name in ("calibration_", "_coverage"):
            self.__dict__.pop(name, None)
        if self.conformal_alpha is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnitsWarning)  # an outlier among these rows is no mistake
                points, known = self._scale(whole[held]), torch.from_numpy(places[held])
                self._coverage = Coverage.calibrate(self.net_, points, known, alpha=self.conformal_alpha)
            if bool((self._coverage.thresholds == -math.inf).all()):
                few = f"{len(held):,} held-out rows are too few for conformal_alpha={self.conformal_alpha!r}"
                needed = (
                    f"at least {self._coverage.fewest:,} are needed. Fit more rows, or with a larger conformal_share."
                )
                warnings.warn(f"Every class is in every set: {few}; {needed}", DataWarning, stacklevel=2)
            self.calibration_ = self._coverage.to_record()
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """The logits, (n, classes) float64; of two classes the second's minus the first's, (n,)."""
        logits = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The best class of each row, as a label; certified or not."""
        return self._labels(self._logits(X).argmax(dim=1))

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The softmax of the logits, (n, classes). It is not calibrated, and says nothing about certificates."""
        found: np.ndarray = self._logits(X).softmax(dim=1).numpy()
        return found

    def predict_set(
        self,
        X: Any,  # noqa: N803
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        prefer: str = "smallest",
        alpha: float | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best classes as labels (n,), and sets, (n, classes) booleans.

        Without ``conformal_alpha`` these are the certified sets, all False where rejected: no change within ε gets
        another answer. With it they cover: with probability ≥ 1 − α, on average over calibration sets, they hold the
        true class of rows that are drawn like those of the fit, also after any change within ε.

        Args:
            X: rows of numbers.
            epsilon: radius of the ball in scaled units, if not the estimator's own.
            eps: the same as ``epsilon``.
            prefer: which certified answer, ``"smallest"`` or ``"largest"``.
            alpha: how often the true class may be missing, if not ``conformal_alpha``.
        """
        level = self.conformal_alpha if alpha is None else alpha
        if level is not None:
            if prefer != "smallest":
                raise expected("`prefer` for certified sets alone", "sets that cover", "Take certify(X, prefer=…).")
            measured = self.coverage_.net.measure(self._points(X))
            sets = self.coverage_.at(level).sets(measured, given_epsilon(epsilon, eps, self.epsilon))
            return self._labels(measured.logits.argmax(dim=1)), sets.cpu().numpy()
        found = self.certify(X, epsilon=epsilon, eps=eps, prefer=prefer)
        return self._labels(found.ranking[:, 0]), found.whole.cpu().numpy()

    def certify(
        self,
        X: Any,  # noqa: N803
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
        prefer: str = "smallest",
    ) -> Certificate:
        """The `Certificate` of the rows, in scaled units, proved in float64; arguments as for `CertifiedNet.certify`.

        By default ``epsilon``, ``guarantee`` and ``method`` are the estimator's own as they are now, also after
        `set_params`; a guarantee of None is the one that was fitted. It is about the scaled rows as they are
        computed, and every point within ε of them.
        """
        points, method = self._points(X), self.method if method is None else method
        if epsilon is None and eps is None:  # set_params may have changed it since the fit
            epsilon = self.epsilon
        guarantee = self.guarantee if guarantee is None else guarantee  # None is what was fitted
        return self.net_.certify(points, epsilon=epsilon, eps=eps, guarantee=guarantee, method=method, prefer=prefer)

    @property
    def coverage_(self) -> Coverage:
        """The `Coverage` of the fit, of scaled rows; what it promises is in its ``promise``."""
        check_is_fitted(self)
        if "calibration_" not in vars(self):
            raise expected("a fit with `conformal_alpha`", "one without", "Set it, such as 0.1, and fit again.")
        if "_coverage" not in vars(self):
            self._coverage = Coverage.from_record(self.calibration_, self.net_)
        return self._coverage

    def __getstate__(self) -> dict[str, Any]:
        """All but what holds proofs: those are trusted only in the process that made them."""
        return {name: value for name, value in super().__getstate__().items() if name != "_coverage"}

    def _draw(self, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The places of rows to train on, and of those that are held out at random, not by class."""
        every = np.arange(rows)
        if self.conformal_alpha is None:
            return every, every[:0]
        as_level(self.conformal_alpha, "`conformal_alpha`")  # a mistake in it is reported before the training
        share = as_number(self.conformal_share)
        count = round(share * rows) if share is not None and 0 < share < 1 else 0
        if not 0 < count < rows:
            raise expected(f"`conformal_share` to be a share of {rows} rows, some and not all", self.conformal_share)
        order = np.random.default_rng([seed, CALIBRATION_SEED]).permutation(rows)
        return np.sort(order[count:]), np.sort(order[:count])

    def _logits(self, X: Any) -> Tensor:  # noqa: N803
        points = self._points(X)
        with torch.no_grad():
            found: Tensor = self.net_(points.to(self.net_.device)).cpu()
        return found

    def _labels(self, places: Tensor) -> np.ndarray:
        found: np.ndarray = self.classes_[places.cpu().numpy()]
        return found

    def _points(self, X: Any) -> Tensor:  # noqa: N803
        """Rows as the network sees them, float64."""
        check_is_fitted(self)
        return self._scale(validate_data(self, X, dtype=np.float64, reset=False))

    def _scale(self, table: np.ndarray) -> Tensor:
        low, high = self.ranges_.T
        return torch.from_numpy((table - low) / np.where(high > low, high - low, 1.0))

    def _recipe(self, points: int, seed: int) -> Recipe:
        for name in ("epochs", "batch"):
            if getattr(self, name) is not None and as_count(getattr(self, name)) is None:
                raise expected(f"`{name}` to be an integer ≥ 1", repr(getattr(self, name)))
        batch = self.batch or min(max(points // 10, SMALLEST_BATCH), LARGEST_BATCH)
        steps = max(1, points // batch)
        return Recipe(
            Data(OWN_DATA),
            guarantee=None if self.guarantee is None else str(self.guarantee),
            epsilon=self.epsilon,
            epochs=self.epochs or max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps)),
            batch=batch,
            seed=seed,
            hold_out=0.0,
            optimiser=Optimiser(rate=Schedule(self.learning_rate, self.learning_rate / 100, "after half")),
        )

    def _watch(self) -> Watch:
        if not self.verbose:
            return _Unseen()
        from safeset.terminal.console import TrainingWatch  # rich is imported only where something is shown

        return TrainingWatch()


class _Unseen(Silent):
    """Shows nothing and warns of nothing: the scores of a classifier say how good it is."""

    def note(self, text: str) -> None:
        """Leave it out."""
