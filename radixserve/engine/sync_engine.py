"""`Engine`: the blocking, in-process way in.

engine = radixserve.Engine()
[answer] = engine.generate("The capital of France is")
print(answer.text, answer.usage.cached_tokens)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from radixserve.config import EngineConfig
from radixserve.engine.build import build_core
from radixserve.engine.request import GenerateRequest
from radixserve.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from radixserve.core.stats import SchedulerStats
    from radixserve.engine.engine_core import EngineCore
    from radixserve.engine.grammars import GrammarSpec
    from radixserve.engine.info import ModelInfo
    from radixserve.engine.live_requests import StepEvent
    from radixserve.engine.request import TextDelta, Usage
    from radixserve.models.progress import Progress
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import Grammar, ReqId


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
        self._kept: list[StepEvent] = []
        """Events of added requests that came while `run` was stepping."""

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

    def compile_grammar(self, spec: GrammarSpec) -> Grammar:
        """Return what `SamplingParams.grammar` takes.

        Raises:
            UnsupportedGrammarError: it is wrong, too large, or a part of it cannot be enforced.
        """
        return self.core.grammars.compile(spec)

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

        There may be more of them than the queue holds. What happens meanwhile to requests that
        were added before is kept for `step`.

        Raises:
            RequestError: one of them can never be served; nothing has been run then.
            BackendError: a step failed; the others have been given up.
        """
        for request in requests:
            self.core.check(request)
        parts: dict[ReqId, list[TextDelta]] = {}
        queue = deque(requests)
        num_done = 0
        try:
            while num_done < len(requests):
                while queue and self.core.has_room:
                    parts[self.core.begin(queue.popleft())] = []
                num_done += self._collect(parts)
        finally:
            self._give_up(parts)
        return [_joined(deltas) for deltas in parts.values()]

    # -- step by step --------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> ReqId:
        """Queue a request and return its name; `step` runs it."""
        return self.core.begin(request)

    def abort(self, req_id: ReqId) -> None:
        """Give a request up; the next `step` takes its blocks back."""
        self.core.end(req_id)

    def step(self) -> list[StepEvent]:
        """Run one forward pass over all that is due, and return what it meant for each request."""
        kept, self._kept = self._kept, []
        return kept + (self.core.step() if self.core.has_work else [])

    @property
    def has_work(self) -> bool:
        """Whether `step` would return or do anything."""
        return bool(self._kept) or self.core.has_work

    # -- inside --------------------------------------------------------------------------------

    def _request(
        self, prompt: str | Sequence[int], params: SamplingParams | None
    ) -> GenerateRequest:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return GenerateRequest(prompt_ids=ids, params=params or SamplingParams())

    def _collect(self, parts: Mapping[ReqId, list[TextDelta]]) -> int:
        """Run a step, sort its events, and return how many of `parts` it ended."""
        num_done = 0
        for event in self.core.step():
            if event.req_id not in parts:
                self._kept.append(event)
                continue
            _raise_failure(event)
            parts[event.req_id].append(event.delta)
            num_done += event.delta.finish_reason is not None
        return num_done

    def _give_up(self, names: Iterable[ReqId]) -> None:
        """End those that still hold blocks: a stop string's match is ahead of its Req's end.

        If nobody else is left, land what is still in flight too.
        """
        scheduler, mine = self.core.scheduler, set(names)
        for name in mine & scheduler.live_ids:
            self.core.end(name)
        while mine & scheduler.live_ids or (scheduler.in_flight and not scheduler.live_ids):
            self._kept += [event for event in self.core.step() if event.req_id not in mine]


def _raise_failure(event: StepEvent) -> None:
    if event.delta.finish_reason is FinishReason.ERROR:
        raise event.failure()


def _joined(deltas: Sequence[TextDelta]) -> Completion:
    last = deltas[-1]
    assert last.finish_reason is not None
    ids = tuple(token for delta in deltas for token in delta.token_ids)
    return Completion("".join(delta.text for delta in deltas), ids, last.finish_reason, last.usage)
