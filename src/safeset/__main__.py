"""``python -m safeset`` and the command ``safeset``: the command line, also under torchrun."""

import sys

INTERRUPTED = 130  # as shells say it


def main() -> None:
    """The command line; an interrupt while it is still being loaded ends it as quietly as a later one."""
    try:
        from safeset.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
