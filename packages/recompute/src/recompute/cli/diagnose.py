"""``recompute diagnose``: why a run went out of memory, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.diagnose.logs import Progress
    from recompute.diagnose.types import NextAction
    from recompute.search.types import Plan

PROGRESS_BYTES = 64 << 20
"""Inputs that are smaller on disk finish before a bar could be read."""
LEVERS_SHOWN = 2
"""Changes other than recompute that are proposed where no recompute is enough."""


@click.command(name="diagnose")
@click.argument("files", nargs=-1, required=True)
@click.option("--job", metavar="JOB", help="The job that ran; else it is recovered from the log.")
@click.option(
    "--mcore", metavar="VERSION", help="Megatron Core revision that decides what is legal."
)
@click.option("--html", metavar="FILE", help="Write a page with timeline and quoted evidence.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    files: tuple[str, ...], job: str | None, mcore: str | None, html: str | None, as_json: bool
) -> None:
    """Find why a run went out of memory.

    FILES are logs of any size (plain, gzip, zstd, xz), folders of per-rank logs, memory snapshots of
    torch, ledgers of recompute measure, or - for standard input. Nothing in them is executed.
    """
    from recompute.cli import streams
    from recompute.config.revision import parse_revision
    from recompute.diagnose.run import diagnose

    given = None
    if job is not None:
        from recompute.cli.reading import read_job

        given = read_job(job, (), mcore=mcore)
    revision = parse_revision(mcore) if mcore is not None else None
    bar = _Bar(files) if streams.on_terminal() else None
    try:
        answer = diagnose(
            files, job=given, revision=revision, predict=predicted_actions, progress=bar
        )
    finally:
        if bar is not None:
            bar.close()
    if html is not None:
        from recompute.report.diagnose_page import diagnose_page
        from recompute.report.page import write_page

        write_page(html, diagnose_page(answer))
        streams.say(f"wrote {html}\n")
    if as_json:
        from recompute.report.diagnose_document import diagnose_document
        from recompute.report.document import dump

        click.echo(dump(diagnose_document(answer)))
    else:
        from recompute.report.diagnose_text import diagnose_text

        click.echo(streams.visible(diagnose_text(answer)))


def predicted_actions(job: JobConfig, needed: int | None) -> tuple[NextAction, ...]:
    """Return the plan's choice as an action with its predicted peak; without one, what else would help.

    Args:
        job: The job of the run; it need not name a GPU.
        needed: By how much the peak must come down at least, bytes.

    Raises:
        RecomputeError: The job does not say enough for a plan, or is not modelled.
    """
    from recompute.diagnose.types import NextAction
    from recompute.search.budget import MAX_BYTES
    from recompute.search.plan import plan
    from recompute.units import format_gib

    first = plan(job, budget=MAX_BYTES, details=False)
    now = next((item for item in first.alternatives if item.choice == first.current), first.control)
    goal = max(1, now.peak_bytes - (needed or now.peak_bytes // 20))
    answer = plan(job, budget=goal)
    chosen = answer.chosen
    if chosen is None or chosen.choice == answer.current:
        return _other_levers(answer)
    choice = chosen.choice
    if choice.recompute_granularity == "full":
        overrides: tuple[str, ...] = (
            "model.recompute_granularity=full",
            f"model.recompute_method={choice.recompute_method}",
            f"model.recompute_num_layers={choice.recompute_num_layers}",
        )
    else:
        modules = ",".join(choice.recompute_modules)
        overrides = (
            "model.recompute_granularity=selective",
            f"model.recompute_modules=[{modules}]",
        )
    text = (
        f"{choice.label()} is predicted to bring the hottest rank from {format_gib(now.peak_bytes)} "
        f"to {format_gib(chosen.peak_bytes)} at {chosen.step_time_overhead:+.1%}"
    )
    return (
        NextAction(
            action=text,
            overrides=overrides,
            why="the cheapest choice of the plan that lowers this job's peak by what was missing",
        ),
    )


def _other_levers(answer: Plan) -> tuple[NextAction, ...]:
    """Return the changes other than recompute that bring the peak down far enough, cheapest first."""
    from recompute.diagnose.types import NextAction
    from recompute.units import format_gib

    found = []
    for lever in answer.cheaper_first:
        if not lever.fits and lever.then is None:
            continue
        left = "" if lever.then is None or lever.fits else f", with {lever.then.choice.label()}"
        text = (
            f"{lever.change}: predicted to change the peak by {format_gib(lever.peak_delta_bytes)}"
        )
        found.append(NextAction(action=text + left, overrides=lever.overrides, why=lever.why))
    return tuple(found[:LEVERS_SHOWN])


class _Bar:
    """A progress bar on standard error, shown only for inputs worth waiting for."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._bar: object | None = None
        self._task: dict[str, object] = {}
        self._files = files

    def __call__(self, path: str, done: int, size: int) -> None:
        """Move the bar of one file."""
        if size < PROGRESS_BYTES and done < PROGRESS_BYTES:
            return
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress as RichProgress

        from recompute.cli.streams import visible

        if self._bar is None:
            self._bar = RichProgress(console=Console(stderr=True), transient=True)
            self._bar.start()
        bar = self._bar
        assert isinstance(bar, RichProgress)
        if path not in self._task:
            self._task[path] = bar.add_task(escape(visible(path[-60:])), total=max(size, 1))
        task = self._task[path]
        bar.update(task, completed=done, total=max(size, done))  # type: ignore[arg-type]

    def close(self) -> None:
        """Take the bar off the screen."""
        stop = getattr(self._bar, "stop", None)
        if stop is not None:
            stop()


if TYPE_CHECKING:
    _CHECKED: Progress = _Bar(())
