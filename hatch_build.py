"""What is done to the metadata of a wheel: links of the README are made absolute, for readers on PyPI."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|mailto:|#)([^)\s]+)\)")


def absolute(text: str, repository: str, version: str) -> str:
    """Markdown whose links into the repository lead to the files of a release, wherever it is read.

    >>> absolute("[data](docs/data.md#own) ![a](a.png) [PyPI](https://pypi.org)", "https://github.com/o/r", "0.1")
    '[data](https://github.com/o/r/blob/v0.1/docs/data.md#own) ![a](https://github.com/o/r/raw/v0.1/a.png) [PyPI](https://pypi.org)'
    """
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({repository}/{'raw' if m[1] else 'blob'}/v{version}/{m[3]})", text)


class ReadmeHook(MetadataHookInterface):
    """Gives the wheel its description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description to the README, as PyPI can show it."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        content = absolute(text, metadata["urls"]["Repository"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": content}
