"""Megatron Bridge's own training loop with the probe as its callback: an entry for ``recompute measure``.

usage: recompute measure benchmarks/studies/bridge.yaml --out LEDGER --candidates mlp --launcher torchrun \
    --entry "benchmarks/studies/bridge_loop.py benchmarks/studies/bridge.yaml"

The config is a plain GPT on Bridge's mock data; the fields of the job file and the overrides of the
candidate are put on it by Bridge's own reader of overrides. What is ours in the loop is the callback. Needs
Megatron Bridge 0.6 with what it imports.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

from recompute.megatron import MemoryProbe

OURS = ("hardware", "framework")
"""Sections of a job file that Bridge does not have."""


def overrides_of(path: str) -> list[str]:
    """Return the fields of a job file as overrides."""
    sections: dict[str, Any] = yaml.safe_load(Path(path).read_text("utf-8"))
    kept = {name: fields for name, fields in sections.items() if name not in OURS}
    plain = [f"{name}={fields}" for name, fields in kept.items() if not isinstance(fields, dict)]
    return plain + [
        f"{section}.{name}={value}"
        for section, fields in kept.items()
        if isinstance(fields, dict)
        for name, value in fields.items()
    ]


def plain() -> ConfigContainer:
    """Return a config whose model and sizes the job file gives."""
    return ConfigContainer(
        model=GPTModelProvider(),
        train=TrainingConfig(train_iters=1, global_batch_size=1, micro_batch_size=1),
        validation=ValidationConfig(eval_interval=1000, eval_iters=1),
        optimizer=OptimizerConfig(
            optimizer="adam", lr=1e-5, min_lr=1e-6, bf16=True, use_distributed_optimizer=True
        ),
        scheduler=SchedulerConfig(
            lr_decay_style="constant",
            lr_warmup_iters=0,
            start_weight_decay=0.01,
            end_weight_decay=0.01,
        ),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=True, grad_reduce_in_fp32=True, check_for_nan_in_grad=True
        ),
        dataset=MockGPTDatasetConfig(
            random_seed=1234,
            seq_length=1,
            dataloader_type="single",
            num_workers=0,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        logger=LoggerConfig(log_interval=1, tensorboard_dir=None),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=1),
        checkpoint=CheckpointConfig(save=None, load=None),
        rng=RNGConfig(seed=1234),
        mixed_precision="bf16_mixed",
    )


def main() -> None:
    """Train as the job file and the command line say."""
    words = [*overrides_of(sys.argv[1]), *sys.argv[2:]]
    config = process_config_with_overrides(plain(), cli_overrides=words)
    config.tokenizer.vocab_size = config.model.vocab_size - 1  # and the end of a document
    pretrain(config, forward_step, callbacks=[MemoryProbe()])


if __name__ == "__main__":
    main()
