"""SafesetClassifier: what scikit-learn expects of a classifier, and what safeset promises of its sets."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from safeset import (
    ArgumentError,
    Certificate,
    Coverage,
    DataWarning,
    RelaxedTopK,
    SafesetClassifier,
    Standard,
    UnitsWarning,
)

QUICK = {"epochs": 8, "batch": 16, "random_state": 0}


@pytest.fixture(scope="module")
def iris():
    table, labels = load_iris(return_X_y=True)
    return table, np.array(["setosa", "versicolor", "virginica"])[labels]


@pytest.fixture(scope="module")
def fitted(iris):
    return SafesetClassifier(epsilon=0.05, epochs=20, batch=16, random_state=0).fit(*iris)


def test_scikit_learns_own_checks():
    check_estimator(SafesetClassifier(**QUICK), on_skip=None)


@pytest.mark.filterwarnings("ignore:Every class is in every set")  # its tables are small
@pytest.mark.slow
def test_scikit_learns_own_checks_with_sets_that_cover():
    check_estimator(SafesetClassifier(conformal_alpha=0.1, **QUICK), on_skip=None)


@pytest.mark.slow
def test_scikit_learns_own_checks_with_the_defaults():
    check_estimator(SafesetClassifier(), on_skip=None)


def test_labels_logits_and_probabilities_agree(fitted, iris):
    table, labels = iris
    assert fitted.score(table, labels) > 0.9
    assert fitted.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert fitted.n_features_in_ == 4
    logits = fitted.decision_function(table)
    assert (logits.shape, logits.dtype) == ((150, 3), np.float64)
    assert (fitted.predict(table) == fitted.classes_[logits.argmax(axis=1)]).all()
    assert (fitted.predict_proba(table).argmax(axis=1) == logits.argmax(axis=1)).all()
    assert fitted.predict_proba(table).sum(axis=1) == pytest.approx(1)


def test_rows_far_outside_the_ranges_of_training_are_warned_of(fitted, iris):
    table, _ = iris
    fitted.certify(table + np.ptp(table, axis=0) / 2)  # outliers are no mistake
    for strange, count in ((table[:2] * 10, 2), (table[:5] + np.array([0, 0, 0, 1000]), 5)):
        for method in (fitted.certify, fitted.predict_set):
            with pytest.warns(
                UnitsWarning, match=f"{count} of {count} points lie far outside.*units of training"
            ) as warned:
                method(strange)
            assert warned[0].filename == __file__


def test_a_pipeline_gives_its_sets_in_two_steps(iris):
    table, labels = iris
    pipe = make_pipeline(StandardScaler(), SafesetClassifier(**QUICK)).fit(table, labels)
    assert not hasattr(pipe, "predict_set")
    best, sets = pipe[-1].predict_set(pipe[:-1].transform(table))
    assert (best == pipe.predict(table)).all()
    assert sets.shape == (150, 3)


def test_sets_are_those_of_the_certificate(fitted, iris):
    table, _ = iris
    certificate = fitted.certify(table)
    assert isinstance(certificate, Certificate)
    assert certificate.certified.any()
    assert certificate.names == ("setosa", "versicolor", "virginica")
    best, sets = fitted.predict_set(table)
    assert (best == fitted.predict(table)).all()
    assert (sets == certificate.whole.numpy()).all()
    assert (sets.dtype, sets.shape) == (np.bool_, (150, 3))
    largest = fitted.predict_set(table, prefer="largest")[1]
    assert (largest == certificate.preferring("largest").whole.numpy()).all()
    assert largest.sum() > sets.sum()
    assert not fitted.predict_set(table, eps=9.0)[1].any()
    assert (fitted.certify(table, epsilon=0.1).epsilon, fitted.certify(table, guarantee="standard").classes) == (0.1, 3)
    assert fitted.certify(table, method="uniform").method == "uniform"
    assert clone(fitted).set_params(method="uniform").fit(*iris).certify(table).method == "uniform"


def test_parameters_that_are_set_after_the_fit_count(iris):
    table, labels = iris
    model = SafesetClassifier(epsilon=0.05, epochs=10, random_state=0).fit(table, labels)
    fitted = model.certify(table)
    model.set_params(epsilon=9.0)
    assert model.certify(table).epsilon == 9.0
    assert not model.predict_set(table)[1].any()
    assert model.certify(table, eps=0.1).epsilon == 0.1
    model.set_params(epsilon=0.05, guarantee="standard")
    assert str(model.certify(table).guarantee) == "standard"
    assert (model.predict_set(table)[1].sum(axis=1) <= 1).all()
    model.set_params(guarantee=None)
    assert str(model.certify(table).guarantee) == str(fitted.guarantee)


def test_a_certified_class_stays_the_best_within_the_radius_in_scaled_units(fitted, iris):
    table, _ = iris
    certificate = fitted.certify(table, guarantee="standard", epsilon=0.03)
    certified = certificate.certified.numpy()
    assert certified.sum() > 50
    width = np.ptp(fitted.ranges_, axis=1)
    generator = np.random.default_rng(0)
    for _ in range(20):
        moved = generator.normal(size=table.shape)
        moved *= 0.0299 / np.linalg.norm(moved, axis=1, keepdims=True)
        assert (fitted.predict(table + moved * width) == fitted.predict(table))[certified].all()


def test_columns_are_scaled_by_training_ranges_and_certified_in_float64(fitted, iris):
    table, _ = iris
    low, high = fitted.ranges_.T
    assert (low == table.min(axis=0)).all()
    assert (high == table.max(axis=0)).all()
    assert fitted.units_ == "columns scaled to [0, 1] by the ranges of 150 training rows"
    scaled = torch.from_numpy((table - low) / (high - low))
    windows = fitted.certify(table).windows
    assert torch.equal(windows, fitted.net_.certify(scaled).windows)
    assert not torch.equal(windows, fitted.net_.certify(scaled.float()).windows)


def test_a_column_of_one_value_does_no_harm(iris):
    table, labels = iris
    model = SafesetClassifier(**QUICK).fit(np.c_[table, np.full(150, 7.0)], labels)
    assert model.score(np.c_[table, np.full(150, 7.0)], labels) > 0.8


def test_the_guarantee_follows_the_number_of_classes(iris):
    table, labels = iris
    two = labels != "setosa"
    model = SafesetClassifier(**QUICK).fit(table[two], labels[two])
    assert model.net_.guarantee == Standard()
    assert model.decision_function(table).shape == (150,)
    assert ((model.decision_function(table) > 0) == (model.predict(table) == "virginica")).all()
    assert SafesetClassifier(**QUICK).fit(table, labels).net_.guarantee == RelaxedTopK(2)
    assert SafesetClassifier("standard", **QUICK).fit(table, labels).net_.guarantee == Standard()
    assert SafesetClassifier(RelaxedTopK(1), **QUICK).fit(table, labels).net_.guarantee == RelaxedTopK(1)


def test_it_goes_with_the_tools_of_scikit_learn(iris):
    table, labels = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), SafesetClassifier(**QUICK))
    assert cross_val_score(pipeline, table, labels, cv=3).mean() > 0.85
    search = GridSearchCV(SafesetClassifier(**QUICK), {"hidden": [(), (16,)], "epsilon": [0.01, 0.1]}, cv=2)
    search.fit(table, labels)
    assert search.best_score_ > 0.8
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_a_pickled_one_proves_again_and_says_the_same(fitted, iris):
    before = fitted.certify(iris[0])  # a proof is at hand now
    again = pickle.loads(pickle.dumps(fitted))
    assert not again.net_._sealed.proofs
    assert torch.equal(again.certify(iris[0]).windows, before.windows)


def test_the_random_state_decides(iris):
    one, same, other = (SafesetClassifier(**{**QUICK, "random_state": state}).fit(*iris) for state in (0, 0, 1))
    assert (one.decision_function(iris[0]) == same.decision_function(iris[0])).all()
    assert (one.decision_function(iris[0]) != other.decision_function(iris[0])).any()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"guarantee": "rt3"}, "`k` to be an integer in 1..2"),
        ({"epsilon": -1}, "`epsilon` to be a finite number ≥ 0"),
        ({"hidden": (15,)}, "even integers"),
        ({"hidden": (0,)}, "even integers"),
        ({"epochs": 0}, "`epochs` to be an integer ≥ 1"),
        ({"batch": 2.5}, "`batch` to be an integer ≥ 1"),
        ({"learning_rate": 0.0}, "numbers above 0"),
        ({"device": "cuda:77"}, "a device of this machine"),
    ],
)
def test_bad_parameters_are_named(iris, parameters, message):
    with pytest.raises(ValueError, match=message):
        SafesetClassifier(**parameters).fit(*iris)


def test_what_cannot_be_learnt_from_is_named(iris):
    with pytest.raises(ValueError, match="one class, 'setosa'"):
        SafesetClassifier().fit(iris[0][:50], iris[1][:50])
    with pytest.raises(ValueError, match="range is too large"):
        SafesetClassifier().fit([[-1.7e308], [1.7e308]], [0, 1])


def test_it_shows_its_training_if_asked(iris, capsys):
    SafesetClassifier(**QUICK).fit(*iris)
    assert capsys.readouterr() == ("", "")
    SafesetClassifier(**QUICK, verbose=True).fit(*iris)
    assert "epoch 8/8" in capsys.readouterr().err


# -- sets that cover --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def covering():
    table, labels = load_wine(return_X_y=True)
    model = SafesetClassifier(conformal_alpha=0.1, conformal_share=0.3, epsilon=0.05, epochs=20, random_state=0)
    return model.fit(table, labels), table, labels


def test_rows_are_held_out_and_nothing_knows_of_them(covering):
    model, table, labels = covering
    assert len(model.coverage_) == 53
    used, held = model._draw(178, int(np.random.RandomState(0).randint(2**31 - 1)))
    assert sorted([*used, *held]) == list(range(178))
    assert len(held) == 53
    assert len(set(np.bincount(labels[held]) / np.bincount(labels))) > 1, "stratified"
    assert (model.ranges_[:, 1] == table[used].max(axis=0)).all()
    assert (model.ranges_[:, 1] < table.max(axis=0)).any()
    again = Coverage.calibrate(model.net_, model._scale(table[held]), torch.from_numpy(labels[held]), alpha=0.1)
    assert torch.equal(again.thresholds, model.coverage_.thresholds)


def test_predict_set_gives_the_sets_that_cover(covering):
    model, table, _ = covering
    best, sets = model.predict_set(table)
    scaled = model._scale(table)
    assert (best == model.predict(table)).all()
    assert (sets == model.coverage_.sets(scaled, 0.05).numpy()).all()
    assert (model.predict_set(table, eps=0.5)[1] == model.coverage_.sets(scaled, 0.5).numpy()).all()
    assert (model.predict_set(table, alpha=0.02)[1] == model.coverage_.at(0.02).sets(scaled, 0.05).numpy()).all()
    with pytest.raises(ArgumentError, match="certify"):
        model.predict_set(table, prefer="largest")
    assert isinstance(model.certify(table), Certificate)


@pytest.mark.parametrize("name", ["epsilon", "eps"])
def test_sets_are_made_for_a_fraction_and_not_for_the_number_below_it(covering, monkeypatch, name):
    model, table, _ = covering
    asked, sets = [], Coverage.sets
    monkeypatch.setattr(Coverage, "sets", lambda self, x, radius: asked.append(radius) or sets(self, x, radius))
    model.predict_set(table, **{name: Fraction(1, 3)})
    assert asked == [Fraction(1, 3)]


def test_a_pickle_of_a_calibrated_model_gives_the_same_sets(covering):
    model, table, _ = covering
    again = pickle.loads(pickle.dumps(model))
    assert "_coverage" not in vars(again)
    assert (again.predict_set(table, epsilon=0.2)[1] == model.predict_set(table, epsilon=0.2)[1]).all()
    assert again.coverage_.promise == model.coverage_.promise


def test_too_few_rows_for_a_level_are_warned_of(iris):
    table, labels = iris
    with pytest.warns(DataWarning, match="Every class is in every set: 30 held-out rows .* at least 99 are needed"):
        model = SafesetClassifier(conformal_alpha=0.01, **QUICK).fit(table, labels)
    assert model.predict_set(table, epsilon=0)[1].all()


def test_what_cannot_be_calibrated_is_refused(fitted, iris):
    table, labels = iris
    with pytest.raises(ArgumentError, match="fit with `conformal_alpha`"):
        fitted.predict_set(table, alpha=0.1)
    for wrong in ({"conformal_alpha": 1.5}, {"conformal_share": 0.0}, {"conformal_share": 0.999}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            SafesetClassifier(**{"conformal_alpha": 0.1, **wrong, **QUICK}).fit(table, labels)
    model = SafesetClassifier(conformal_alpha=0.1, **QUICK).fit(table, labels)
    model.set_params(conformal_alpha=None).fit(table, labels)
    assert "calibration_" not in vars(model)
    assert (model.predict_set(table)[1] == model.certify(table).whole.numpy()).all()
