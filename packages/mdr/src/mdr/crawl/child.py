"""One crawl as one process: a repository that exhausts memory or time takes nothing with it.

Run as ``python -m mdr.crawl.child``. The request comes as JSON on standard input, so that no secret shows
in a process list; the last line on standard output is the answer, lines before it are progress. When the
worker dies, this process is interrupted and cleans up after itself (on Linux; elsewhere it ends its work,
which is as good: the index takes all of it or nothing).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from mdr.errors import MdrError
from mdr.settings import Limits, Pool, Settings

PR_SET_PDEATHSIG: Final = 1
"""Number of ``prctl``'s request in Linux's ``sys/prctl.h``."""


def request(source: str, name_as: str | None, settings: Settings, parent: int) -> bytes:
    """Write a request.

    Args:
        source: What to index.
        name_as: Identity to keep it under.
        settings: Of the worker.
        parent: Process that waits for the answer.
    """
    values = asdict(settings) | {"data": str(settings.data)}
    document = {"source": source, "name_as": name_as, "settings": values, "parent": parent}
    return json.dumps(document).encode("utf-8") + b"\n"


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Read the settings of a request."""
    known = {each.name for each in fields(Settings)}
    chosen = {name: value for name, value in values.items() if name in known}
    chosen |= {
        "data": Path(values["data"]),
        "limits": Limits(**values["limits"]),
        "pool": Pool(**values["pool"]),
    }
    return Settings(**chosen)


def main() -> None:
    """Crawl what standard input asks for."""
    asked = json.loads(sys.stdin.buffer.readline())
    end_with(int(asked["parent"]))
    try:
        answer = crawl(asked, report)
    except MdrError as error:
        data = {key: value for key, value in error.data.items() if key in {"retry_after", "status"}}
        answer = {"error": {"code": error.code, "message": error.message, "data": data}}
    except OSError as error:
        words = error.strerror or type(error).__name__
        answer = {"error": {"code": "os-error", "message": words, "data": {}}}
    except KeyboardInterrupt:
        answer = {"error": {"code": "stopped", "message": "the worker stops", "data": {}}}
    write(answer)


def crawl(asked: Mapping[str, Any], progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Index one source and say what came of it."""
    from mdr.registry.indexing import index_source

    settings = settings_of(asked["settings"])
    done = index_source(asked["source"], settings, name_as=asked["name_as"], progress=progress)
    return {
        "crawled": {
            "host": done.host,
            "repository": done.repository,
            "head": done.head,
            "artifacts": done.artifacts,
            "new_versions": done.new_versions,
            "seconds": done.seconds,
            "notes": list(done.notes),
        }
    }


def report(stage: str, done: int, total: int) -> None:
    """Tell the worker how far it is."""
    write({"progress": [stage, done, total]})


def write(document: Mapping[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def end_with(parent: int) -> None:
    """Be interrupted when the worker dies, also when it died before this was asked for."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
