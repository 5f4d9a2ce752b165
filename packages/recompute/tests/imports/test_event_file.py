"""Event files that the real TensorBoard wrote, and files that nobody should have."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.errors import InputError
from recompute.imports import event_file
from recompute.imports.event_file import events_of, masked_crc, read_event_file
from recompute.imports.series import TAGS

DATA = Path(__file__).parent / "data"
MEGATRON = DATA / "events.out.tfevents.megatron-lm"
BRIDGE = DATA / "events.out.tfevents.bridge"


def record(data: bytes) -> bytes:
    """Frame data as TensorBoard does."""
    length = struct.pack("<Q", len(data))
    checks = (struct.pack("<I", masked_crc(part)) for part in (length, data))
    return length + next(checks) + data + next(checks)


def test_scalars_of_megatron_lm() -> None:
    found = read_event_file(str(MEGATRON), TAGS)
    times = {s.step: s.value for s in found.scalars if s.tag == "iteration-time"}
    assert times == pytest.approx({n: 3.0 if n == 1 else 0.5 + 0.001 * n for n in range(1, 13)})
    peaks = [s.value for s in found.scalars if s.tag == "mem-max-allocated-bytes"]
    assert peaks == pytest.approx([20e9] + [24e9] * 11)
    assert {s.tag for s in found.scalars} <= set(TAGS)
    assert not found.torn


def test_tensors_of_bridge() -> None:
    found = read_event_file(str(BRIDGE), TAGS)
    values = {s.tag: s.value for s in found.scalars}
    assert values["memory/mem-max-allocated-gigabytes"] == pytest.approx(21.5)
    assert values["iteration-time"] == pytest.approx(0.6)
    assert len(found.scalars) == 48


def test_the_checksum_is_castagnolis() -> None:
    """The value is that of RFC 3720, B.4 (32 bytes of zeros), masked as TensorFlow does."""
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.integers(0, MEGATRON.stat().st_size))
@settings(deadline=None)
def test_a_file_that_is_cut_off_gives_what_came_before(size: int) -> None:
    whole = MEGATRON.read_bytes()
    found, every = (events_of(data, TAGS, "x") for data in (whole[:size], whole))
    assert found.scalars == every.scalars[: len(found.scalars)]
    assert found.torn == _inside(whole, size)


def _inside(data: bytes, size: int) -> bool:
    """Say whether a place is within a record."""
    at = 0
    while at < size:
        at += 16 + int(struct.unpack_from("<Q", data, at)[0])
    return at != size


@given(st.integers(0, MEGATRON.stat().st_size - 1), st.integers(1, 255))
@settings(deadline=None)
def test_a_byte_that_changed_is_noticed(at: int, flip: int) -> None:
    data = bytearray(MEGATRON.read_bytes())
    data[at] ^= flip
    with pytest.raises(InputError) as error:
        events_of(bytes(data), TAGS, "x")
    assert error.value.code == "bad-event-file"


@given(st.binary(max_size=400))
def test_no_message_brings_a_traceback(data: bytes) -> None:
    """Checksums are right, what they protect is anything; the refusal is the only way out but reading."""
    with contextlib.suppress(InputError):
        assert not events_of(record(data), TAGS, "x").torn


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not an event file at all", "checksum of a length"),
        (
            struct.pack("<QI", 1 << 60, masked_crc(struct.pack("<Q", 1 << 60))),
            "a record of 1152921504606846976 bytes",
        ),
        (record(b"\x2a\xff\xff\xff\xff\x0f"), "longer than its message"),
        (record(b"\x0b"), "field of kind 3"),
        (record(b"\xff" * 11), "more than ten bytes"),
        (record(b"\x80"), "no event"),
    ],
)
def test_what_is_refused_says_where(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        read_event_file(str(path), TAGS)
    assert error.value.code == "bad-event-file"
    assert reason in error.value.message


def test_sizes_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "MAX_BYTES", 1000)
    with pytest.raises(InputError, match="larger than 1000 bytes"):
        read_event_file(str(MEGATRON), TAGS)
    monkeypatch.undo()
    monkeypatch.setattr(event_file, "MAX_SCALARS", 5)
    with pytest.raises(InputError, match="more than 5 values"):
        read_event_file(str(MEGATRON), TAGS)
