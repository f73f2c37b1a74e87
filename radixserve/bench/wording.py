"""Random pieces as token ids, or as words where a server takes text only."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from radixserve.bench.workload import Drawn

DEFAULT_ID_RANGE = (300, 20_000)
"""From, to, the end not included: below most vocabularies' size, above their special tokens."""

_LISTED = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government
number night point home water room mother area money story fact month lot right study book eye
job word business issue side kind head house service friend father power hour game line end
member law car city community name president team minute idea body information back parent
face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education foot boy age policy music market sense
road tree river stone bird horse apple bread table chair window garden paper letter green black
white brown small large young early strong quick warm cold open clear simple common final
public local human social major real best good new first last long great little own old big
high different next few same able late north south east west spring summer winter ocean
mountain forest island valley metal glass paint color sound light voice song dance film radio
phone camera screen engine wheel train ship plane bridge tower wall floor roof kitchen dinner
lunch sugar salt milk fruit meat fish
"""
WORDS = tuple(_LISTED.split())
"""Each is one token, with a space before it, in the usual English vocabularies."""


class IdWording:
    """Draws pieces as token ids.

    Args:
        seed: Another one gives other pieces of the same lengths.
        id_range: From, to; the end is not included.

    Raises:
        ConfigError: the range is empty.
    """

    def __init__(self, seed: int, id_range: tuple[int, int] = DEFAULT_ID_RANGE) -> None:
        low, high = id_range
        if not 0 <= low < high:
            raise ConfigError(
                f"a range of token ids is LOW:HIGH with 0 <= LOW < HIGH; got {low}:{high}"
            )
        self._seed = seed
        self._ids = range(low, high)
        self._made: dict[Drawn, tuple[int, ...]] = {}

    def of(self, piece: Drawn) -> tuple[int, ...]:
        """Return the piece's ids."""
        if piece not in self._made:
            rng = random.Random(f"{self._seed}/{piece.name}")
            self._made[piece] = tuple(rng.choices(self._ids, k=piece.length))
        return self._made[piece]


class TextWording:
    """Draws pieces as words, each with a space before it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[Drawn, str] = {}

    def of(self, piece: Drawn) -> str:
        """Return the piece's text."""
        if piece not in self._made:
            rng = random.Random(f"{self._seed}/{piece.name}")
            self._made[piece] = "".join(f" {word}" for word in rng.choices(WORDS, k=piece.length))
        return self._made[piece]
