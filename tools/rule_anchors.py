"""Write the fingerprints of the source statements that each rule rests on.

Takes a git repository of NVIDIA/Megatron-LM (a bare one will do); reads the files of every revision that
rules speak about and writes ``packages/recompute/src/recompute/rules/anchors.json``. Lists the rules whose
function or words are in no revision: their source row is wrong.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

from recompute.rules.anchors import anchored, fingerprint
from recompute.rules.table import RULES
from recompute.rules.types import REFS

TARGET = Path(__file__).resolve().parent.parent / (
    "packages/recompute/src/recompute/rules/anchors.json"
)


def source(repository: str, ref: str, path: str) -> ast.Module | None:
    """Return one parsed file at one revision, ``None`` where it does not exist."""
    answer = subprocess.run(
        ["git", f"--git-dir={repository}", "show", f"{ref}:{path}"],
        capture_output=True,
        check=False,
    )
    if answer.returncode:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(answer.stdout.decode("utf-8"))


def main() -> int:
    """Write the table; return 1 when a rule is anchored nowhere."""
    if len(sys.argv) != 2:
        print("usage: rule_anchors.py GIT_DIR_OF_MEGATRON_LM", file=sys.stderr)
        return 2
    table: dict[str, dict[str, str]] = {}
    missing: Counter[str] = Counter()
    rules = [rule for rule in RULES if anchored(rule)]
    for revision, ref in REFS.items():
        files: dict[str, ast.Module | None] = {}
        for rule in rules:
            if revision not in rule.revisions:
                continue
            path = rule.source.path
            if path not in files:
                files[path] = source(sys.argv[1], ref, path)
            module = files[path]
            digest = None if module is None else fingerprint(rule, module)
            if digest is None:
                missing[rule.id] += 1
            else:
                table.setdefault(rule.id, {})[revision] = digest
    TARGET.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    nowhere = [rule.id for rule in rules if rule.id not in table]
    print(f"{len(table)} of {len(rules)} rules anchored, {sum(missing.values())} gaps")
    for rule in rules:
        if missing[rule.id]:
            print(f"  {rule.id}: {missing[rule.id]} of {len(rule.revisions)} revisions without")
    return 1 if nowhere else 0


if __name__ == "__main__":
    sys.exit(main())
