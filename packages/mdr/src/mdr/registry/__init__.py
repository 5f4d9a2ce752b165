"""Use cases over stores: the only place where the stages meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdr.registry.interface import Registry
    from mdr.settings import Settings


def open_registry(settings: Settings) -> Registry:
    """Open the registry that ``settings`` name.

    Args:
        settings: ``registry`` is ``None`` for the local data folder, ``file:///DIR`` for another
            data folder on this machine, which is then only read, ``https://HOST`` for a server.

    Returns:
        A registry that opens its files on first use, so that commands which end up asking nothing
        pay nothing.

    Raises:
        mdr.errors.UsageError: registry-unsupported for a URL of another scheme.
    """
    if (settings.registry or "").lower().startswith(("http:", "https:")):
        from mdr.registry.remote import RemoteRegistry

        return RemoteRegistry(settings)
    from mdr.registry.local import LocalRegistry, settings_for

    return LocalRegistry(settings_for(settings))
