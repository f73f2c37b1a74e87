"""`check_attention_backend`: what every attention backend must do, against dense float64 attention.

A case fills the pool with NaN wherever none of its requests has written: a backend that reads one
slot too many gives NaN, and one that writes a slot too many is seen in the comparison afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from radixserve.attention.backend import AttentionBackend
from radixserve.attention.build import build_metadata
from radixserve.attention.layer_kv import KVLayout, LayerKV, allocate_layers, quantize
from radixserve.types import pack_ids

MakeBackend = Callable[[Sequence[LayerKV], int], AttentionBackend]
"""Builds a backend over these layers, for this many query heads."""

NUM_LAYERS = 2
LAYOUTS: tuple[KVLayout, ...] = ("rows", "columns")

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch: request i extends `starts[i]` cached tokens by `qo_lens[i]`."""

    name: str
    qo_lens: tuple[int, ...]
    starts: tuple[int, ...]
    block_size: int = 16
    num_kv_heads: int = 2
    group_size: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    """Of what the model gives."""
    kv_dtype: torch.dtype | None = None
    """Of the pool; as `dtype` when None."""
    layout: KVLayout = "rows"
    shared_blocks: int = 0
    """Leading blocks that all requests read; each starts beyond them."""
    is_scattered: bool = True
    """Block ids in random order; else each request's are consecutive."""
    seed: int = 0


CASES = (
    Case(name="one whole prompt", qo_lens=(37,), starts=(0,)),
    Case(name="prompts of one token", qo_lens=(1, 1), starts=(0, 0)),
    Case(name="several whole prompts, two of one length", qo_lens=(5, 40, 40), starts=(0, 0, 0)),
    Case(name="a chunk over its cached prefix", qo_lens=(19,), starts=(45,)),
    Case(name="chunks of one length over unequal prefixes", qo_lens=(7, 7, 7), starts=(0, 3, 90)),
    Case(name="decodes of equal length", qo_lens=(1,) * 4, starts=(31,) * 4),
    Case(name="decodes of unequal length", qo_lens=(1,) * 5, starts=(0, 5, 63, 64, 700)),
    Case(name="more decodes than one group holds", qo_lens=(1,) * 6, starts=(1500,) * 6),
    Case(name="decodes, chunks and a prompt", qo_lens=(1, 9, 1, 30, 1), starts=(4, 16, 99, 0, 15)),
    Case(name="last block full", qo_lens=(1, 16, 2), starts=(31, 16, 14)),
    Case(name="last block holds one token", qo_lens=(1, 17, 2), starts=(32, 16, 15)),
    Case(name="block size 1", qo_lens=(1, 4), starts=(6, 3), block_size=1),
    Case(name="block size 2", qo_lens=(1, 5, 3), starts=(6, 3, 0), block_size=2),
    Case(name="block size 64", qo_lens=(1, 70, 3), starts=(64, 3, 63), block_size=64),
    Case(name="block size 128", qo_lens=(1, 9), starts=(127, 130), block_size=128),
    Case(name="a query head a KV head", qo_lens=(1, 6), starts=(20, 9), group_size=1),
    Case(name="groups of three", qo_lens=(1, 6), starts=(20, 9), num_kv_heads=3, group_size=3),
    Case(name="groups of eight", qo_lens=(1, 6), starts=(20, 9), group_size=8),
    Case(name="one KV head", qo_lens=(1, 6), starts=(20, 9), num_kv_heads=1, group_size=4),
    Case(name="heads of 128", qo_lens=(1, 6), starts=(20, 9), head_dim=128),
    Case(name="consecutive blocks", qo_lens=(1, 6, 33), starts=(20, 9, 0), is_scattered=False),
    Case(name="a shared prefix", qo_lens=(1, 1, 6), starts=(40, 33, 32), shared_blocks=2),
    Case(
        name="bfloat16",
        qo_lens=(1, 9, 1, 30, 1),
        starts=(4, 16, 99, 0, 15),
        dtype=torch.bfloat16,
    ),
    *(
        Case(
            name=f"{name}, {layout}, blocks of {block_size}",
            qo_lens=(1, 9, 1, 30, 1),
            starts=(4, 16, 99, 0, 300),
            kv_dtype=kv_dtype,
            layout=layout,
            block_size=block_size,
        )
        for name, kv_dtype in (("int8", torch.int8), ("float32", torch.float32))
        for layout in LAYOUTS
        for block_size in (5, 16, 32)
    ),
)


def check_attention_backend(
    make: MakeBackend, cases: Sequence[Case] = CASES, *, device: str = "cpu"
) -> None:
    """Assert that the backends `make` builds attend rightly, and write where they should only.

    Pool and rows are on `device`; what they are compared with is computed on the CPU.
    """
    for case in cases:
        _check_case(make, case, device)


def _check_case(make: MakeBackend, case: Case, device: str) -> None:
    generator = torch.Generator().manual_seed(case.seed)
    tables = _draw_tables(case, generator)
    layers = [_draw_layer(case, tables, generator) for _ in range(NUM_LAYERS)]
    pools = [LayerKV(*(tensor.to(device) for tensor in layer.tensors)) for layer in layers]
    backend = make(pools, case.num_kv_heads * case.group_size)
    backend.plan(
        build_metadata(
            qo_lens=case.qo_lens,
            starts=case.starts,
            tables=[pack_ids(table) for table in tables],
            block_size=case.block_size,
        )
    )
    for layer_id, layer in enumerate(layers):
        q, k, v = _draw_rows(case, generator)
        expected_kv = _written(layer, k, v, case, tables)
        out = backend.run(layer_id, q.to(device), k.to(device), v.to(device))
        assert out.shape == q.shape, case.name
        assert out.dtype == q.dtype, case.name
        for tensor, wanted in zip(pools[layer_id].tensors, expected_kv, strict=True):
            torch.testing.assert_close(tensor.cpu(), wanted, rtol=0, atol=0, equal_nan=True)
        expected = _dense(q, LayerKV(*expected_kv), case, tables)
        tolerance = TOLERANCES[case.dtype]
        torch.testing.assert_close(
            out.cpu().double(),
            expected,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text: f"{case.name}: {text}",
        )


def _draw_tables(case: Case, generator: torch.Generator) -> list[list[int]]:
    kv_lens = [start + qo for start, qo in zip(case.starts, case.qo_lens, strict=True)]
    own = [-(-kv_len // case.block_size) - case.shared_blocks for kv_len in kv_lens]
    total = case.shared_blocks + sum(own) + 3  # some blocks belong to nobody
    ids = torch.randperm(total, generator=generator).tolist()
    if not case.is_scattered:
        ids.sort()
    shared, ids = ids[: case.shared_blocks], ids[case.shared_blocks :]
    tables = []
    for count in own:
        tables.append(shared + ids[:count])
        ids = ids[count:]
    return tables


def _draw_layer(case: Case, tables: Sequence[Sequence[int]], generator: torch.Generator) -> LayerKV:
    num_blocks = max(max(table) for table in tables) + 4
    shape = (num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    (layer,) = allocate_layers(1, shape, case.kv_dtype or case.dtype, case.layout)
    for tensor in layer.tensors:
        if tensor.dtype.is_floating_point:
            tensor.fill_(torch.nan)
    for table, start in zip(tables, case.starts, strict=True):
        for half, scale in ((layer.k, layer.k_scale), (layer.v, layer.v_scale)):
            cached = torch.randn(start, *shape[2:], generator=generator).to(case.dtype)
            for position in range(start):
                place = table[position // case.block_size], position % case.block_size
                _put(cached[position], half, scale, place)
    return layer


def _put(row: Tensor, half: Tensor, scale: Tensor | None, place: tuple[int, int]) -> None:
    if scale is None:
        half[place] = row
    else:
        half[place], scale[place] = quantize(row)


def _draw_rows(case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v as a model gives them: views of one fused projection."""
    kv_heads, num_qo_heads = case.num_kv_heads, case.num_kv_heads * case.group_size
    heads = num_qo_heads + 2 * kv_heads
    fused = torch.randn(sum(case.qo_lens), heads, case.head_dim, generator=generator)
    heads_of = [num_qo_heads, kv_heads, kv_heads]
    q, k, v = torch.split(fused.to(case.dtype), heads_of, dim=1)
    return q, k, v


def _written(
    layer: LayerKV, k: Tensor, v: Tensor, case: Case, tables: Sequence[Sequence[int]]
) -> tuple[Tensor, ...]:
    expected, row = LayerKV(*(tensor.clone() for tensor in layer.tensors)), 0
    for table, start, qo_len in zip(tables, case.starts, case.qo_lens, strict=True):
        for position in range(start, start + qo_len):
            place = table[position // case.block_size], position % case.block_size
            _put(k[row], expected.k, expected.k_scale, place)
            _put(v[row], expected.v, expected.v_scale, place)
            row += 1
    return expected.tensors


def _dense(q: Tensor, layer: LayerKV, case: Case, tables: Sequence[Sequence[int]]) -> Tensor:
    """Return causal attention in float64, one request and one query row at a time."""
    out, row = torch.empty(q.shape, dtype=torch.float64), 0
    for table, start, qo_len in zip(tables, case.starts, case.qo_lens, strict=True):
        k, v = (
            _values(half, scale, table)
            for half, scale in ((layer.k, layer.k_scale), (layer.v, layer.v_scale))
        )
        k, v = (x.repeat_interleave(case.group_size, dim=1) for x in (k, v))
        for seen in range(start + 1, start + qo_len + 1):
            scores = torch.einsum("hd,lhd->hl", q[row].double(), k[:seen]) * case.head_dim**-0.5
            out[row] = torch.einsum("hl,lhd->hd", scores.softmax(dim=-1), v[:seen])
            row += 1
    return out


def _values(half: Tensor, scale: Tensor | None, table: Sequence[int]) -> Tensor:
    values = half[list(table)].flatten(0, 1).double()
    return values if scale is None else values * scale[list(table)].flatten(0, 1)[..., None]
