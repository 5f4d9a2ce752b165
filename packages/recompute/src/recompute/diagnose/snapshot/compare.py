"""Two snapshots side by side: what the second has more or less of at its peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recompute.diagnose.snapshot.report import SnapshotReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One owner and place."""

    owner: str
    where: str
    before_bytes: int
    after_bytes: int

    @property
    def delta_bytes(self) -> int:
        """Bytes more in the second."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Second against first."""

    before: str
    after: str
    peak_delta_bytes: int
    reserved_delta_bytes: int
    differences: tuple[Difference, ...]
    """Largest change first."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "before": self.before,
            "after": self.after,
            "peak_delta_bytes": self.peak_delta_bytes,
            "reserved_delta_bytes": self.reserved_delta_bytes,
            "differences": [
                {
                    "owner": item.owner,
                    "where": item.where,
                    "before_bytes": item.before_bytes,
                    "after_bytes": item.after_bytes,
                    "delta_bytes": item.delta_bytes,
                }
                for item in self.differences
            ],
        }


def compare(before: SnapshotReport, after: SnapshotReport) -> Comparison:
    """Compare what is alive at the two peaks; line numbers are left out, since code moves."""
    old, new = _by_place(before), _by_place(after)
    rows = [
        Difference(
            owner=key[0], where=key[1], before_bytes=old.get(key, 0), after_bytes=new.get(key, 0)
        )
        for key in old.keys() | new.keys()
        if old.get(key, 0) != new.get(key, 0)
    ]
    return Comparison(
        before=before.path,
        after=after.path,
        peak_delta_bytes=after.peak_bytes - before.peak_bytes,
        reserved_delta_bytes=after.fragmentation.reserved_bytes
        - before.fragmentation.reserved_bytes,
        differences=tuple(
            sorted(rows, key=lambda row: (-abs(row.delta_bytes), row.owner, row.where))
        ),
    )


def _by_place(report: SnapshotReport) -> dict[tuple[str, str], int]:
    sizes: dict[tuple[str, str], int] = {}
    for item in report.alive_at_peak:
        key = (item.owner, item.where.rsplit(":", 1)[0])
        sizes[key] = sizes.get(key, 0) + item.bytes
    return sizes
