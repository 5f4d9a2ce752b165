"""Options that every command shares, and the one place where the environment becomes Settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from mdr.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def place_options(function: Command) -> Command:
    """Add ``--data DIR`` and ``--registry URL`` and pass them on as one ``settings`` argument."""

    @click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="MDR_DATA",
        help="Folder for blobs, index and fetched repositories.",
    )
    @click.option(
        "--registry", envvar="MDR_REGISTRY", metavar="URL", help="URL or file:///DIR of a registry."
    )
    @wraps(function)
    def command(*, data: Path | None, registry: str | None, **arguments: Any) -> Any:
        return function(settings=settings_from(data, registry), **arguments)

    return command  # type: ignore[return-value]  # wraps keeps the name; click reads only that


def store_options(function: Command) -> Command:
    """Add ``--database URL`` and ``--blobs URL`` below :func:`place_options`, for who runs a service."""

    @click.option(
        "--database", metavar="URL", help="postgresql://... of the index. [env: MDR_DATABASE]"
    )
    @click.option(
        "--blobs", metavar="URL", help="s3://bucket/prefix?endpoint_url=... [env: MDR_BLOBS]"
    )
    @wraps(function)
    def command(
        *, settings: Settings, database: str | None, blobs: str | None, **arguments: Any
    ) -> Any:
        chosen = replace(
            settings,
            database=database or settings.database,
            blobs=blobs or settings.blobs,
        )
        return function(settings=chosen, **arguments)

    return command  # type: ignore[return-value]  # wraps keeps the name; click reads only that


def json_option(function: Command) -> Command:
    """Add ``--json``: one JSON document on stdout instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(
        function
    )


def settings_from(data: Path | None, registry: str | None) -> Settings:
    """Build the settings, with the platform's data folder when none is named."""
    if data is None:
        import platformdirs

        data = Path(platformdirs.user_data_dir("mdr", appauthor=False))
    names = ("MDR_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
    token = next((value for name in names if (value := os.environ.get(name))), None)
    settings = Settings(
        data=data.absolute(),
        registry=registry or None,
        github_token=token,
        database=os.environ.get("MDR_DATABASE") or None,
        blobs=os.environ.get("MDR_BLOBS") or None,
    )
    api = os.environ.get("MDR_GITHUB_API")
    return replace(settings, github_api=api) if api else settings


def print_document(schema: str, document: Mapping[str, Any]) -> None:
    """Write the one JSON document of a command on stdout, ``schema`` first."""
    text = json.dumps({"schema": schema, **document}, ensure_ascii=False, indent=2)
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """Write an answer for people on stdout."""
    sys.stdout.write(text + "\n")


def harmless(text: str) -> str:
    """Write text from a repository so that a terminal cannot be steered by it."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def talk(text: str) -> None:
    """Write progress and advice on stderr."""
    sys.stderr.write(text + "\n")


def is_terminal() -> bool:
    """Say whether a person can be asked: standard input and error both are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def in_ci() -> bool:
    """Say whether ``CI`` is set to a true value, as CI services set it."""
    return os.environ.get("CI", "").strip().lower() in {"1", "true", "yes", "on"}


def counted(number: int, noun: str) -> str:
    """Write ``1 file`` or ``2 files``."""
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
