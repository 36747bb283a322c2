"""``python -m safeset``: the command line, also under torchrun."""

from safeset.cli import main

main()
