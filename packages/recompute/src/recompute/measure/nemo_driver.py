"""One run through NeMo-Run: ``python -m recompute.measure.nemo_driver SPEC`` in the environment that has it.

``recompute measure --launcher nemo-run`` writes the spec and starts this in a process group of its own. By
default the run goes to NeMo-Run's local executor, with torchrun for more than one rank; ``executor`` names
a function of the user's that returns any other, so that runs go where the rest of their experiments go.

The run is an inline script: NeMo-Run hands words of a ``Script`` with arguments to torchrun in shell quotes
that nothing takes off again for the local executor (nemo_run 0.11.1 run/torchx_backend/components/torchrun.py
``torchrun``), while an inline script is copied as it is, for every executor.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

TASK: Final = "run"
NOT_INSTALLED: Final = 90
BAD_EXECUTOR: Final = 91
"""Exit statuses; the last line of the log says more."""


def main(path: str) -> int:
    """Run what a spec says to its end; return the exit status.

    Args:
        path: A JSON file: ``title``, ``python``, ``target``, ``variables``, ``world``, ``executor`` or null.
    """
    spec: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
    try:
        import nemo_run
    except ImportError as error:
        return _fail(NOT_INSTALLED, f"{sys.executable} cannot import nemo_run: {error}")
    try:
        executor = _executor(nemo_run, spec)
    except Exception as error:  # noqa: BLE001 - the user's own function
        return _fail(BAD_EXECUTOR, f"{spec['executor']}: {type(error).__name__}: {error}")
    ranks = executor.nnodes() * executor.nproc_per_node()
    if ranks != spec["world"]:
        text = f"the executor starts {ranks} ranks, the job has {spec['world']}"
        return _fail(BAD_EXECUTOR, text)
    script = nemo_run.Script(inline=inline_script(spec))
    with nemo_run.Experiment(spec["title"], skip_status_at_exit=True) as experiment:
        experiment.add(script, executor=executor, name=TASK, tail_logs=True)
        experiment.run(detach=False)
        _cancel_on_signal(lambda: experiment.cancel(TASK))
    states = [str(getattr(job, "state", "UNKNOWN")).split()[0] for job in experiment.jobs]
    passed = bool(states) and all("SUCCEEDED" in state for state in states)
    return 0 if passed else _fail(1, f"NeMo-Run says {', '.join(states) or 'nothing'}")


def inline_script(spec: Mapping[str, Any]) -> str:
    """Return the shell script of one rank."""
    lines = [f"export {name}={shlex.quote(text)}" for name, text in spec["variables"].items()]
    lines.append(f"cd {shlex.quote(spec['folder'])}")
    lines.append("exec " + shlex.join([spec["python"], *spec["target"]]))
    return "\n".join([*lines, ""])


def _executor(nemo_run: Any, spec: Mapping[str, Any]) -> Any:
    """Return the user's executor, or the local one."""
    named = spec.get("executor")
    if named is not None:
        return _function(named)()
    world = spec["world"]
    launcher = "torchrun" if world > 1 else None
    return nemo_run.LocalExecutor(ntasks_per_node=world, launcher=launcher)


def _function(named: str) -> Callable[[], Any]:
    """Return the function that ``file.py:name`` or ``module:name`` names."""
    place, _, name = named.rpartition(":")
    if not place.endswith(".py"):
        return _called(getattr(importlib.import_module(place), name))
    found = importlib.util.spec_from_file_location("recompute_executor", place)
    if found is None or found.loader is None:
        raise ImportError(f"cannot read {place}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return _called(getattr(module, name))


def _called(value: Any) -> Callable[[], Any]:
    """Take an executor itself for a function that returns it."""
    return value if callable(value) else lambda: value


def _cancel_on_signal(cancel: Callable[[], None]) -> None:
    """Cancel the experiment when this process is told to end: its ranks are in sessions of their own."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        cancel()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)


def _fail(code: int, text: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
