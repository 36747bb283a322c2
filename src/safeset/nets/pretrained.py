"""A net in a folder as Hugging Face's libraries lay it out: weights, a configuration and a card; no pickles."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from safeset.errors import expected
from safeset.guarantees.text import names_a_file
from safeset.inputs import as_number, check_names, check_shape, is_text
from safeset.system.files import check_folder, read_tensors, write_json, write_tensors, write_whole
from safeset.system.provenance import weights_digest
from safeset.system.untrusted import read_json

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1
KEYS = {"format", "input_shape", "guarantee", "epsilon", "class_names", "units", "tighten", "weights"}


def write_pretrained(folder: Path, weights: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
    """Write the three files, each whole; the configuration last, so that it is never beside other weights.

    A configuration that was there is about other weights while these are written, and is refused then.
    """
    check_folder(folder, "the net")
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format": FORMAT, **settings, "weights": weights_digest(weights)}
    write_tensors(folder / WEIGHTS, weights, {"format": "pt"})
    write_whole(folder / CARD, _card(config))
    write_json(folder / CONFIG, config)


def read_pretrained(folder: Path, network: nn.Module) -> dict[str, Any]:
    """Put the weights of a folder into a network, and return its settings; nothing changes if a file is wrong.

    Raises:
        SafesetError: if a file is missing or damaged, or the network has other weights by name, shape or type.
    """
    config = _checked(read_json(folder / CONFIG), folder / CONFIG)
    own = network.state_dict()
    weights, _ = read_tensors(folder / WEIGHTS, {name: tuple(tensor.shape) for name, tensor in own.items()})
    if weights_digest(weights) != config["weights"]:
        remedy = "One of the files is damaged, or from elsewhere."
        raise expected(f"the weights that {CONFIG} is about in {folder / WEIGHTS}", "others", remedy)
    for name, tensor in weights.items():
        if tensor.dtype != own[name].dtype:  # copied into another type, they would be other numbers
            raise expected(f"{name[:80]!r} of type {tensor.dtype} in the network", own[name].dtype, "Convert it first.")
    network.load_state_dict(weights)
    return config


def _checked(config: Any, path: Path) -> dict[str, Any]:
    """A configuration, if it has all that it must, and nothing else."""
    remedy = "net.save_pretrained writes such a file."
    if not isinstance(config, dict) or set(config) != KEYS or config["format"] != FORMAT:
        raise expected(f"the configuration of a net in {path}", "something else", remedy)
    for key in ("guarantee", "units", "weights"):
        if not isinstance(config[key], str):
            raise expected(f"{key!r} in {path} to be a text", repr(config[key])[:80], remedy)
    if names_a_file(config["guarantee"]):  # of this machine, which whoever wrote the configuration does not know
        got = repr(config["guarantee"])[:80]
        raise expected(f"affinity sets written out in {path}", got, remedy)
    if config["tighten"] is not None and not isinstance(config["tighten"], bool):
        raise expected(f"'tighten' in {path} to be true, false or null", repr(config["tighten"])[:80], remedy)
    if as_number(config["epsilon"]) is None:
        raise expected(f"'epsilon' in {path} to be a number", repr(config["epsilon"])[:80], remedy)
    check_shape(config["input_shape"])
    if config["class_names"] is not None:
        check_names(config["class_names"])
    return config


def _card(config: Mapping[str, Any]) -> str:
    """What people read: what the net promises, and how it is loaded."""
    names = config["class_names"] or []
    shown = ", ".join(" ".join(name.split())[:40] for name in names[:20] if is_text(name))
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    classes = f"- classes: {shown}{more}\n" if names else ""
    units = f" in {config['units']}" if config["units"] else ", in the units of the input"
    return (
        "---\nlibrary_name: safeset\ntags: [certified-robustness, safeset]\n---\n\n# A certified network\n\n"
        f"- guarantee: {config['guarantee'][:200]}\n- radius: {config['epsilon']} (L2){units}\n"
        f"- one input: {tuple(config['input_shape'])}\n{classes}\n"
        "```python\nfrom safeset import CertifiedNet\n\n"
        'net = CertifiedNet.from_pretrained(".", network=...)  # a module of the same architecture\n'
        "certificate = net.certify(x)  # its bounds are proved here, not read\n```\n"
    )
