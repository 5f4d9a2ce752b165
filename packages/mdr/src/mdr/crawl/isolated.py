"""Start the process of one crawl, follow it, end it when it must end, and read what it answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mdr.crawl.child import request
from mdr.crawl.outcomes import Crawled, Failed, failure
from mdr.crawl.rhythm import OWN_FAULT_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdr.crawl.outcomes import Outcome
    from mdr.settings import Settings

CRAWL_SECONDS: Final = 3_600
"""Longest crawl of one repository."""
FAREWELL_SECONDS: Final = 10
"""How long an interrupted crawl may clean up."""
MAX_LINE: Final = 1 << 20
MAX_WORDS: Final = 4_096
COMMAND: Final = (sys.executable, "-m", "mdr.crawl.child")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What to crawl."""

    source: str
    name_as: str | None
    settings: Settings
    known_head: str | None
    """Commit that the index has; another one after the crawl means that the source changed."""
    seconds: float = CRAWL_SECONDS
    command: Sequence[str] = COMMAND


async def crawl_apart(
    errand: Errand,
    progress: Callable[[str, int, int], None] | None = None,
    crashed: Callable[[str], None] | None = None,
) -> Outcome:
    """Crawl in a process of its own.

    Args:
        errand: What.
        progress: Called with (stage, done, total) as the process tells them.
        crashed: Called with the last words of a process that died without an answer.

    Returns:
        How it ended; the death of the process is a failure like another.

    Raises:
        asyncio.CancelledError: The worker stops; the process is ended first.
    """
    process = await asyncio.create_subprocess_exec(
        *errand.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=MAX_LINE,
    )
    words = asyncio.create_task(_last_words(process))
    try:
        async with asyncio.timeout(errand.seconds):
            answer = await _talk(process, errand, progress)
            await process.wait()
            await words
    except TimeoutError:
        return Failed(
            code="crawl-timeout", message=f"the crawl took longer than {errand.seconds:.0f} s"
        )
    finally:
        await asyncio.shield(end(process))
        words.cancel()
    if not answer and crashed is not None and words.done() and not words.cancelled():
        crashed(words.result())
    return _outcome(answer, process.returncode, errand)


async def _last_words(process: asyncio.subprocess.Process) -> str:
    """Return the end of what a process writes on standard error, such as a traceback of ours."""
    assert process.stderr is not None
    kept = b""
    while piece := await process.stderr.read(4096):
        kept = (kept + piece)[-MAX_WORDS:]
    return kept.decode("utf-8", "replace")


async def _talk(
    process: asyncio.subprocess.Process,
    errand: Errand,
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    """Send the request and return the last document that is no progress."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):
        process.stdin.write(request(errand.source, errand.name_as, errand.settings, os.getpid()))
        await process.stdin.drain()
        process.stdin.close()
    answer: dict[str, Any] = {}
    with suppress(ValueError):  # a line that never ends is no answer of ours
        async for line in process.stdout:
            document = json.loads(line)
            if not isinstance(document, dict):
                continue
            if "progress" not in document:
                answer = document
            elif progress is not None:
                progress(*document["progress"])
    return answer


async def end(process: asyncio.subprocess.Process) -> None:
    """Interrupt a process that still runs, so that it cleans up, and kill it when it does not."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        await process.wait()


def _outcome(answer: dict[str, Any], status: int | None, errand: Errand) -> Outcome:
    if (done := answer.get("crawled")) is not None:
        return Crawled(
            host=done["host"],
            repository=done["repository"],
            changed=done["head"] != errand.known_head,
            new_versions=done["new_versions"],
            artifacts=done["artifacts"],
            seconds=done["seconds"],
            notes=tuple(done["notes"]),
        )
    if (error := answer.get("error")) is not None:
        return failure(error["code"], error["message"], error["data"], OWN_FAULT_PAUSE)
    words = f"the process of the crawl ended with status {status} and no answer"
    if status is not None and status < 0:
        words = f"the process of the crawl was ended by signal {-status}, often for want of memory"
    return Failed(code="crawl-died", message=words)
