"""Ask the hosts whether there is anything new, before saying what the newest version is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mdr.errors import MdrError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mdr.registry.interface import Registry


@runtime_checkable
class Refreshing(Protocol):
    """A registry that can index a held repository again."""

    def refresh(self, host: str, repository: str) -> bool:
        """Index again from where it came; say whether anything could be asked."""
        ...


def refresh(registry: Registry, repositories: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Bring the registry up to date where it can be.

    Args:
        registry: Any; one that cannot refresh, such as a remote one, is current by itself.
        repositories: (host, repository), each asked once.

    Returns:
        One line for each repository that could not be asked; what was indexed before is used then.
    """
    if not isinstance(registry, Refreshing):
        return ()
    lines = []
    for host, repository in sorted({(host, name.lower()) for host, name in repositories}):
        try:
            registry.refresh(host, repository)
        except MdrError as error:
            lines.append(
                f"{host}/{repository} could not be asked, using what is indexed: {error.message}"
            )
    return tuple(lines)
