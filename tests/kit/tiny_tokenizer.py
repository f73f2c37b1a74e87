"""A real byte-level BPE tokenizer, small enough to train in a test, and chat templates for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Their ids are 0, 1 and 2."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CORPUS = (
    "The capital of France is Paris. The capital of Italy is Rome.",
    "user assistant system tool: what is the answer to the question?",
    "Letters in order: A B C D E F G H I J K L M N O P.",
    "the then there these this that thing think three through",
    "Once upon a time there was a little parrot who lived in the tree.",
    "the parrot said: the answer is in the order of the letters",
    "def add(a, b):\n    return a + b\n",
    '{"name": "add", "arguments": {"a": 2, "b": 3}}',
)


def write_tiny_tokenizer(folder: Path, *, chat_template: str | None = CHATML) -> Path:
    """Train the tokenizer and write it as a model folder has it; return the folder.

    Its bytes all have tokens, so it encodes any text; emoji and most CJK characters take several.

    Args:
        folder: Made if it does not exist.
        chat_template: Jinja source of `chat_template.jinja`; None leaves the file out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train_tiny_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    return folder


def train_tiny_tokenizer(special_tokens: tuple[str, ...] = SPECIAL_TOKENS) -> Tokenizer:
    """Return a tokenizer with 256 byte tokens, some merges, and the special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer
