"""How evenly a fresh Moonlight routes mock data: the first steps of a run, before anything is learnt.

::

    python benchmarks/initial_routing.py [--seeds 4]

Builds one layer after another with Megatron's initial weights (normal, 0.02; the matrices into the residual stream
0.02 / sqrt(2 x layers)), sends four sequences of Megatron's mock data through, and counts what each of eight expert
ranks gets. Needs a GPU with 8 GiB and PyTorch, nothing else; ten seconds on an H200. It says whether the peaks of a
study's first steps can be uneven routing (docs/explanation/memory-model.md).

Sources: NVIDIA/Megatron-LM 24bad8e6 megatron/core/datasets/gpt_dataset.py ``MockGPTLowLevelDataset``,
megatron/core/transformer/transformer_config.py ``init_method``, megatron/core/transformer/moe/router.py
``TopKRouter``; sizes of examples/moonlight-16b-study/job.yaml.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

LAYERS: Final = 27
HIDDEN: Final = 2048
HEADS: Final = 16
LATENT, PLAIN, ROTARY, VALUE = 512, 128, 64, 128
"""Widths of the key and value latent, of a head's plain and rotary query, of its value."""
DENSE, ROUTED, SHARED = 11264, 1408, 2816
"""Widths of the dense layer's, a routed expert's and the shared experts' activation."""
EXPERTS, TOPK, RANKS = 64, 6, 8
SCALING: Final = 2.446
VOCABULARY: Final = 163840
SEQUENCE: Final = 4096
STD: Final = 0.02
DEVICE: Final = "cuda"


def weight(outputs: int, inputs: int, *, residual: bool = False) -> Tensor:
    """Return a fresh matrix; ``residual``: one whose output joins the residual stream."""
    std = STD / math.sqrt(2 * LAYERS) if residual else STD
    empty = torch.empty(outputs, inputs, device=DEVICE, dtype=torch.bfloat16)
    return empty.normal_(0, std)


def mock_tokens(sequences: int, seed: int) -> Tensor:
    """Return ``[sequences, SEQUENCE]`` tokens, cut from shuffled documents of 1, 2, 3, ... and an end."""
    lengths = np.random.default_rng(0).integers(1, 4096, 100000, dtype=np.int32)
    order = np.random.default_rng(seed).permutation(len(lengths))[: sequences * 64]
    stream = np.concatenate(
        [np.append(np.arange(lengths[i] - 1) + 1, VOCABULARY - 1) for i in order]
    )
    starts = np.random.default_rng(seed + 1).permutation(len(stream) // SEQUENCE)[:sequences]
    return torch.tensor(np.stack([stream[s * SEQUENCE :][:SEQUENCE] for s in starts]))


def norm(x: Tensor) -> Tensor:
    """Return RMSNorm with a weight of one."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (wide * scale).to(x.dtype)


def rotated(x: Tensor) -> Tensor:
    """Return rotary positions applied over ``[..., SEQUENCE, ROTARY]``, base 50,000."""
    steps = torch.arange(0, ROTARY, 2, device=DEVICE).float() / ROTARY
    angles = torch.arange(SEQUENCE, device=DEVICE).float()[:, None] / 50000**steps
    one, two = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x.dtype)


def attention(x: Tensor) -> Tensor:
    """Return multi-latent attention of the normed stream ``[batch, SEQUENCE, HIDDEN]``."""
    batch = x.shape[0]

    def heads(flat: Tensor) -> Tensor:
        return flat.view(batch, SEQUENCE, HEADS, -1).transpose(1, 2)

    query = heads(x @ weight(HEADS * (PLAIN + ROTARY), HIDDEN).T)
    latent = x @ weight(LATENT + ROTARY, HIDDEN).T
    up = heads(norm(latent[..., :LATENT]) @ weight(HEADS * (PLAIN + VALUE), LATENT).T)
    shared = rotated(latent[..., None, :, LATENT:]).expand(batch, HEADS, SEQUENCE, ROTARY)
    query = torch.cat([query[..., :PLAIN], rotated(query[..., PLAIN:])], -1)
    key = torch.cat([up[..., :PLAIN], shared], -1)
    mixed = functional.scaled_dot_product_attention(query, key, up[..., PLAIN:], is_causal=True)
    flat = mixed.transpose(1, 2).reshape(batch, SEQUENCE, HEADS * VALUE)
    return flat @ weight(HIDDEN, HEADS * VALUE, residual=True).T


def mlp(x: Tensor, width: int) -> Tensor:
    """Return a gated MLP of fresh weights."""
    gate, up = (x @ weight(2 * width, HIDDEN).T).chunk(2, -1)
    return (functional.silu(gate) * up) @ weight(HIDDEN, width, residual=True).T


def mixture(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mixture of experts of ``[tokens, HIDDEN]``, and the tokens that each expert got."""
    scores = torch.sigmoid(x.float() @ weight(EXPERTS, HIDDEN).float().T)
    best, chosen = scores.topk(TOPK, -1)
    shares = (best / best.sum(-1, keepdim=True) * SCALING).to(x.dtype)
    out = mlp(x, SHARED)
    for expert in range(EXPERTS):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        out.index_add_(0, token, mlp(x[token], ROUTED) * shares[token, place][:, None])
    return out, torch.bincount(chosen.flatten(), minlength=EXPERTS)


@torch.no_grad()
def loads(seed: int) -> np.ndarray:
    """Return ``[layer, rank]``: tokens of an expert rank over an equal share."""
    torch.manual_seed(seed)
    x = weight(VOCABULARY, HIDDEN)[mock_tokens(4, seed).to(DEVICE)]
    rows = []
    for layer in range(LAYERS):
        x = x + attention(norm(x))
        if layer == 0:
            x = x + mlp(norm(x), DENSE)
            continue
        out, counts = mixture(norm(x).reshape(-1, HIDDEN))
        x = x + out.view_as(x)
        ranks = counts.view(RANKS, -1).sum(1).float()
        rows.append((ranks / ranks.mean()).cpu().numpy())
    return np.stack(rows)


def main() -> None:
    """Print the hottest rank over all layers, and the hottest rank of any layer, for each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    for seed in range(parser.parse_args().seeds):
        found = loads(seed)
        print(
            f"seed {seed}: hottest rank {found.mean(0).max():.3f} of an equal share over all layers, "
            f"{found.max():.2f} in its hottest layer"
        )


if __name__ == "__main__":
    main()
