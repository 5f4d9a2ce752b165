"""What somebody hears who types a command wrong."""

from __future__ import annotations

import pytest

from recompute.cli.main import COMMANDS, OTHER_NAMES, run


def said(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run a command line that is wrong and return what stands on standard error."""
    monkeypatch.setattr("sys.argv", ["recompute", *words])
    with pytest.raises(SystemExit) as left:
        run()
    out = capsys.readouterr()
    assert (left.value.code, out.out) == (2, "")
    return out.err


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("pln",), "there is no command 'pln'; did you mean plan? [usage]", "see recompute --help"),
        (("validate",), "did you mean check?", "commands are show, check"),
        (("frobnicate",), "there is no command 'frobnicate' [usage]", "commands are show"),
        (("rules", "--diff", "0.16"), "requires 2 arguments", "see recompute rules --help"),
        (("plan", "--budget"), "requires an argument", "see recompute plan --help"),
        (("--nothing",), "--nothing", "see recompute --help"),
        (
            ("plan", "j", "--micro-batch-size", "2"),
            "No such option",
            "train.micro_batch_size=VALUE",
        ),
        (("plan", "j", "--tp=2"), "No such option", "model.tensor_model_parallel_size=VALUE"),
        (("plan", "j", "--zzz"), "No such option", "recompute plan [OPTIONS] JOB [OVERRIDES]..."),
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
    assert first.startswith("recompute: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


def test_no_command_prints_the_help_and_nothing_around_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said((), monkeypatch, capsys)
    assert text.startswith("Usage: recompute ")
    assert text.splitlines()[-1].split()[0] == list(COMMANDS)[-1]


def test_other_names_lead_to_commands_and_hide_none() -> None:
    assert set(OTHER_NAMES.values()) <= set(COMMANDS)
    assert not set(OTHER_NAMES) & set(COMMANDS)
