"""A request's tokens become text: detokenizing, stop strings, finish reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.engine.request import TextDelta, Usage
from radixserve.text.detokenizer import IncrementalDetokenizer
from radixserve.text.stop_strings import StopStrings
from radixserve.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.plan import ReqOutput
    from radixserve.engine.request import GenerateRequest
    from radixserve.text.tokenizer import Tokenizer


class OutputText:
    """The text side of one request. Stream and non-stream read the same object's deltas.

    Args:
        request: Names the stop strings and how special tokens are shown.
        tokenizer: Turns ids into text.
    """

    def __init__(
        self,
        request: GenerateRequest,
        tokenizer: Tokenizer,
    ) -> None:
        self._request = request
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=request.skip_special_tokens
        )
        self._stops = StopStrings(request.stop, include=request.include_stop_str_in_output)

    def push(self, output: ReqOutput) -> TextDelta:
        """Return what a step's output adds.

        The delta has finish reason STOP, although the output has none, when a stop string is
        complete: the caller must then end the Req.

        Mutates: the detokenizer and the held text.
        """
        is_final = output.finish_reason is not None
        text = self._detokenizer.push(self._shown(output))
        if is_final:
            text += self._detokenizer.flush()
        result = self._stops.push(text)
        if result.matched is not None:
            return self._delta(output, result.text, FinishReason.STOP, result.matched)
        if not is_final:
            return self._delta(output, result.text, None, None)
        return self._last_delta(output, result.text + self._stops.flush())

    def _last_delta(self, output: ReqOutput, text: str) -> TextDelta:
        """The end decides about a match that waited for a longer stop string."""
        if self._stops.matched is not None:
            return self._delta(output, text, FinishReason.STOP, self._stops.matched)
        return self._delta(output, text, output.finish_reason, self._stop_token(output))

    def _shown(self, output: ReqOutput) -> Sequence[int]:
        """A stop token ends the output; it is a part of it only if the caller wants that."""
        ids = output.new_token_ids
        ends_by_token = output.finish_reason is FinishReason.STOP and ids
        if ends_by_token and not self._request.include_stop_str_in_output:
            return ids[:-1]
        return ids

    def _stop_token(self, output: ReqOutput) -> int | None:
        if output.finish_reason is not FinishReason.STOP or not output.new_token_ids:
            return None
        token = output.new_token_ids[-1]
        return token if token in self._request.params.stop_token_ids else None

    def _delta(
        self,
        output: ReqOutput,
        text: str,
        reason: FinishReason | None,
        stop_reason: str | int | None,
    ) -> TextDelta:
        usage = Usage(output.prompt_len, output.cached_len, output.output_len, output.forced_len)
        return TextDelta(
            text,
            output.new_token_ids,
            reason,
            stop_reason,
            usage,
            output.logprobs,
            output.prompt_logprobs,
        )
