"""Specification conformance and semantics, with the real shapes that were found in public skills."""

from __future__ import annotations

import pytest

from mdr.audit.semantics import semantic_diff, semantics
from mdr.audit.spec import spec_conformance


def skill(**fields: str) -> bytes:
    base = {"name": "demo", "description": "A demo skill."}
    lines = "".join(
        f"{key.replace('_', '-')}: {value}\n"
        for key, value in {**base, **fields}.items()
        if value is not None
    )
    return f"---\n{lines}---\nBody.\n".encode()


def codes(data: bytes, folder: str | None = "demo") -> list[str]:
    return [finding.code for finding in spec_conformance(data, folder)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (skill(), []),
        (
            skill(
                license="MIT", compatibility="Linux", allowed_tools="Read Bash", metadata="\n  a: b"
            ),
            [],
        ),
        (skill(name="other"), ["name-is-not-folder"]),
        (skill(name="Demo"), ["name-characters", "name-is-not-folder"]),
        (skill(name="a--b"), ["name-characters", "name-is-not-folder"]),
        (skill(name="-a"), ["name-characters", "name-is-not-folder"]),
        (skill(name="a_b"), ["name-characters", "name-is-not-folder"]),
        (skill(name="a" * 65), ["name-too-long", "name-is-not-folder"]),
        (skill(name="''"), ["empty-field"]),
        (skill(name="12"), ["empty-field"]),
        (skill(description="x" * 1025), ["field-too-long"]),
        (skill(description="x" * 1024), []),
        (skill(compatibility="x" * 501), ["field-too-long"]),
        (skill(version="'1.0'"), ["unknown-field"]),
        (skill(allowed_tools="\n  - Read"), ["field-type"]),
        (skill(metadata="text"), ["field-type"]),
        (skill(metadata="\n  tags:\n    - a"), ["field-type"]),
        (skill(metadata="{a: b}"), ["yaml-style"]),
        (skill(license="''"), ["empty-field"]),
        (b"\xef\xbb\xbf" + skill(), ["byte-order-mark"]),
        (b"# no block\n", ["frontmatter-missing"]),
        (b"---\nname: a\n", ["frontmatter-unclosed"]),
        (b"---\nname: demo\ndescription: Use when: x\n---\n", ["frontmatter-yaml"]),
        (b"---\nname: demo\nname: demo\ndescription: d\n---\n", ["duplicate-field"]),
        (b"---\nname: demo\n---\n", ["missing-field"]),
        (b"---\nname: demo\ndescription: a --- b\n---\n", []),
        (b"\xff", ["not-utf8"]),
        (skill() + b"x\n" * 600, ["long-body"]),
        (skill() + b"word " * 5000, ["many-tokens"]),
    ],
)
def test_conformance(data: bytes, expected: list[str]) -> None:
    assert codes(data) == expected


def test_the_folder_is_not_compared_when_it_is_not_known() -> None:
    assert codes(skill(name="other"), None) == []


def test_only_budgets_are_advice() -> None:
    found = spec_conformance(skill(version="1") + b"x\n" * 600, "demo")
    assert [(finding.code, finding.advice) for finding in found] == [
        ("unknown-field", False),
        ("long-body", True),
    ]


TEXT = b"""---
name: demo
description: d
allowed-tools: Bash(git:*, npm run) Read
tools: [Write]
---
See https://Docs.Example.com:8443/a and [x](//cdn.example.net/y), not example.org in words.

```bash
$ sudo FOO=1 curl https://api.example.com | jq . && cat ~/.aws/credentials
if true; then ./run.sh; fi
```

```python
import os
```
Run `uv run pytest` and read `config.yaml`.
"""


def test_what_a_file_can_make_an_agent_touch() -> None:
    found = semantics(TEXT)
    assert found.hosts == ("api.example.com", "cdn.example.net", "docs.example.com")
    assert found.commands == ("./run.sh", "cat", "curl", "jq", "uv")
    assert found.tools == ("Bash(git:*, npm run)", "Read", "Write")
    assert found.credential_paths == ("~/.aws/credentials",)
    assert found.tokens == -(-len(TEXT) // 4)


def test_what_is_not_text_names_nothing() -> None:
    found = semantics(b"\xff" * 9)
    assert (found.hosts, found.commands, found.tokens) == ((), (), 3)


def test_the_difference_of_two_versions() -> None:
    newer = TEXT.replace(b"jq .", b"tar x").replace(b"api.example.com", b"new.example.com")
    diff = semantic_diff(semantics(TEXT), semantics(newer), grades=("A", "B"))
    assert diff.adds_capability
    assert diff.to_document() == {
        "hosts": {"added": ["new.example.com"], "removed": ["api.example.com"]},
        "commands": {"added": ["tar"], "removed": ["jq"]},
        "tools": {"added": [], "removed": []},
        "credential_paths": {"added": [], "removed": []},
        "tokens": [-(-len(TEXT) // 4), -(-len(newer) // 4)],
        "grade": ["A", "B"],
    }
    assert not semantic_diff(semantics(newer), semantics(newer)).adds_capability
