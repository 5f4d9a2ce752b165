from __future__ import annotations

from datetime import date

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mdr.errors import BadReference
from mdr.reference.parse import format_reference, is_label, parse, parse_selector
from mdr.reference.types import DigestPrefix, Label, Latest, Reference, Selector

SEED = "nvidia/skills/nemo-mbridge-perf-activation-recompute"


def reference(
    host: str = "github.com",
    repository: str = "o/r",
    name: str | None = "n",
    path: str | None = None,
    selector: Selector | None = None,
) -> Reference:
    return Reference(
        host=host, repository=repository, name=name, path=path, selector=selector or Latest()
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SEED, reference(repository="nvidia/skills", name=SEED.split("/")[2])),
        ("o/r/n@latest", reference()),
        ("o/r/n@git:20260817.d36ff70", reference(selector=Label(label="git:20260817.d36ff70"))),
        (
            "o/r/n@sha256:03379723143dfcd3",
            reference(selector=DigestPrefix(digits="03379723143dfcd3")),
        ),
        ("o/r/n@sha256:" + "AB" * 32, reference(selector=DigestPrefix(digits="ab" * 32))),
        ("o/r:a/SKILL.md", reference(name=None, path="a/SKILL.md")),
        ("o/r:a/SKILL.md@latest", reference(name=None, path="a/SKILL.md")),
        ("github.com/o/r/n", reference()),
        ("GitHub.com/O/R/n", reference(repository="O/R")),
        ("gitlab.com/g/r/n", reference(host="gitlab.com", repository="g/r")),
        ("gitlab.com/g/sub/r/n", reference(host="gitlab.com", repository="g/sub/r")),
        (
            "gitlab.com/g/sub/r:d/SKILL.md",
            reference(host="gitlab.com", repository="g/sub/r", name=None, path="d/SKILL.md"),
        ),
        ("git.example.org:8443/o/r/n", reference(host="git.example.org:8443")),
        ("local/o/r/n", reference(host="local")),
        ("local/o/r:a.md", reference(host="local", name=None, path="a.md")),
        ("local/r/n", reference(repository="local/r")),
        ("o/r/na:me", reference(name="na:me")),
        ("o/r/name with space", reference(name="name with space")),
        ("o/r/näme-技能", reference(name="näme-技能")),
        ("o/r/n@1.2@latest", reference(name="n@1.2")),
        ("o/r/-rf", reference(name="-rf")),
        ("o/r:a@b/c:d/SKILL.md@latest", reference(name=None, path="a@b/c:d/SKILL.md")),
    ],
)
def test_every_form_of_the_contract(text: str, expected: Reference) -> None:
    assert parse(text) == expected
    assert parse(format_reference(expected)) == expected


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", "bad-reference", "empty"),
        ("skills", "bad-reference", "owner, a repository and an artifact"),
        ("o/r", "bad-reference", "owner, a repository and an artifact"),
        ("o//n", "bad-reference", "owner"),
        ("/o/r/n", "bad-reference", "owner"),
        ("o/r/", "bad-reference", "owner, a repository and an artifact"),
        ("o/r/..", "bad-reference", "not a name"),
        ("../r/n", "bad-reference", "not an owner"),
        ("-o/r/n", "bad-reference", "not an owner"),
        ("--upload-pack=x/r/n", "bad-reference", "not an owner"),
        ("o/r/a/b", "bad-reference", "GitHub repository is owner/repo"),
        ("o/r:", "bad-reference", "empty"),
        ("o/r:/etc/passwd", "bad-reference", "absolute"),
        ("o/r:a/../../etc", "bad-reference", "'..'"),
        ("o/r:a//b", "bad-reference", "empty"),
        ("o/r/n@v1.2", "bad-reference", "no selector"),
        ("o/r/n@", "bad-reference", "no selector"),
        ("o/r/n@git:2026.d36ff70", "bad-reference", "not a label"),
        ("o/r/n@git:20261317.d36ff70", "bad-reference", "not a label"),
        ("o/r/n@git:20260817.d36ff7", "bad-reference", "not a label"),
        ("o/r/n@git:20260817.D36FF70", "bad-reference", "not a label"),
        ("o/r/n@sha256:", "digest-too-short", "0 digits"),
        ("o/r/n@sha256:03379723143", "digest-too-short", "11 digits"),
        ("o/r/n@sha256:" + "a" * 65, "bad-reference", "64 digits"),
        ("o/r/n@sha256:03379723143dfcdg", "bad-reference", "hexadecimal"),
        ("o/r/n\n", "bad-reference", "control"),
        ("o/r/n\x00", "bad-reference", "control"),
        ("o/r/n\udcff", "bad-reference", "UTF-8"),
        ("o/r/" + "n" * 5000, "bad-reference", "longer"),
        ("https://github.com/o/r/n", "bad-reference", "not a URL"),
        ("gitlab.com/g/n", "bad-reference", "owner, a repository and an artifact"),
    ],
)
def test_refusals_name_code_and_reason(text: str, code: str, says: str) -> None:
    with pytest.raises(BadReference) as caught:
        parse(text)
    assert caught.value.code == code
    assert says in caught.value.message
    assert caught.value.hint
    caught.value.message.encode()  # printable everywhere


def test_twelve_digits_are_enough() -> None:
    assert parse("o/r/n@sha256:033797231 43d".replace(" ", "")).selector == DigestPrefix(
        digits="03379723143d"
    )


def test_a_name_with_at_sign_is_told_what_to_write() -> None:
    with pytest.raises(BadReference) as caught:
        parse("o/r/n@1.2")
    assert "o/r/n@1.2@latest" in caught.value.hint


@pytest.mark.parametrize("text", ["git:20260817.d36ff70", "@git:20260817.d36ff70"])
def test_selectors_alone(text: str) -> None:
    assert parse_selector(text) == Label(label="git:20260817.d36ff70")


def test_labels_are_recognised_whole() -> None:
    assert is_label("git:20260817." + "a" * 40)
    assert not is_label("git:20260817.d36ff70\n")
    assert not is_label("xgit:20260817.d36ff70")


selectors = st.one_of(
    st.just(Latest()),
    st.builds(
        lambda day, sha: Label(label=f"git:{day:%Y%m%d}.{sha}"),
        st.dates(min_value=date(1970, 1, 1)),
        st.text("0123456789abcdef", min_size=7, max_size=64),
    ),
    st.builds(DigestPrefix, digits=st.text("0123456789abcdef", min_size=12, max_size=64)),
)
segments = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
words = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1, max_size=12
).filter(lambda word: word not in {".", ".."})


@given(
    st.builds(
        Reference,
        host=st.sampled_from(["github.com", "gitlab.com", "local", "git.example.org:8443"]),
        repository=st.lists(segments, min_size=2, max_size=2).map("/".join),
        name=words,
        path=st.none(),
        selector=selectors,
    )
)
@example(reference(repository="local/o", name="a:b"))
@example(reference(name="a@latest"))
@example(reference(name="x@sha256:" + "a" * 12))
def test_name_references_survive_format_and_parse(value: Reference) -> None:
    assume(value.host == "github.com" or ":" not in (value.name or ""))
    assert parse(format_reference(value)) == value


@given(
    st.builds(
        Reference,
        host=st.sampled_from(["github.com", "gitlab.com", "local"]),
        repository=st.lists(segments, min_size=2, max_size=2).map("/".join),
        name=st.none(),
        path=st.lists(words, min_size=1, max_size=4).map("/".join),
        selector=selectors,
    )
)
def test_path_references_survive_format_and_parse(value: Reference) -> None:
    assert parse(format_reference(value)) == value


@given(st.text(max_size=60) | st.from_regex(r"[a-z.:]{1,6}/[a-z]{1,3}[/:][a-z@:/.]{1,9}"))
def test_any_text_parses_and_formats_back_or_is_refused(text: str) -> None:
    try:
        value = parse(text)
    except BadReference:
        return
    assert parse(format_reference(value)) == value
