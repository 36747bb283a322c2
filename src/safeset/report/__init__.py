"""A run shown to people: one self-contained page, and its curves for a paper.

`findings` measures once, `page` says how the page is put together, `html` escapes everything that comes from users.
"""
