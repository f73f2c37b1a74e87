"""`radixserve chat`: talk to a server, or to a model loaded in this process.

Answers go to stdout; everything else goes to stderr, so that a pipe gets the answers alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from radixserve.cli.conversation import AnswerClock, ChatSampling, Conversation
from radixserve.cli.embedded_chat import EmbeddedChat
from radixserve.cli.flags import MODEL_FLAGS, add_setting_flags, config_from_args
from radixserve.cli.progress import RichProgress
from radixserve.cli.remote_chat import RemoteChat
from radixserve.errors import RadixServeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.cli.conversation import ChatBackend

DEFAULT_URL = "http://127.0.0.1:8000"
ENGINE_GROUPS = {"with --embedded": MODEL_FLAGS}

EPILOG = """\
examples:
  radixserve chat                              with the server on this machine
  radixserve chat --url http://gpu7:8000 --api-key s3cret
  radixserve chat --embedded                   without a server; loads the default model
  echo "What is a radix tree?" | radixserve chat --embedded

After each answer: the time to the first token (ttft), the speed, and how much of the prompt was
found in the cache. Ctrl-C stops an answer; pressed at the prompt, it leaves.
"""

COMMANDS = """\
/system TEXT   set the system message and start anew; without TEXT, drop it
/reset         start anew
/quit          leave; so do Ctrl-D and Ctrl-C
/help          show this"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "chat",
        help="chat in the terminal",
        description="Chat in the terminal, with a server or with a model loaded for the purpose.",
        epilog=f"{EPILOG}\nin the chat:\n{COMMANDS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
    parser.add_argument("--api-key", metavar="KEY", help="the server's key (default: none)")
    parser.add_argument(
        "--embedded", action="store_true", help="load a model here; --model implies it"
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="the system message")
    defaults = ChatSampling()
    parser.add_argument(
        "--temperature",
        type=float,
        default=defaults.temperature,
        metavar="T",
        help=f"0 always takes the likeliest token (default: {defaults.temperature})",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=defaults.max_tokens,
        metavar="N",
        help=f"longest answer (default: {defaults.max_tokens})",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="makes the answers repeatable")
    add_setting_flags(parser, ENGINE_GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Chat until the input ends; 1 when a question without a terminal failed."""
    with asyncio.Runner() as runner:
        return ChatLoop(runner, _make_backend(args), Conversation(args.system)).run()


def _make_backend(args: argparse.Namespace) -> ChatBackend:
    sampling = ChatSampling(
        temperature=args.temperature, max_tokens=args.max_tokens, seed=args.seed
    )
    if not (args.embedded or args.model):
        return RemoteChat(args.url, sampling, api_key=args.api_key)
    config = config_from_args(args, ENGINE_GROUPS)
    from radixserve.engine.async_engine import AsyncEngine

    return EmbeddedChat(AsyncEngine.from_config(config.engine, progress=RichProgress()), sampling)


class ChatLoop:
    """Reads questions and prints answers.

    The loop itself is blocking; each answer is one run of `runner`, which turns Ctrl-C into the
    cancellation of that answer.
    """

    def __init__(
        self, runner: asyncio.Runner, backend: ChatBackend, conversation: Conversation
    ) -> None:
        self._runner = runner
        self._backend = backend
        self._conversation = conversation
        self._is_terminal = sys.stdin.isatty()
        self._has_failed = False

    def run(self) -> int:
        """Chat until /quit or the end of the input; return the exit code."""
        try:
            model = self._runner.run(self._backend.open())
            _note(f"{model}: ask away, or see /help" if self._is_terminal else model)
            for line in self._lines():
                if line == "/quit":
                    break
                self._handle(line)
        finally:
            self._runner.run(self._backend.close())
        return 1 if self._has_failed and not self._is_terminal else 0

    def _lines(self) -> Iterator[str]:
        if self._is_terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives input() a history and line editing
        while True:
            try:
                line = input("> ") if self._is_terminal else input()
            except (EOFError, KeyboardInterrupt):
                if self._is_terminal:
                    _note("")
                return
            if line.strip():
                yield line.strip()

    def _handle(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        if command == "/reset":
            self._conversation.reset()
        elif command == "/system":
            self._conversation = Conversation(rest.strip())
        elif command == "/help":
            _note(COMMANDS)
        elif command.startswith("/") and command[1:].isalpha():
            _note(f"there is no {command}; see /help")
        else:
            self._ask(line)

    def _ask(self, question: str) -> None:
        texts: list[str] = []
        clock = AnswerClock(asked_at=time.perf_counter())
        outcome = ""
        try:
            self._runner.run(self._stream(question, texts, clock))
        except KeyboardInterrupt:
            outcome = "interrupted · "
        except RadixServeError as error:
            self._has_failed = True
            outcome = f"error: {' '.join(str(error).split())} · "
        self._conversation.record(question, "".join(texts))
        if texts:
            print(flush=True)
        _note(f"{outcome}{clock.describe()}")

    async def _stream(self, question: str, texts: list[str], clock: AnswerClock) -> None:
        messages = self._conversation.ask(question)
        async with contextlib.aclosing(self._backend.answer(messages)) as parts:
            async for part in parts:
                clock.see(part, time.perf_counter())
                texts.append(part.text)
                print(part.text, end="", flush=True)


def _note(text: str) -> None:
    """Print `text` on stderr, dimmed on a terminal."""
    dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    print(f"{dim}{text}{plain}", file=sys.stderr, flush=True)
