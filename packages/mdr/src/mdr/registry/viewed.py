"""How often badges were loaded, written into the documents of a command as the API writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mdr.registry.interface import Registry


@runtime_checkable
class CountsViews(Protocol):
    """A registry that knows the loads of badges."""

    def badge_views(self, artifact_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the loads of the last 30 days by id; what is not known is left out."""
        ...


def fill_views(registry: Registry, artifacts: Iterable[dict[str, Any]]) -> None:
    """Write ``badge_views_30d`` into documents of artifacts; null where it is not known.

    Raises:
        mdr.errors.MdrError: what the registry raises.
    """
    documents = list(artifacts)
    if not isinstance(registry, CountsViews):
        return
    views = registry.badge_views([each["id"] for each in documents])
    for each in documents:
        each["badge_views_30d"] = views.get(each["id"])
