"""Entry point of the ``recompute`` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from recompute.cli.main import run

    run()


if __name__ == "__main__":
    main()
