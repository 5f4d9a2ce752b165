"""Index a repository and die by SIGKILL at the N-th step that touches the disk. Run as a program.

Arguments: data folder, repository, N, and a database's address or nothing. Every staged blob, every rename, every barrier, every database
statement that writes and the moments around the commit are steps. Ends with status 0 when N is beyond
the last step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from mdr.registry import harvest
from mdr.registry.indexing import index_source
from mdr.settings import Settings
from mdr.store import files, recording

left = int(sys.argv[3])


def step() -> None:
    """Count down, and die at zero."""
    global left  # noqa: PLW0603 - a program of one page
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def counted(owner: Any, name: str) -> None:
    """Make one function die before or after it did its work."""
    real = getattr(owner, name)

    def instead(*arguments: Any, **named: Any) -> Any:
        step()
        answer = real(*arguments, **named)
        step()
        return answer

    setattr(owner, name, instead)


counted(files, "barrier")
counted(files, "_create")
counted(files, "_write_all")
counted(files.FileBlobStore, "_rename")
counted(recording, "_insert")
counted(recording, "_insert_missing")
counted(recording, "record")
counted(harvest, "harvest")
database = sys.argv[4] if len(sys.argv) > 4 else None
settings = Settings(data=Path(sys.argv[1]), index_on_demand=False, workers=1, database=database)
index_source(sys.argv[2], settings, name_as="acme/tools")
