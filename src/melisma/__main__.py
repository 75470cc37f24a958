"""The `melisma` command and `python -m melisma`; Ctrl-C ends them quietly from the start."""

import sys


def main() -> None:
    """Import and run the command line, which takes most of the time of a short command."""
    try:
        from melisma import cli
    except KeyboardInterrupt:
        sys.stderr.write("melisma: interrupted\n")
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
