"""Training on a GPU: fused blocks, Triton's kernels, convolutions of several networks at once.

Nothing here is used by proofs.
"""
