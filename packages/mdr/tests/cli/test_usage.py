"""What somebody hears who types a command wrong, and that no list of commands is cut."""

from __future__ import annotations

import pytest

from mdr.cli.main import COMMANDS, OTHER_NAMES, run


def said(
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int = 2,
) -> str:
    """Run a command line and return what it wrote."""
    monkeypatch.setattr("sys.argv", ["mdr", *words])
    with pytest.raises(SystemExit) as left:
        run()
    out = capsys.readouterr()
    assert left.value.code == code
    assert bool(out.out) == (code == 0)
    return out.err + out.out


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("srch",), "there is no command 'srch'; did you mean search? [usage]", "see mdr --help"),
        (("uninstall", "a/b/c"), "did you mean remove?", "commands are index, search"),
        (("qqq",), "there is no command 'qqq' [usage]", "commands are index"),
        (("worker", "remove"), "'remove'", "commands are add, dead, retry, status"),
        (("search", "--limit"), "requires an argument", "see mdr search --help"),
        (("show",), "Missing argument 'REF'", "mdr show [OPTIONS] REF"),
        (("install", "--frozn"), "--frozen", "see mdr install --help"),
    ],
)
def test_a_mistyped_command_is_told_what_to_type(
    words: tuple[str, ...],
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = said(words, monkeypatch, capsys).splitlines()
    assert first.startswith("mdr: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


@pytest.mark.parametrize("words", [(), ("lock",), ("token",)])
def test_a_group_alone_prints_its_help_and_nothing_around_it(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(words, monkeypatch, capsys)
    assert text.startswith(" ".join(("Usage: mdr", *words)))
    assert "[usage]" not in text


@pytest.mark.parametrize("group", ["lock", "token", "worker"])
def test_no_line_of_a_list_of_commands_is_cut(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, listed = said((group, "--help"), monkeypatch, capsys, code=0).partition("Commands:")
    assert listed.strip()
    assert "..." not in listed


def test_other_names_lead_to_commands_and_hide_none() -> None:
    assert set(OTHER_NAMES.values()) <= set(COMMANDS)
    assert not set(OTHER_NAMES) & set(COMMANDS)
