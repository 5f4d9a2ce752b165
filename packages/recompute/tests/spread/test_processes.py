"""Processes of this machine: the same answers in order, whatever happens to the processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recompute.errors import UnsupportedError
from recompute.search.joint import joint
from recompute.search.what_if import Variant, what_if
from recompute.spread.processes import Processes
from recompute.units import GIB

from ..search.fakes import small_job
from . import work
from .work import die_once, refuse, square

JOB = small_job(
    num_layers=4,
    hidden_size=2048,
    num_attention_heads=16,
    **{"hardware.num_gpus": 4, "train.global_batch_size": 16},
)
EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that start afresh, as they do where threads run, find the functions of the tests."""
    root = Path(str(work.__file__)).parents[work.__name__.count(".")]
    monkeypatch.syspath_prepend(str(root))


def test_answers_come_in_order_and_from_other_processes() -> None:
    with Processes(2, worth_seconds=0.0) as workers:
        found = list(workers.ordered(square, range(50), what="", of=50))
    assert [(n, answer[0]) for n, answer in found] == [(n, n * n) for n in range(50)]
    assert os.getpid() not in {answer[1] for _, answer in found}
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("count", [1, 8])
def test_short_work_starts_no_process(count: int) -> None:
    with Processes(count, worth_seconds=3600.0) as workers:
        found = list(workers.ordered(square, range(50), what="", of=50))
        assert {answer[1] for _, answer in found} == {os.getpid()}
        assert not multiprocessing.active_children()


def test_what_is_no_longer_wanted_is_given_up_at_once() -> None:
    drawn: list[int] = []

    def requests() -> Iterator[int]:
        for number in range(10_000):
            drawn.append(number)
            yield number

    with Processes(2, worth_seconds=0.0) as workers:
        for number, _ in workers.ordered(square, requests(), what="", of=10_000):
            if number == 5:
                break
        assert not multiprocessing.active_children()
    assert len(drawn) < 50


def test_a_process_that_dies_costs_time_and_no_answer(tmp_path: Path) -> None:
    said: list[str] = []
    requests = [(number, os.getpid(), str(tmp_path / "mark")) for number in range(20)]
    with Processes(2, worth_seconds=0.0, say=said.append) as workers:
        found = [answer for _, answer in workers.ordered(die_once, requests, what="", of=20)]
    assert found == list(range(20))
    assert len(said) == 1
    assert "died" in said[0]


def test_an_error_of_the_work_is_raised_as_it_was() -> None:
    with Processes(2, worth_seconds=0.0) as workers, pytest.raises(UnsupportedError) as caught:
        list(workers.ordered(refuse, range(10), what="", of=10))
    assert (caught.value.code, caught.value.hint) == ("too-odd", "take 4")
    assert caught.value.data == {"number": 3}
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("budget", [2 * GIB, 9 * GIB])
def test_the_joint_search_does_not_depend_on_who_works(budget: int) -> None:
    with Processes(2, worth_seconds=0.0) as workers:
        assert joint(JOB, budget, top=4, workers=workers) == joint(JOB, budget, top=4)


def test_a_table_does_not_depend_on_who_works() -> None:
    variants = [
        Variant(
            changes=(f"train.micro_batch_size={n}",), job=small_job(**{"train.micro_batch_size": n})
        )
        for n in (1, 2, 4)
    ]
    cells = (["4GiB", "9GiB"], [None, "h200"])
    with Processes(2, worth_seconds=0.0) as workers:
        spread = what_if(variants, *cells, per_layer=True, workers=workers)
    assert spread == what_if(variants, *cells, per_layer=True)


def heed_interrupts() -> None:
    """A shell lets what it starts in the background ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def long_search() -> subprocess.Popen[str]:
    """Start a long joint search on two processes; wait until it says how far it is."""
    command = [sys.executable, "-m", "recompute", "plan", str(EXAMPLES / "deepseek-v3.yaml")]
    process = subprocess.Popen(
        [*command, "hardware.num_gpus=1024", "--joint", "--workers", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no threads here
    )
    assert process.stderr is not None
    assert "of at most" in process.stderr.readline()
    return process


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_search_that_is_stopped_leaves_no_process(sent: signal.Signals) -> None:
    process = long_search()
    if sent is signal.SIGINT:
        os.killpg(process.pid, sent)  # as a terminal does
    else:
        process.send_signal(sent)
    # every process of the search holds the pipe: it ends when the last of them has
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    if sent is signal.SIGINT:
        assert process.returncode == 2
        assert '"code":"aborted"' in out.replace(" ", "")


def test_answers_are_the_same_bytes_in_every_process() -> None:
    """Sets of names have another order in every process; sums of floats must not follow it."""
    command = [sys.executable, "-m", "recompute", "plan", str(EXAMPLES / "llama3-8b.yaml")]
    arguments = ("hardware.num_gpus=8", "--joint", "--top", "3", "--json")
    found = {
        subprocess.run(
            [*command, *arguments, "--workers", str(count)],
            env={**os.environ, "PYTHONHASHSEED": str(count)},
            capture_output=True,
            check=True,
        ).stdout
        for count in (1, 2)
    }
    assert len(found) == 1
