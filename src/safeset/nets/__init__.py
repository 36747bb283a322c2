"""A whole network: `CertifiedNet`, what is proved of it, and the points that it has seen.

This is the only place with state: one sealed program, one lock.
"""
