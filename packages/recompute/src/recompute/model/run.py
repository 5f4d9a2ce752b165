"""Run a tape forward and backward over an arena of storages and note where its bytes peak.

The pure core of the memory model. A storage lives while something refers to it: a later reader, an
operation that saved it, a region that kept it as input. Backward goes through the operations in
reverse; each one holds its saved tensors, the gradients that reach it and those it produces, then
lets go of what it needed. Regions follow Megatron's two mechanisms
(NVIDIA/Megatron-LM core_v0.19.0, megatron/core/tensor_parallel/random.py: CheckpointFunction,
CheckpointWithoutOutput):

- checkpoint: inside the region nothing is saved but its inputs. In backward the region runs again
  with its outputs held until its own backward is over.
- discard: as checkpoint, and the outputs' bytes go once the hook operation has run; they return,
  with everything inside the region saved, before that operation's backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recompute.model.arena import Arena, Owners, rounded
from recompute.model.offload import HostMemory, OffloadGroup
from recompute.model.tape import Mechanism, Op, Region, Tape, Tensor
from recompute.model.tape_profile import TapeProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class GradPolicy:
    """Where weight gradients go."""

    appear_in_backward: bool
    """No DDP wrapper: each weight gradient is a new allocation that stays until the optimizer step."""
    fused: bool
    """``gradient_accumulation_fusion``: the GEMM adds into the main gradient, nothing in between."""


class TapeRun:
    """One forward and backward of a tape with some labels active."""

    def __init__(
        self,
        tape: Tape,
        active: frozenset[str],
        grads: GradPolicy,
        groups: tuple[OffloadGroup, ...] = (),
        arrivals: tuple[tuple[int, int], ...] = (),
        *,
        capture_at: int = -1,
    ) -> None:
        self.tape = tape
        self.grads = grads
        self.arena = Arena(capture_at)
        self.host = HostMemory(self.arena, groups, arrivals)
        self.tensors = {t.name: t for t in tape.inputs}
        self.tensors.update({t.name: t for op in tape.ops for t in op.writes})
        self.spans = tuple(
            (tape.position(r.first), tape.position(r.last), r)
            for r in tape.regions
            if r.label in active
        )
        self.originals = {
            op.name
            for op in tape.ops
            if op.quantized is not None and any(op.name in r.originals for _, _, r in self.spans)
        }
        self.saved_by_op: dict[int, list[str]] = {}
        self.saved_by_region: dict[tuple[int, int], list[str]] = {}
        self.grad_storage: dict[str, str] = {}
        """Gradient -> storage it shares, for gradients that were handed on."""
        self.handed: frozenset[str] = frozenset()
        """Gradients that the checkpoints whose backward runs were handed."""
        self.replayed: list[str] = []
        self.outermost = True
        """Not inside a replay: the tape's outputs are handed to the next layer."""
        self.replay_outputs: frozenset[str] = frozenset()
        """Inside a replay: what it holds until its backward is over, from when it is there."""
        self.weight_grads = 0
        self.left_behind = self.left_gradient = self.left_copies = 0
        self.held_by_module: set[str] = set()

    # --- forward

    def forward(self) -> None:
        """Run the whole tape forward; what is saved stays in the arena."""
        for tensor in self.tape.inputs:
            self.arena.allocate(
                tensor.key, tensor.size, "input", self._readers(tensor.name, 0, len(self.tape.ops))
            )
        self._forward_span(0, len(self.tape.ops), save=True)
        for name in self.tape.outputs:
            self.arena.release(self.tensors[name].key)

    def _forward_span(self, low: int, high: int, *, save: bool) -> None:
        position = low
        while position < high:
            found = self._region_from(position, low, high) if save else None
            if found is None:
                self._forward_op(position, low, high, save=save)
                self._discard_after(position, low, high)
                self._offload_after(position)
                position += 1
            else:
                first, last, _ = found
                self._enter_region(found, low, high)
                self._discard_after(last, low, high)
                self._offload_after(last)
                position = last + 1
                assert first >= low

    def _forward_op(self, position: int, low: int, high: int, *, save: bool) -> None:
        op, arena = self.tape.ops[position], self.arena
        unread = []
        for tensor in op.writes:
            readers = self._readers(tensor.name, max(low, position + 1), high)
            if tensor.name in (self.tape.outputs if self.outermost else self.replay_outputs):
                readers += 1
            if not readers:
                unread.append(tensor.key)
            arena.allocate(tensor.key, tensor.size, op.name, max(readers, 1))
        self._hold(op)
        if save:
            self._save(position, op)
        else:
            arena.touch(sum(tensor.size for tensor in self._kept(op)))
            arena.touch(op.forward_workspace + sum(tensor.size for tensor in op.keeps))
        arena.touch(op.forward_workspace)
        for name in (*op.reads, *op.reads_without_grad):
            arena.release(self.tensors[name].key)
        for storage in unread:
            arena.release(storage)

    def _hold(self, op: Op) -> None:
        """Let the module hold what it holds; a replay's tensors take the place of the first ones."""
        for name in op.retains:
            if name not in self.held_by_module:
                self.held_by_module.add(name)
                self.arena.retain(self.tensors[name].key)
                self.left_behind += self.arena.sizes[self.tensors[name].key]

    def _save(self, position: int, op: Op) -> None:
        saved = [self.tensors[name].key for name in op.saves]
        for storage in saved:
            self.arena.retain(storage)
        if op.name in self.originals:
            saved.append(self.tensors[op.reads[0]].key)
            self.arena.retain(saved[-1])
        for tensor in self._kept(op):
            self.arena.allocate(tensor.key, tensor.size, op.name)
            saved.append(tensor.key)
        self.saved_by_op[position] = saved
        if not self.host.covers(position):
            for storage in saved:  # a copy on the host does not free what another operation keeps
                self._reload(storage)

    def _kept(self, op: Op) -> tuple[Tensor, ...]:
        """Tensors that only the backward sees, a quantized copy of the input included."""
        if op.quantized is None or op.name in self.originals:
            return op.keeps
        return (*op.keeps, op.quantized)

    def _enter_region(self, found: tuple[int, int, Region], low: int, high: int) -> None:
        """Run a region without gradients; only its inputs stay."""
        first, last, region = found
        saved = []
        for index, name in enumerate(self._region_inputs(first, last)):
            tensor = self.tensors[name]
            if index == 0 and region.saved_shards > 1:
                shard = f"{tensor.key}/shard"
                self.arena.allocate(
                    shard, -(-tensor.size // region.saved_shards), "checkpoint input"
                )
                saved.append(shard)
            else:
                self.arena.retain(tensor.key)
                saved.append(tensor.key)
        self.saved_by_region[first, last] = saved
        for position in range(first, last + 1):
            self._forward_op(position, low, high, save=False)

    def _discard_after(self, position: int, low: int, high: int) -> None:
        """Free the outputs of every output-discarding region whose hook has just run."""
        for first, last, region in self.spans:
            if (
                region.mechanism is Mechanism.DISCARD
                and region.hook == self.tape.ops[position].name
                and low <= first
                and last < high
                and (first, last) in self.saved_by_region
            ):
                for name in self._region_outputs(first, last):
                    self.arena.discard(self.tensors[name].key)

    def _offload_after(self, position: int) -> None:
        """Move what a group saved to the host once its last operation has run."""
        for group in self.host.groups if self.outermost else ():
            if group.last == position:
                saved = [*self.saved_by_op.items()]
                saved += [(span[0], names) for span, names in self.saved_by_region.items()]
                forced = {self.tensors[name].key for name in self.tape.ops[group.first].reads}
                self.host.send_after(position, saved, forced)

    def _reload(self, storage: str) -> None:
        """Bring one storage back if it has left."""
        if self.host.holds(storage):
            self.arena.restore(storage)

    # --- backward

    def backward(self) -> None:
        """Run the whole tape backward, starting with the gradients of its outputs."""
        for name in self.tape.outputs:
            tensor = self.tensors[name]
            self.arena.allocate(grad_of(name), tensor.size, "gradient of the output")
        self.host.bring_back()
        self._backward_span(0, len(self.tape.ops))

    def _backward_span(self, low: int, high: int) -> None:
        position = high - 1
        while position >= low:
            found = self._region_to(position, low, high)
            if found is not None and found[2].mechanism is Mechanism.CHECKPOINT:
                self._restore_before(position, low, high)
                self._backward_region(found)
                position = found[0] - 1
                continue
            self._restore_before(position, low, high)
            self._backward_op(position)
            for key in [k for k in self.saved_by_region if k[0] == position]:
                for storage in self.saved_by_region.pop(key):
                    self.arena.release(storage)
            position -= 1

    def _backward_region(self, found: tuple[int, int, Region]) -> None:
        """Replay a checkpointed region, then go backward through it."""
        first, last, _ = found
        saved = self.saved_by_region.pop((first, last))
        gathered = self._replay(first, last, saved)
        names = self._region_outputs(first, last)
        outputs = [self.tensors[name].key for name in names]
        handed, before = self._handed_gradients(names), self.handed
        self.handed = before | frozenset(handed)
        self._backward_span(first, last + 1)
        self._leave_behind(first, last)
        self.handed = before
        for storage in (*outputs, *saved, *gathered, *handed):
            self.arena.release(storage)

    def _handed_gradients(self, names: tuple[str, ...]) -> list[str]:
        """Hold the gradients that a checkpoint's backward was handed, as its arguments, until it returns."""
        handed = [
            self.grad_storage.get(grad_of(name), grad_of(name))
            for name in names
            if self._has_grad(name)
        ]
        for storage in handed:
            self.arena.retain(storage)
        return handed

    def _leave_behind(self, first: int, last: int) -> None:
        """Hold a replay's inputs and their gradients where a module still holds its graph.

        The graph's leaves are the detached inputs (CheckpointFunction.backward), and a leaf holds its
        gradient.
        """
        inside = self.tape.ops[first : last + 1]
        followed = {name for op in inside for name in op.reads}
        if not any(followed.intersection(op.retains) for op in inside):
            return
        for name in self._region_inputs(first, last):
            if self._has_grad(name):
                grad = grad_of(name)
                gradient = self.grad_storage.get(grad, grad)
                for storage in (self.tensors[name].key, gradient):
                    self.arena.retain(storage)
                    self.left_behind += self.arena.sizes[storage]
                if self.tape.inputs and name == self.tape.inputs[0].name:
                    self.left_gradient += self.arena.sizes[gradient]

    def _restore_before(self, position: int, low: int, high: int) -> None:
        """Replay every output-discarding region whose hook fires before this operation's backward."""
        for first, last, region in self.spans:
            if (
                region.mechanism is Mechanism.DISCARD
                and region.hook == self.tape.ops[position].name
                and low <= first
                and last < high
                and (first, last) in self.saved_by_region
                and first not in self.saved_by_op
            ):
                for name in self._region_outputs(first, last):
                    self.arena.restore(self.tensors[name].key)
                self._replay(first, last, [])
                for name in self._region_outputs(first, last):
                    self.arena.release(self.tensors[name].key)

    def _replay(self, first: int, last: int, saved: list[str]) -> list[str]:
        """Run a region's operations again, saving; its outputs get one reference each.

        Returns:
            Storages that were gathered for the replay and must be released after it.
        """
        gathered = []
        for name in self._region_inputs(first, last):
            key = self.tensors[name].key
            self._reload(key)
            readers = self._readers(name, first, last + 1)
            if f"{key}/shard" in saved:
                self.arena.allocate(key, self.tensors[name].size, "checkpoint input", readers + 1)
                gathered.append(key)
            else:
                self.arena.retain(key, readers)
        before = len(self.replayed)
        self._forward_inner(first, last)
        self.replayed[before:before] = [op.name for op in self.tape.ops[first : last + 1]]
        return gathered

    def _forward_inner(self, first: int, last: int) -> None:
        """Run forward inside a replayed region: regions strictly inside it act again."""
        outer, outermost, outputs = self.spans, self.outermost, self.replay_outputs
        self.outermost = False
        self.replay_outputs = frozenset(self._region_outputs(first, last))
        self.spans = tuple(
            span
            for span in outer
            if first <= span[0] and span[1] <= last and (span[0], span[1]) != (first, last)
        )
        self._forward_span(first, last + 1, save=True)
        self.spans, self.outermost, self.replay_outputs = outer, outermost, outputs

    def _backward_op(self, position: int) -> None:
        op, arena = self.tape.ops[position], self.arena
        incoming = [grad_of(t.name) for t in op.writes if self._has_grad(t.name)]
        for name in op.reads if incoming else ():
            self._flow(op, name, self.tensors[name].size, incoming)
        if op.weight_bytes and self.grads.appear_in_backward:
            arena.allocate(f"wgrad:{op.name}", op.weight_bytes, "weight gradients")
            self.weight_grads += rounded(op.weight_bytes)
        self._remake(op, position)
        separate = not self.grads.appear_in_backward and not self.grads.fused
        arena.touch(op.backward_workspace + (op.weight_bytes if separate else 0))
        for name in incoming:
            arena.release(self.grad_storage.pop(name, name))
        for storage in self.saved_by_op.pop(position, []):
            arena.release(storage)
        self.host.let_go_after(position)

    def _remake(self, op: Op, position: int) -> None:
        """Make the copies of the weight again that a forward without gradients has freed."""
        if op.remade and any(first <= position <= last for first, last, _ in self.spans):
            self.arena.allocate(f"copy:{op.name}", op.remade, op.name)
            self.left_copies += rounded(op.remade)
            self.left_behind += rounded(op.remade)

    def _flow(self, op: Op, name: str, size: int, incoming: list[str]) -> None:
        """Produce the gradient of a read tensor, or add to the one that is there."""
        target = grad_of(name)
        if self._has_grad(name):
            self.arena.touch(0 if op.passes_grad and name not in op.new_grads else size)
            self._add_apart(target, size)
        elif op.grad_over:
            base = self.tensors.get(op.grad_over)
            self._share_grad(target, base.key if base else op.grad_over)
        elif op.passes_grad and name not in op.new_grads:
            paired = len(incoming) == len(op.reads)
            source = incoming[op.reads.index(name) if paired else 0]
            self._share_grad(target, self.grad_storage.get(source, source))
        else:
            self.arena.allocate(target, size, "gradients of activations")

    def _add_apart(self, target: str, size: int) -> None:
        """Add to a gradient that somebody else holds: autograd makes a new tensor for the sum."""
        storage = self.grad_storage.get(target, target)
        if storage in self.handed:
            total = f"sum of {target}"
            self.arena.allocate(total, size, "gradients of activations")
            self.grad_storage[target] = total
            self.arena.release(storage)

    def _share_grad(self, target: str, storage: str) -> None:
        self.arena.retain(storage)
        self.grad_storage[target] = storage

    # --- lookups

    def _has_grad(self, name: str) -> bool:
        grad = grad_of(name)
        return grad in self.grad_storage or grad in self.arena.references

    def _readers(self, name: str, low: int, high: int) -> int:
        return sum(
            (name in op.reads) + (name in op.reads_without_grad) for op in self.tape.ops[low:high]
        )

    def _region_from(self, position: int, low: int, high: int) -> tuple[int, int, Region] | None:
        """Return the widest active region that starts here."""
        starting = [s for s in self.spans if s[0] == position and low <= s[0] and s[1] < high]
        return max(starting, key=lambda s: s[1], default=None)

    def _region_to(self, position: int, low: int, high: int) -> tuple[int, int, Region] | None:
        """Return the widest region that ends here and whose inputs are still kept."""
        ending = [
            s
            for s in self.spans
            if s[1] == position
            and low <= s[0]
            and s[1] < high
            and (s[0], s[1]) in self.saved_by_region
        ]
        return min(ending, key=lambda s: s[0], default=None)

    def _region_inputs(self, first: int, last: int) -> tuple[str, ...]:
        inside = self.tape.ops[first : last + 1]
        written = {t.name for op in inside for t in op.writes}
        names = (n for op in inside for n in (*op.reads, *op.reads_without_grad))
        return tuple(dict.fromkeys(n for n in names if n not in written))

    def _region_outputs(self, first: int, last: int) -> tuple[str, ...]:
        inside, after = self.tape.ops[first : last + 1], self.tape.ops[last + 1 :]
        read = {n for op in after for n in (*op.reads, *op.reads_without_grad)}
        read.update(self.tape.outputs)
        return tuple(t.name for op in inside for t in op.writes if t.name in read)


def grad_of(name: str) -> str:
    """Name the gradient of a tensor."""
    return f"grad:{name}"


def profile(
    tape: Tape,
    active: frozenset[str],
    grads: GradPolicy,
    groups: tuple[OffloadGroup, ...] = (),
    arrivals: tuple[tuple[int, int], ...] = (),
    *,
    composition: bool = False,
) -> TapeProfile:
    """Run a tape and return what it does to memory.

    Args:
        tape: Operations of one layer, the embedding or the head.
        active: Labels whose regions recompute.
        grads: Where weight gradients go.
        groups: What leaves for host memory between forward and backward.
        arrivals: What backward brings back of the layer before: after which operation, how many bytes.
        composition: Also say what is alive after forward and at both peaks (a second run each).

    Returns:
        Bytes saved, both peaks, gradients left behind, and the operations that ran twice.
    """
    run = TapeRun(tape, active, grads, groups, arrivals)
    run.forward()
    left = bool(tape.inputs) and run.host.leaves_to_owners(tape.inputs[0].key)
    saved, forward_peak, forward_moment = run.arena.held, run.arena.peak, run.arena.peak_moment
    alive_saved = run.arena.alive() if composition else ()
    run.arena.start_phase()
    run.backward()
    result = TapeProfile(
        saved=saved,
        forward_peak=forward_peak,
        backward_peak=run.arena.peak,
        weight_grads=run.weight_grads,
        left_behind=run.left_behind,
        left_gradient=run.left_gradient,
        left_copies=run.left_copies,
        returning=tuple(run.host.returning),
        input_left=left,
        replayed=tuple(run.replayed),
        alive_saved=alive_saved,
    )
    if not composition:
        return result
    backward_moment = run.arena.peak_moment
    return replace(
        result,
        alive_at_forward_peak=_captured(run, active, forward_moment),
        alive_at_backward_peak=_captured(run, active, backward_moment),
    )


def _captured(like: TapeRun, active: frozenset[str], moment: int) -> Owners:
    """Run a tape again and return what was alive at one moment."""
    host = like.host
    run = TapeRun(like.tape, active, like.grads, host.groups, host.arrivals, capture_at=moment)
    run.forward()
    run.arena.start_phase()
    run.backward()
    return run.arena.captured
