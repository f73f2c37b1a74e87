"""What `radixserve serve` says once it answers."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

import radixserve

_WILDCARD_HOSTS = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """The facts a user wants first; its text is `str(banner)`."""

    url: str
    """Where the server listens, without a path."""
    model: str
    dtype: str
    max_model_len: int
    kv_capacity_tokens: int
    num_blocks: int
    needs_key: bool

    def __str__(self) -> str:
        block_size = self.kv_capacity_tokens // self.num_blocks
        return "\n".join(
            (
                f"radixserve {radixserve.__version__} serves {self.model} at {self.url}/v1",
                f"  dtype     {self.dtype}",
                f"  context   {self.max_model_len:,} tokens",
                f"  KV cache  {self.kv_capacity_tokens:,} tokens in {self.num_blocks:,} blocks"
                f" of {block_size}",
                "try it:",
                f"  {self.curl_line()}",
            )
        )

    def curl_line(self) -> str:
        """Return a shell command that asks this server for a chat completion."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "What is a radix tree?"}],
        }
        key = ' -H "Authorization: Bearer $API_KEY"' if self.needs_key else ""
        return (
            f"curl {self._reachable_url()}/v1/chat/completions -H 'Content-Type: application/json'"
            f"{key} -d {shlex.quote(json.dumps(body))}"
        )

    def _reachable_url(self) -> str:
        # A server that listens on every address is reached on one of them.
        url = self.url
        for wildcard, loopback in _WILDCARD_HOSTS.items():
            url = url.replace(wildcard, loopback)
        return url
