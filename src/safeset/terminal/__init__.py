"""What people see in a terminal or notebook: lines, tables and progress bars.

Nothing is ever cut: a table that does not fit becomes blocks.
"""
