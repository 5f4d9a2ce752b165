"""The fused cross entropy as torch compiles it: what its backward allocates."""

from __future__ import annotations

import re

import torch
from megatron.core.fusions import fused_cross_entropy
from torch._inductor.utils import run_and_get_code

ROWS, VOCAB = 64, 2048


def test_the_compiled_backward_allocates_an_fp32_copy_beside_the_gradient() -> None:
    softmax = torch.rand(ROWS, 1, VOCAB)
    targets = torch.randint(0, VOCAB, (ROWS,))
    mask = torch.zeros(ROWS, 1, dtype=torch.bool)
    with torch.no_grad():
        gradient, (code, *_) = run_and_get_code(
            fused_cross_entropy.calculate_gradients, softmax, torch.ones(ROWS, 1), mask, targets
        )
    assert gradient.dtype is torch.bfloat16
    made = re.findall(r"= empty_strided_cpu\(\(([\d, ]+)\), [^)]+\), torch\.(\w+)\)", code)
    sizes = [
        (torch.Size(int(n) for n in shape.split(",") if n.strip()).numel(), kind)
        for shape, kind in made
    ]
    assert sorted(sizes) == [(ROWS * VOCAB, "bfloat16"), (ROWS * VOCAB, "float32")]
