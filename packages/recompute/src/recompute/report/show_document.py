"""The job as understood, as the JSON document of the contract."""

from __future__ import annotations

from typing import Any

from recompute.config.job_writers import job_yaml, origin, shown_fields
from recompute.config.schema import JobConfig
from recompute.config.section_types import SCHEMAS
from recompute.report.document import envelope


def show_document(job: JobConfig) -> dict[str, Any]:
    """Return the document ``recompute.show/1``.

    Args:
        job: Normalized.
    """
    fields = [
        {
            "field": f"{section}.{name}",
            "value": value,
            "origin": origin(job, f"{section}.{name}"),
        }
        for section in SCHEMAS
        for name, value in shown_fields(job, section, every=True).items()
    ]
    return {
        **envelope("show", job),
        "entry_point": job.identity.entry_point,
        "absent": [name for name in SCHEMAS if getattr(job, name) is None],
        "fields": fields,
        "unmodelled": dict(job.unmodelled),
        "environment": dict(job.environment),
        "yaml": job_yaml(job, comments=False),
    }
