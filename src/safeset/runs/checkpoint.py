"""What a checkpoint holds, read without training: the tensors of each group, and the weights so far."""

import json
from pathlib import Path

from torch import Tensor

from safeset.errors import SafesetError
from safeset.system.files import read_tensors


def group_tensors(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint by the part of the state that they belong to."""
    groups: dict[str, dict[str, Tensor]] = {"buffers": {}, "optimiser": {}, "vectors": {}}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups


def read_weights(path: Path) -> tuple[dict[str, Tensor], int]:
    """The weights of one net in a checkpoint, the best if there are any, and the number of the epoch it stands in.

    Raises:
        SafesetError: if the file is not a checkpoint.
    """
    tensors, metadata = read_tensors(path)
    groups = group_tensors(tensors)
    try:
        epoch = int(json.loads(metadata["position"])["epoch"]) + 1
        chosen = "best" in metadata and json.loads(metadata["best"])["kept"][0][0] > 0
        served = groups.get("average", groups["parameters"])
        weights = groups["best"] if chosen else {**served, **groups["buffers"]}
    except (LookupError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise SafesetError(
            f"Expected a checkpoint of a training at {path}, but got something else ({type(error).__name__})."
        ) from None
    return weights, epoch
