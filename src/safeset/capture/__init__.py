"""From what people bring to a program: plain sequences of layers, and any module by what `torch.export` sees of it.

Values are views of entries, so reorderings are seen however they are written; what has no Lipschitz constant is refused
with the user's own line.
"""
