"""The paper's figures: what is chosen for them, and how it is painted.

Choices are pure functions of certificates.
"""
