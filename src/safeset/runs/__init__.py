"""A trained directory and its use: loading it, evaluating it, certifying files, choosing ε and K.

Every command takes such a directory.
"""
