"""The command line: one module for each group of commands, which parse, call and print.

torch is imported only by commands that need it.
"""
