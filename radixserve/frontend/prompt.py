"""`Prompt`: what a program writes to and generates from.

    p += "Label: "                      appending never waits
    label = await p.select("label", ["pos", "neg"])
    kids = p.fork(3)                    branches share everything up to here, in the tree

Everything that waits is awaited; asyncio's cancellation and timeouts end calls on the engine.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from radixserve.errors import InvalidRequestError, RoleError
from radixserve.frontend.act import Agent, with_instructions
from radixserve.frontend.calls import Calls
from radixserve.frontend.each import run_each
from radixserve.frontend.gen_options import GenOptions
from radixserve.frontend.pieces import Text, Transcript, Turn
from radixserve.frontend.tools import Toolbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from radixserve.frontend.act import OnToolError
    from radixserve.frontend.choice import Choice, Method
    from radixserve.frontend.each import OnError
    from radixserve.frontend.path import Path
    from radixserve.frontend.pieces import Part
    from radixserve.frontend.report import Report
    from radixserve.frontend.run import Run
    from radixserve.frontend.scores import Score

    ItemT = TypeVar("ItemT")
    ResultT = TypeVar("ResultT")


class Prompt:
    """One branch of a running program. Not for use by two tasks at once: fork instead.

    Args:
        run: Of the program.
        path: The branch's place in it.
        transcript: What it begins with.
        captures: The named values it begins with.
        parent: The last call that it begins with.
    """

    def __init__(
        self,
        run: Run,
        path: Path,
        transcript: Transcript | None = None,
        captures: Mapping[str, Any] | None = None,
        parent: str = "",
    ) -> None:
        self._run = run
        self._path = path
        self._transcript = transcript or Transcript()
        self._calls = Calls(run, path, parent)
        self._captures = dict(captures or {})
        self._num_forks = 0

    def __repr__(self) -> str:
        return f"<Prompt {self._path} {len(str(self._transcript))} characters>"

    # -- what is there -------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """Return the value of that name.

        Raises:
            KeyError: nothing has been generated under it.
        """
        return self._captures[name]

    def __contains__(self, name: object) -> bool:
        return name in self._captures

    @property
    def captures(self) -> dict[str, Any]:
        """All named values so far."""
        return dict(self._captures)

    @property
    def transcript(self) -> Transcript:
        """All that has been written, as frozen pieces."""
        return self._transcript

    @property
    def path(self) -> Path:
        """This branch's place in the program."""
        return self._path

    @property
    def report(self) -> Report:
        """What the whole run has cost so far."""
        return self._run.report

    def text(self) -> str:
        """Return what has been written; turns as ``role: text``, a line each."""
        return str(self._transcript)

    # -- writing: never waits ------------------------------------------------------------------

    def __iadd__(self, text: str) -> Self:
        """Write some text, in the open turn or at the end of a plain prompt.

        Raises:
            RoleError: this is a chat and no turn is open.
        """
        if not isinstance(text, str):
            raise TypeError(f"a prompt takes text, not {type(text).__name__}: write str(...)")
        self._transcript = self._transcript.plus(Text(text))
        return self

    def system(self, text: str) -> None:
        """Write the system's turn."""
        self._turn("system", text)

    def user(self, text: str) -> None:
        """Write a turn of the user."""
        self._turn("user", text)

    def tool(self, text: str, *, call_id: str = "") -> None:
        """Write a tool's answer."""
        turn = Turn("tool", (Text(text),) if text else (), tool_call_id=call_id)
        self._transcript = self._transcript.with_turn(turn)

    @contextmanager
    def assistant(self) -> Iterator[Prompt]:
        """Write the assistant's turn, partly by hand: ``with p.assistant(): p += ...; await ...``.

        Raises:
            RoleError: a turn is open already.
        """
        self._transcript = self._transcript.with_turn(Turn("assistant", is_open=True))
        try:
            yield self
        finally:
            self._transcript = self._transcript.closed()

    def _turn(self, role: str, text: str) -> None:
        self._transcript = self._transcript.with_turn(Turn(role, (Text(text),) if text else ()))

    # -- calls: wait ---------------------------------------------------------------------------

    async def gen(
        self,
        name: str | None = None,
        type: Any = str,
        **options: Any,
    ) -> Any:
        """Let the model write, and return it as a value of `type`.

        After a turn of the user or a tool it opens and closes the assistant's turn. `n` asks for
        several: a list is returned, and the first is what the prompt goes on with.

        Args:
            name: Kept under it, as ``p[name]``.
            type: str, int, float, bool, Literal, Enum, a dataclass, a pydantic model, list, ...
            options: Fields of `GenOptions`: max_tokens, temperature, top_p, stop, regex, schema,
                grammar, n, retries, timeout, seed, logprobs.
        Raises:
            IncompleteError: a typed value was cut.
            ValidationFailedError: no attempt gave a value of the type.
            RadixServeError: what the backend raises; a note names the call.
        """
        wanted = GenOptions.of(options)
        opens_turn = self._opens_turn()
        start = self._opened() if opens_turn else self._transcript
        outputs = await self._calls.generate(start, name, type, wanted)
        self._go_on(start, outputs[0].parts, closes_turn=opens_turn)
        values = [output.value for output in outputs]
        return self._keep(name, values if wanted.n > 1 else values[0])

    async def select(
        self,
        name: str | None,
        options: Sequence[str],
        *,
        method: Method = "joint",
        temperature: float = 0.0,
        then: str = "",
        timeout: float | None = None,  # noqa: ASYNC109  it is the engine's own
    ) -> Choice:
        """Choose one of some texts by the model's probabilities, write it, and return it.

        All options are scored together, in about one pass over their trie.

        Args:
            method: joint, mean, tokenwise or unconditional: see `choice.choose`.
            temperature: 0 takes the likeliest; above it, one is drawn.
            then: What follows every option, if something does; it counts, and is not written.
        Raises:
            InvalidRequestError: there is nothing to choose from.
        """
        opens_turn = self._opens_turn()
        start = self._opened() if opens_turn else self._transcript
        choice, parts = await self._calls.select(
            start, name, options, method=method, temperature=temperature, then=then, timeout=timeout
        )
        self._go_on(start, parts, closes_turn=opens_turn)
        self._keep(name, choice)
        return choice

    async def score(self, text: str, *, timeout: float | None = None) -> Score:  # noqa: ASYNC109
        """Return how likely a text is as a continuation; it is not written."""
        start = self._opened() if self._opens_turn() else self._transcript
        return await self._calls.score(start, text, timeout=timeout)

    async def act(
        self,
        tools: Sequence[Callable[..., Any]],
        *,
        result: Any = str,
        max_steps: int = 8,
        parallel: bool = True,
        on_tool_error: OnToolError = "tell",
        **options: Any,
    ) -> Any:
        """Let the model call typed Python functions until it has an answer of type `result`.

        Args:
            parallel: Whether one step may call several tools, which run side by side.
            on_tool_error: tell lets the model read a tool's failure; raise ends the loop with it.
            options: Of each generation; see `gen`.
        Raises:
            StepLimitError: there is no answer after `max_steps` generations.
            RoleError: this is no chat in which the user has spoken last.
        """
        toolbox = Toolbox(tools, result, parallel=parallel)
        agent = Agent(self, self._run, toolbox, on_error=on_tool_error, options=options)
        self._transcript = with_instructions(self._transcript, toolbox.instructions())
        return await agent.answer(max_steps)

    async def commit(self) -> None:
        """Wait until all that has been written is in the cache."""
        await self._calls.warm(self._transcript)

    def hint(self, **fields: Any) -> None:
        """Say something of the next call's future: `ttl_s`, `pause_s`, `is_end`, `priority`."""
        self._calls.hint(fields)

    # -- branches ------------------------------------------------------------------------------

    def fork(self, count: int = 1) -> list[Self]:
        """Return branches that begin with all of this; independent from then on."""
        if count < 0:
            raise InvalidRequestError(f"count must be at least 0; got {count}", param="count")
        first = self._num_forks
        self._num_forks += count
        return [
            type(self)(
                self._run,
                self._path.child("fork", first + index),
                self._transcript,
                self._captures,
                self._calls.parent,
            )
            for index in range(count)
        ]

    async def each(
        self,
        function: Callable[[Prompt, ItemT], Awaitable[ResultT]],
        items: Iterable[ItemT],
        *,
        limit: int | None = None,
        on_error: OnError = "raise",
    ) -> list[ResultT]:
        """Run ``function(branch, item)`` for each item on a branch of its own, side by side.

        Args:
            limit: Most at a time; all when None.
            on_error: raise cancels the others and raises the first failure; return puts failures
                in their places; cancel_rest does so after cancelling those that still run.
        Returns: the results in the order of the items.
        """
        listed = list(items)
        branches = self.fork(len(listed))
        return await run_each(
            [lambda b=b, i=i: function(b, i) for b, i in zip(branches, listed, strict=True)],  # type: ignore[misc]
            limit=limit,
            on_error=on_error,
        )

    def join(self, branches: Sequence[Prompt], how: str = "vars") -> None:
        """Take over what branches have found.

        Args:
            how: vars makes a list of each of their new named values; text writes what each of them
                has written since the fork, one after the other.
        Raises:
            RoleError: a branch does not begin with this prompt (text).
        """
        if how == "vars":
            names = dict.fromkeys(name for branch in branches for name in branch._captures)
            for name in names:
                found = [branch._captures.get(name) for branch in branches]
                if any(value is not self._captures.get(name) for value in found):
                    self._captures[name] = found
        elif how == "text":
            self._join_text(branches)
        else:
            raise InvalidRequestError(f"how must be vars or text; got {how!r}", param="how")

    def _join_text(self, branches: Sequence[Prompt]) -> None:
        start = self._transcript
        joined = start
        for branch in branches:
            for piece in branch._transcript.suffix_after(start):
                joined = joined.with_piece(piece)
        self._transcript = joined

    # -- inside --------------------------------------------------------------------------------

    def _opens_turn(self) -> bool:
        if not self._transcript.is_chat or self._transcript.open_turn is not None:
            return False
        if self._transcript.turns[-1].role == "assistant":
            raise RoleError(
                "the assistant's turn has ended: write p.user(text) first, or keep it open with "
                "'with p.assistant():'"
            )
        return True

    def _opened(self) -> Transcript:
        return self._transcript.with_turn(Turn("assistant", is_open=True))

    def _go_on(self, start: Transcript, parts: Iterable[Part], *, closes_turn: bool) -> None:
        """Write what a call has produced behind what it was given."""
        for part in parts:
            start = start.plus(part)
        self._transcript = start.closed() if closes_turn else start

    def _keep(self, name: str | None, value: Any) -> Any:
        if name is not None:
            self._captures[name] = value
        return value
