"""Message shapes: every number exact, however the line is wrapped or prefixed."""

from __future__ import annotations

import pytest

from recompute.diagnose.accounting import numbers_of
from recompute.diagnose.conclude import conclude
from recompute.diagnose.logs import read_text
from recompute.diagnose.message_shapes import read_message
from recompute.units import GIB, MIB, parse_bytes


def size(text: str) -> int:
    value = parse_bytes(text)
    assert value is not None
    return value


TIPS = (
    "",
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
    " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
)
NAMES = (
    "RuntimeError: ",
    "torch.cuda.OutOfMemoryError: ",
    "torch.OutOfMemoryError: ",
    "OutOfMemoryError: ",
    "",
)


@pytest.mark.parametrize("tip", TIPS, ids=range(len(TIPS)))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("held", ["cached", "reserved in total by PyTorch"])
@pytest.mark.parametrize("allowed", ["", "40.00 GiB allowed; "])
def test_old_form(tip: str, name: str, held: str, allowed: str) -> None:
    message = read_message(
        f"{name}CUDA out of memory. Tried to allocate 448.00 MiB (GPU 7; 79.32 GiB total capacity; 78.58 GiB already allocated; 259.56 MiB free; {allowed}78.60 GiB {held}){tip}"
    )
    assert message is not None
    assert (message.requested, message.device) == (448 * MIB, 7)
    assert (message.total, message.allocated) == (size("79.32 GiB"), size("78.58 GiB"))
    assert message.free == size("259.56 MiB")
    assert message.reserved_unallocated == size("78.60 GiB") - size("78.58 GiB")
    assert message.allowed == (40 * GIB if allowed else None)


@pytest.mark.parametrize("word", ["CUDA", "HIP"])
@pytest.mark.parametrize("spelling", ["capacity", "capacty"])
@pytest.mark.parametrize(
    "own", ["", "Including non-PyTorch memory, this process has 70.12 GiB memory in use. "]
)
@pytest.mark.parametrize("others", [0, 1, 3])
@pytest.mark.parametrize(
    "pools", ["", "with 1.25 GiB allocated in private pools (e.g., {word} Graphs), "]
)
@pytest.mark.parametrize("allowed", ["", "1.05 GiB allowed; "])
def test_new_form(  # noqa: PLR0917 - one argument for each clause
    word: str, spelling: str, own: str, others: int, pools: str, allowed: str
) -> None:
    processes = "".join(f"Process {100 + n} has {n}.50 GiB memory in use. " for n in range(others))
    message = read_message(
        f"torch.OutOfMemoryError: {word} out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total {spelling} of 79.11 GiB of which 512.00 KiB is free. "
        f"{own}{processes}{allowed}Of the allocated memory 68.10 GiB is allocated by PyTorch, {pools.format(word=word)}and 0 bytes is reserved by PyTorch but unallocated.{TIPS[2]}"
    )
    assert message is not None
    assert message.device_kind == word.lower()
    assert (message.requested, message.total, message.free) == (
        20 * MIB,
        size("79.11 GiB"),
        512 * 1024,
    )
    assert (message.allocated, message.reserved_unallocated) == (size("68.10 GiB"), 0)
    assert message.private_pools == (size("1.25 GiB") if pools else None)
    assert message.allowed == (size("1.05 GiB") if allowed else None)
    assert len(message.processes) == others + bool(own)
    assert [process.in_use_bytes for process in message.processes if process.own] == (
        [size("70.12 GiB")] if own else []
    )
    assert message.non_torch == size("79.11 GiB") - 512 * 1024 - size("68.10 GiB")


def test_npu_has_one_field_more() -> None:
    message = read_message(
        "NPU out of memory. Tried to allocate 72.00 MiB (NPU 0; 61.27 GiB total capacity; 56.05 GiB already allocated; 56.05 GiB current active; 5.04 MiB free; 58.39 GiB reserved in total by PyTorch)If reserved memory is >> allocated memory"
    )
    assert message is not None
    assert numbers_of(message).reserved_unallocated_bytes == size("58.39 GiB") - size("56.05 GiB")
    assert message.free == size("5.04 MiB")


def test_xpu() -> None:
    message = read_message(
        "XPU out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 64.00 GiB of which 1.00 GiB is free. 60.00 GiB allowed; Of the allocated memory 59.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory."
    )
    assert message is not None
    assert (message.allowed, message.reserved_unallocated) == (60 * GIB, 512 * MIB)


def test_cuda_malloc_async_and_its_sentinel() -> None:
    seen = read_text(
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 14.25 GiB\nRequested               : 2.00 GiB\nDevice limit            : 15.77 GiB\n"
        "Free (according to CUDA): 20.31 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n"
    )
    message = seen.ooms[0].message
    assert (message.allocated, message.requested) == (size("14.25 GiB"), 2 * GIB)
    assert (message.total, message.free, message.allowed) == (
        size("15.77 GiB"),
        size("20.31 MiB"),
        None,
    )


def test_cuda_malloc_async_with_a_fraction_is_a_limit() -> None:
    seen = read_text(
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 7.00 GiB\nRequested               : 2.00 GiB\nDevice limit            : 15.77 GiB\n"
        "Free (according to CUDA): 8.00 GiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 8.00 GiB\n"
    )
    assert str(conclude(seen).verdict) == "device_limit"


NEW_FORM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 720.00 MiB. GPU 0 has a total capacity of 184.31 GiB of which 443.94 MiB is free. "
    "Of the allocated memory 171.63 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated."
)
PREFIXES = (
    "[rank7]: ",
    "[rank7]:[rank7]: ",
    "7: ",
    "[default7]:",
    "(WorkerDict pid=321, ip=10.0.0.7) ",
    "2026-01-02 03:04:05,678 ERROR ",
    "[2026-01-02T03:04:05.678901+00:00] ",
    "  traceback : ",
    "\x1b[36m(TaskRunner pid=9)\x1b[0m ",
    "7: [rank7]: ",
    "\x1b[31m\x1b[1m",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("wrap", ["whole", "after the first sentence", "everywhere"])
def test_prefixes_and_wrapping(prefix: str, wrap: str) -> None:
    text = NEW_FORM
    if wrap == "after the first sentence":
        text = text.replace("MiB. GPU", "MiB.\nGPU", 1)
    elif wrap == "everywhere":
        words = text.split(" ")
        lines = [" ".join(words[at : at + 14]) for at in range(0, len(words), 14)]
        text = "\n".join(lines)
    seen = read_text(
        "\n".join(prefix + line for line in text.split("\n")) + "\n" + prefix + "next\n"
    )
    found = conclude(seen).numbers
    assert found.requested_bytes == 720 * MIB
    assert (found.total_bytes, found.free_bytes) == (size("184.31 GiB"), size("443.94 MiB"))
    assert (found.allocated_bytes, found.reserved_unallocated_bytes) == (
        size("171.63 GiB"),
        2 * GIB,
    )
    if "7" in prefix and "rank" in prefix:
        assert conclude(seen).rank == 7


ACCOUNTS = (
    # public messages; GiB: total, free, allocated, slack, request -> reading
    (79.11, 66.51, 10.46, 0.13, 238.17, "impossible_request"),
    (287.98, 203.49, 68.63, 14.93, 0.002, "device_limit"),
    (79.11, 2.61, 48.15, 3.49, 2.63, "other_process"),
    (14.74, 2.44, 7.85, 0.08, 2.60, "other_process"),
    (251.98, 6.94, 229.04, 12.46, 11.74, "capacity"),
    (15.77, 0.50, 13.73, 0.72, 0.53, "capacity"),
    (184.31, 0.43, 171.63, 2.00, 0.70, "capacity"),
    (79.14, 0.10, 78.18, 0.07, 0.66, "capacity"),
    (79.32, 0.25, 78.58, 0.00, 0.44, "capacity"),
    (79.11, 1.00, 58.80, 18.50, 2.00, "fragmentation"),
)


@pytest.mark.parametrize("row", ACCOUNTS)
def test_the_account_decides(row: tuple[float, float, float, float, float, str]) -> None:
    total, free, allocated, slack, request, verdict = row
    text = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request * 1024:.2f} MiB. GPU 0 has a total capacity of {total:.2f} GiB of which {free:.2f} GiB is free. "
        f"Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, and {slack:.2f} GiB is reserved by PyTorch but unallocated."
    )
    assert str(conclude(read_text(text)).verdict) == verdict


def test_a_process_clause_that_is_this_process_is_nobody_else() -> None:
    text = NEW_FORM.replace(
        "Of the allocated", "Process 31 has 183.80 GiB memory in use. Of the allocated"
    )
    assert str(conclude(read_text(text)).verdict) == "capacity"


def test_the_tip_is_not_evidence_and_segments_that_are_on_are_not_advised() -> None:
    on = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    broken = NEW_FORM.replace("171.63", "140.63").replace(
        "2.00 GiB is reserved", "33.00 GiB is reserved"
    )
    advised = conclude(read_text(broken))
    assert str(advised.verdict) == "fragmentation"
    assert any("expandable_segments:True" in line for line in advised.next_actions[0].overrides)
    told = conclude(read_text(on + broken + TIPS[2]))
    assert str(told.verdict) == "fragmentation"
    assert all(
        "expandable_segments:True" not in line
        for action in told.next_actions
        for line in action.overrides
    )
