"""Where ``draftproof`` and ``python -m draftproof`` begin; Ctrl-C is quiet while they load."""

import sys


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    try:
        from draftproof.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
