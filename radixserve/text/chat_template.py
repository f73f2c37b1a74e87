"""Messages to a prompt, by the model's own Jinja chat template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, TemplateSyntaxError

from radixserve.errors import InvalidRequestError, ModelLoadError
from radixserve.text.control_tokens import ControlTokens, iter_strings, private_characters
from radixserve.text.messages import normalize_messages
from radixserve.text.reasoning import mentions_reasoning, opens_reasoning
from radixserve.text.template_files import read_templates
from radixserve.text.template_renderer import compile_template
from radixserve.text.tool_calls.styles import detect_parser, mentions_calls, mentions_tools
from radixserve.text.tool_prompt import with_calls_as_text, with_tools_as_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from re import Pattern

    from jinja2 import Template

    from radixserve.text.control_tokens import Hidden
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.text.tool_calls.styles import ToolCallStyle

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
"""Names that `template_kwargs` may not set: each has a field of its own."""
_TAIL_LEN = 16
"""Tokens at a prompt's end in which the opening of thoughts is looked for."""
TRIMMED_SPACE = "\N{EM SPACE}"
"""Goes after the end marker: a template that trims its messages takes it away."""


@dataclass(frozen=True, slots=True)
class _Chat:
    """One rendered chat; control tokens of the caller are still hidden in `text`."""

    text: str
    hidden: Hidden


class ChatTemplate:
    """One model's chat templates, by name.

    Args:
        templates: Jinja source by name: `default`, and `tool_use` for chats with tools.
        tokenizer: The model's tokenizer.
        call_style: How the model writes calls of tools; None: as its templates show it.

    Raises:
        ModelLoadError: A template is not valid Jinja.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        tokenizer: Tokenizer,
        *,
        call_style: ToolCallStyle | None = None,
    ) -> None:
        self._templates = {name: _compile(name, source) for name, source in templates.items()}
        self._sources = dict(templates)
        self.call_style = call_style or detect_parser("\n".join(templates.values()))
        """How the model writes calls of tools."""
        self._tokenizer = tokenizer
        self._control_tokens = ControlTokens(tokenizer)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        *,
        override: str | None = None,
        call_style: ToolCallStyle | None = None,
    ) -> ChatTemplate:
        """Return the chat template of a model folder, or the one given instead.

        Args:
            folder: The model folder.
            tokenizer: The model's tokenizer.
            override: Jinja source that replaces all templates of the folder.
            call_style: How the model writes calls of tools; None: as its templates show it.

        Raises:
            ModelLoadError: A template, or the file that holds it, cannot be read.
        """
        templates = read_templates(folder) if override is None else {"default": override}
        return cls(templates, tokenizer, call_style=call_style)

    @property
    def is_available(self) -> bool:
        """Whether the model has any chat template."""
        return bool(self._templates)

    @property
    def sources(self) -> Mapping[str, str]:
        """The Jinja source of each template, by name."""
        return self._sources

    @cached_property
    def has_reasoning(self) -> bool:
        """Whether the model thinks in tags before it answers."""
        return any(mentions_reasoning(source) for source in self._sources.values())

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt of this model ends by opening the thoughts of the answer."""
        if not self.has_reasoning:
            return False
        tail = prompt_ids[-_TAIL_LEN:]
        return opens_reasoning(self._tokenizer.decode(tail, skip_special_tokens=False))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt as text.

        Args:
            messages: Messages as in the OpenAI API; `content` is text or a list of text parts.
            add_generation_prompt: End with what opens the assistant's next turn.
            continue_final_message: End with the last message's own text, its turn left open. The
                last message must be the assistant's, and `add_generation_prompt` must be off.
            tools: The tools that the model may call, as JSON objects. A template that knows none
                gets them, and all calls and results, in plain text; see `tool_prompt`.
            template_kwargs: More variables for the template, such as `enable_thinking`.

        Raises:
            InvalidRequestError: There is no template, it refuses these messages, or an argument
                cannot be used; `param` names it.
        Mutates: nothing.
        """
        chat = self._render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=template_kwargs,
        )
        return chat.hidden.restore(chat.text)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the prompt as ids: those of the rendered text, with at most one BOS.

        Only the template's own control tokens become special ids; one that a caller typed is
        plain text. Arguments and errors are those of `render`.
        """
        chat = self._render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=template_kwargs,
        )
        return self._control_tokens.encode(chat.text, chat.hidden)

    def encode_around(
        self,
        messages: Sequence[Mapping[str, Any]],
        stand_ins: Pattern[str],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[list[int]]:
        """Return the ids before, between and after the stand-ins in the messages.

        A stand-in is a private character in the place of a text whose tokens are known: nothing is
        tokenized across it. Other arguments and errors are those of `encode`.

        Args:
            stand_ins: Matches one stand-in.
        """
        chat = self._render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=None,
            template_kwargs=None,
        )
        first, *others = stand_ins.split(chat.text)
        encode = self._control_tokens.encode
        return [
            encode(first, chat.hidden),
            *(encode(text, chat.hidden, is_first=False) for text in others),
        ]

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> _Chat:
        name = self._choose(tools)
        template = self._templates[name]
        inputs = {
            **_checked_kwargs(template_kwargs or {}),
            "messages": normalize_messages(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        if continue_final_message:
            _check_continuation(messages, add_generation_prompt=add_generation_prompt)
        try:
            hidden = self._control_tokens.hide({**inputs, **self._as_text(name, inputs)})
        except RecursionError as error:
            raise InvalidRequestError("The chat is nested too deeply.", param="messages") from error
        if continue_final_message:
            return _Chat(self._render_open(template, hidden.value), hidden)
        return _Chat(self._run(template, hidden.value), hidden)

    def _choose(self, tools: object) -> str:
        wanted = "tool_use" if tools and "tool_use" in self._templates else "default"
        if wanted in self._templates:
            return wanted
        raise InvalidRequestError(
            "This model has no chat template. Put a chat_template.jinja into its folder, start the "
            "server with a chat template, or use the completions endpoint."
        )

    def _as_text(self, name: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Messages in which plain text stands for what the template of that name cannot show."""
        source, turns, tools = self._sources[name], inputs["messages"], inputs["tools"]
        if not mentions_calls(source):
            turns = with_calls_as_text(turns)
        if tools is None or mentions_tools(source):
            return {"messages": turns}
        return {"messages": with_tools_as_text(turns, tools), "tools": None}

    def _run(self, template: Template, inputs: Mapping[str, Any]) -> str:
        """Run a template that someone else wrote: whatever it raises, this chat is refused."""
        variables = {"documents": None, **self._tokenizer.named_tokens, **inputs}
        try:
            return template.render(variables)
        except TemplateError as error:
            raise InvalidRequestError(str(error.message or error), param="messages") from error
        except Exception as error:
            raise InvalidRequestError(
                f"The chat template cannot render these messages: {error}", param="messages"
            ) from error

    def _render_open(self, template: Template, inputs: Mapping[str, Any]) -> str:
        """Render with a marker at the end of the last message, and cut there.

        The message's text alone would not do: an earlier message may have the same, and a template
        may trim it. Where the template trims, the message's last white space goes too.

        Source: huggingface/transformers#36404.
        """
        *earlier, last = inputs["messages"]
        text = last["content"]
        marker = next(private_characters([*iter_strings(inputs), *self._sources.values()]))
        marked = {**last, "content": text + marker + TRIMMED_SPACE}
        rendered = self._run(template, {**inputs, "messages": [*earlier, marked]})
        kept, found, rest = rendered.rpartition(marker)
        if not found:
            raise InvalidRequestError(
                "The chat template leaves out the text of the last message, so it cannot be "
                "continued.",
                param="continue_final_message",
            )
        is_trimmed = not rest.startswith(TRIMMED_SPACE)
        return kept.removesuffix(text[len(text.rstrip()) :]) if is_trimmed else kept


def _compile(name: str, source: str) -> Template:
    try:
        return compile_template(source)
    except TemplateSyntaxError as error:
        where = f"line {error.lineno}: {error.message}"
        raise ModelLoadError(f"The {name} chat template is not valid Jinja; {where}") from error


def _checked_kwargs(template_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in RESERVED & template_kwargs.keys():
        raise InvalidRequestError(
            f"chat_template_kwargs may not set {name!r}; it has a field of its own.",
            param="chat_template_kwargs",
        )
    return template_kwargs


def _check_continuation(
    messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
) -> None:
    param = "continue_final_message"
    if add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other: the one leaves "
            "the last turn open, the other opens a new one.",
            param=param,
        )
    last = messages[-1]
    if last["role"] != "assistant" or last.get("content") is None:
        raise InvalidRequestError(
            "continue_final_message needs an assistant message with content at the end.",
            param=param,
        )
