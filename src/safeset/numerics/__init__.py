"""Arithmetic that proofs rest on: rounded up, in integers, or in the one setting in which float64 is what it says.

Nothing here knows of networks.
"""
