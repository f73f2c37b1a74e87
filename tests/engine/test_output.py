"""From tokens to text: stop strings, stop tokens, finish reasons, characters of several tokens."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.plan import ReqOutput
from radixserve.engine.output import OutputText
from radixserve.engine.request import GenerateRequest, TextDelta, Usage
from radixserve.text.tokenizer import Tokenizer
from radixserve.types import FinishReason, ReqId, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


EOS, START = 2, 1
"""`<|im_end|>` and `<|im_start|>` of the tiny tokenizer."""

PROMPT_LEN, CACHED_LEN = 9, 4
EMOJI = "a\N{GRINNING FACE}b\N{CJK UNIFIED IDEOGRAPH-65E5}\N{CJK UNIFIED IDEOGRAPH-672C}é\N{FAMILY}"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def play(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    reason: FinishReason = FinishReason.LENGTH,
    step_len: int = 1,
    **fields: Any,
) -> list[TextDelta]:
    """Feed tokens as the scheduler does, until the text says that it has ended.

    Args:
        reason: Why the scheduler ends the request with the last token.
        step_len: Tokens a step.
    """
    output = OutputText(GenerateRequest(prompt_ids=[5], **fields), tokenizer)
    deltas: list[TextDelta] = []
    for begin in range(0, len(ids), step_len):
        end = min(begin + step_len, len(ids))
        final = reason if end == len(ids) else None
        new = tuple(ids[begin:end])
        deltas.append(output.push(ReqOutput(ReqId("r"), new, PROMPT_LEN, CACHED_LEN, end, final)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def text_of(deltas: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


# -- stop strings ------------------------------------------------------------------------------


@pytest.mark.parametrize("step_len", [1, 2, 100])
@pytest.mark.parametrize("stop", ["rot sa", "t", "parrot", " said: ", "hello", "the", "o"])
def test_a_stop_string_is_cut_off_wherever_tokens_end(
    stop: str, step_len: int, tokenizer: Tokenizer
) -> None:
    text = "the parrot said: hello"
    deltas = play(tokenizer, tokenizer.encode(text), step_len=step_len, stop=(stop,))

    assert text_of(deltas) == text[: text.index(stop)]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason == stop
    # At no time was a part of the stop string shown.
    assert all(delta.finish_reason is None for delta in deltas[:-1])


@pytest.mark.parametrize("stop", ["rot sa", "hello", "t"])
def test_a_stop_string_is_shown_on_request(stop: str, tokenizer: Tokenizer) -> None:
    text = "the parrot said: hello there"
    deltas = play(tokenizer, tokenizer.encode(text), stop=(stop,), include_stop_str_in_output=True)

    assert text_of(deltas) == text[: text.index(stop) + len(stop)]
    assert deltas[-1].stop_reason == stop


def test_held_text_comes_out_at_the_limit(tokenizer: Tokenizer) -> None:
    deltas = play(tokenizer, tokenizer.encode("the parrot XY"), stop=("XYZ",))

    assert text_of(deltas) == "the parrot XY"
    assert "XY" in deltas[-1].text
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].stop_reason is None


def test_held_text_comes_out_before_a_stop_token(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("the parrot XY"), EOS]
    deltas = play(tokenizer, ids, reason=FinishReason.STOP, stop=("XYZ",))

    assert text_of(deltas) == "the parrot XY"
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason is None


def test_a_match_that_waits_for_a_longer_one_counts_at_the_limit(tokenizer: Tokenizer) -> None:
    deltas = play(tokenizer, tokenizer.encode("the parrot XY"), stop=("XY", "XYZ"))

    assert text_of(deltas) == "the parrot "
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason == "XY"


def test_the_longer_of_two_stop_strings_wins(tokenizer: Tokenizer) -> None:
    deltas = play(tokenizer, tokenizer.encode("the XYZ parrot"), stop=("XY", "XYZ"))

    assert text_of(deltas) == "the "
    assert deltas[-1].stop_reason == "XYZ"


def test_a_stop_string_within_a_character_of_several_tokens(tokenizer: Tokenizer) -> None:
    deltas = play(tokenizer, tokenizer.encode(EMOJI), stop=("\N{GRINNING FACE}",))

    assert text_of(deltas) == "a"
    assert deltas[-1].finish_reason is FinishReason.STOP


@given(data=st.data())
def test_any_text_is_cut_at_the_first_of_any_stop_strings(
    data: st.DataObject, folder: Path
) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    letters = st.text(alphabet="ab \N{GRINNING FACE}", max_size=24)
    text = data.draw(letters.filter(bool))
    stops = data.draw(st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3))
    ids = tokenizer.encode(text)
    deltas = play(tokenizer, ids, step_len=data.draw(st.integers(1, 4)), stop=tuple(stops))

    found = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    if found:
        begin, _, stop = min(found)
        assert (text_of(deltas), deltas[-1].stop_reason) == (text[:begin], stop)
        assert deltas[-1].finish_reason is FinishReason.STOP
    else:
        assert (text_of(deltas), deltas[-1].finish_reason) == (text, FinishReason.LENGTH)


# -- stop tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [True, False])
def test_the_end_of_sequence_is_not_shown(skip: bool, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("the parrot"), EOS]
    deltas = play(tokenizer, ids, reason=FinishReason.STOP, skip_special_tokens=skip)

    assert text_of(deltas) == "the parrot"
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason is None
    assert deltas[-1].token_ids == (EOS,)


def test_a_stop_token_of_the_callers_own_is_named_and_not_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the parrot said")
    params = SamplingParams(stop_token_ids=frozenset({ids[-1]}))
    hidden = play(tokenizer, ids, reason=FinishReason.STOP, params=params)
    shown = play(
        tokenizer,
        ids,
        reason=FinishReason.STOP,
        params=params,
        include_stop_str_in_output=True,
    )

    assert hidden[-1].stop_reason == shown[-1].stop_reason == ids[-1]
    assert text_of(hidden) == tokenizer.decode(ids[:-1])
    assert text_of(shown) == "the parrot said"


@pytest.mark.parametrize(("skip", "expected"), [(True, "AB"), (False, "A<|im_start|>B")])
def test_special_tokens_in_the_middle(skip: bool, expected: str, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("A"), START, *tokenizer.encode("B")]

    assert text_of(play(tokenizer, ids, skip_special_tokens=skip)) == expected


def test_a_stop_token_at_the_limit_shows_what_the_limit_shows(tokenizer: Tokenizer) -> None:
    [delta] = play(tokenizer, [EOS], reason=FinishReason.STOP)

    assert (delta.text, delta.finish_reason) == ("", FinishReason.STOP)


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_an_end_without_tokens_keeps_its_reason(reason: FinishReason, tokenizer: Tokenizer) -> None:
    output = OutputText(GenerateRequest(prompt_ids=[5], stop=("XYZ",)), tokenizer)
    ids = tuple(tokenizer.encode("the XY"))
    output.push(ReqOutput(ReqId("r"), ids, PROMPT_LEN, CACHED_LEN, len(ids)))

    delta = output.push(ReqOutput(ReqId("r"), (), PROMPT_LEN, CACHED_LEN, len(ids), reason))

    assert (delta.finish_reason, delta.token_ids, delta.text) == (reason, (), "XY")


# -- characters --------------------------------------------------------------------------------


@pytest.mark.parametrize("step_len", [1, 2, 3, 50])
def test_characters_of_several_tokens_come_out_whole(step_len: int, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(EMOJI)
    assert len(ids) > len(EMOJI)

    deltas = play(tokenizer, ids, step_len=step_len)

    assert text_of(deltas) == tokenizer.decode(ids) == EMOJI
    assert "\N{REPLACEMENT CHARACTER}" not in text_of(deltas)


def test_half_a_character_comes_out_at_the_end_only(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab\N{GRINNING FACE}")[:-1]

    deltas = play(tokenizer, ids)

    assert text_of(deltas) == tokenizer.decode(ids)
    assert text_of(deltas[:-1]) == "ab"


def test_any_tokens_give_in_pieces_what_they_give_at_once(tokenizer: Tokenizer) -> None:
    random = Random(5)
    for _ in range(300):
        ids = [random.randrange(tokenizer.vocab_size) for _ in range(random.randint(1, 40))]
        skip = random.random() < 0.5
        deltas = play(tokenizer, ids, step_len=random.randint(1, 5), skip_special_tokens=skip)
        assert text_of(deltas) == tokenizer.decode(ids, skip_special_tokens=skip), ids


# -- usage -------------------------------------------------------------------------------------


def test_usage_grows_with_the_output(tokenizer: Tokenizer) -> None:
    deltas = play(tokenizer, tokenizer.encode("the parrot"))

    assert [delta.usage for delta in deltas] == [
        Usage(PROMPT_LEN, CACHED_LEN, n + 1) for n in range(len(deltas))
    ]


def test_merged_deltas_say_what_they_say_one_by_one(tokenizer: Tokenizer) -> None:
    first, *others = play(tokenizer, tokenizer.encode(EMOJI))
    merged = first
    for delta in others:
        merged = merged.merged_with(delta)

    assert merged.text == EMOJI
    assert list(merged.token_ids) == tokenizer.encode(EMOJI)
    assert merged.finish_reason is FinishReason.LENGTH
    assert merged.usage == others[-1].usage
