"""Certificates of random logits."""

import torch

from safeset import HeadConstants, certify_logits


def batch(seed, points=40, guarantee="rt3", method=None):
    make = torch.Generator().manual_seed(seed)
    logits = torch.randn(points, 6, generator=make, dtype=torch.float64)
    head = HeadConstants(torch.randn(6, 3, generator=torch.Generator().manual_seed(99), dtype=torch.float64))
    labels = torch.randint(6, (points,), generator=make)
    return certify_logits(logits, head, 0.1, guarantee, method=method), labels
