"""The models that are run: one with random weights, and one that means something, twice."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks.gpu.rig import DTYPE
from radixserve.models.config import ModelSpec
from radixserve.models.decoder import CausalLM
from radixserve.models.loader import LoadedModel, load_model
from radixserve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.gpu.rig import Rig

CPU = torch.device("cpu")

PROMPTS = (
    "The capital of France is",
    "Question: What is a cache? Answer:",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
)


def random_model(
    config: Mapping[str, Any], device: torch.device, *, dtype: torch.dtype = DTYPE
) -> LoadedModel:
    """Return a model of that shape whose weights are noise, small enough for finite numbers."""
    spec = ModelSpec.from_hf(config)
    torch.manual_seed(0)
    with device:
        model = CausalLM(spec, dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.fill_(1.0)
            else:
                weight.normal_(std=spec.hidden_size**-0.5)
    return LoadedModel(model.eval(), spec, frozenset())


def fitting_model(rig: Rig) -> LoadedModel:
    """Return the big model, with as many of its layers as half of the free memory holds."""
    config = dict(rig.sizes.big_model)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    kv_size = config["num_key_value_heads"] * head_dim
    layer = hidden * (3 * inner + 2 * kv_size + 2 * config["num_attention_heads"] * head_dim)
    ends = 2 * hidden * config["vocab_size"]
    room = rig.free_bytes() // 2 // DTYPE.itemsize - ends
    config["num_hidden_layers"] = max(1, min(config["num_hidden_layers"], room // layer))
    return _on(rig, random_model(config, rig.device))


def _on(rig: Rig, loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, model=loaded.model.with_ops(rig.ops))


def first_layers(loaded: LoadedModel, num_layers: int) -> LoadedModel:
    """Return a model of the first layers alone; the weights are shared."""
    if num_layers == loaded.spec.num_layers:
        return loaded
    model = copy.copy(loaded.model)
    model._modules = dict(model._modules)
    model.layers = nn.ModuleList(list(loaded.model.layers)[:num_layers])
    return LoadedModel(model, replace(loaded.spec, num_layers=num_layers), loaded.eos_token_ids)


def layer_weights(loaded: LoadedModel) -> int:
    """Return how many weights the layers have together."""
    return sum(weight.numel() for weight in loaded.model.layers.parameters())


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The same model on the device in bfloat16, and on the CPU in float32."""

    fast: LoadedModel
    exact: LoadedModel
    prompts: tuple[tuple[int, ...], ...]
    name: str


def load_pair(rig: Rig) -> Pair:
    """Return the small real model; where there is none, a random one, and the name says so."""
    folder = rig.model_folder
    if folder is None:
        return _random_pair(rig)
    fast = _on(rig, load_model(folder, dtype=DTYPE, device=rig.device))
    exact = load_model(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_folder(folder)
    return Pair(fast, exact, tuple(tuple(tokenizer.encode(text)) for text in PROMPTS), folder.name)


def _random_pair(rig: Rig) -> Pair:
    exact = random_model(rig.sizes.small_model, CPU, dtype=torch.float32)
    model = copy.deepcopy(exact.model).to(dtype=DTYPE)
    model.rotary = copy.deepcopy(exact.model.rotary)  # its table stays float32
    fast = _on(rig, LoadedModel(model.to(rig.device), exact.spec, exact.eos_token_ids))
    vocab_size = exact.spec.vocab_size
    prompts = tuple(
        tuple((31 * row * row + 17 * i + 5) % vocab_size for i in range(9 + row))
        for row in range(4)
    )
    return Pair(fast, exact, prompts, "random weights")


def describe(loaded: LoadedModel, config: Mapping[str, Any]) -> str:
    """Say how much of a model is run."""
    return f"{loaded.spec.num_layers} of {config['num_hidden_layers']} layers"
