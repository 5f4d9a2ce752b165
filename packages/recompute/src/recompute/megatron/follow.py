"""Run a script of Megatron-LM as it is, under a probe: ``python -m recompute.megatron.follow pretrain_gpt.py ...``.

With ``recompute measure --entry "-m recompute.megatron.follow pretrain_gpt.py ..."`` no line of the script
is changed. The script's folder comes first on the path, as if Python had been given it.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from recompute.errors import ConfigError, RecomputeError
from recompute.megatron.probe import MemoryProbe

TRAINING: Final = "megatron.training.training"


def prepare(arguments: Sequence[str]) -> str:
    """Make ready to run a script with its arguments, with a probe on Megatron-LM's loop; return its path.

    Args:
        arguments: The script's path and what it is given.

    Raises:
        ConfigError: ``no-script``: there is none; ``no-megatron-lm``: neither its folder nor PYTHONPATH holds
            Megatron-LM; ``probe-needs-ledger``; ``bad-run-variable``.
        WorldError: ``cannot-write``.
    """
    if not arguments or not Path(arguments[0]).is_file():
        raise ConfigError(
            "no-script",
            f"no script to run: {arguments[0] if arguments else 'none was given'}",
            hint="python -m recompute.megatron.follow pretrain_gpt.py ...",
        )
    script = arguments[0]
    sys.argv = list(arguments)
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        training = importlib.import_module(TRAINING)
    except ImportError as error:
        raise ConfigError(
            "no-megatron-lm",
            f"cannot import {TRAINING}: {error}",
            hint="give a script in the folder of Megatron-LM, in the environment that it runs in",
        ) from error
    MemoryProbe().follow(training)
    return script


def main() -> None:
    """Run the script that the command line names; errors in it are its own."""
    try:
        script = prepare(sys.argv[1:])
    except RecomputeError as error:
        sys.stderr.write(f"recompute: {error.message}\n  {error.hint}\n")
        sys.exit(error.exit_code)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
