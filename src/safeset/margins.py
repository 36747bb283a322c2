"""Margins and ⊥ for losses, under the name that users import; `safeset.certificates.margins` has their definitions."""

from safeset.certificates.margins import METHODS, best_classes, bottom, instrument, margin

__all__ = ["METHODS", "best_classes", "bottom", "instrument", "margin"]
