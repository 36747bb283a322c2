"""A small network, and properties of it in both versions of VNN-LIB."""

# Two inputs; max(x₀ + x₁, 0) and its opposite as outputs.
NET = """2,2,2,2,
2,2,2,
0,
-1,-1,
1,1,
0,0,0,
1,1,1,
1,1,
0,0,
0,
0,
1,0,
-1,0,
0,
0,
"""
FIRST = """(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (and (>= X_0 0) (<= X_0 1) (>= X_1 0.5) (<= X_1 1)))
(assert (>= Y_0 {}))
"""
SECOND = """(vnnlib-version <2.0>)
(declare-network f (declare-input X {} [1, 2]) (declare-output Y {} [2]))
(assert (and (>= X[0,0] 0) (<= X[0,0] 1) (>= X[0,1] 0.5) (<= X[0,1] 1)))
(assert (>= Y[0] 1.75))
"""


def write_properties(path):
    """The network and its properties, as the documents name them."""
    (path / "net.nnet").write_text(NET)
    (path / "property.vnnlib").write_text(FIRST.format(1.75))
    (path / "property2.vnnlib").write_text(SECOND.format("real", "real"))
