"""Entry point of the ``mdr`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from mdr.cli.main import run

        run()
    except KeyboardInterrupt:  # while modules load; later the command line answers it
        sys.stderr.write("mdr: aborted [aborted]\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
