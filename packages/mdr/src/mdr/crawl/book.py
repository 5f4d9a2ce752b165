"""The schedule: which sources there are, which are due, who crawls what, and what became of it.

One row per repository in the index's own database. Every change is one transaction, and each of them may be
the last before a kill: a run that never ends is found by :meth:`Book.heal`, and a run that comes back from
the dead cannot end what another one holds, because a row names its run.

::

    waiting --admit--> queued --begin--> running --finish--> waiting | dead
       ^------------------heal--------------'                   '-- retry --> waiting
"""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, delete, func, insert, or_, select, update

from mdr.crawl.enqueueing import adopt_sources
from mdr.crawl.manners import Doorkeeper, Manners, pause, paused_until
from mdr.crawl.outcomes import Crawled, Failed, Postponed
from mdr.crawl.rhythm import MAX_ATTEMPTS, MINUTE, period_after, retry_after, wait_for
from mdr.store.engine import writing
from mdr.store.index import Index
from mdr.store.schedule import CrawlRow, crawl_counts, crawl_row, crawls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine

    from mdr.crawl.outcomes import Outcome

MAX_MESSAGE: Final = 500
ROUNDS: Final = 20
"""How many closed hosts are stepped over in one look for due sources, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What an operator wants to see."""

    waiting: int
    due: int
    """Of the waiting, those whose time has come."""
    queued: int
    running: int
    dead: int
    failing: int
    """Sources whose last crawl failed and that will be tried again."""
    oldest_due_seconds: int
    """How long the longest waiting one has been due."""
    outcomes: dict[str, int]
    """Crawls since the schedule exists, by how they ended."""


class Book:
    """The schedule of one registry. Safe to use from several threads, processes and machines."""

    def __init__(
        self,
        engine: Engine,
        *,
        manners: Manners | None = None,
        clock: Callable[[], float] = time.time,
        chance: random.Random | None = None,
    ) -> None:
        self.engine = engine
        self._manners = manners or Manners()
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, keeps no secret

    def adopt(self) -> int:
        """Put every source of the index that has no row yet into the schedule; return how many."""
        with writing(self.engine) as connection:
            return adopt_sources(connection, int(self._clock()))

    def admit(self, limit: int) -> list[CrawlRow]:
        """Take due sources into the queue, the most urgent first, as far as their hosts allow.

        Args:
            limit: At most so many.

        Returns:
            Rows in state ``queued``; each may start at its ``start_at``, within two seconds.
        """
        now = self._clock()
        admitted: list[CrawlRow] = []
        with writing(self.engine) as connection:
            door = Doorkeeper(connection, self._manners, now)
            for _ in range(ROUNDS):
                rows = self._due(connection, now, limit - len(admitted), door.closed)
                taken = [self._queue(connection, row, door) for row in rows]
                admitted += [row for row in taken if row is not None]
                if len(admitted) >= limit or all(row is not None for row in taken):
                    break
            door.save()
            for server, until in door.silent.items():  # they are due when the silence ends
                silent = and_(
                    crawls.c.server == server, crawls.c.state == "waiting", crawls.c.due < until
                )
                connection.execute(update(crawls).where(silent).values(due=until))
        return admitted

    def begin(self, crawl_id: int) -> CrawlRow | None:
        """Start a run of a queued source; ``None`` when there is nothing to do any more.

        The caller is the only one who may run it: it holds the one job, or is the one worker.
        """
        now = self._clock()
        with writing(self.engine) as connection:
            row = _locked(connection, crawl_id)
            if row is None or row.state not in {"queued", "running"}:
                return None
            until = paused_until(connection, row.server, now)
            if until is not None:
                spread = self._chance.uniform(0, MINUTE)
                values = {"state": "waiting", "due": round(until + spread), "run": None}
                connection.execute(update(crawls).where(crawls.c.id == crawl_id).values(**values))
                return None
            values = {"state": "running", "run": secrets.token_hex(8), "started": int(now)}
            connection.execute(update(crawls).where(crawls.c.id == crawl_id).values(**values))
            return _locked(connection, crawl_id)

    def finish(self, row: CrawlRow, outcome: Outcome) -> bool:
        """Write down how a run ended and when the source is due again.

        Returns:
            Whether it was believed: a run that lost its source to another one changes nothing.
        """
        now = int(self._clock())
        with writing(self.engine) as connection:
            held = _locked(connection, row.id)
            if held is None or held.run != row.run or held.state != "running":
                return False
            values = self._after(held, outcome, now)
            if isinstance(outcome, Postponed) and outcome.pauses_host:
                pause(connection, held.server, now + outcome.seconds)
            if isinstance(outcome, Crawled):
                if _is_taken(connection, held, outcome):
                    connection.execute(delete(crawls).where(crawls.c.id == held.id))
                values |= {
                    "host": outcome.host,
                    "repository_key": outcome.repository.lower(),
                }
            connection.execute(update(crawls).where(crawls.c.id == held.id).values(**values))
            count(connection, _name(outcome))
        return True

    def silence(self, server: str, until: int) -> None:
        """Ask nothing of ``server`` before a time; a longer silence that was agreed on stays."""
        with writing(self.engine) as connection:
            pause(connection, server, until)

    def silent_until(self, server: str) -> int | None:
        """Return until when ``server`` wants silence, ``None`` when it wants none."""
        with Index(self.engine).reading() as connection:
            return paused_until(connection, server, self._clock())

    def heal(self, alive: ColumnElement[bool] | None = None) -> int:
        """Give back what dead workers held; it is due at once.

        Args:
            alive: Which queued and running rows somebody still works on; none by default.
        """
        lost: ColumnElement[bool] = crawls.c.state.in_(["queued", "running"])
        lost = lost if alive is None else and_(lost, ~alive)
        values = {"state": "waiting", "run": None, "start_at": None}
        with writing(self.engine) as connection:
            return connection.execute(update(crawls).where(lost).values(**values)).rowcount

    def release(self, rows: Sequence[CrawlRow]) -> None:
        """Give back admitted rows that were not begun."""
        ids = [row.id for row in rows]
        where = crawls.c.id.in_(ids) & (crawls.c.state == "queued")
        with writing(self.engine) as connection:
            connection.execute(update(crawls).where(where).values(state="waiting", start_at=None))

    def dead(self) -> list[CrawlRow]:
        """Return the dead letters, the latest first."""
        order = (
            select(crawls)
            .where(crawls.c.state == "dead")
            .order_by(crawls.c.ended.desc(), crawls.c.id)
        )
        with Index(self.engine).reading() as connection:
            return [crawl_row(row) for row in connection.execute(order).mappings()]

    def rows(self) -> list[CrawlRow]:
        """Return the whole schedule, by host and repository."""
        order = select(crawls).order_by(crawls.c.host, crawls.c.repository_key)
        with Index(self.engine).reading() as connection:
            return [crawl_row(row) for row in connection.execute(order).mappings()]

    def retry(self, ids: Sequence[int] | None) -> int:
        """Let dead letters be tried again at once; all of them for ``None``. Return how many."""
        where: ColumnElement[bool] = crawls.c.state == "dead"
        where = where if ids is None else and_(where, crawls.c.id.in_(list(ids)))
        values = {"state": "waiting", "attempts": 0, "due": int(self._clock())}
        with writing(self.engine) as connection:
            return connection.execute(update(crawls).where(where).values(**values)).rowcount

    def measure(self) -> Measures:
        """Count what waits, runs and failed."""
        now = self._clock()
        due = and_(crawls.c.state == "waiting", _is_due(now))
        failing = and_(crawls.c.state != "dead", crawls.c.attempts > 0)
        with Index(self.engine).reading() as connection:
            per_state = connection.execute(
                select(crawls.c.state, func.count()).group_by(crawls.c.state)
            )
            states = {row[0]: row[1] for row in per_state}
            number, oldest = connection.execute(
                select(func.count(), func.min(crawls.c.due)).where(due)
            ).one()
            failures = connection.execute(
                select(func.count()).select_from(crawls).where(failing)
            ).scalar_one()
            ends = connection.execute(select(crawl_counts.c.outcome, crawl_counts.c.count))
            counts = {row[0]: row[1] for row in ends}
        return Measures(
            waiting=states.get("waiting", 0),
            due=number,
            queued=states.get("queued", 0),
            running=states.get("running", 0),
            dead=states.get("dead", 0),
            failing=failures,
            oldest_due_seconds=max(0, int(now - oldest)) if oldest is not None else 0,
            outcomes=counts,
        )

    def _due(
        self, connection: Connection, now: float, limit: int, closed: set[str]
    ) -> list[CrawlRow]:
        where = and_(crawls.c.state == "waiting", _is_due(now), crawls.c.server.not_in(closed))
        order = (crawls.c.priority.desc(), crawls.c.due, crawls.c.id)
        chosen = select(crawls).where(where).order_by(*order).limit(limit)
        chosen = chosen.with_for_update(skip_locked=True)
        return [crawl_row(row) for row in connection.execute(chosen).mappings()]

    def _queue(self, connection: Connection, row: CrawlRow, door: Doorkeeper) -> CrawlRow | None:
        at = door.start(row.server)
        if at is None:
            return None
        values = {"state": "queued", "start_at": at}
        connection.execute(update(crawls).where(crawls.c.id == row.id).values(**values))
        return _locked(connection, row.id)

    def _after(self, row: CrawlRow, outcome: Outcome, now: int) -> dict[str, Any]:
        values: dict[str, Any] = {"state": "waiting", "run": None, "start_at": None, "ended": now}
        match outcome:
            case Crawled():
                period = period_after(row.period, changed=outcome.changed)
                values |= {"period": period, "due": now + wait_for(period, self._chance)}
                values |= {"attempts": 0, "priority": 0, "code": None, "message": None}
                return values | ({"changed": now} if outcome.changed else {})
            case Postponed():
                values["due"] = now + outcome.seconds + round(self._chance.uniform(0, 5))
            case Failed():
                attempts = row.attempts + 1
                dead = outcome.final or attempts >= MAX_ATTEMPTS
                values |= {"attempts": attempts, "state": "dead" if dead else "waiting"}
                values["due"] = now + retry_after(attempts, self._chance)
        return values | {"code": outcome.code, "message": outcome.message[:MAX_MESSAGE]}


def count(connection: Connection, outcome: str) -> None:
    """Count one end of a crawl."""
    where = crawl_counts.c.outcome == outcome
    more = update(crawl_counts).where(where).values(count=crawl_counts.c.count + 1)
    if not connection.execute(more).rowcount:
        if connection.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            made = postgresql.insert(crawl_counts).on_conflict_do_nothing()
            connection.execute(made.values(outcome=outcome, count=0))
        else:
            connection.execute(insert(crawl_counts).values(outcome=outcome, count=0))
        connection.execute(more)


def _name(outcome: Outcome) -> str:
    match outcome:
        case Crawled():
            return "changed" if outcome.changed else "unchanged"
        case Postponed():
            return "postponed"
        case Failed():
            return "failed"


def _is_due(now: float) -> ColumnElement[bool]:
    """Say in SQL what :func:`mdr.crawl.rhythm.is_due` says."""
    return or_(crawls.c.due <= int(now), crawls.c.ended > int(now) + MINUTE)


def _locked(connection: Connection, crawl_id: int) -> CrawlRow | None:
    where = select(crawls).where(crawls.c.id == crawl_id).with_for_update()
    row = connection.execute(where).mappings().one_or_none()
    return None if row is None else crawl_row(row)


def _is_taken(connection: Connection, row: CrawlRow, outcome: Crawled) -> bool:
    """Say whether the name that the host told has a row already, which then does for both."""
    same = and_(
        crawls.c.host == outcome.host,
        crawls.c.repository_key == outcome.repository.lower(),
        crawls.c.id != row.id,
    )
    return connection.execute(select(crawls.c.id).where(same)).first() is not None
