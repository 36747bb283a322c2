"""Recipes: everything that decides what a training does, as frozen values and as TOML.

Those that come with safeset lie beside this package when installed, in `recipes/` of a checkout.
"""
