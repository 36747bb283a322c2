"""Named architectures: the paper's networks, small ones for the embedded data, and modern ones in several sizes."""

from safeset.models.create import INITIALISATIONS, check_model, create_model, list_models
from safeset.models.plain import mlp

__all__ = ["INITIALISATIONS", "check_model", "create_model", "list_models", "mlp"]
