"""Real files: interleaved ranks, compressed logs, folders, endless lines, and inputs that are no logs."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from recompute.diagnose import excerpts, inputs
from recompute.diagnose.run import Answer, diagnose
from recompute.errors import InputError

TRACE = (
    "Traceback (most recent call last):",
    '  File "/opt/megatron/training/training.py", line 1400, in train_step',
    '  File "/opt/megatron/core/transformer/{file}", line 12, in {function}',
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total capacity of 79.11 GiB of which 1.00 GiB is free. "
        "Of the allocated memory {allocated} GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated."
    ),
)


def noise(seed: int, size: int) -> bytes:
    return b"".join(hashlib.sha256(b"%d %d" % (seed, n)).digest() for n in range(size // 32))


def failure(
    rank: int, allocated: float, file: str = "mlp.py", function: str = "forward", time: str = ""
) -> list[str]:
    values = {"rank": rank, "allocated": f"{allocated:.2f}", "file": file, "function": function}
    return [f"{time}[rank{rank}]: " + line.format(**values) for line in TRACE]


def step(iteration: int, ms: float = 900.0) -> str:
    return f" [2026-01-02 03:04:{iteration % 60:02d}] iteration {iteration:8d}/     100 | consumed samples: {iteration:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-04 | global batch size:    32 | lm loss: 2.0E+00 | loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"


def run(*paths: Path | str) -> Answer:
    return diagnose(tuple(str(path) for path in paths))


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_interleaved_ranks_keep_their_own_stacks(tmp_path: Path) -> None:
    one, two = failure(5, 76.0, "attention.py"), failure(2, 70.0, "mlp.py")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    found = run(write(tmp_path / "a.log", *(step(n) for n in range(2, 9)), *mixed)).diagnosis
    assert (found.rank, str(found.verdict)) == (5, "activation")
    assert "attention" in found.summary
    assert found.next_actions[0].overrides[-1] == "model.recompute_modules=[core_attn]"
    assert found.numbers.allocated_bytes == 76 << 30


def test_the_rank_that_failed_first_is_told_by_time_not_by_order(tmp_path: Path) -> None:
    late = failure(0, 60.0, time="2026-01-02 03:05:00,100 ")
    early = failure(9, 77.0, time="2026-01-02 03:04:59,900 ")
    assert run(write(tmp_path / "a.log", *late, *early)).diagnosis.rank == 9


def test_the_rank_that_failed_first_is_told_across_files(tmp_path: Path) -> None:
    write(tmp_path / "rank_0.log", *failure(0, 60.0, time="2026-01-02 03:05:00,100 "))
    write(tmp_path / "rank_9.log", *failure(9, 77.0, time="2026-01-02 03:04:59,900 "))
    assert run(tmp_path).diagnosis.rank == 9


def test_a_rank_in_the_name_of_the_file_counts(tmp_path: Path) -> None:
    lines = [line.removeprefix("[rank3]: ") for line in failure(3, 76.0)]
    write(tmp_path / "node1_rank3.out", *lines)
    write(tmp_path / "node1_rank4.out", "Connection closed by peer [10.0.0.1]:2")
    answer = run(tmp_path)
    assert answer.diagnosis.rank == 3
    assert any("followed" in note for note in answer.diagnosis.notes)


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.log.gz", gzip.compress),
        ("a.log.zst", zstandard.ZstdCompressor().compress),
        ("a.log.xz", lzma.compress),
        ("a.log.bz2", bz2.compress),
        ("b.log.gz", lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:])),
    ],
)
def test_compressed_logs(tmp_path: Path, name: str, pack: object) -> None:
    assert callable(pack)
    data = "\n".join([*(step(n) for n in range(2, 500)), *failure(1, 76.0)]).encode()
    path = tmp_path / name
    path.write_bytes(pack(data))
    found = run(path).diagnosis
    assert (str(found.verdict), found.rank) == ("activation", 1)
    assert found.evidence[0].line == 502


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.ZstdCompressor().compress, lzma.compress, bz2.compress]
)
def test_a_compressed_log_that_is_cut_is_read_and_said_to_be_cut(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Noise between the steps, so that a cut in the middle leaves something to read."""
    lines = [step(n) + " " + noise(n, 4096).hex() for n in range(1, 300)]
    packed = pack("\n".join(lines).encode())
    for name, data, cut in (
        ("whole", packed, False),
        ("cut", packed[: len(packed) * 3 // 4], True),
    ):
        log = tmp_path / f"{name}.log"
        log.write_bytes(data)
        answer = diagnose((str(log),))
        assert answer.seen is not None
        assert answer.seen.files[0].size > 100_000
        said = [note for note in answer.diagnosis.notes if "middle of its compressed data" in note]
        assert bool(said) is cut


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.ZstdCompressor().compress, lzma.compress]
)
def test_a_broken_archive_is_named(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    data = pack(noise(3, 200_000))
    path = tmp_path / "a.gz"
    path.write_bytes(data[:5000] + b"\xff" * 5000 + data[12000:])
    with pytest.raises(InputError) as caught:
        run(path)
    assert caught.value.code == "corrupt-archive"


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_decompression_bomb_is_refused(
    tmp_path: Path, pack: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(pack)
    monkeypatch.setattr(inputs, "BOMB_FLOOR", 1 << 20)
    path = tmp_path / "a.log.gz"
    path.write_bytes(pack(b"\n" * (16 << 20)))
    with pytest.raises(InputError) as caught:
        run(path)
    assert caught.value.code == "decompression-bomb"


def test_a_failure_is_found_in_a_large_log_with_its_line_number(tmp_path: Path) -> None:
    chatter = [
        f"INFO worker {n % 7} step {n} of the loader: nothing to see here" for n in range(160_000)
    ]
    lines = [*chatter[:150_000], *failure(6, 76.0), *chatter[150_000:]]
    path = write(tmp_path / "a.log", *lines)
    assert path.stat().st_size > 2 * excerpts.CHUNK
    found = run(path).diagnosis
    assert (str(found.verdict), found.rank) == ("activation", 6)
    assert found.evidence[0].line == 150_004
    assert found.evidence[0].text == lines[150_003]


def test_a_failure_is_found_among_errors_that_are_none(tmp_path: Path) -> None:
    chatter = [
        f"RuntimeError: connection {n} dropped, retry; memory is fine" for n in range(200_000)
    ]
    path = write(tmp_path / "a.log", *chatter, *failure(6, 76.0), *chatter[:20_000])
    found = run(path).diagnosis
    assert (str(found.verdict), found.rank) == ("activation", 6)
    assert found.evidence[0].line == 200_004


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * (9 << 20) + " ".join(failure(6, 76.0)).encode() + b"y" * (9 << 20))
    found = run(path).diagnosis
    assert found.numbers.requested_bytes == 2 << 30
    assert all(len(item.text) <= 400 for item in found.evidence)


def test_excerpts_are_the_file_when_everything_matters() -> None:
    import io

    data = b"".join(b"torch.OutOfMemoryError: CUDA out of memory %d\n" % n for n in range(3000))
    parts = list(excerpts.excerpts(io.BytesIO(data), excerpts.Scanner()))
    assert b"".join(part.data for part in parts) == data
    assert parts[0].first_line == 1


def test_two_logs_and_the_wall_between_them(tmp_path: Path) -> None:
    before = write(tmp_path / "control.log", step(1), *failure(3, 76.0, "mlp.py"))
    after = write(
        tmp_path / "with_mlp.log",
        step(1),
        step(2),
        step(3),
        *failure(3, 76.0, "../optimizer/optimizer.py", "step"),
    )
    notes = run(before, after).diagnosis.notes
    assert any("moved the wall" in note and "not a pass" in note for note in notes)


def test_skew_between_ranks_is_imbalance_in_an_expert_layer_only(tmp_path: Path) -> None:
    others = [memory(2, 50_000.0, rank=rank) for rank in (1, 2, 3)]
    hot = [*others, *failure(6, 76.0, "moe/experts.py")]
    found = run(write(tmp_path / "a.log", *hot)).diagnosis
    assert (str(found.verdict), found.rank) == ("imbalance", 6)
    dense = [line.replace("moe/experts.py", "mlp.py") for line in hot]
    assert str(run(write(tmp_path / "b.log", *dense)).diagnosis.verdict) == "activation"


def test_fits_in_step_one_and_fails_in_step_two(tmp_path: Path) -> None:
    found = run(write(tmp_path / "a.log", step(1), *failure(0, 76.0))).diagnosis
    assert (str(found.verdict), str(found.stage)) == ("optimizer_state", "forward")


def memory(
    iteration: int, allocated: float, *, bridge: bool = False, rank: int = 0, more: str = ""
) -> str:
    if bridge:
        return f"[Rank {rank}] (after {iteration} iterations) memory (GB) | mem-allocated-gigabytes: {allocated} | mem-max-allocated-gigabytes: {allocated + 1} | mem-max-reserved-gigabytes: {allocated + 2} | mem-alloc-retires: {more or 0}"
    return f"[Rank {rank}] (after {iteration} iterations) memory (MB) | allocated: {allocated} | max allocated: {allocated + 1} | reserved: {allocated + 2} | max reserved: {allocated + 2}{more}"


def test_memory_lines_keep_their_units(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.log",
        memory(2, 1000.5),
        memory(2, 36.618, bridge=True, rank=1),
        "after 5 iterations memory (MB) | allocated: 10250.5693359375 | max allocated: 12606.0 | reserved: 17482.0 | max reserved: 17482.0",
    )
    seen = run(path).seen
    assert seen is not None
    reports = {rank: series[0][0] for (_, rank), series in seen.memory.items()}
    assert reports[0].allocated == 1000.5 * (1 << 20)
    assert reports[1].allocated == 36_618_000_000
    assert reports[1].max_allocated == 37_618_000_000
    assert reports[None].allocated == round(10250.5693359375 * (1 << 20))


def test_growth_from_step_to_step_is_a_leak_and_a_plateau_is_not(tmp_path: Path) -> None:
    rising = [line for n in range(1, 12) for line in (step(n), memory(n, 30_000 + 400 * n))]
    assert str(run(write(tmp_path / "a.log", *rising)).diagnosis.verdict) == "leak"
    flat = [line for n in range(1, 12) for line in (step(n), memory(n, 30_000 + (n % 3)))]
    assert str(run(write(tmp_path / "b.log", *flat)).diagnosis.verdict) == "not_oom"


def test_retries_without_an_error_are_thrash(tmp_path: Path) -> None:
    lines = [step(n, 17_000.0) for n in range(1, 8)]
    assert (
        str(
            run(
                write(tmp_path / "a.log", *lines, memory(2, 70.0, bridge=True, more="14"))
            ).diagnosis.verdict
        )
        == "thrash"
    )
    assert (
        str(run(write(tmp_path / "b.log", *lines, memory(2, 70.0, bridge=True))).diagnosis.verdict)
        == "not_oom"
    )


def test_a_healthy_log(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.log",
        "[OOM] observer attached: snapshots will be written",
        *(step(n) for n in range(1, 80)),
    )
    found = run(path).diagnosis
    assert str(found.verdict) == "not_oom"
    assert "iteration 79 of 100" in found.summary


@pytest.mark.parametrize(
    ("lines", "verdict", "stage"),
    [
        ([f"{{'loss': 1.{n}, 'epoch': 0.1}}" for n in range(40)], "not_oom", "unknown"),
        ([f'10.0.0.{n} - - "GET /a HTTP/1.1" 200 {n}' for n in range(40)], "not_oom", "unknown"),
        (
            [
                "jax.errors.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
            ],
            "capacity",
            "unknown",
        ),
        (
            [
                "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[8,1024,4096]"
            ],
            "capacity",
            "unknown",
        ),
        (
            [
                "Traceback (most recent call last):",
                '  File "pretrain_gpt.py", line 3, in model_provider',
                "ValueError: vocab size is 0",
            ],
            "not_oom",
            "model_build",
        ),
        (["Sending process 12 closing signal SIGTERM"], "unknown", "unknown"),
    ],
)
def test_other_logs(tmp_path: Path, lines: list[str], verdict: str, stage: str) -> None:
    found = run(write(tmp_path / "a.log", *lines)).diagnosis
    assert (str(found.verdict), str(found.stage)) == (verdict, stage)
    assert found.next_actions


@pytest.mark.parametrize("data", [b"", b"\n\n", bytes(range(256)) * 400, noise(1, 50_000)])
def test_nothing_to_read_is_unknown(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(data)
    assert str(run(path).diagnosis.verdict) == "unknown"


def test_an_empty_folder_is_unknown_and_binaries_in_a_folder_are_passed_over(
    tmp_path: Path,
) -> None:
    assert str(run(tmp_path).diagnosis.verdict) == "unknown"
    (tmp_path / "core").write_bytes(noise(1, 9000))
    write(tmp_path / "0.log", *failure(0, 76.0))
    assert str(run(tmp_path).diagnosis.verdict) == "activation"


def test_a_missing_path_and_a_socket(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        run(tmp_path / "none.log")
    assert caught.value.code == "not-found"
    with pytest.raises(InputError):
        run("/dev/null/x")
    with pytest.raises(InputError):
        run("a\0b")


def test_recompute_faults_come_before_what_follows_them(tmp_path: Path) -> None:
    fault = "[rank0]: torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: A different number of tensors was saved during the original forward and recomputation."
    found = run(write(tmp_path / "a.log", fault, *failure(1, 76.0))).diagnosis
    assert str(found.verdict) == "recompute_fault"
    found = run(write(tmp_path / "b.log", *failure(1, 76.0), fault)).diagnosis
    assert str(found.verdict) == "activation"


def test_sigkill_after_an_oom_is_not_host_memory(tmp_path: Path) -> None:
    found = run(write(tmp_path / "a.log", *failure(1, 76.0), "exitcode  : -9 (pid: 12)")).diagnosis
    assert str(found.verdict) == "activation"
    found = run(write(tmp_path / "b.log", step(4), "exitcode  : -9 (pid: 12)")).diagnosis
    assert str(found.verdict) == "host_memory"


@pytest.mark.parametrize(
    ("function", "verdict", "stage"),
    [
        ("save_checkpoint", "capacity", "checkpoint"),
        ("load_parameter_state", "optimizer_state", "checkpoint"),
        ("load_checkpoint", "parameters", "checkpoint"),
        ("get_model", "parameters", "model_build"),
        ("create_cudagraphs", "graph_pools", "graph_capture"),
        ("finalize_model_grads", "gradients", "grad_sync"),
        ("vocab_parallel_cross_entropy", "logits", "loss"),
        ("initialize_state", "optimizer_state", "optimizer_init"),
        ("evaluate_and_print_results", "activation", "evaluation"),
    ],
)
def test_the_stack_tells_the_stage(tmp_path: Path, function: str, verdict: str, stage: str) -> None:
    found = run(
        write(tmp_path / "a.log", *failure(1, 76.0, "../training/x.py", function))
    ).diagnosis
    assert (str(found.verdict), str(found.stage)) == (verdict, stage)


def test_a_progress_bar_that_repaints_its_line(tmp_path: Path) -> None:
    bar = "".join(f"\r {n}%|#####| {n}/100" for n in range(60))
    lines = failure(1, 76.0)
    found = run(write(tmp_path / "a.log", bar + "\r" + lines[0], *lines[1:])).diagnosis
    assert (str(found.verdict), found.rank) == ("activation", 1)


def test_a_log_of_json_records_is_a_log(tmp_path: Path) -> None:
    import json

    records = [
        json.dumps({"time": "2026-01-02", "segments": 3, "message": line})
        for line in failure(1, 76.0)
    ]
    found = run(write(tmp_path / "a.json", *records)).diagnosis
    assert found.numbers.requested_bytes == 2 << 30
