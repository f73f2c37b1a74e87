"""The engine's side of structured output: specs become grammars, off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.spec import (
    ANY_JSON_OBJECT,
    Branch,
    ChoiceSpec,
    GrammarSpec,
    GrammarTextSpec,
    JsonSchemaSpec,
    RegexSpec,
    TaggedTextSpec,
    UnionSpec,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.grammar.compiler import GrammarCompiler
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import Grammar

__all__ = [
    "ANY_JSON_OBJECT",
    "Branch",
    "ChoiceSpec",
    "GrammarSpec",
    "GrammarTextSpec",
    "Grammars",
    "JsonSchemaSpec",
    "RegexSpec",
    "TaggedTextSpec",
    "UnionSpec",
]

MAX_COMPILE_S = 10.0
"""A caller waits no longer; the limits end a compilation long before."""

NUM_COMPILE_THREADS = 2


class Grammars:
    """Compiles and keeps the grammars of one engine. Nothing is imported before the first.

    Args:
        tokenizer: Of the model.
        vocab_size: Ids that may be sampled are below it.
        eos_token_ids: Ids that end an output.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def compile(self, spec: GrammarSpec, *, param: str | None = None) -> Grammar:
        """Return the grammar of a spec. Takes milliseconds, seconds at worst.

        Args:
            param: The caller's field, for the error's message.
        Raises:
            UnsupportedGrammarError: it is wrong, too large, or a part of it cannot be enforced.
        """
        try:
            return self._compiler.compile(spec)
        except UnsupportedGrammarError as error:
            raise _about(param, error.message) from None

    async def compile_aside(self, spec: GrammarSpec, *, param: str | None = None) -> Grammar:
        """Return the grammar of a spec, at once if it is known, else compiled in a thread.

        Args:
            param: The caller's field, for the error's message.
        Raises:
            UnsupportedGrammarError: as `compile`, or it takes too long.
        """
        if "_compiler" in self.__dict__:
            found = self._compiler.find(spec)
            if found is not None:
                return found
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, partial(self.compile, spec, param=param))
        try:
            return await asyncio.wait_for(work, MAX_COMPILE_S)
        except TimeoutError:
            raise _about(
                param, f"it takes more than {MAX_COMPILE_S:.0f} seconds to compile"
            ) from None

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        # Imported when the first grammar is asked for: most engines never see one.
        from radixserve.grammar.compiler import GrammarCompiler

        return GrammarCompiler(
            self._tokenizer.backend.to_str(), self._vocab_size, self._ordered_ends()
        )

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(NUM_COMPILE_THREADS, thread_name_prefix="radixserve-compile")

    def _ordered_ends(self) -> Sequence[int]:
        """Return the ids that end an output, the tokenizer's own end token first."""
        name = self._tokenizer.named_tokens.get("eos_token")
        own = None if name is None else self._tokenizer.backend.token_to_id(name)
        return sorted(self._eos_token_ids, key=lambda token: (token != own, token))


def _about(param: str | None, why: str) -> UnsupportedGrammarError:
    return UnsupportedGrammarError(why if param is None else f"{param}: {why}.", param=param)
