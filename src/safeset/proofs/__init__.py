"""Certificates that travel: written by `portable.py`, verified by `check.py`.

The checker is one file that needs nothing but Python.
"""
