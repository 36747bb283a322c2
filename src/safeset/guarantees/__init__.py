"""Which k count at a point: `Standard`, `TopK`, `RelaxedTopK` and `Affinity`, small frozen values.

Everything else asks a guarantee a few questions and never which one it is.
"""

from safeset.guarantees.guarantee import Affinity, Guarantee, RelaxedTopK, Standard, TopK
from safeset.guarantees.text import as_guarantee, parse

__all__ = ["Affinity", "Guarantee", "RelaxedTopK", "Standard", "TopK", "as_guarantee", "parse"]
