"""``python -m safeset``: the command line, also under torchrun."""

from safeset.cli.app import main

main()
