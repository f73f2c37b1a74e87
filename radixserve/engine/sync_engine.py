"""`Engine`: the blocking, in-process way in.

engine = radixserve.Engine()
[answer] = engine.generate("The capital of France is")
print(answer.text, answer.usage.cached_tokens)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from radixserve.config import EngineConfig
from radixserve.engine.build import build_core
from radixserve.engine.request import GenerateRequest
from radixserve.errors import BackendError
from radixserve.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.core.stats import SchedulerStats
    from radixserve.engine.engine_core import EngineCore, StepEvent
    from radixserve.engine.info import ModelInfo
    from radixserve.engine.request import TextDelta, Usage
    from radixserve.models.progress import Progress
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import ReqId


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage


class Engine:
    """A model in this process, stepped by whoever holds it. Not for use from several threads.

    Args:
        model: A folder, a GGUF file, a hub id; the default model when None.
        config: All the settings; `model` replaces the one in it.
        progress: Told about downloads and conversions.
    Raises:
        ConfigError: a setting or the model cannot be used.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        config = config or EngineConfig()
        if model is not None:
            config = replace(config, model=replace(config.model, model=model))
        self.core: EngineCore = build_core(config, progress=progress)

    def __repr__(self) -> str:
        return f"<Engine {self.core!r}>"

    @classmethod
    def from_config(cls, config: EngineConfig, *, progress: Progress | None = None) -> Engine:
        """Return an engine with these settings."""
        return cls(config=config, progress=progress)

    @property
    def info(self) -> ModelInfo:
        """The model and its limits."""
        return self.core.info

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        return self.core.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """Of the model."""
        return self.core.chat_template

    def stats(self) -> SchedulerStats:
        """Return counters and gauges as they are now."""
        return self.core.stats()

    # -- all at once ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
    ) -> list[Completion]:
        """Continue each prompt and return the completions in the prompts' order.

        Args:
            prompts: One text, several texts, or several lists of token ids.
            params: For all of them.
        Raises:
            RequestError: a prompt can never be served; nothing has been run then.
            BackendError: a step failed.
        """
        several = [prompts] if isinstance(prompts, str) else prompts
        return self.run([self._request(prompt, params) for prompt in several])

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> Completion:
        """Answer a conversation through the model's own chat template.

        Args:
            params: When None, up to 256 tokens.
        Raises:
            InvalidRequestError: the template refuses the messages, or there is none.
        """
        ids = self.chat_template.encode(messages)
        return self.run([self._request(ids, params or SamplingParams(max_tokens=256))])[0]

    def run(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Run requests to their ends and return the completions in the same order.

        Raises:
            RequestError: one of them can never be served; nothing has been run then.
            BackendError: a step failed; the others have been given up.
        """
        for request in requests:
            self.core.check(request)
        names = [self.core.begin(request) for request in requests]
        parts: dict[ReqId, list[TextDelta]] = {name: [] for name in names}
        try:
            while any(not _is_done(deltas) for deltas in parts.values()):
                for event in self.core.step():
                    _raise_failure(event)
                    if event.req_id in parts:
                        parts[event.req_id].append(event.delta)
        finally:
            self._give_up([name for name in names if not _is_done(parts[name])])
        return [_joined(parts[name]) for name in names]

    # -- step by step --------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> ReqId:
        """Queue a request and return its name; `step` runs it."""
        return self.core.begin(request)

    def abort(self, req_id: ReqId) -> None:
        """Give a request up; the next `step` takes its blocks back."""
        self.core.end(req_id)

    def step(self) -> list[StepEvent]:
        """Run one forward pass over all that is due, and return what it meant for each request."""
        return self.core.step()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.core.has_work

    # -- inside --------------------------------------------------------------------------------

    def _request(
        self, prompt: str | Sequence[int], params: SamplingParams | None
    ) -> GenerateRequest:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return GenerateRequest(prompt_ids=ids, params=params or SamplingParams())

    def _give_up(self, names: Sequence[ReqId]) -> None:
        for name in names:
            self.core.end(name)
        if names:
            self.core.step()


def _is_done(deltas: Sequence[TextDelta]) -> bool:
    return bool(deltas) and deltas[-1].finish_reason is not None


def _raise_failure(event: StepEvent) -> None:
    if event.delta.finish_reason is FinishReason.ERROR:
        raise BackendError(event.error or "the step failed")


def _joined(deltas: Sequence[TextDelta]) -> Completion:
    last = deltas[-1]
    assert last.finish_reason is not None
    ids = tuple(token for delta in deltas for token in delta.token_ids)
    return Completion("".join(delta.text for delta in deltas), ids, last.finish_reason, last.usage)
