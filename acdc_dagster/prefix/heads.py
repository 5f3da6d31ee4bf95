"""The beginning of a text that is no longer than so many tokens of a model."""

from collections.abc import Callable
from functools import cached_property

from acdc_dagster.prefix.tokenizer import ModelTokenizer

# Characters that are looked at for each token that may stay, at first.
_LOOKED_AT = 6
# Characters after the last token that fits that may fit too.
_REACH = 16


class Heads:
    """Cuts texts to numbers of tokens; the tokenizer is loaded when the first text comes.

    Args:
        load: Gives the tokenizer of the model that will read the texts.
    """

    def __init__(self, load: Callable[[], ModelTokenizer]) -> None:
        self._load = load

    @cached_property
    def _tokenizer(self) -> ModelTokenizer:
        return self._load()

    def __call__(self, text: str, tokens: int) -> str:
        """The longest beginning of `text` with at most so many tokens, in whole characters.

        It is counted as tokenised by itself, without the tokens that frame a prompt. A word that is
        cut has other tokens than it has whole, so a beginning of more characters may have fewer
        tokens; it is found up to 16 characters after the last token that fits.

        Raises:
            ModelError: The tokenizer cannot be loaded.
        """
        seen, ends = self._looked_at(text, tokens)
        if len(ends) <= tokens:
            return text
        start, spare = _word_of(tokens - 1, ends)
        for end in range(min(ends[tokens - 1][0] + _REACH, len(seen)), start, -1):
            # The cut word by itself first: it is short, and mostly decides.
            if self._count(seen[start:end]) <= spare and self._count(seen[:end]) <= tokens:
                return seen[:end]
        while start and self._count(seen[:start]) > tokens:
            start -= 1
        return seen[:start]

    def _looked_at(self, text: str, tokens: int) -> tuple[str, list[tuple[int, int | None]]]:
        """As much of the text as is needed to tell where it is cut, and where its tokens end."""
        size = tokens * _LOOKED_AT + 2 * _REACH
        while True:
            seen = text[:size]
            ends = self._tokenizer.ends(seen)
            enough = len(ends) > tokens and ends[tokens - 1][0] + _REACH < len(seen)
            if enough or len(seen) == len(text):
                return seen, ends
            size *= 2

    def _count(self, text: str) -> int:
        return len(self._tokenizer.ends(text))


def _word_of(token: int, ends: list[tuple[int, int | None]]) -> tuple[int, int]:
    """Where the word of a token starts, and how many of its tokens there are up to that token."""
    word, first = ends[token][1], token
    while first and word is not None and ends[first - 1][1] == word:
        first -= 1
    return (ends[first - 1][0] if first else 0), token - first + 1
