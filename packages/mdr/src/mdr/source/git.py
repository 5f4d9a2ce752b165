"""Run the git program so that neither the machine's nor the repository's settings take part.

What is closed, and how (git's own documentation names each setting):

* system and global configuration, ``GIT_*`` variables of the caller: a fresh environment
* hooks, file-system monitors, pagers, signature programs, credential helpers and prompts: ``-c``
* protocols: ``GIT_ALLOW_PROTOCOL`` holds only what this one call needs, nothing while reading
* other places: redirects, submodules, bundle URIs and alternates over HTTP (git follows those only where it
  follows redirects) are off, and connections are pinned (:mod:`mdr.source.addresses`)
* replace refs, grafts and commit-graph files, which could change what a commit's parent is
* options smuggled in through names: every caller-given word comes after ``--end-of-options``
* time and the size of any file git writes: a deadline, and ``ulimit -f`` of the shell that starts it
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Final

from mdr.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

KEPT: Final = (
    "PATH",
    "HOME",
    "SSH_AUTH_SOCK",
    "SYSTEMROOT",
    "TMPDIR",
    "TEMP",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
)
"""Variables of the caller that git may see: where programs, proxies and certificates are."""

CONFIG: Final = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.commitGraph=false",
    "core.quotePath=false",
    "core.askPass=",
    "credential.helper=",
    "protocol.allow=never",
    "http.followRedirects=false",
    "log.showSignature=false",
    "log.showRoot=true",
    "fetch.recurseSubmodules=no",
    "fetch.writeCommitGraph=false",
    "submodule.recurse=false",
    "transfer.bundleURI=false",
    "gc.auto=0",
    "maintenance.auto=false",
)


SSH: Final = "ssh -oBatchMode=yes -oConnectTimeout=20"


def environment(
    *,
    protocols: Sequence[str] = (),
    config: Mapping[str, str] | None = None,
    ssh_options: str = "",
    variables: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Build the whole environment of one git process.

    Args:
        protocols: Transports this call may use; none for reading.
        config: Settings that must not show on the command line, such as an access token.
        ssh_options: Further words for ssh, already fit for a shell.
        variables: Further variables of ours.
    """
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    env |= {
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_SSH_COMMAND": f"{SSH} {ssh_options}".rstrip(),
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_ALLOW_PROTOCOL": ":".join(protocols) or "none",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull,
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_FLUSH": "0",
    } | dict(variables or {})
    entries = list((config or {}).items())
    if entries:
        env["GIT_CONFIG_COUNT"] = str(len(entries))
        for index, (key, value) in enumerate(entries):
            env |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return env


def command_line(arguments: Sequence[str], *, max_file_bytes: int | None = None) -> list[str]:
    """Write the command line: git with our settings, below a file-size limit when one is given."""
    git = ["git"]
    for setting in CONFIG:
        git += ["-c", setting]
    git += arguments
    if max_file_bytes is None or os.name != "posix":
        return git
    blocks = max(1, max_file_bytes // 512)
    return ["/bin/sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *git]


def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    stdin: bytes = b"",
    stdout: IO[bytes] | None = None,
    max_file_bytes: int | None = None,
) -> bytes:
    """Run git to its end.

    Args:
        arguments: After ``git``; caller-given words behind ``--end-of-options``.
        env: From :func:`environment`.
        timeout: Seconds, after which git and its children are killed.
        stdin: What git reads.
        stdout: A file that takes the output instead of memory.
        max_file_bytes: Largest file that git may write.

    Returns:
        Standard output, empty when ``stdout`` is given.

    Raises:
        mdr.errors.SourceError: git-missing, git-timeout, git-failed (data holds exit status, stderr).
    """
    process = _start(command_line(arguments, max_file_bytes=max_file_bytes), env, stdout)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate()
        raise SourceError(
            "git-timeout",
            f"git {_verb(arguments)} took longer than {timeout:.0f} s and was stopped",
            hint="try again; a slow or very large repository needs a longer limit",
            data={"seconds": timeout},
        ) from None
    except BaseException:
        _kill(process)
        process.communicate()
        raise
    if process.returncode != 0:
        raise failed(arguments, process.returncode, err)
    return out or b""


@contextmanager
def conversation(
    arguments: Sequence[str], *, env: Mapping[str, str], timeout: float
) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Talk with a git process that answers line by line, such as ``cat-file --batch``.

    Yields:
        Its standard input and output. A watchdog kills it after ``timeout`` seconds.
    """
    process = _start(command_line(arguments), env, None, quiet=True)
    assert process.stdin is not None
    assert process.stdout is not None
    watchdog = threading.Timer(timeout, _kill, [process])
    watchdog.daemon = True
    watchdog.start()
    try:
        yield process.stdin, process.stdout
    finally:
        watchdog.cancel()
        _kill(process)  # first: a thread that still writes holds the lock that close() needs
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        process.wait()


def failed(arguments: Sequence[str], status: int, stderr: bytes) -> SourceError:
    """Describe a git that ended with an error; its words are shown harmlessly and cut at 2,000 bytes."""
    words = stderr[-2000:].decode("utf-8", "replace")
    shown = "".join(char if char.isprintable() or char == "\n" else "?" for char in words).strip()
    last = shown.rpartition("\n")[2] or f"exit status {status}"
    if status in {-signal.SIGXFSZ, 128 + signal.SIGXFSZ} or "File size limit" in shown:
        return SourceError(
            "source-too-large",
            "the repository is larger than the limit for fetched data",
            hint="raise the limit, or index a smaller mirror of it",
            data={"status": status, "stderr": shown},
        )
    return SourceError(
        "git-failed",
        f"git {_verb(arguments)} failed: {last}",
        hint=_hint(shown),
        data={"status": status, "stderr": shown},
    )


def _verb(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "")


def _hint(words: str) -> str:
    lower = words.lower()
    if "authentication" in lower or "could not read username" in lower or "403" in lower:
        return (
            "the repository is private or does not exist; set GITHUB_TOKEN, or index a local clone"
        )
    if "redirect" in lower or "error: 301" in lower or "error: 302" in lower:
        return "the address has moved; index the new one"
    if "could not resolve host" in lower:
        return "check the address and the network"
    return "see data.stderr with --json for what git said"


def _start(
    line: Sequence[str], env: Mapping[str, str], stdout: IO[bytes] | None, *, quiet: bool = False
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - a fixed program, hardened as the module says
            line,
            stdin=subprocess.PIPE,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise SourceError(
            "git-missing", "the git program is not installed", hint="install git 2.31 or newer"
        ) from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started (its own session), if it still runs."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


@lru_cache(maxsize=1)
def version() -> tuple[int, int]:
    """Return the first two numbers of git's version.

    Raises:
        mdr.errors.SourceError: git-missing, git-failed.
    """
    words = run(["--version"], env=environment(), timeout=20).decode("ascii", "replace")
    found = re.search(r"(\d+)\.(\d+)", words)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def objects_format(git_dir: Path, *, timeout: float) -> str:
    """Return ``sha1`` or ``sha256``."""
    words = [f"--git-dir={git_dir}", "rev-parse", "--show-object-format"]
    return run(words, env=environment(), timeout=timeout).decode("ascii", "replace").strip()
