"""Witnesses of a run's proofs as a file: what is missing or damaged only makes the next proof take longer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from safeset.errors import SafesetError
from safeset.lipschitz.witness import Witness
from safeset.system.files import read_tensors, write_tensors

LARGEST = 2**25  # bytes of one layer's vectors: more are rather found again
LARGEST_FILE = 2**29


def write_witnesses(path: Path, witnesses: Mapping[str, Witness]) -> None:
    """Write them: numbers as JSON, vectors as tensors."""
    kept = {
        name: one
        for name, one in witnesses.items()
        if one.vectors is None or one.vectors.numel() * one.vectors.element_size() <= LARGEST
    }
    numbers = {
        name: {"kind": one.kind, "claim": one.claim, "shift": one.shift, "gap": one.gap} for name, one in kept.items()
    }
    vectors = {name: one.vectors for name, one in kept.items() if one.vectors is not None}
    write_tensors(path, vectors, {"format": "safeset 1", "witnesses": json.dumps(numbers)})


def read_witnesses(path: Path) -> dict[str, Witness]:
    """Those of a file; none where there is none, or something else."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            return {}
        vectors, texts = read_tensors(path)
        numbers = json.loads(texts["witnesses"])
        return {str(name): _witness(one, vectors.get(name)) for name, one in numbers.items()}
    except (SafesetError, OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        return {}


def _witness(numbers: Any, vectors: Any) -> Witness:
    if vectors is not None and (vectors.dtype != torch.float32 or not vectors.numel()):
        raise ValueError("singular vectors are some, in float32")
    claim, shift = float(numbers["claim"]), float(numbers["shift"])
    return Witness(str(numbers["kind"]), claim, shift, int(numbers["gap"]), vectors)
