"""``POST /tokenize`` and ``POST /detokenize``: the ids that a request would run with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.text.portable import read_sheet
from tests.server.conftest import SHARED_CONTEXT_LEN
from tests.server.events import post

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "Once upon a time there was a 🦜 and a 中."
CHAT = [{"role": "user", "content": "the parrot said"}]


@pytest.mark.parametrize("root", ["", "/v1"])
async def test_text_becomes_tokens_and_text_again(client: Client, root: str) -> None:
    found = await post(client, f"{root}/tokenize", {"prompt": TEXT, "return_token_strs": True})
    back = await post(client, f"{root}/detokenize", {"tokens": found["tokens"]})
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == SHARED_CONTEXT_LEN
    assert back["text"] == back["prompt"] == TEXT


async def test_a_chat_has_the_tokens_that_its_answer_counts(client: Client) -> None:
    for fields in ({}, {"add_generation_prompt": False}):
        found = await post(client, "/tokenize", {"messages": CHAT, **fields})
        answer = await post(
            client, "/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, **fields}
        )
        assert found["count"] == answer["usage"]["prompt_tokens"]
        assert found["token_strs"] is None


async def test_long_texts_are_tokenized_too(client: Client, shared_engine: AsyncEngine) -> None:
    long = "the tree " * 2000
    found = await post(client, "/tokenize", {"prompt": long})
    assert found["tokens"] == shared_engine.tokenizer.encode(long)


async def test_control_tokens_are_left_out_if_asked(client: Client) -> None:
    ids = (await post(client, "/tokenize", {"prompt": "<|im_start|>a<|im_end|>"}))["tokens"]
    shown = await post(client, "/detokenize", {"tokens": ids})
    hidden = await post(client, "/detokenize", {"tokens": ids, "skip_special_tokens": True})
    assert (shown["text"], hidden["text"]) == ("<|im_start|>a<|im_end|>", "a")


async def test_no_text_has_no_tokens(client: Client) -> None:
    found = await post(client, "/tokenize", {"prompt": "", "add_special_tokens": False})
    assert (found["count"], found["tokens"]) == (0, [])
    assert (await post(client, "/detokenize", {"tokens": []}))["text"] == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "return_tokens_strs": True}, 400, "return_tokens_strs"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [9_999_999]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
    ],
)
async def test_what_is_wrong_is_named(
    client: Client, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    response = await client.post(path, json=body)
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (status, param)


async def test_the_version_is_told(client: Client) -> None:
    response = await client.get("/version")
    assert response.status == 200
    assert set(await response.json()) == {"version"}


async def test_the_tokenizer_can_be_had_and_encodes_as_the_server_does(client: Client) -> None:
    response = await client.get("/tokenizer")
    sheet = await response.json()
    assert response.headers["Content-Encoding"] in ("deflate", "gzip")
    tokenizer, template = read_sheet(sheet)
    assert sheet["model"] == "tiny"
    found = await post(client, "/tokenize", {"prompt": TEXT})
    assert tokenizer.encode(TEXT) == found["tokens"]
    found = await post(client, "/tokenize", {"messages": CHAT})
    assert template.encode(CHAT) == found["tokens"]
