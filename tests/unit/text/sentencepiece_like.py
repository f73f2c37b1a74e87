"""A tokenizer built as Llama 2's: spaces as ▁, a space before the text, bytes as fallback."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, processors

LETTERS = "▁abcdefghijklmnopqrstuvwxyz<>/|_"


def train_sentencepiece_like() -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{i:02X}>" for i in range(256)], *LETTERS, "▁h", "▁hi"]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[("▁", "h"), ("▁h", "i")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer
