"""Totals and facets of what a search finds, counted in the database: a hundred values come back, not each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from mdr.store.search import FACETS, MAX_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

GRADE: Final = "a.grade"
"""What a ruleset says of the offered version, where it is the newest that graded each of them."""
ANY_GRADE: Final = (
    "CASE WHEN a.graded_by = :ruleset THEN a.grade ELSE (SELECT g.grade FROM grades g "
    "WHERE g.sha256 = a.latest_sha256 AND g.kind = a.kind AND g.ruleset = :ruleset) END"
)
"""The same where some were graded by another, or by none."""
OWNER: Final = {
    "sqlite": "substr(s.repository_key, 1, instr(s.repository_key || '/', '/') - 1)",
    "postgresql": "split_part(s.repository_key, '/', 1)",
}
MENTIONED: Final = {"host": "mentions", "tool": "tool"}
"""What the table ``mentions`` keeps -> the facet that counts it."""

_OF_SOURCES: Final = (
    "SELECT {name} AS value, CAST(sum(n) AS bigint) AS number FROM o "
    "WHERE {name} IS NOT NULL GROUP BY {name}"
)
_OF_FILES: Final = "SELECT value, number FROM m WHERE what = '{what}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many there are, and of what."""

    total: int
    facets: Mapping[str, Mapping[str, int]]
    """By facet and value, the most frequent first."""


def graded_alike(connection: Connection, ruleset: str) -> bool:
    """Say whether a ruleset is the newest that graded each artifact; an index knows."""
    others = (
        "SELECT 1 FROM artifacts WHERE graded_by < :ruleset UNION ALL "
        "SELECT 1 FROM artifacts WHERE graded_by > :ruleset UNION ALL "
        "SELECT 1 FROM artifacts WHERE graded_by IS NULL LIMIT 1"
    )
    return connection.execute(text(others), {"ruleset": ruleset}).scalar() is None


def count(
    connection: Connection, found: str, values: Mapping[str, Any], grade: str, *, everything: bool
) -> Counted:
    """Count what fits.

    Args:
        connection: In a transaction that sees one state.
        found: ``FROM ... WHERE ...`` with the artifacts as ``a``.
        values: Its parameters, and ``ruleset``.
        grade: SQL for the grade of ``a``.
        everything: Whether every artifact fits.
    """
    words = _facets(found, connection.dialect.name, grade, everything=everything)
    facets: dict[str, dict[str, int]] = {name: {} for name in FACETS}
    for name, value, number in connection.execute(text(words), dict(values)):
        if value is not None:
            facets[name][value] = number
    total = sum(facets["kind"].values())
    return Counted(total=total, facets={name: _ordered(each) for name, each in facets.items()})


def _facets(found: str, dialect: str, grade: str, *, everything: bool) -> str:
    """Write SQL for (facet, value, number): what artifacts, repositories and files say."""
    fit = "" if everything else "JOIN h ON h.number = m.number"
    parts = [
        "SELECT 'kind' AS facet, kind AS value, CAST(sum(n) AS bigint) AS number FROM g GROUP BY kind",
        "SELECT 'grade', grade, CAST(sum(n) AS bigint) FROM g GROUP BY grade",
        *(_most(name, _OF_SOURCES.format(name=name)) for name in ("owner", "license", "host")),
        *(_most(facet, _OF_FILES.format(what=what)) for what, facet in MENTIONED.items()),
    ]
    return (
        f"WITH h AS (SELECT a.number, a.source_id, a.kind, {grade} AS grade {found}), "  # noqa: S608 - fixed words
        "g AS (SELECT source_id, kind, grade, count(*) AS n FROM h GROUP BY 1, 2, 3), "
        f"o AS (SELECT {OWNER[dialect]} AS owner, s.license, s.host, t.n "
        "FROM (SELECT source_id, sum(n) AS n FROM g GROUP BY 1) t JOIN sources s ON s.id = t.source_id), "
        f"m AS (SELECT m.what, m.value, count(*) AS number FROM mentions m {fit} GROUP BY 1, 2) "
        + " UNION ALL ".join(parts)
    )


def _most(facet: str, counts: str) -> str:
    """Take the most frequent values of one facet, in the order of :func:`_ordered`."""
    most = f"SELECT value, number FROM ({counts}) c ORDER BY number DESC, value LIMIT {MAX_VALUES}"  # noqa: S608 - fixed words
    return f"SELECT '{facet}', value, number FROM ({most}) AS {facet}_"  # noqa: S608 - fixed words


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
