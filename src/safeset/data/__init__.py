"""Data: one file for each source, each of which returns the same value, a `Dataset`.

`load_data` finds a data set by its name, or reads a user's own folder, table or arrays.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safeset.data.sources import load_data as load_data


def __getattr__(name: str) -> Any:
    """`load_data` on demand: `safeset data list` needs no torch."""
    if name != "load_data":
        raise AttributeError(f"module 'safeset.data' has no attribute {name!r}")
    from safeset.data import sources

    return sources.load_data
