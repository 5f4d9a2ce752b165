"""Which layers each pipeline rank and model chunk holds, as Megatron splits them.

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_block.py
``get_num_layers_to_build`` and megatron/core/transformer/pipeline_parallel_layer_layout.py
``PipelineParallelLayerLayout``; the arithmetic is the same from 0.12 on.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from recompute.config.schema import JobConfig, ModelConfig
from recompute.errors import ConfigError

Cells = tuple[tuple[tuple[str, ...], ...], ...]
"""``[pp rank][chunk]`` -> the parts it holds: ``embedding``, ``decoder``, ``mtp``, ``loss``."""

SYMBOLS: Final = {"E": "embedding", "L": "loss", "t": "decoder", "m": "mtp"}
"""Symbols of a layout string such as ``Et*3|(tt|)*29,m|L``."""

PARTS: Final = frozenset({*SYMBOLS.values(), "encoder"})
MAX_LAYOUT_CHARS: Final = 100_000
"""Bound on an expanded layout; the largest published one has a few hundred symbols."""

MAX_CELLS: Final = 100_000
"""Bound on pipeline ranks times chunks."""

_GROUP: Final = re.compile(r"\(([^)]+)\)\*(\d{1,6})")
_REPEAT: Final = re.compile(r"(.)\*(\d{1,6})")


def layers_per_chunk(job: JobConfig) -> tuple[tuple[int, ...], ...]:
    """Return the decoder layers of every chunk, indexed ``[pp rank][chunk]``.

    Multi-token-prediction layers are not counted: they are a block of their own.

    Raises:
        ConfigError: ``pipeline-split`` when the layers do not divide as Megatron needs it.
    """
    model = job.model
    pattern = (model.hybrid_override_pattern or "").partition("/")[0]
    if "|" in pattern:
        return _by_separators(pattern, model.pipeline_model_parallel_size)
    if model.pipeline_model_parallel_layout is not None:
        return tuple(
            tuple(cell.count("decoder") for cell in row)
            for row in layout_cells(
                model.pipeline_model_parallel_layout, model.pipeline_model_parallel_size
            )
        )
    return _split(
        len(pattern) or model.num_layers,
        model.pipeline_model_parallel_size,
        _chunks(model),
        model.num_layers_in_first_pipeline_stage,
        model.num_layers_in_last_pipeline_stage,
        bool(model.account_for_embedding_in_pipeline_split),
        bool(model.account_for_loss_in_pipeline_split),
    )


def _by_separators(pattern: str, stages: int) -> tuple[tuple[int, ...], ...]:
    """Split a hybrid pattern at its ``|``: cells are listed chunk by chunk."""
    cells = [len(cell) for cell in pattern.split("|")]
    if stages < 1 or len(cells) % stages:
        raise _split_error(f"{len(cells)} parts of the hybrid pattern on {stages} stages")
    return tuple(tuple(cells[rank::stages]) for rank in range(stages))


def layout_cells(layout: Any, pipeline_size: int) -> Cells:
    """Return the cells of an explicit layout, as a string or as a list of lists of part names.

    Args:
        layout: ``model.pipeline_model_parallel_layout``; cells are listed chunk by chunk.
        pipeline_size: ``pipeline_model_parallel_size``.

    Raises:
        ConfigError: ``pipeline-layout`` for an unknown symbol, a wrong type or a length that is no
            multiple of ``pipeline_size``.
    """
    flat = _parse(layout) if isinstance(layout, str) else _named(layout)
    if pipeline_size < 1 or len(flat) % pipeline_size:
        raise ConfigError(
            "pipeline-layout",
            f"pipeline_model_parallel_layout has {len(flat)} cells, which is not a multiple of "
            f"pipeline_model_parallel_size={pipeline_size}",
            hint="give one cell for each pipeline rank and chunk",
        )
    chunks = len(flat) // pipeline_size
    return tuple(
        tuple(flat[chunk * pipeline_size + rank] for chunk in range(chunks))
        for rank in range(pipeline_size)
    )


def chunk_count(model: ModelConfig) -> int:
    """Return the model chunks per pipeline rank (1 without interleaving)."""
    if model.pipeline_model_parallel_layout is not None:
        cells = layout_cells(
            model.pipeline_model_parallel_layout, model.pipeline_model_parallel_size
        )
        return len(cells[0])
    return _chunks(model)


def _chunks(model: ModelConfig) -> int:
    virtual = model.virtual_pipeline_model_parallel_size
    return virtual if virtual is not None and model.pipeline_model_parallel_size > 1 else 1


@functools.lru_cache(maxsize=4096)
def _split(  # noqa: PLR0917 - positional for the cache
    layers: int,
    stages: int,
    chunks: int,
    first: int | None,
    last: int | None,
    embedding: bool,
    loss: bool,
) -> tuple[tuple[int, ...], ...]:
    if stages < 1 or chunks < 1 or stages * chunks > MAX_CELLS:
        raise _split_error(f"{stages} stages of {chunks} chunks are not between 1 and {MAX_CELLS}")
    if first is None and last is None:
        per_stage = [_even(layers + embedding + loss, stages, "layers")] * stages
    else:
        per_stage = _uneven(layers, stages, first, last)
    grid = [[_even(count, chunks, "layers of a stage")] * chunks for count in per_stage]
    grid[0][0] -= embedding
    grid[-1][-1] -= loss
    if min(map(min, grid)) < 0:
        raise _split_error(
            f"{layers} layers leave none for the embedding or loss on {stages} stages of "
            f"{chunks} chunks"
        )
    return tuple(tuple(row) for row in grid)


def _uneven(layers: int, stages: int, first: int | None, last: int | None) -> list[int]:
    given = [count for count in (first, last) if count is not None]
    middle = stages - len(given)
    rest = layers - sum(given)
    if min(given) < 1 or middle < 0 or rest < 0 or (rest == 0) != (middle == 0):
        raise _split_error(
            f"{layers} layers on {stages} stages do not allow first={first} and last={last}"
        )
    counts = [_even(rest, middle, "layers of the middle stages") if middle else 0] * stages
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    return counts


def _even(count: int, parts: int, what: str) -> int:
    if count < 0 or count % parts:
        raise _split_error(f"{count} {what} do not divide by {parts}")
    return count // parts


def _split_error(message: str) -> ConfigError:
    return ConfigError(
        "pipeline-split",
        f"the layers do not split over the pipeline: {message}",
        hint="choose pipeline and virtual pipeline sizes that divide, uneven first and last "
        "stages, or a pipeline_model_parallel_layout",
    )


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> tuple[tuple[str, ...], ...]:
    expanded = text.replace(",", "")
    for pattern in (_GROUP, _REPEAT):
        expanded = _expand(pattern, expanded)
    unknown = set(expanded) - set(SYMBOLS) - {"|"}
    if unknown:
        raise ConfigError(
            "pipeline-layout",
            f"pipeline_model_parallel_layout holds unknown symbols {sorted(unknown)}",
            hint="use E embedding, t decoder layer, m MTP layer, L loss, | between cells",
        )
    return tuple(tuple(SYMBOLS[symbol] for symbol in cell) for cell in expanded.split("|"))


def _expand(pattern: re.Pattern[str], text: str) -> str:
    if sum(len(m[1]) * int(m[2]) for m in pattern.finditer(text)) + len(text) > MAX_LAYOUT_CHARS:
        raise ConfigError(
            "pipeline-layout",
            f"pipeline_model_parallel_layout expands past {MAX_LAYOUT_CHARS} symbols",
            hint="a layout has one symbol for each layer",
        )
    return pattern.sub(lambda match: match[1] * int(match[2]), text)


def _named(layout: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(layout, list | tuple) or not all(
        isinstance(cell, list | tuple) and all(isinstance(part, str) for part in cell)
        for cell in layout
    ):
        raise ConfigError(
            "pipeline-layout",
            "pipeline_model_parallel_layout must be a string or a list of lists of names",
            hint='for example "Et*3|t*4|t*4|t*3L" or [["embedding", "decoder"], ["decoder", "loss"]]',
        )
    cells = tuple(tuple(part.strip().lower() for part in cell) for cell in layout)
    unknown = {part for cell in cells for part in cell} - PARTS
    if unknown:
        raise ConfigError(
            "pipeline-layout",
            f"pipeline_model_parallel_layout holds unknown parts {sorted(unknown)}",
            hint="known parts: " + ", ".join(sorted(PARTS)),
        )
    return cells
