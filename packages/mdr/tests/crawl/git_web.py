"""A git host on this machine that can be made to hold its answers, refuse or fail."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from git_builder import GitRepository, skill

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 60
"""Seconds after which a test that waits for nothing fails."""


class GitWeb:
    """Serves repositories over plain HTTP; ``hold`` makes every answer wait for ``release``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked = threading.Event()
        self.paths: list[str] = []
        self.refusal: tuple[int, dict[str, str]] | None = None
        self._open = threading.Event()
        self._open.set()
        root.mkdir(parents=True, exist_ok=True)
        web = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                web.paths.append(self.path)
                web.asked.set()
                web._open.wait(WAIT)
                if web.refusal is None:
                    super().do_GET()
                    return
                status, fields = web.refusal
                self.send_response(status)
                for name, value in fields.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def handle(self) -> None:
                try:
                    super().handle()
                except ConnectionError:
                    return  # the client was killed

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def hold(self) -> None:
        """Let no answer out until :meth:`release`."""
        self.asked.clear()
        self._open.clear()

    def release(self) -> None:
        """Let answers out."""
        self._open.set()

    def wait_until_asked(self) -> None:
        """Return when a request is there."""
        assert self.asked.wait(WAIT), "nobody asked"

    def url(self, name: str) -> str:
        """Return the address of a repository."""
        return f"http://127.0.0.1:{self._server.server_port}/{name}.git"

    def repository(self, name: str, skills: int = 1) -> GitRepository:
        """Make a repository and publish it."""
        made = GitRepository(self.root / f"{name}.git")
        made.commit({f"s{number}/SKILL.md": skill(f"s{number}") for number in range(skills)})
        publish(made)
        return made

    def close(self) -> None:
        """Stop serving."""
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def publish(made: GitRepository) -> None:
    """Make the newest commits visible to clients that only read files."""
    made.git("repack", "-qad")
    made.git("update-server-info")
