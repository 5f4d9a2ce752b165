"""Is it safe to read: a pure function from bytes to findings and a grade.

- :func:`mdr.audit.run.audit` grades one file: 17 text checks, a penalty, A to F.
- :func:`mdr.audit.bundle.bundle_audit` looks at the whole folder; shown beside the grade.
- :func:`mdr.audit.spec.spec_conformance` compares with the SKILL.md specification; shown beside it.
- :func:`mdr.audit.semantics.semantics` and :func:`~mdr.audit.semantics.semantic_diff` say what an
  agent that reads the file may touch, and what changes between two versions.

The values are in :mod:`mdr.audit.types`, whose import is cheap. The modules above import RE2 and
YAML when they first need them, never at import. ``docs/reference/audit-checks.md`` defines every check.
"""
