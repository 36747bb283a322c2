"""Data: one file for each source, which returns a `Dataset` and has its `Source` beside it; `sources` lists them.

`load_data` finds a data set by its name, or reads a user's own folder, table or arrays.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safeset.data.sources import load_data as load_data


def __getattr__(name: str) -> Any:
    """Import the readers of all sources only for those who load data."""
    if name != "load_data":
        raise AttributeError(f"module 'safeset.data' has no attribute {name!r}")
    from safeset.data import sources

    return sources.load_data
