"""A real Slurm of one node for tests: munged, slurmctld and slurmd on loopback, all of it in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=8000 Gres=gpu:4 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str | None:
    """Say why there can be no cluster here; None where there can."""
    lacking = [name for name in PROGRAMS if _program(name) is None]
    if lacking:
        return f"Slurm is not installed: {', '.join(lacking)}"
    return None if os.geteuid() == 0 else "slurmd needs root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster."""

    folder: Path
    host: str

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's programs need."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """Run one of Slurm's programs."""
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def node_is_back(self) -> bool:
        """Resume the node unless it came back by itself, which it may at any moment."""
        words = ("scontrol", "update", f"NodeName={self.host}", "State=RESUME")
        subprocess.run(words, capture_output=True, check=False, env=self.environment)
        return "down" not in self.ask("sinfo", "--noheader", "--format=%T")

    def jobs(self, *options: str) -> list[list[str]]:
        """Return number, name and state of the jobs in the queue."""
        lines = self.ask("squeue", "--noheader", "--format=%i %j %T", *options)
        return [line.split() for line in lines.splitlines()]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster in a folder, and end it."""
    for name in ("spool", "state"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    for number in range(4):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-3]\n")
    host = socket.gethostname().partition(".")[0]
    controller, node = _ports()
    values = {"host": host, "user": "root", "folder": folder}
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(controller=controller, node=node, **values))
    made = Cluster(folder=folder, host=host)
    key = [f"--key-file={folder}/munge.key", f"--seed-file={folder}/munge.seed", "--force"]
    key += [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
    with ExitStack() as stack:
        stack.enter_context(_running(folder, "munged", "--foreground", *key))
        _until((folder / "munge.socket").exists, folder)
        stack.enter_context(_running(folder, "slurmctld", "-D", "-f", str(conf)))
        stack.enter_context(_running(folder, "slurmd", "-D", "-f", str(conf)))
        _until(lambda: "idle" in _state(made), folder)
        yield made
        subprocess.run(
            ["scancel", "--user=root"], capture_output=True, check=False, env=made.environment
        )
        _until(lambda: not made.jobs(), folder)


@contextmanager
def _running(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    program = _program(name)
    assert program is not None
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments], stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _state(made: Cluster) -> str:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"],
        capture_output=True,
        text=True,
        check=False,
        env=made.environment,
    )
    return done.stdout


def _until(holds: Any, folder: Path) -> None:
    """Ask until it holds; a cluster that does not come up is said with its logs."""
    for _ in range(300):
        if holds():
            return
        subprocess.run(["sleep", "0.1"], check=True)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
    raise AssertionError(f"the cluster does not come up\n{logs}")


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]
