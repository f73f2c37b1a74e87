"""A package that computes, on a CPU, what FlashInfer would, from just the arguments it is given.

It has FlashInfer's names and defaults, refuses what FlashInfer would get wrong in silence, and
keeps every call. A graph's wrapper reads its buffers when it runs, as a replay does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from radixserve.attention.flashinfer_kernels import PackageKernels
from radixserve.attention.level_wise import attend_level
from radixserve.attention.merge import Partial, merge
from radixserve.attention.metadata import CascadeLevel
from radixserve.attention.paged_rows import PagedRows
from radixserve.models.flashinfer_ops import FlashInferOps
from tests.attention import flashinfer_row_kernels as row_kernels

NUM_SMS = 4


@dataclass(frozen=True)
class Call:
    """One call of the package: what of whom, and with which arguments."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    of: object = None
    """The wrapper or event it was called on."""


@dataclass
class StandInPackage:
    """What is imported as `flashinfer`, as far as it is used."""

    calls: list[Call] = field(default_factory=list)

    def BatchPrefillWithPagedKVCacheWrapper(self, *args: Any, **kwargs: Any) -> _Prefill:
        self.calls.append(Call("prefill.__init__", args, kwargs))
        return _Prefill(self, *args, **kwargs)

    def BatchDecodeWithPagedKVCacheWrapper(self, *args: Any, **kwargs: Any) -> _Decode:
        self.calls.append(Call("decode.__init__", args, kwargs))
        return _Decode(self, *args, **kwargs)

    def merge_state(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.calls.append(Call("merge_state", args, kwargs))
        return _merge_state(*args, **kwargs)

    def rmsnorm(self, *args: Any, **kwargs: Any) -> Tensor:
        self.calls.append(Call("rmsnorm", args, kwargs))
        return row_kernels.rmsnorm(*args, **kwargs)

    def fused_add_rmsnorm(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append(Call("fused_add_rmsnorm", args, kwargs))
        row_kernels.fused_add_rmsnorm(*args, **kwargs)

    def silu_and_mul(self, *args: Any, **kwargs: Any) -> Tensor:
        self.calls.append(Call("silu_and_mul", args, kwargs))
        return row_kernels.silu_and_mul(*args, **kwargs)

    def apply_rope_with_cos_sin_cache_inplace(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append(Call("apply_rope_with_cos_sin_cache_inplace", args, kwargs))
        row_kernels.apply_rope_with_cos_sin_cache_inplace(*args, **kwargs)

    def event(self) -> _Event:
        """Return what torch.cuda.Event would be."""
        return _Event(self)

    def kernels(self) -> PackageKernels:
        """Return the product's adapter over this package."""
        return PackageKernels(self, num_sms=NUM_SMS, make_event=self.event)

    def ops(self) -> FlashInferOps:
        """Return a layer's small operations over this package."""
        return FlashInferOps(self)

    def names(self) -> list[str]:
        """Return the calls' names, in order."""
        return [call.name for call in self.calls]


class _Event:
    def __init__(self, package: StandInPackage) -> None:
        self._package = package

    def record(self) -> None:
        self._package.calls.append(Call("event.record", (), {}, self))

    def synchronize(self) -> None:
        self._package.calls.append(Call("event.synchronize", (), {}, self))


class _Wrapper:
    name = ""

    def __init__(self, package: StandInPackage, workspace: Tensor, layout: str = "NHD") -> None:
        assert layout == "NHD"
        assert workspace.dtype == torch.uint8
        if workspace.device.type != "meta":
            assert not workspace.any(), "the workspace starts as zeros"
        self._device = workspace.device
        self._package = package
        self._planned: dict[str, Any] = {}

    def _note(self, method: str, *args: Any, **kwargs: Any) -> None:
        self._package.calls.append(Call(f"{self.name}.{method}", args, kwargs, self))

    def _level(self) -> CascadeLevel:
        raise NotImplementedError

    def run(self, q: Tensor, paged_kv_cache: Any, **kwargs: Any) -> Any:
        self._note("run", q, paged_kv_cache, **kwargs)
        return self._run(q, paged_kv_cache, **kwargs)

    def _run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        planned, level = self._planned, self._level()
        k, v = paged_kv_cache
        assert isinstance(paged_kv_cache, tuple)
        assert q.dtype == planned["q_data_type"]
        assert k.dtype == v.dtype == planned["kv_data_type"]
        assert q.shape[1:] == (planned["num_qo_heads"], planned["head_dim"])
        assert k.shape == v.shape
        assert k.shape[1:] == (planned["page_size"], planned["num_kv_heads"], planned["head_dim"])
        assert len(q) == int(level.qo_indptr[-1]), "q has other rows than were planned"
        partial = attend_level(
            q.float(),
            PagedRows(_widened(k, k_scale), None),
            PagedRows(_widened(v, v_scale), None),
            level,
            scale=planned["sm_scale"],
            causal=planned["causal"],
        )
        result = torch.empty_like(q) if out is None else out
        result.copy_(partial.out)
        return (result, partial.lse) if return_lse else result


class _Prefill(_Wrapper):
    name = "prefill"

    def __init__(self, package: StandInPackage, *args: Any, backend: str = "auto") -> None:
        assert backend == "fa2"
        super().__init__(package, *args)

    def plan(self, *args: Any, **kwargs: Any) -> None:
        self._note("plan", *args, **kwargs)
        self._plan(*args, **kwargs)

    def _plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: Any = torch.float16,
        kv_data_type: Any = None,
        o_data_type: Any = None,
    ) -> None:
        assert len(qo_indptr) > 1, "0 requests divide by 0"
        assert int(qo_indptr[-1]) > 0
        assert bool((qo_indptr.diff() > 0).all()), "a segment without rows"
        level = CascadeLevel(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        _check_pages(level, page_size, self._device)
        self._planned = {
            "level": level,
            "num_qo_heads": num_qo_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim_qk,
            "page_size": page_size,
            "causal": causal,
            "sm_scale": head_dim_qk**-0.5 if sm_scale is None else sm_scale,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type or q_data_type,
        }

    def _level(self) -> CascadeLevel:
        level: CascadeLevel = self._planned["level"]
        return level


class _Decode(_Wrapper):
    name = "decode"

    def __init__(
        self,
        package: StandInPackage,
        *args: Any,
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert backend == "fa2"
        assert use_tensor_cores, "not every group size runs on CUDA cores"
        super().__init__(package, *args)
        self._is_graph = use_cuda_graph
        self._buffers = (
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
        )
        assert use_cuda_graph == all(buffer is not None for buffer in self._buffers)

    def plan(self, *args: Any, **kwargs: Any) -> None:
        self._note("plan", *args, **kwargs)
        self._plan(*args, **kwargs)

    def _plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        sm_scale: float | None = None,
        q_data_type: Any = torch.float16,
        kv_data_type: Any = None,
        o_data_type: Any = None,
    ) -> None:
        assert len(last_page_len) > 0, "0 requests divide by 0"
        qo_indptr = torch.arange(len(indptr), dtype=torch.int32)
        level = CascadeLevel(qo_indptr, indptr, indices, last_page_len)
        _check_pages(level, page_size, self._device)
        assert bool((last_page_len > 0).all()), "a decode without keys"
        self._planned = {
            "level": level,
            "num_qo_heads": num_qo_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "page_size": page_size,
            "causal": False,
            "sm_scale": head_dim**-0.5 if sm_scale is None else sm_scale,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type or q_data_type,
        }
        if self._is_graph:
            for buffer, values in zip(self._buffers, (indptr, indices, last_page_len), strict=True):
                assert buffer is not None
                is_indices = values is indices
                assert len(values) <= len(buffer) if is_indices else len(values) == len(buffer)
                buffer[: len(values)].copy_(values)

    def _level(self) -> CascadeLevel:
        level: CascadeLevel = self._planned["level"]
        if not self._is_graph:
            return level
        indptr, indices, last_page_len = self._buffers
        assert indptr is not None
        assert indices is not None
        assert last_page_len is not None
        return CascadeLevel(level.qo_indptr, indptr, indices[: int(indptr[-1])], last_page_len)


def _check_pages(level: CascadeLevel, page_size: int, device: torch.device) -> None:
    """Assert what FlashInfer takes for granted: int32, indices alone on the device, lengths."""
    for tensor in (level.qo_indptr, level.kv_indptr, level.kv_indices, level.kv_last_page_len):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
    for tensor in (level.qo_indptr, level.kv_indptr, level.kv_last_page_len):
        assert tensor.device.type == "cpu", "plan would wait for the device to read it back"
    assert level.kv_indices.device == device
    pages, last = level.kv_indptr.diff(), level.kv_last_page_len
    assert int(level.kv_indptr[-1]) == len(level.kv_indices)
    assert bool(((pages > 0) | (last == 0)).all())
    assert bool(((pages == 0) | ((last >= 1) & (last <= page_size))).all())


def _widened(pool: Tensor, scale: float | None) -> Tensor:
    return pool.float() * (1.0 if scale is None else scale)


def _merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    assert v_a.dtype == v_b.dtype
    assert s_a.dtype == s_b.dtype == torch.float32
    assert v_a.is_contiguous()
    assert v_b.is_contiguous()
    merged = merge(Partial(v_a.float(), s_a), Partial(v_b.float(), s_b))
    return merged.out.to(v_a.dtype), merged.lse
