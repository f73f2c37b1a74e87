"""`radixserve batch run --dry-run`: what a file will cost. Loads no weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.cli.byte_count import format_byte_count
from radixserve.cli.progress import RichProgress

if TYPE_CHECKING:
    from radixserve.batch.estimate import Estimate
    from radixserve.batch.plan import OrderName
    from radixserve.batch.reader import LineFile
    from radixserve.config import ModelConfig, ServerConfig
    from radixserve.models.config import ModelSpec
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FileEstimate:
    """What a file costs on one model.

    Attributes:
        num_faults: Lines that are no requests.
        block_bytes: Of one block of KV.
    """

    estimate: Estimate
    num_faults: int
    block_bytes: int
    concurrency: int


def estimate_file(
    source: LineFile, config: ServerConfig, *, order_name: OrderName, concurrency: int
) -> FileEstimate:
    """Return the estimate of a file in the order in which it would be run.

    Raises:
        ConfigError: the model cannot be used.
    """
    from radixserve.batch.estimate import estimate_lines
    from radixserve.batch.line import LineFault
    from radixserve.batch.plan import make_order
    from radixserve.engine.precision import choose_precision
    from radixserve.runtime.kv_cache import block_bytes
    from radixserve.server.line_cost import LineCosts

    tokenizer, template, spec = _load(config.engine.model)
    costs = LineCosts(
        tokenizer,
        template,
        context_len=config.engine.model.max_model_len or spec.max_position,
        ignore_unknown=config.http.unknown_fields == "ignore",
    )
    order = make_order(source, order_name)
    num_faults = 0
    try:
        for found in source.scan():
            if isinstance(found.parsed, LineFault):
                num_faults += 1
            else:
                order.add(found.ref, found.parsed)
        block_size = config.engine.cache.block_size
        estimate = estimate_lines(
            map(costs.of, order), block_size=block_size, concurrency=concurrency
        )
    finally:
        order.close()
    size = block_bytes(spec, block_size, choose_precision(config.engine).kv_dtype)
    return FileEstimate(estimate, num_faults, size, concurrency)


def format_estimate(found: FileEstimate) -> str:
    """Return an estimate as text for people."""
    one = found.estimate
    share = one.shared_tokens / one.prompt_tokens if one.prompt_tokens else 0.0

    def kv(blocks: int) -> str:
        return f"{blocks:>10,} blocks  {format_byte_count(blocks * found.block_bytes)}"

    return "\n".join(
        (
            f"lines             {one.num_lines + found.num_faults:>10,}",
            f"  no requests     {found.num_faults:>10,}",
            f"  to be refused   {one.num_refused:>10,}",
            f"prompt tokens     {one.prompt_tokens:>10,}",
            f"  shared          {one.shared_tokens:>10,}  {share:.1%}, with the prompt before",
            f"  to be computed  {one.computed_tokens:>10,}",
            f"output tokens     {one.max_output_tokens:>10,}  at most",
            f"longest sequence  {one.longest:>10,}  tokens with its output",
            f"KV, blocks of {one.block_size}",
            f"  the longest     {kv(one.blocks_for_longest)}",
            f"  {found.concurrency:>4} at once    {kv(one.blocks_at_once)}, each prefix computed "
            "once",
            f"  all prompts     {kv(one.blocks_for_all)}",
        )
    )


def _load(model: ModelConfig) -> tuple[Tokenizer, ChatTemplate, ModelSpec]:
    from radixserve.engine.build import load_chat_template
    from radixserve.models.config import ModelSpec
    from radixserve.models.source import resolve_model
    from radixserve.text.tokenizer import Tokenizer

    folder = resolve_model(model.model, progress=RichProgress())
    tokenizer = Tokenizer.from_folder(folder)
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return tokenizer, load_chat_template(model, folder, tokenizer), ModelSpec.from_hf(fields)
