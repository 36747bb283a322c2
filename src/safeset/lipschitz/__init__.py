"""One layer: the estimate that trains, the bound that proves, and the rounding of its forward pass.

`rules.py` is the contract and the registry; the other files hold one kind of layer, or one way of proof.
"""
