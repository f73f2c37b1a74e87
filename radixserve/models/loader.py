"""A model folder becomes a model whose every parameter was written exactly once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixserve.errors import ConfigError, ModelLoadError
from radixserve.models.checkpoint import Checkpoint
from radixserve.models.config import ModelSpec, read_json
from radixserve.models.decoder import CausalLM
from radixserve.models.dtype import choose_dtype
from radixserve.models.kv_scales import is_kv_scale, read_kv_scales

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from torch import Tensor

    from radixserve.attention.kv_writer import KVScale

__all__ = ["LoadedModel", "choose_dtype", "load_model"]

_HEAD = "lm_head.weight"
_HARMLESS_SUFFIX = ".rotary_emb.inv_freq"
"""A buffer that old checkpoints saved and that follows from the config."""
_CPU = torch.device("cpu")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model that is ready to run, with what its folder says about it."""

    model: CausalLM
    spec: ModelSpec
    eos_token_ids: frozenset[int]
    """The ids that end an answer; may be empty."""
    kv_scales: tuple[KVScale, ...] | None = None
    """What 8-bit K and V are to be stored with, layer by layer; None if the folder does not say."""


def load_model(folder: Path, *, dtype: torch.dtype, device: torch.device = _CPU) -> LoadedModel:
    """Return the model in `folder`, its weights converted to `dtype`.

    Args:
        folder: Holds config.json and *.safetensors.
        dtype: Of the weights.
        device: Where they go, tensor by tensor.
    Raises:
        ModelLoadError: the config asks for something unsupported, or the weights do not match it;
            names the file, the setting or the tensor.
        ConfigError: they do not fit on the device.
    Complexity: one read of the weights; the peak is the model and one tensor.
    """
    config = read_json(folder / "config.json")
    spec = ModelSpec.from_hf(config)
    checkpoint = Checkpoint(folder)
    model = _unwritten_model(spec, dtype, device)
    targets = model.checkpoint_targets()
    _check_coverage(model, targets)
    _refuse_mismatch(targets, checkpoint.names, folder=folder, is_tied=spec.tie_word_embeddings)
    others = _write(checkpoint, targets, folder)
    return LoadedModel(
        model.eval(),
        spec,
        _eos_token_ids(folder, config),
        read_kv_scales(others, spec.num_layers),
    )


def _unwritten_model(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> CausalLM:
    try:
        with device:
            return CausalLM(spec, dtype=dtype)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the weights in {dtype} do not fit in the memory of {device}; serve a smaller model"
        ) from error


def _check_coverage(model: CausalLM, targets: dict[str, Tensor]) -> None:
    covered = sum(target.numel() for target in targets.values())
    assert covered == sum(p.numel() for p in model.parameters()), "targets miss a parameter"


def _refuse_mismatch(
    targets: dict[str, Tensor], names: frozenset[str], *, folder: Path, is_tied: bool
) -> None:
    missing = sorted(set(targets) - names)
    if missing == [_HEAD]:
        raise ModelLoadError(
            f"{folder}: {_HEAD} is missing, and config.json does not tie it to the embeddings"
        )
    if missing:
        raise ModelLoadError(f"{folder}: the weights lack {_shorten(missing)}")
    known = set(targets) | ({_HEAD} if is_tied else set())
    unexpected = sorted(n for n in names - known if not _is_beside_the_weights(n))
    if unexpected:
        raise ModelLoadError(
            f"{folder}: the weights hold tensors that the model has no place for: "
            f"{_shorten(unexpected)}"
        )


def _is_beside_the_weights(name: str) -> bool:
    return name.endswith(_HARMLESS_SUFFIX) or is_kv_scale(name)


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _write(checkpoint: Checkpoint, targets: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Write every target, and return the scales of K and V that lie beside the weights."""
    unwritten = dict(targets)
    kv_scales: dict[str, Tensor] = {}
    tied_head: Tensor | None = None
    for name, tensor in checkpoint.read_all():
        if name in unwritten:
            _write_one(name, tensor, unwritten.pop(name), folder)
        elif name == _HEAD:
            tied_head = tensor
        elif is_kv_scale(name):
            kv_scales[name] = tensor
    assert not unwritten, "the checkpoint did not yield every name it listed"
    if tied_head is not None:
        _refuse_other_head(tied_head, targets["model.embed_tokens.weight"], folder)
    return kv_scales


def _write_one(name: str, tensor: Tensor, target: Tensor, folder: Path) -> None:
    if tensor.shape != target.shape:
        raise ModelLoadError(
            f"{folder}: {name} has shape {list(tensor.shape)}, "
            f"config.json asks for {list(target.shape)}"
        )
    if tensor.dtype not in _FLOATS:
        raise ModelLoadError(f"{folder}: {name} is {tensor.dtype}, which is not supported")
    with torch.no_grad():
        target.copy_(tensor)


def _refuse_other_head(head: Tensor, embedding: Tensor, folder: Path) -> None:
    # Some tied checkpoints save the shared matrix twice; anything else contradicts the config.
    if head.shape != embedding.shape or not torch.equal(head.to(embedding), embedding):
        raise ModelLoadError(
            f"{folder}: {_HEAD} differs from the embeddings, although config.json ties them"
        )
    _log.info("%s: %s repeats the embeddings and is not kept", folder, _HEAD)


def _eos_token_ids(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    path = folder / "generation_config.json"
    settings = read_json(path) if path.is_file() else {}
    value = settings.get("eos_token_id", config.get("eos_token_id"))
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and i >= 0 for i in ids):
        raise ModelLoadError(f"{folder}: eos_token_id must be ids, not {value!r}")
    return frozenset(ids)
