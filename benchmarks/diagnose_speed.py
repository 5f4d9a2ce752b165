"""Speed and memory of ``recompute diagnose`` on a large generated log.

Writes a log of the size asked for (default 1 GiB) to a temporary folder, with progress lines of many
ranks, noise, memory reports and one out-of-memory failure near the end, diagnoses it in a process of
its own and prints megabytes per second, also per second of CPU (what a machine with idle cores would
show), and the largest resident set.

    python benchmarks/diagnose_speed.py [--mib 1024] [--shape mixed|noise|errors|one-line]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ITERATION = (
    "[default{rank}]: [2026-01-02 03:04:05.123456] iteration {step:8d}/  500000 | consumed samples: {step:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 | global batch size:   256 | "
    "lm loss: 2.345678E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |\n"
)
NOISE = "{rank}: host{rank}:1234:5678 [{rank}] NCCL INFO Channel 0{rank}/08 : {rank}[0] -> 1[1] via P2P/CUMEM/read step {step}\n"
ERROR = (
    "{rank}: WARNING: transient error: retry {step} of 9 after RuntimeError: connection dropped\n"
)
FAILURE = """[rank5]: Traceback (most recent call last):
[rank5]:   File "/opt/megatron/training/training.py", line 1432, in train_step
[rank5]:   File "/opt/megatron/core/transformer/mlp.py", line 120, in forward
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.11 GiB of which 1.00 GiB is free. Of the allocated memory 76.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.
"""


def block(shape: str, random_source: random.Random) -> bytes:
    """Return about one mebibyte of log."""
    lines = []
    for step in range(4000):
        rank = random_source.randrange(8)
        draw = random_source.random()
        if shape == "errors" or (shape == "mixed" and draw < 0.02):
            lines.append(ERROR.format(rank=rank, step=step))
        elif shape != "noise" and draw < 0.3:
            lines.append(ITERATION.format(rank=rank, step=step, ms=900 + draw))
        else:
            lines.append(NOISE.format(rank=rank, step=step))
    text = "".join(lines).encode()
    return text.replace(b"\n", b" ") if shape == "one-line" else text


def write_log(path: Path, mib: int, shape: str) -> None:
    """Write the log."""
    random_source = random.Random(7)  # noqa: S311 - test data
    blocks = [block(shape, random_source) for _ in range(8)]
    written = 0
    with path.open("wb") as stream:
        while written < mib << 20:
            written += stream.write(blocks[written % len(blocks)])
        stream.write(b"\n" + FAILURE.encode())


def measure(path: Path) -> tuple[float, float, int, dict[str, object]]:
    """Diagnose in a process of its own; return seconds, CPU seconds, largest resident set, answer."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "recompute", "diagnose", "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    seconds = time.perf_counter() - started
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, json.loads(output)


def main() -> None:
    """Print one line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument(
        "--shape", choices=("mixed", "noise", "errors", "one-line"), action="append"
    )
    options = parser.parse_args()
    print(
        f"{'shape':<10} {'MiB':>6} {'seconds':>8} {'MB/s':>6} {'MB/CPU s':>8} {'max RSS MiB':>12}  verdict"
    )
    for shape in options.shape or ("mixed", "noise", "errors", "one-line"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.log")
            write_log(path, options.mib, shape)
            seconds, cpu, memory, answer = measure(path)
            size = path.stat().st_size
        print(
            f"{shape:<10} {size >> 20:>6} {seconds:>8.1f} {size / 1e6 / seconds:>6.0f} {size / 1e6 / cpu:>8.0f} {memory >> 20:>12}  "
            f"{answer['verdict']} in {answer['stage']}"
        )


if __name__ == "__main__":
    main()
