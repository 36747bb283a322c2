"""The reproduction of the paper: its table, the analyses of its text, its figures.

Results are JSON files, one for each row and seed.
"""
