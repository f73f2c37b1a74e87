"""The blocks are numpy's, bit by bit."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from radixserve.core.plan import SamplingState
from radixserve.runtime.philox import WORD, first_word
from radixserve.runtime.sampler import uniform
from radixserve.types import SamplingParams

WORDS = st.integers(0, WORD) | st.integers(0, 2**20) | st.integers(WORD - 2**20, WORD)


@given(key=WORDS, place=WORDS)
@example(key=0, place=0)
@example(key=WORD, place=0)
@example(key=0, place=WORD - 1)
@example(key=0, place=WORD)  # numpy's count goes over into its second word
@example(key=WORD, place=WORD)
def test_the_first_word_of_a_block_is_that_of_numpy(key: int, place: int) -> None:
    assert first_word(key, place) == int(np.random.Philox(key=key, counter=place).random_raw())


@given(seed=st.integers(-(2**63), 2**64 - 1), output_len=st.integers(0, 2**20))
@example(seed=-1, output_len=0)
def test_a_row_draws_its_number_from_the_stream_of_its_seed(seed: int, output_len: int) -> None:
    u = uniform(SamplingState(SamplingParams(seed=seed), output_len))

    bits = int(np.random.Philox(key=seed % 2**64, counter=output_len).random_raw())
    assert u == (bits >> 11) / 2**53
    assert 0 <= u < 1


def test_the_block_that_the_authors_published_for_zeros() -> None:
    # Random123, kat_vectors: philox 4x64 10, all of key and counter 0. Here place + 1 is counted,
    # so that this block comes last of all: its place would be -1.
    assert first_word(0, -1) == 0x16554D9ECA36314C
