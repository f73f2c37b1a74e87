from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixserve.errors import InvalidRequestError
from radixserve.text.stop_strings import StopResult, StopStrings

TEXT = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """The definition: try every place from the left, and there the longest stop string first."""
    for start in range(len(text)):
        for stop in sorted(stops, key=len, reverse=True):
            if text.startswith(stop, start):
                return text[:start] + (stop if include else ""), stop
    return text, None


def stream(stops: StopStrings, chunks: list[str]) -> tuple[str, str | None]:
    pieces = [stops.push(chunk).text for chunk in chunks]
    return "".join(pieces) + stops.flush(), stops.matched


@given(chunks=st.lists(TEXT, max_size=8), stops=STOPS, include=st.booleans())
@example(chunks=["ab"], stops=["abb", "b"], include=False)
@example(chunks=["a", "b", "b"], stops=["abb", "b"], include=True)
@example(chunks=["a"], stops=["a", "aa"], include=True)
def test_a_stream_in_any_chunks_is_the_text_cut_at_its_first_stop(
    chunks: list[str], stops: list[str], include: bool
) -> None:
    expected = cut("".join(chunks), stops, include=include)

    assert stream(StopStrings(stops, include=include), chunks) == expected


@given(chunks=st.lists(TEXT, max_size=8), stops=STOPS)
def test_no_more_is_held_than_could_begin_a_stop_string(
    chunks: list[str], stops: list[str]
) -> None:
    stream, given, sent = StopStrings(stops), 0, 0
    longest = max(map(len, stops), default=1)

    for chunk in chunks:
        result = stream.push(chunk)
        if result.matched is not None:
            return
        given, sent = given + len(chunk), sent + len(result.text)
        assert 0 <= given - sent <= longest - 1


def test_nothing_of_a_stop_string_over_several_chunks_is_sent() -> None:
    stops = StopStrings([" K L M N"])

    results = [stops.push(chunk) for chunk in [" H I", " J", " K", " L", " M", " N", " O"]]

    assert [result.text for result in results] == [" H I", " J", "", "", "", "", ""]
    assert [result.matched for result in results] == [None] * 5 + [" K L M N"] * 2


def test_text_is_released_when_its_candidate_dies() -> None:
    stops = StopStrings(["STOP"])

    assert stops.push("an ST") == StopResult("an ", None)
    assert stops.push("AR") == StopResult("STAR", None)


def test_a_new_candidate_inside_a_dying_one_is_still_held() -> None:
    stops = StopStrings(["aab"])

    assert [stops.push(letter).text for letter in "aaa"] == ["", "", "a"]
    assert stops.push("b") == StopResult("", "aab")


def test_held_text_comes_out_when_generation_ends() -> None:
    stops = StopStrings(["STOP"])
    stops.push("an STO")

    assert stops.flush() == "STO"
    assert stops.matched is None
    assert stops.flush() == ""


def test_text_before_and_after_a_match_in_one_chunk_is_cut() -> None:
    assert StopStrings(["."]).push("one. two.") == StopResult("one", ".")


def test_an_included_stop_string_is_sent_whole() -> None:
    stops = StopStrings(["END"], include=True)

    assert stops.push("the E") == StopResult("the ", None)
    assert stops.push("ND of it") == StopResult("END", "END")


def test_a_match_waits_for_one_that_begins_earlier() -> None:
    stops = StopStrings(["abcd", "c"])

    assert stops.push("xabc") == StopResult("x", None)
    assert stops.push("d") == StopResult("", "abcd")


def test_a_waiting_match_takes_effect_when_generation_ends() -> None:
    stops = StopStrings(["\n", "\n\n"])

    assert stops.push("line\n") == StopResult("line", None)
    assert stops.flush() == ""
    assert stops.matched == "\n"


def test_without_stop_strings_all_text_passes() -> None:
    assert StopStrings([]).push("anything") == StopResult("anything", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        StopStrings(["ok", ""])
