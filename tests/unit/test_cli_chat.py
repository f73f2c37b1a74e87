"""`radixserve chat`: conversations, a server's events, and the loop that reads and prints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from radixserve.cli.chat import ChatLoop
from radixserve.cli.conversation import (
    AnswerClock,
    AnswerPart,
    ChatError,
    ChatSampling,
    Conversation,
    TokenCounts,
)
from radixserve.cli.remote_chat import RemoteChat, parse_event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from radixserve.cli.conversation import Message

# Conversations


def test_a_conversation_sends_the_system_message_and_all_turns() -> None:
    conversation = Conversation("Be brief.")
    conversation.record("a", "b")
    assert [message["content"] for message in conversation.ask("c")] == ["Be brief.", "a", "b", "c"]
    conversation.reset()
    assert [message["content"] for message in conversation.ask("c")] == ["Be brief.", "c"]


def test_a_question_without_an_answer_is_not_kept() -> None:
    conversation = Conversation()
    conversation.record("a", "")
    assert conversation.ask("c") == [{"role": "user", "content": "c"}]


def test_an_answer_is_described_by_wait_speed_and_cache() -> None:
    clock = AnswerClock(asked_at=10.0)
    clock.see(AnswerPart("a"), 10.084)
    clock.see(AnswerPart("b"), 11.084)
    clock.see(AnswerPart("", TokenCounts(prompt=212, cached=187, completion=42)), 12.0)
    assert clock.describe() == "ttft 84 ms · 41.0 tok/s · 212 prompt tokens, 187 from cache"


def test_an_answer_of_one_part_has_no_speed() -> None:
    clock = AnswerClock(asked_at=10.0)
    clock.see(AnswerPart("a", TokenCounts(prompt=5, cached=0, completion=1)), 10.5)
    assert clock.describe() == "ttft 500 ms · 1 tokens · 5 prompt tokens, 0 from cache"
    assert AnswerClock(asked_at=0.0).describe() == "no answer"


# A server's events


def test_events_give_their_text_and_their_counts() -> None:
    delta = {"choices": [{"delta": {"content": "Hi"}}], "usage": None}
    assert parse_event(b"data: " + json.dumps(delta).encode()) == AnswerPart("Hi")
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    last = json.dumps({"choices": [], "usage": usage}).encode()
    assert parse_event(b"data: " + last) == AnswerPart("", TokenCounts(9, 4, 2))


@pytest.mark.parametrize("line", [b"\n", b": ping\n", b"data: [DONE]\n", b"event: x\n"])
def test_lines_without_content_say_nothing(line: bytes) -> None:
    assert parse_event(line) is None


def test_an_error_event_is_raised() -> None:
    with pytest.raises(ChatError, match="the step failed"):
        parse_event(b'data: {"error": {"message": "the step failed"}}')


async def collect(chat: RemoteChat) -> list[AnswerPart]:
    """Open, ask once, close."""
    try:
        await chat.open()
        return [part async for part in chat.answer([{"role": "user", "content": "hi"}])]
    finally:
        await chat.close()


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ChatError, match=f"cannot reach {url}"):
        await collect(RemoteChat(url, ChatSampling()))


async def test_a_refusal_shows_the_servers_own_message() -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the API key is wrong"}}, status=401)

    app = web.Application()
    app.router.add_get("/v1/models", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        with pytest.raises(ChatError, match="the server answered 401: the API key is wrong"):
            await collect(RemoteChat(f"http://{host}:{port}/v1/", ChatSampling()))
    finally:
        await runner.cleanup()


# The chat loop


class EchoChat:
    """Answers with the number of messages and the last one. Implements `ChatBackend`."""

    def __init__(self) -> None:
        self.is_closed = False
        self.num_aborted = 0

    async def open(self) -> str:
        """Name itself."""
        return "echo"

    async def answer(self, messages: Sequence[Message]) -> AsyncGenerator[AnswerPart, None]:
        """Say what was said."""
        if messages[-1]["content"] == "fail":
            raise ChatError("asked to fail")
        for word in (str(len(messages)), " ", messages[-1]["content"]):
            await asyncio.sleep(0)
            yield AnswerPart(word)
        if messages[-1]["content"] == "interrupt":
            signal.raise_signal(signal.SIGINT)
            try:
                await asyncio.sleep(60)
            finally:
                self.num_aborted += 1

    async def close(self) -> None:
        """Remember."""
        self.is_closed = True


def chat(lines: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, EchoChat]:
    """Feed `lines` to a chat as a pipe would."""
    read_end, write_end = os.pipe()
    os.write(write_end, lines.encode())
    os.close(write_end)
    backend = EchoChat()
    with open(read_end) as stdin, asyncio.Runner() as runner:
        monkeypatch.setattr(sys, "stdin", stdin)
        code = ChatLoop(runner, backend, Conversation()).run()
    return code, backend


def test_a_pipe_gets_the_answers_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, backend = chat("one\n\ntwo\n", monkeypatch)
    captured = capsys.readouterr()
    assert captured.out == "1 one\n3 two\n"
    assert "ttft" in captured.err
    assert (code, backend.is_closed) == (0, True)


def test_commands_of_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "one\n/reset\ntwo\n/system Be brief.\nthree\n/help\n/rset\n/quit\nfour\n"
    code, _ = chat(lines, monkeypatch)
    captured = capsys.readouterr()
    assert captured.out == "1 one\n1 two\n2 three\n"
    assert "/system TEXT" in captured.err
    assert "there is no /rset" in captured.err
    assert code == 0


def test_a_failed_question_is_one_line_and_the_chat_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, backend = chat("fail\nagain\n", monkeypatch)
    captured = capsys.readouterr()
    assert captured.out == "1 again\n"
    assert "error: asked to fail" in captured.err
    assert (code, backend.is_closed) == (1, True)


def test_ctrl_c_ends_the_answer_and_keeps_what_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, backend = chat("interrupt\nagain\n", monkeypatch)
    captured = capsys.readouterr()
    assert captured.out == "1 interrupt\n3 again\n"
    assert "interrupted · ttft" in captured.err
    assert (code, backend.num_aborted) == (0, 1)
