"""The command `filfl`, which is also `python -m filfl`."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Import the command and run it. Ctrl-C during the import ends it without a traceback."""
    try:
        from filfl.cli import main as command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command()


if __name__ == "__main__":
    main()
