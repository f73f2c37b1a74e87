"""What computes steps, and the memory that it computes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.runtime.host_kv import HostKV
    from radixserve.runtime.kv_cache import KVCache
    from radixserve.runtime.launch import StepLauncher
    from radixserve.runtime.step_runner import StepRunner


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """A runner that is warm, over a pool of which no block is in use."""

    runner: StepRunner
    launcher: StepLauncher
    """Begins the runner's steps."""
    kv_cache: KVCache
    host_kv: HostKV | None
    """The swap space; None if nothing is swapped."""
