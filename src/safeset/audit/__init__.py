"""Refuting a run: attacks on its certificates, second proofs of its bounds, and every stored number found again.

What it computes shares no expression with what it checks.
"""
