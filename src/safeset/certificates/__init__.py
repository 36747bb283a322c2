"""From logits and Lipschitz constants to certificates: margins, radii, the three methods, and what an answer promises.

Pure functions of tensors and small frozen values; no network is run here.
"""
