"""The whole service over a small registry: in this process, or as the command would run it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from starlette.testclient import TestClient

from mdr.serving.application import create_application
from mdr.serving.logs import JsonLog
from mdr.serving.options import Options
from mdr.settings import Settings

BASE = "http://registry.example"


@contextlib.contextmanager
def client(settings: Settings, **options: object) -> Iterator[TestClient]:
    """Every layer but the socket."""
    chosen = Options(**{"rate": 0.0, "log_requests": False, **options})  # type: ignore[arg-type]
    app = create_application(settings, chosen, BASE, JsonLog(requests=False))
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as found:  # type: ignore[arg-type]
        yield found


@dataclass(frozen=True)
class Running:
    """``mdr serve`` in a process of its own."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Tell it to stop and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def running(data: Path, *arguments: str, folder: Path) -> Iterator[Running]:
    """Start it on a free port; it says its address when it answers."""
    log = folder / "serve.log"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MDR_")}
    command = [sys.executable, "-m", "mdr", "serve", "--port", "0", "--data", str(data), *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        try:
            url = first_line(process.stdout)
            assert url.startswith("http://127.0.0.1:"), log.read_text()
            yield Running(url, process, log)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def first_line(stream: IO[str] | None) -> str:
    """The address."""
    assert stream is not None
    return stream.readline().rstrip("\n")
