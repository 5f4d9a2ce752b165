from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recompute.units import GIB, MIB, exact_size, parse_bytes


@given(st.integers(0, 1 << 50) | st.integers(0, 1 << 20).map(lambda n: n * MIB))
def test_a_size_for_a_command_line_reads_back_to_the_same_bytes(size: int) -> None:
    assert parse_bytes(exact_size(size)) == size


def test_round_sizes_are_written_as_people_do() -> None:
    assert exact_size(20 * GIB) == "20GiB"
    assert exact_size(76 * GIB + GIB // 2) == "76.5GiB"
    assert exact_size(512 * MIB) == "512MiB"
    assert exact_size(85 * 10**9 + 1) == "85000000001"
