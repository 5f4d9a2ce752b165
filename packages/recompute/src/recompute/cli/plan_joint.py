"""``recompute plan --joint``: layout, micro-batch and recompute together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.search.workers import Workers


def print_joint(
    job: JobConfig,
    budget: str | None,
    gpu: str | None,
    margin: str | None,
    top: int,
    *,
    workers: Workers,
    as_json: bool,
) -> int:
    """Print the fastest layouts; 1 when none fits."""
    from recompute.search.joint import joint

    answer = joint(job, budget, gpu=gpu, margin=margin, top=top, workers=workers)
    if as_json:
        from recompute.report.document import dump
        from recompute.report.joint_report import joint_document

        click.echo(dump(joint_document(job, answer)))
    else:
        from recompute.report.joint_report import joint_text

        click.echo(joint_text(answer))
    return 0 if answer.rows else 1
