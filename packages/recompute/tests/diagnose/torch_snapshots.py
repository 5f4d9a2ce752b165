"""Snapshots in torch's own structure, recorded from a small simulated training run.

The simulated allocator and model stand in for a GPU: layers of a GPT with separate norms, unfused
attention, and an MLP or experts, one micro-batch a step, with the replay that a label brings. What the
simulated run with a label peaks at is the truth that the counterfactual replay is held against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
ROOT = "/opt/megatron/"
TRAIN = [
    ("megatron/core/pipeline_parallel/schedules.py", 300, "forward_step"),
    ("megatron/training/training.py", 1400, "train_step"),
    ("pretrain_gpt.py", 20, "<module>"),
]
GPT = [("megatron/core/models/gpt/gpt_model.py", 200, "forward"), *TRAIN]
BLOCK = [("megatron/core/transformer/transformer_block.py", 500, "forward"), *GPT]
LAYER = [("megatron/core/transformer/transformer_layer.py", 400, "forward"), *BLOCK]
NORM1 = [
    ("megatron/core/transformer/torch_norm.py", 10, "forward"),
    ("megatron/core/transformer/transformer_layer.py", 430, "_forward_attention"),
    *LAYER,
]
NORM2 = [
    ("megatron/core/transformer/torch_norm.py", 10, "forward"),
    ("megatron/core/transformer/transformer_layer.py", 530, "_forward_mlp"),
    *LAYER,
]
ATTENTION = [
    ("megatron/core/transformer/attention.py", 700, "forward"),
    ("megatron/core/transformer/transformer_layer.py", 450, "_forward_attention"),
    *LAYER,
]
QKV = [
    ("megatron/core/tensor_parallel/layers.py", 900, "forward"),
    ("megatron/core/transformer/attention.py", 800, "get_query_key_value_tensors"),
    *ATTENTION,
]
CORE = [("megatron/core/transformer/dot_product_attention.py", 150, "forward"), *ATTENTION]
PROJ = [("megatron/core/tensor_parallel/layers.py", 1100, "forward"), *ATTENTION]
ADD = [
    ("megatron/core/fusions/fused_bias_dropout.py", 30, "_bias_dropout_add_func"),
    ("megatron/core/transformer/transformer_layer.py", 470, "_forward_attention"),
    *LAYER,
]
ADD2 = [
    ("megatron/core/fusions/fused_bias_dropout.py", 30, "_bias_dropout_add_func"),
    ("megatron/core/transformer/transformer_layer.py", 570, "_forward_mlp"),
    *LAYER,
]
MLP = [
    ("megatron/core/transformer/mlp.py", 120, "forward"),
    ("megatron/core/transformer/transformer_layer.py", 540, "_run_mlp"),
    *LAYER,
]
FC1 = [("megatron/core/tensor_parallel/layers.py", 905, "forward"), *MLP]
ACT = [("megatron/core/fusions/fused_bias_gelu.py", 12, "bias_gelu"), *MLP]
FC2 = [("megatron/core/tensor_parallel/layers.py", 1105, "forward"), *MLP]
LOGITS = [
    ("megatron/core/tensor_parallel/layers.py", 901, "forward"),
    ("megatron/core/models/gpt/gpt_model.py", 260, "_postprocess"),
    *GPT,
]
LOSS = [
    ("megatron/core/tensor_parallel/cross_entropy.py", 120, "forward"),
    ("megatron/core/models/gpt/gpt_model.py", 280, "compute_language_model_loss"),
    *GPT,
]
OPTIMIZER = [
    ("torch/optim/adam.py", 120, "_init_group"),
    ("megatron/core/optimizer/optimizer.py", 600, "step"),
    *TRAIN[1:],
]
PARAMETERS = [
    ("megatron/core/tensor_parallel/layers.py", 50, "__init__"),
    ("megatron/training/training.py", 700, "get_model"),
]
BACKWARD = [
    ("torch/autograd/graph.py", 800, "_engine_run_backward"),
    ("torch/autograd/__init__.py", 300, "backward"),
    ("megatron/core/pipeline_parallel/schedules.py", 400, "backward_step"),
]


@dataclass
class Recorder:
    """A caching allocator that keeps torch's history."""

    events: list[dict[str, Any]] = field(default_factory=list)
    alive: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    allocated: int = 0
    peak: int = 0
    next_address: int = 0x7F0000000000
    frames: dict[tuple[str, int, str], dict[str, Any]] = field(default_factory=dict)

    def stack(self, stack: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
        """Return frames as torch writes them, each frame one shared dictionary."""
        return [
            self.frames.setdefault(
                frame, {"filename": ROOT + frame[0], "line": frame[1], "name": frame[2]}
            )
            for frame in stack
        ]

    def alloc(self, size: int, stack: list[tuple[str, int, str]]) -> int:
        """Allocate and record."""
        address, frames = self.next_address, self.stack(stack)
        self.next_address += size + 512
        self.alive[address] = (size, frames)
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self._event("alloc", address, size, frames)
        return address

    def free(self, address: int) -> None:
        """Free and record, requested and completed."""
        size, _ = self.alive.pop(address)
        self.allocated -= size
        self._event("free_requested", address, size, [])
        self._event("free_completed", address, size, [])

    def oom(self, size: int, free: int, stack: list[tuple[str, int, str]]) -> None:
        """Record a failure."""
        entry = {
            "action": "oom",
            "addr": free,
            "device_free": free,
            "size": size,
            "stream": 0,
            "time_us": len(self.events),
            "frames": self.stack(stack),
        }
        self.events.append(entry)

    def _event(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": 1000 + len(self.events),
                "frames": frames,
            }
        )

    def snapshot(self) -> dict[str, Any]:
        """Return what ``torch.cuda.memory._snapshot()`` returns."""
        blocks = [
            {
                "address": address,
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
                "frames": frames,
            }
            for address, (size, frames) in self.alive.items()
        ]
        hole = {
            "address": self.next_address,
            "size": 64 * MIB,
            "requested_size": 0,
            "state": "inactive",
            "frames": [],
        }
        total = sum(block["size"] for block in blocks) + hole["size"]
        segment = {
            "device": 0,
            "address": 0x7F0000000000,
            "total_size": total,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "allocated_size": total - hole["size"],
            "active_size": total - hole["size"],
            "requested_size": total - hole["size"],
            "frames": [],
            "blocks": [*blocks, hole],
        }
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}
        return {
            "segments": [segment],
            "device_traces": [self.events],
            "allocator_settings": settings,
            "external_annotations": [],
        }


@dataclass(frozen=True)
class Model:
    """Sizes of a layer's tensors, bytes."""

    layers: int = 4
    hidden: int = 8 * MIB
    scores: int = 48 * MIB
    ffn: int = 32 * MIB
    logits: int = 40 * MIB
    parameters: int = 100 * MIB
    label: str | None = None
    leak: int = 0


def train(model: Model, steps: int = 2, recorder: Recorder | None = None) -> Recorder:
    """Run some steps; the recording begins before the model is built."""
    recorder = recorder or Recorder()
    recorder.alloc(model.parameters, PARAMETERS)
    states: list[int] = []
    for _ in range(steps):
        _step(model, recorder)
        if not states:
            states = [recorder.alloc(2 * model.parameters, OPTIMIZER)]
        else:
            recorder.free(recorder.alloc(MIB, OPTIMIZER))
        if model.leak:
            recorder.alloc(model.leak, LOSS)
    return recorder


def _step(model: Model, recorder: Recorder) -> None:
    hidden = recorder.alloc(model.hidden, GPT)
    saved = [_forward(model, recorder, hidden) for _ in range(model.layers)]
    logits = recorder.alloc(model.logits, LOGITS)
    loss = recorder.alloc(2 * model.logits, LOSS)
    grad = recorder.alloc(model.logits, BACKWARD)
    recorder.free(loss)
    recorder.free(logits)
    gradient = recorder.alloc(model.hidden, BACKWARD)
    recorder.free(grad)
    for layer in reversed(saved):
        gradient = _backward(model, recorder, layer, gradient)
    recorder.free(gradient)
    recorder.free(hidden)


def _forward(model: Model, recorder: Recorder, _hidden: int) -> dict[str, int]:
    """One layer; returns what backward needs by name."""
    keep: dict[str, int] = {}
    keep["norm1"] = recorder.alloc(model.hidden, NORM1)
    keep["qkv"] = recorder.alloc(3 * model.hidden, QKV)
    keep.update(_core(model, recorder))
    if model.label == "core_attn":
        for name in ("scores", "probs"):
            recorder.free(keep.pop(name))
    out = recorder.alloc(model.hidden, PROJ)
    keep["residual1"] = recorder.alloc(model.hidden, ADD)
    recorder.free(out)
    if model.label == "layernorm":
        recorder.free(keep.pop("norm1"))
    keep["norm2"] = recorder.alloc(model.hidden, NORM2)
    keep.update(_mlp(model, recorder))
    if model.label == "mlp":
        for name in ("fc1", "act"):
            recorder.free(keep.pop(name))
    out = recorder.alloc(model.hidden, FC2)
    keep["residual2"] = recorder.alloc(model.hidden, ADD2)
    recorder.free(out)
    if model.label == "layernorm":
        recorder.free(keep.pop("norm2"))
    return keep


def _core(model: Model, recorder: Recorder) -> dict[str, int]:
    scores = recorder.alloc(model.scores, CORE)
    probs = recorder.alloc(model.scores, CORE)
    context = recorder.alloc(model.hidden, CORE)
    return {"scores": scores, "probs": probs, "context": context}


def _mlp(model: Model, recorder: Recorder) -> dict[str, int]:
    return {"fc1": recorder.alloc(model.ffn, FC1), "act": recorder.alloc(model.ffn, ACT)}


def _backward(model: Model, recorder: Recorder, keep: dict[str, int], gradient: int) -> int:
    """One layer backward, frees in reverse of the forward; returns the new gradient."""
    recorder.free(keep.pop("residual2"))
    if model.label == "layernorm":
        keep["norm2"] = recorder.alloc(model.hidden, [*NORM2[:1], *BACKWARD])
    if model.label == "mlp":
        keep["fc1"] = recorder.alloc(model.ffn, [*FC1[:1], *BACKWARD])
        keep["act"] = recorder.alloc(model.ffn, [*ACT[:1], *BACKWARD])
        recorder.free(recorder.alloc(model.hidden, [*FC2[:1], *BACKWARD]))
    d_act = recorder.alloc(model.ffn, BACKWARD)
    recorder.free(keep.pop("act"))
    d_fc1 = recorder.alloc(model.ffn, BACKWARD)
    recorder.free(keep.pop("fc1"))
    recorder.free(d_act)
    d_norm = recorder.alloc(model.hidden, BACKWARD)
    recorder.free(d_fc1)
    recorder.free(keep.pop("norm2"))
    recorder.free(d_norm)
    recorder.free(keep.pop("residual1"))
    if model.label == "layernorm":
        keep["norm1"] = recorder.alloc(model.hidden, [*NORM1[:1], *BACKWARD])
    d_context = recorder.alloc(model.hidden, BACKWARD)
    recorder.free(keep.pop("context"))
    if model.label == "core_attn":
        keep["scores"] = recorder.alloc(model.scores, [*CORE[:1], *BACKWARD])
        keep["probs"] = recorder.alloc(model.scores, [*CORE[:1], *BACKWARD])
        recorder.free(recorder.alloc(model.hidden, [*CORE[:1], *BACKWARD]))
    d_probs = recorder.alloc(model.scores, BACKWARD)
    recorder.free(keep.pop("probs"))
    d_scores = recorder.alloc(model.scores, BACKWARD)
    recorder.free(d_probs)
    recorder.free(keep.pop("scores"))
    d_qkv = recorder.alloc(3 * model.hidden, BACKWARD)
    recorder.free(d_scores)
    recorder.free(d_context)
    recorder.free(keep.pop("qkv"))
    new = recorder.alloc(model.hidden, BACKWARD)
    recorder.free(d_qkv)
    recorder.free(keep.pop("norm1"))
    recorder.free(gradient)
    return new
