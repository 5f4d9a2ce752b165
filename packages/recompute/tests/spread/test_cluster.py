"""A real Dask cluster on loopback: a scheduler and two workers, each a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from recompute.errors import ConfigError, UnsupportedError
from recompute.search.joint import joint
from recompute.search.what_if import Variant, what_if
from recompute.spread import cluster as module
from recompute.spread.cluster import ADDRESS, Cluster, fingerprint
from recompute.units import GIB

from ..search.fakes import small_job
from . import work
from .work import die_elsewhere, die_once, refuse, square

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Dask and Tornado

JOB = small_job(
    num_layers=4,
    hidden_size=2048,
    num_attention_heads=16,
    **{"hardware.num_gpus": 4, "train.global_batch_size": 16},
)
EXAMPLE = Path(__file__).parents[4] / "examples" / "llama3-8b.yaml"
SCHEDULER = (sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard")
WORKER = (sys.executable, "-m", "distributed.cli.dask_worker", "--no-dashboard", "--no-nanny")


class Local:
    """A scheduler and workers that a test may end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended = ExitStack()
        self.workers: list[subprocess.Popen[str]] = []
        self.scheduler = self._start(
            *SCHEDULER, "--host", "127.0.0.1", "--port", "0", until="Scheduler at:"
        )
        self.address = self.said.rpartition("Scheduler at:")[2].strip()

    def add_worker(self) -> None:
        options = ("--nthreads", "1", "--host", "127.0.0.1", "--local-directory", str(self.folder))
        self.workers.append(self._start(*WORKER, self.address, *options, until="Registered to:"))

    def _start(self, *command: str, until: str) -> subprocess.Popen[str]:
        """Start a process whose tests' folder can be imported, and read until it says it is ready."""
        root = Path(str(work.__file__)).parents[work.__name__.count(".")]
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            cwd=self.folder,
        )
        self.ended.enter_context(process)
        self.ended.callback(process.kill)
        assert process.stderr is not None
        self.said = next((line for line in process.stderr if until in line), "")
        assert self.said, command
        return process


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    found = Local(tmp_path)
    with found.ended:
        yield found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A cluster of two workers that no test harms."""
    found = Local(tmp_path_factory.mktemp("cluster"))
    with found.ended:
        found.add_worker()
        found.add_worker()
        yield found


def test_answers_come_in_order_from_both_workers(two: Local) -> None:
    with Cluster(two.address) as workers:
        assert workers.threads == 2
        found = list(workers.ordered(square, range(40), what="", of=40))
    assert [(n, answer[0]) for n, answer in found] == [(n, n * n) for n in range(40)]
    assert {answer[1] for _, answer in found} == {worker.pid for worker in two.workers}


def test_a_search_does_not_depend_on_who_works(two: Local) -> None:
    variants = [
        Variant(
            changes=(f"train.micro_batch_size={n}",), job=small_job(**{"train.micro_batch_size": n})
        )
        for n in (1, 2)
    ]
    cells = (["4GiB", "9GiB"], [None, "h200"])
    with Cluster(two.address) as workers:
        assert joint(JOB, 2 * GIB, top=4, workers=workers) == joint(JOB, 2 * GIB, top=4)
        assert what_if(variants, *cells, workers=workers) == what_if(variants, *cells)


def test_the_command_prints_the_same_bytes(two: Local) -> None:
    command = [sys.executable, "-m", "recompute", "plan", str(EXAMPLE), "--json"]
    arguments = ("hardware.num_gpus=8", "--joint", "--top", "3")
    alone, spread = (
        subprocess.run([*command, *arguments, *who], capture_output=True, check=True).stdout
        for who in (("--workers", "1"), ("--cluster", two.address))
    )
    assert alone == spread


def test_an_error_of_the_work_is_raised_as_it_was(two: Local) -> None:
    with Cluster(two.address) as workers, pytest.raises(UnsupportedError) as caught:
        list(workers.ordered(refuse, range(10), what="", of=10))
    assert (caught.value.code, caught.value.data) == ("too-odd", {"number": 3})


def test_another_version_is_refused(two: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprint.cache_clear()
    monkeypatch.setattr(module, "__version__", "0.0.1")
    try:
        with pytest.raises(ConfigError) as caught:
            Cluster(two.address)
    finally:
        fingerprint.cache_clear()
    assert caught.value.code == "cluster-mismatch"
    assert len(caught.value.data["workers"]) == 3  # the scheduler reads requests too
    assert "recompute 0.0.1" in caught.value.message


def test_a_worker_that_joins_later_is_asked_too(two: Local) -> None:
    with pytest.raises(ConfigError) as caught:
        module.guarded("Python 2.7, recompute 9, source 0", square, 3)
    assert caught.value.code == "cluster-mismatch"
    assert module.guarded(fingerprint(), square, 3)[0] == 9


def test_work_of_a_worker_that_dies_is_done_by_another(local: Local) -> None:
    local.add_worker()
    local.add_worker()
    requests = [(number, os.getpid(), str(local.folder / "mark")) for number in range(12)]
    with Cluster(local.address) as workers:
        found = [answer for _, answer in workers.ordered(die_once, requests, what="", of=12)]
    assert found == list(range(12))
    assert (local.folder / "mark").exists()


def test_when_all_workers_are_gone_the_rest_is_done_here(local: Local) -> None:
    local.add_worker()
    said: list[str] = []
    requests = [(number, os.getpid()) for number in range(6)]
    with Cluster(local.address, say=said.append) as workers:
        found = [answer for _, answer in workers.ordered(die_elsewhere, requests, what="", of=6)]
        again = list(workers.ordered(square, [2], what="", of=1))
    assert found == list(range(6))
    assert again == [(2, (4, os.getpid()))]
    assert len(said) == 1


def test_when_the_scheduler_goes_the_rest_is_done_here(local: Local) -> None:
    local.add_worker()
    said: list[str] = []
    with Cluster(local.address, say=said.append) as workers:
        found = []
        for number, answer in workers.ordered(square, range(30), what="", of=30):
            found.append(answer[0])
            if number == 2:
                local.scheduler.kill()
                local.scheduler.wait()
    assert found == [n * n for n in range(30)]
    assert len(said) <= 1


def test_a_scheduler_without_workers_is_refused(local: Local) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster(local.address, connect_seconds=1)
    assert caught.value.code == "cluster-empty"


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "nonsense", "http://h:1", "tcp://h:99999", ""]
)
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster(address, connect_seconds=1)
    assert caught.value.code == "cluster-unreachable"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("address", ["tcp://[::1]:8786", "tls://head.node:8786", "10.0.0.1:8786"])
def test_addresses_of_schedulers(address: str) -> None:
    assert ADDRESS.fullmatch(address)


def test_the_command_says_what_is_missing_where_dask_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "distributed.py").write_text("raise ImportError('no module')\n", "utf-8")
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "recompute",
            "plan",
            str(EXAMPLE),
            "--joint",
            "--json",
            "hardware.num_gpus=8",
            "--cluster",
            "tcp://127.0.0.1:8786",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 2
    document = json.loads(answer.stdout)
    assert document["code"] == "cluster-extra"
    assert "megatron-recompute[cluster]" in document["hint"]


class Slow:
    """An answer that is complete by the end of a wait which was too short for it, and its client."""

    def __init__(self, status: str, answer: int | Exception) -> None:
        self.status, self.answer, self.waits = status, answer, 0

    def result(self, timeout: float | None = None) -> int:
        self.waits += 1
        if self.waits == 1:
            raise TimeoutError("timed out after 2 s.")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def nthreads(self) -> dict[str, int]:
        return {"worker": 1}


def test_an_answer_that_arrives_as_the_wait_ends_is_taken() -> None:
    slow = Slow("finished", 7)
    assert module._Watched(slow, slow, lambda: False).result() == 7


@pytest.mark.parametrize("own", [TimeoutError("of the work"), ValueError("of the work")])
def test_an_error_that_arrives_as_the_wait_ends_is_the_works_own(own: Exception) -> None:
    slow = Slow("error", own)
    with pytest.raises(type(own), match="of the work"):
        module._Watched(slow, slow, lambda: False).result()
