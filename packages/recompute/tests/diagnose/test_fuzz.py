"""Whatever comes in, only our own errors come out."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recompute.diagnose.conclude import conclude
from recompute.diagnose.inputs import sniff
from recompute.diagnose.logs import read_text
from recompute.diagnose.phrases import read_phrases
from recompute.diagnose.prefixes import read_line
from recompute.diagnose.run import diagnose
from recompute.diagnose.snapshot.structure import from_tree
from recompute.diagnose.snapshot.unpickle import PickleMachine
from recompute.errors import RecomputeError

from .reported_cases import CASES
from .torch_snapshots import Model, train

RUNS = int(os.environ.get("RECOMPUTE_FUZZ", "150"))
"""Examples of each test; the nightly target sets a million."""
SMALL = settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck))

PIECES = (
    *(case.error for case in CASES),
    *(case.report for case in CASES),
    "Traceback (most recent call last):",
    '  File "/a/megatron/core/transformer/mlp.py", line 1, in forward',
    " iteration 3/ 10 | elapsed time per iteration (ms): 9.0 |",
    "[Rank 1] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 1e9 | x: y",
    "------------------------ arguments ------------------------",
    "  num_layers ...................................... 4",
    "_target_: megatron.bridge.training.config.ConfigContainer",
    "[model] Non-default values (vs Mcore GPTConfig):",
    "[rank7]: ",
    "\x1b[31m",
    "\x00",
    "(WorkerDict pid=1) ",
    "9" * 400,
    "1e400",
    "CUDA out of memory. Tried to allocate 1.",
)
lines = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=80)), max_size=30)


@SMALL
@given(lines, st.sampled_from(["\n", "", " ", "\r\n", "\n[rank3]: "]))
def test_any_log_gets_an_answer(parts: list[str], joint: str) -> None:
    found = conclude(read_text(joint.join(parts)))
    assert found.next_actions
    assert set(found.to_document()["numbers"]) == {
        "requested_bytes",
        "total_bytes",
        "free_bytes",
        "allocated_bytes",
        "reserved_unallocated_bytes",
        "private_pool_bytes",
        "non_torch_bytes",
    }
    assert all(item.line >= 1 and len(item.text) <= 400 for item in found.evidence)


@SMALL
@given(st.binary(max_size=3000))
def test_any_bytes_get_an_answer_or_our_error(data: bytes) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp"), f"recompute-fuzz-{os.getpid()}")
    path.write_bytes(data)
    try:
        with contextlib.suppress(RecomputeError):
            diagnose((str(path),))
    finally:
        path.unlink()


SNAPSHOT = pickle.dumps(train(Model(layers=1), steps=1).snapshot())


@SMALL
@given(
    st.lists(st.tuples(st.integers(0, len(SNAPSHOT) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, len(SNAPSHOT)),
)
def test_a_damaged_snapshot_is_our_error_or_a_snapshot(
    edits: list[tuple[int, int]], keep: int
) -> None:
    data = bytearray(SNAPSHOT)
    for position, byte in edits:
        data[position] = byte
    piece = bytes(data[:keep]) if keep % 5 == 0 else bytes(data)
    with contextlib.suppress(RecomputeError):
        from_tree(PickleMachine(piece, "fuzz").load(), "fuzz")


OPCODES = b"\x80\x04.()]}NKMJX\x8c\x85\x86\x87\x88\x89\x94hjqratsude01lGIFLVUTCB\x8a\x8b\x8d\x8e\x95cioRbQP\x81\x92\x93\x82"


@SMALL
@given(
    st.lists(
        st.one_of(st.sampled_from([bytes([code]) for code in OPCODES]), st.binary(max_size=5)),
        max_size=40,
    )
)
def test_any_program_of_opcodes_is_our_error_or_a_value(program: list[bytes]) -> None:
    try:
        value = PickleMachine(b"".join(program) + b".", "fuzz").load()
    except RecomputeError:
        return
    assert isinstance(value, dict | list | tuple | str | bytes | int | float | bool | type(None))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 1 << 66), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                [
                    "segments",
                    "device_traces",
                    "action",
                    "addr",
                    "size",
                    "frames",
                    "blocks",
                    "total_size",
                    "state",
                    "filename",
                    "line",
                    "name",
                ]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@SMALL
@given(json_values)
def test_any_tree_is_a_snapshot_or_our_error(value: object) -> None:
    with contextlib.suppress(RecomputeError):
        from_tree(value, "fuzz")


@SMALL
@given(st.text(max_size=300))
def test_lines_and_sentences_are_read_without_error(text: str) -> None:
    line = read_line(text, 1)
    assert len(line.text) <= len(line.raw)
    read_phrases(text, 1)
    sniff(text.encode("utf-8", "surrogatepass"))
