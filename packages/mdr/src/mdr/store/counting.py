"""Totals and facets of what a search finds, counted in the database: a hundred values come back, not each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from mdr.store.search import FACETS, MAX_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

GRADE: Final = (
    "CASE WHEN a.graded_by = :ruleset THEN a.grade ELSE (SELECT g.grade FROM grades g "
    "WHERE g.sha256 = a.latest_sha256 AND g.kind = a.kind AND g.ruleset = :ruleset) END"
)
"""What a ruleset says of the offered version: most often it stands in the row."""
FEW: Final = 1_000
"""Hits up to which the names in their files are looked up one by one."""
OWNER: Final = {
    "sqlite": "substr(s.repository_key, 1, instr(s.repository_key || '/', '/') - 1)",
    "postgresql": "split_part(s.repository_key, '/', 1)",
}
MENTIONED: Final = {"host": "mentions", "tool": "tool"}
"""What the table ``mentions`` keeps -> the facet that counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many there are, and of what."""

    total: int
    facets: Mapping[str, Mapping[str, int]]
    """By facet and value, the most frequent first."""


def count(
    connection: Connection, found: str, values: Mapping[str, Any], *, everything: bool
) -> Counted:
    """Count what fits.

    Args:
        connection: In a transaction that sees one state.
        found: ``FROM ... WHERE ...`` with the artifacts as ``a``.
        values: Its parameters, and ``ruleset``.
        everything: Whether every artifact fits.
    """
    rows = connection.execute(text(_groups(found, connection.dialect.name)), dict(values)).all()
    facets: dict[str, dict[str, int]] = {name: {} for name in FACETS}
    for name, value, number in rows:
        if value is not None:
            facets[name][value] = number
    total = sum(facets["kind"].values())
    if total:
        for name, value, number in connection.execute(
            text(_names(None if everything else found, few=total <= FEW)), dict(values)
        ):
            facets[name][value] = number
    return Counted(total=total, facets={name: _ordered(each) for name, each in facets.items()})


def _groups(found: str, dialect: str) -> str:
    """Write SQL for (facet, value, number) of what artifacts and repositories say."""
    of_sources = " UNION ALL ".join(
        f"SELECT * FROM (SELECT '{name}' AS facet, {name} AS value, CAST(sum(n) AS bigint) AS number "  # noqa: S608 - fixed words
        f"FROM o WHERE {name} IS NOT NULL GROUP BY {name} ORDER BY 3 DESC, 2 LIMIT {MAX_VALUES}) AS {name}_"
        for name in ("owner", "license", "host")
    )
    return (
        f"WITH h AS (SELECT a.source_id, a.kind, {GRADE} AS grade {found}), "  # noqa: S608 - fixed words
        "g AS (SELECT source_id, kind, grade, count(*) AS n FROM h GROUP BY 1, 2, 3), "
        f"o AS (SELECT {OWNER[dialect]} AS owner, s.license, s.host, t.n "
        "FROM (SELECT source_id, sum(n) AS n FROM g GROUP BY 1) t JOIN sources s ON s.id = t.source_id) "
        "SELECT 'kind' AS facet, kind AS value, CAST(sum(n) AS bigint) AS number FROM g GROUP BY kind "
        "UNION ALL SELECT 'grade', grade, CAST(sum(n) AS bigint) FROM g GROUP BY grade "
        f"UNION ALL {of_sources}"
    )


def _names(within: str | None, *, few: bool) -> str:
    """Write SQL for (facet, value, number) of the hosts and tools that files name."""
    fit = ""
    if within is not None:
        key, column = ("m.artifact_id", "a.id") if few else ("m.number", "a.number")
        fit = f"WHERE {key} IN (SELECT {column} {within})"
    parts = " UNION ALL ".join(
        f"SELECT * FROM (SELECT '{facet}' AS facet, value, number FROM n WHERE what = '{what}' "  # noqa: S608 - fixed words
        f"ORDER BY number DESC, value LIMIT {MAX_VALUES}) AS {facet}_"
        for what, facet in MENTIONED.items()
    )
    return (
        "WITH n AS (SELECT m.what, m.value, count(*) AS number FROM mentions m "  # noqa: S608 - fixed words
        f"{fit} GROUP BY 1, 2) {parts}"
    )


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
