"""Entry point of the ``mdr`` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from mdr.cli.main import run

    run()


if __name__ == "__main__":
    main()
