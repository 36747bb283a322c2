"""safeset: classifiers whose answers are certified sets.

The names below are loaded when first used, so that importing the package alone does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safeset.certificates.certificate import Certificate as Certificate
    from safeset.certificates.certify_logits import certify_logits as certify_logits
    from safeset.certificates.certify_logits import membership_radii as membership_radii
    from safeset.certificates.certify_logits import target_table as target_table
    from safeset.certificates.constants import HeadConstants as HeadConstants
    from safeset.certificates.signed_radii import signed_radii as signed_radii
    from safeset.coverage.coverage import Coverage as Coverage
    from safeset.coverage.fit import fit_logits as fit_logits
    from safeset.errors import ArgumentError as ArgumentError
    from safeset.errors import DataNotFoundError as DataNotFoundError
    from safeset.errors import DataWarning as DataWarning
    from safeset.errors import RoundingWarning as RoundingWarning
    from safeset.errors import SafesetError as SafesetError
    from safeset.errors import TrainingWarning as TrainingWarning
    from safeset.errors import UnitsWarning as UnitsWarning
    from safeset.errors import UnsupportedLayerError as UnsupportedLayerError
    from safeset.estimator import SafesetClassifier as SafesetClassifier
    from safeset.export.to_onnx import export_onnx as export_onnx
    from safeset.guarantees.guarantee import Affinity as Affinity
    from safeset.guarantees.guarantee import Guarantee as Guarantee
    from safeset.guarantees.guarantee import RelaxedTopK as RelaxedTopK
    from safeset.guarantees.guarantee import Standard as Standard
    from safeset.guarantees.guarantee import TopK as TopK
    from safeset.models import create_model as create_model
    from safeset.models import list_models as list_models
    from safeset.nets.net import CertifiedNet as CertifiedNet
    from safeset.program.rules import ExactRule as ExactRule
    from safeset.program.rules import LayerRule as LayerRule
    from safeset.program.rules import register_layer as register_layer
    from safeset.recipes.recipe import Recipe as Recipe
    from safeset.runs.load import load as load
    from safeset.training.train import train as train

__version__ = "0.1.0"

_HOMES = {
    "Certificate": "certificates.certificate",
    "certify_logits": "certificates.certify_logits",
    "membership_radii": "certificates.certify_logits",
    "target_table": "certificates.certify_logits",
    "HeadConstants": "certificates.constants",
    "signed_radii": "certificates.signed_radii",
    "Coverage": "coverage.coverage",
    "fit_logits": "coverage.fit",
    "ArgumentError": "errors",
    "DataNotFoundError": "errors",
    "DataWarning": "errors",
    "RoundingWarning": "errors",
    "UnitsWarning": "errors",
    "SafesetError": "errors",
    "TrainingWarning": "errors",
    "UnsupportedLayerError": "errors",
    "SafesetClassifier": "estimator",
    "export_onnx": "export.to_onnx",
    "Affinity": "guarantees.guarantee",
    "Guarantee": "guarantees.guarantee",
    "RelaxedTopK": "guarantees.guarantee",
    "Standard": "guarantees.guarantee",
    "TopK": "guarantees.guarantee",
    "ExactRule": "program.rules",
    "LayerRule": "program.rules",
    "register_layer": "program.torch_layers",  # after torch's own layers, so that none is overwritten
    "create_model": "models",
    "list_models": "models",
    "CertifiedNet": "nets.net",
    "load": "runs.load",
    "Recipe": "recipes.recipe",
    "train": "training.train",
}
_MODULES = {
    "affinity": "guarantees.affinity",
    "certificates": "certificates",
    "constants": "certificates.constants",
    "data": "data",
    "errors": "errors",
    "evaluation": "evaluation",
    "guarantees": "guarantees",
    "layers": "layers",
    "losses": "losses",
    "margins": "margins",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"safeset.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'safeset' has no attribute {name!r}")
    return getattr(import_module(f"safeset.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
