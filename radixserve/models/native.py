"""`NativeLM`: the decoder of `models.decoder`, run by `radixserve.kernels`.

The model is written down once, as a program over fixed buffers. A forward pass is then a single
call in which no Python runs and the GIL is free:

    ids ── embed ──► x        each layer:  x += output(attention(rope(qkv(norm(x)))))
                     │                     x += down(silu(gate(norm(x))) * up(norm(x)))
                     └─ layers ─ norm ──► hidden ── head ──► logits

Activations are float32, whatever the weights are kept in. No row's numbers depend on another row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixserve.kernels import Program, View
from radixserve.models.native_layer import Buffers, NativeLayer, packed

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.backend import AttentionBackend
    from radixserve.attention.cpu import CpuAttention
    from radixserve.models.config import ModelSpec
    from radixserve.models.decoder import CausalLM
    from radixserve.models.native_layer import Keep

LOGIT_ROWS = 64
"""Rows of logits that are computed at once; each is as long as the vocabulary."""


@dataclass(frozen=True, slots=True, eq=False)
class _Tape:
    """A recorded forward pass, and the arrays that go in and come out."""

    program: Program
    token_ids: Tensor
    """[capacity], int64."""
    positions: Tensor
    """[capacity], int64."""
    slots: Tensor
    """[capacity], int64."""
    hidden: Tensor
    """[capacity, hidden_size], float32: what comes out."""


class NativeLM:
    """The same model as a `CausalLM`, whose weights it takes over.

    Args:
        model: Its linear maps are emptied one by one as they are packed.
        spec: The model's shape.
        attention: Over the KV pool that the model writes to.
        keep: How small the packed weights are kept.
        capacity: Rows that the buffers hold at first; a larger batch makes them grow.
    Raises:
        BackendUnavailableError: the kernels are not here.
    Mutates: `model`, which cannot be run afterwards.
    """

    def __init__(
        self,
        model: CausalLM,
        spec: ModelSpec,
        attention: CpuAttention,
        *,
        keep: Keep,
        capacity: int,
    ) -> None:
        self._spec = spec
        self._attention = attention
        self._embedding = model.embedding
        self._norm = model.norm.weight
        self._rotary = model.rotary
        self._layers = [NativeLayer(layer, spec, keep) for layer in model.layers]  # type: ignore[arg-type]
        self._tape = self._record(capacity)
        self._past: dict[str, float] = {}
        """Seconds by kernel of tapes that were too short."""
        self._head_in = torch.empty(LOGIT_ROWS, spec.hidden_size)
        self._logits = torch.empty(LOGIT_ROWS, spec.vocab_size)
        head = packed(model.head, keep)
        self._packed = [*(one for layer in self._layers for one in layer.packed), head]
        self._head = Program()
        self._head.linear(View(self._head_in), head, View(self._logits))

    @property
    def num_weight_bytes(self) -> int:
        """Memory of the packed weights."""
        return sum(one.num_bytes for one in self._packed)

    @property
    def weight_dtype(self) -> str:
        """What the packed weights are kept in, joined by + if they differ."""
        return "+".join(sorted({one.dtype for one in self._packed}))

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Return the last hidden state of every row, after the final norm.

        Args:
            token_ids: [T], int64.
            positions: [T], int64, each below the model's max_position.
            attention: The one given at first, planned for this batch.
        Returns:
            [T, hidden_size], float32: good until the next call.
        Mutates:
            the KV pool that `attention` writes to.
        """
        assert attention is self._attention
        rows = len(token_ids)
        if rows > self._tape.program.capacity:
            self._past, self._tape = self.kernel_seconds(), self._record(rows)
        tape = self._tape
        tape.token_ids[:rows] = token_ids
        tape.positions[:rows] = positions
        tape.slots[:rows] = self._attention.slot_mapping
        tape.program.run(rows)
        return tape.hidden[:rows]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [R, vocab_size] in float32 of R rows of a call's output.

        Good until the next call.
        """
        if len(hidden) <= LOGIT_ROWS:
            return self._few_logits(hidden)
        parts = (hidden[at : at + LOGIT_ROWS] for at in range(0, len(hidden), LOGIT_ROWS))
        return torch.cat([self._few_logits(part).clone() for part in parts])

    def kernel_seconds(self) -> dict[str, float]:
        """Return the seconds spent so far in each kind of kernel, the output head's apart."""
        seconds = self._past.copy()
        for name, spent in self._tape.program.seconds().items():
            seconds[name] = seconds.get(name, 0.0) + spent
        return {**seconds, "head": sum(self._head.seconds().values())}

    def _few_logits(self, hidden: Tensor) -> Tensor:
        rows = len(hidden)
        self._head_in[:rows] = hidden
        self._head.run(rows)
        return self._logits[:rows]

    def _record(self, capacity: int) -> _Tape:
        ids, positions, slots = (torch.zeros(capacity, dtype=torch.int64) for _ in range(3))
        buffers = Buffers.allocate(self._spec, capacity)
        places = (View(positions), View(self._rotary.cos), View(self._rotary.sin))
        program = Program()
        program.embed(View(self._embedding), View(ids), View(buffers.x))
        pool_layers = range(self._attention.num_layers)
        for layer_id, layer in zip(pool_layers, self._layers, strict=True):
            layer.record(program, buffers, places, View(slots), self._attention, layer_id)
        hidden = View(buffers.normed)
        program.rms_norm(View(buffers.x), View(self._norm), self._spec.rms_norm_eps, hidden)
        return _Tape(program, ids, positions, slots, buffers.normed)
