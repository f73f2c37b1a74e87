"""What of FlashInfer is used, as types: its wrappers, its merge, and the device's events.

`PackageKernels` makes every call by which the package's objects are built; it is given the package,
so that a test can give it another one that computes on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from radixserve.attention.merge import Partial

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from radixserve.device.transfer import Event

LAYOUT = "NHD"
"""[pages, page_size, num_kv_heads, head_dim]: the pool's own."""

BACKEND = "fa2"
"""Said for every wrapper: "auto" may choose kernels that neither split KV nor pack the heads."""


class Wrapper(Protocol):
    """Runs the batch that it was planned for, once a layer."""

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *,
        k_scale: float | None,
        v_scale: float | None,
        out: Tensor,
        return_lse: bool,
    ) -> Any:
        """Return `out`, or with `return_lse` the pair of it and the base-2 log-sum-exp."""


class PrefillWrapper(Wrapper, Protocol):
    """Any rows over any pages."""

    def plan(  # noqa: PLR0913 - the package's own
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
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        o_data_type: torch.dtype,
    ) -> None:
        """Divide a batch among thread blocks; the indices are on the device, the rest is not."""


class DecodeWrapper(Wrapper, Protocol):
    """One row a request."""

    def plan(  # noqa: PLR0913 - the package's own
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        o_data_type: torch.dtype,
    ) -> None:
        """Divide a batch among thread blocks; the indices are on the device, the rest is not."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBuffers:
    """Where a captured decode reads its batch from: every plan writes here, none moves it."""

    indptr: Tensor
    """[bucket + 1], int32, on the device."""
    indices: Tensor
    """[most pages of a batch], int32, on the device."""
    last_page_len: Tensor
    """[bucket], int32, on the device."""


class Kernels(Protocol):
    """Builds FlashInfer's objects for one device."""

    @property
    def num_sms(self) -> int:
        """Multiprocessors of the device."""
        ...

    def prefill(self, workspace: Tensor) -> PrefillWrapper:
        """Return a new wrapper for batches of any kind."""
        ...

    def decode(self, workspace: Tensor, buffers: DecodeBuffers | None = None) -> DecodeWrapper:
        """Return a new wrapper for pure decodes; with buffers, one that can be captured."""
        ...

    def merge(self, a: Partial, b: Partial) -> Partial:
        """Return the attention over the keys of both; where neither has a key, 0 and -inf."""
        ...

    def event(self) -> Event:
        """Return a new mark for the device's queue of work."""
        ...


class PackageKernels:
    """`Kernels` out of the package.

    Args:
        package: The imported `flashinfer`.
        num_sms: Multiprocessors of the device.
        make_event: Builds an event of the device.
    """

    def __init__(self, package: Any, *, num_sms: int, make_event: Callable[[], Event]) -> None:
        self._package = package
        self._num_sms = num_sms
        self._make_event = make_event

    @property
    def num_sms(self) -> int:
        """Multiprocessors of the device."""
        return self._num_sms

    def prefill(self, workspace: Tensor) -> PrefillWrapper:
        """Return a new wrapper for batches of any kind."""
        wrapper = self._package.BatchPrefillWithPagedKVCacheWrapper
        return cast("PrefillWrapper", wrapper(workspace, LAYOUT, backend=BACKEND))

    def decode(self, workspace: Tensor, buffers: DecodeBuffers | None = None) -> DecodeWrapper:
        """Return a new wrapper for pure decodes; with buffers, one that can be captured.

        Tensor cores take any number of query heads a KV head, and read each page once for them.
        """
        wrapper = self._package.BatchDecodeWithPagedKVCacheWrapper
        graph = {} if buffers is None else _graph_arguments(buffers)
        made = wrapper(workspace, LAYOUT, use_tensor_cores=True, backend=BACKEND, **graph)
        return cast("DecodeWrapper", made)

    def merge(self, a: Partial, b: Partial) -> Partial:
        """Return the attention over the keys of both; where neither has a key, 0 and -inf."""
        out, lse = self._package.merge_state(a.out, a.lse, b.out, b.lse)
        return Partial(out, lse)

    def event(self) -> Event:
        """Return a new mark for the device's queue of work."""
        return self._make_event()


def _graph_arguments(buffers: DecodeBuffers) -> dict[str, Any]:
    return {
        "use_cuda_graph": True,
        "paged_kv_indptr_buffer": buffers.indptr,
        "paged_kv_indices_buffer": buffers.indices,
        "paged_kv_last_page_len_buffer": buffers.last_page_len,
    }
