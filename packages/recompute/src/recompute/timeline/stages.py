"""Which layers each pipeline rank and chunk runs, by kind."""

from __future__ import annotations

from dataclasses import dataclass

from recompute.config.pipeline import layers_per_chunk, layout_cells
from recompute.config.schema import JobConfig
from recompute.model.layer import layer_kinds, mtp_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLayer:
    """A layer and its global number, from 0; MTP layers continue after the decoder."""

    number: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One model chunk of one pipeline rank."""

    layers: tuple[PlacedLayer, ...]
    embedding: bool
    head: bool
    mtp: tuple[PlacedLayer, ...] = ()
    """Multi-token-prediction depths, between the layers and the head."""
    final_norm: bool = False
    """The decoder's last layer is here, and its norm apart from the head: with multi-token prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline rank: its chunks in virtual order."""

    pp: int
    chunks: tuple[Chunk, ...]

    @property
    def layers(self) -> tuple[PlacedLayer, ...]:
        """Every layer of the rank, multi-token-prediction depths included."""
        return tuple(x for chunk in self.chunks for x in (*chunk.layers, *chunk.mtp))

    def runs_back_at_once(self, chunk: Chunk) -> bool:
        """Say whether backward of a chunk's last layer follows its forward: the last one before the head."""
        return self.has_head and chunk is next((c for c in reversed(self.chunks) if c.layers), None)

    @property
    def has_mtp(self) -> bool:
        """Say whether this rank predicts further tokens, for which it embeds them."""
        return any(chunk.mtp for chunk in self.chunks)

    @property
    def has_embedding(self) -> bool:
        """Say whether this rank embeds tokens."""
        return any(chunk.embedding for chunk in self.chunks)

    @property
    def has_head(self) -> bool:
        """Say whether this rank computes the loss."""
        return any(chunk.head for chunk in self.chunks)


def stages_of(job: JobConfig) -> tuple[Stage, ...]:
    """Place every layer. Chunks are filled chunk by chunk over the ranks, as the model runs.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_layer.py
    get_transformer_layer_offset.
    """
    counts = layers_per_chunk(job)
    ends = _ends(job, len(counts), len(counts[0]))
    kinds = layer_kinds(job.model)
    depths = _depths(job, len(kinds))
    placed: dict[tuple[int, int], tuple[PlacedLayer, ...]] = {}
    number = 0
    for chunk in range(len(counts[0])):
        for pp, row in enumerate(counts):
            span = range(number, number + row[chunk])
            placed[pp, chunk] = tuple(PlacedLayer(number=n, kind=kinds[n]) for n in span)
            number += row[chunk]
    last = next(
        (cell for cell, layers in placed.items() if layers and layers[-1].number == number - 1),
        None,
    )
    return tuple(
        Stage(
            pp=pp,
            chunks=tuple(
                Chunk(
                    layers=placed[pp, chunk],
                    final_norm=bool(depths) and (pp, chunk) == last,
                    embedding=(pp, chunk) == ends[0],
                    head=(pp, chunk) == ends[1],
                    mtp=depths if (pp, chunk) == ends[2] else (),
                )
                for chunk in range(len(row))
            ),
        )
        for pp, row in enumerate(counts)
    )


def _depths(job: JobConfig, first: int) -> tuple[PlacedLayer, ...]:
    """Return the multi-token-prediction depths, numbered after the decoder."""
    count = job.model.mtp_num_layers or 0
    if not count:
        return ()
    kind = mtp_kind(job.model)
    return tuple(PlacedLayer(number=first + depth, kind=kind) for depth in range(count))


Cell = tuple[int, int]
"""Pipeline rank and chunk."""


def _ends(job: JobConfig, ranks: int, chunks: int) -> tuple[Cell, Cell, Cell]:
    """Return the cells of embedding, loss and MTP: the outer ones, or where a layout says."""
    layout = job.model.pipeline_model_parallel_layout
    first, last = (0, 0), (ranks - 1, chunks - 1)
    if layout is None:
        return first, last, last
    cells = layout_cells(layout, ranks)
    where = {
        part: (pp, chunk)
        for pp, row in enumerate(cells)
        for chunk, cell in enumerate(row)
        for part in cell
    }
    loss = where.get("loss", last)
    return where.get("embedding", first), loss, where.get("mtp", loss)
