"""Cutting texts by the tokens of the model that will read them."""

from collections.abc import Callable
from functools import cached_property

from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer

# Characters that are looked at for each token that may stay, at first.
_LOOKED_AT = 6
# Characters after the last token that fits that may fit too.
_REACH = 16

# Of each token of a text: where it ends, in characters, and the number of its word.
_Ends = list[tuple[int, int | None]]


class TokenCutter:
    """Cuts texts; the tokenizer is loaded when the first one comes.

    Tokens are counted in a text by itself, without those that frame a prompt. A cut is between
    characters, never within one.

    Args:
        load: Gives the model's tokenizer.
    """

    def __init__(self, load: Callable[[], ModelTokenizer]) -> None:
        self._load = load

    @cached_property
    def _tokenizer(self) -> ModelTokenizer:
        return self._load()

    def head(self, text: str, tokens: int) -> str:
        """The longest beginning of `text` with at most so many tokens.

        A word that is cut has other tokens than it has whole, so a beginning of more characters may
        have fewer tokens; it is found up to 16 characters after the last token that fits.

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

    def chunks(self, text: str, tokens: int, overlap: int) -> list[tuple[int, int]]:
        """Where chunks of at most `tokens` tokens begin and end that cover the text.

        A chunk ends before white space if its last quarter has some, and what it repeats of the
        chunk before begins at white space if the first half of that has some. White space at the
        end of a text that is cut is in no chunk. A character of more tokens than that is a chunk.

        Args:
            text: The text; one that fits is one chunk.
            tokens: Most tokens of a chunk.
            overlap: Most tokens at the end of a chunk that the next one repeats; at most half of
                `tokens`.

        Raises:
            ModelError: The tokenizer cannot be loaded.
        """
        found: list[tuple[int, int]] = []
        start = covered = 0
        while True:
            length = max(len(self.head(text[start:], tokens)), 1)
            end = start + length
            if not text[end:].strip():
                return [*found, (start, len(text.rstrip()) if found else len(text))]
            end = _last_blank(text, max(start + 3 * length // 4, covered + 1), end)
            if end > covered:
                found.append((start, end))
                start, covered = self._repeated_from(text, start, end, overlap), end
            else:  # what is repeated has more tokens by itself, and leaves no room
                start = covered

    def _repeated_from(self, text: str, start: int, end: int, overlap: int) -> int:
        """Where the last `overlap` tokens of a chunk begin."""
        if not overlap:
            return end
        ends = self._tokenizer.ends(text[start:end])
        first = start + ends[-overlap - 1][0] if len(ends) > overlap else end
        return _first_blank(text, first, (first + end) // 2)

    def _looked_at(self, text: str, tokens: int) -> tuple[str, _Ends]:
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


def _word_of(token: int, ends: _Ends) -> tuple[int, int]:
    """Where the word of a token starts, and how many of its tokens there are up to that token."""
    word, first = ends[token][1], token
    while first and word is not None and ends[first - 1][1] == word:
        first -= 1
    return (ends[first - 1][0] if first else 0), token - first + 1


def _last_blank(text: str, first: int, end: int) -> int:
    """The last white space at `first` or after, `end` included; `end` if there is none."""
    found = (at for at in range(end, first - 1, -1) if text[at].isspace())
    return next(found, end)


def _first_blank(text: str, first: int, end: int) -> int:
    """The first white space from `first` to before `end`; `first` if there is none."""
    return next((at for at in range(first, end) if text[at].isspace()), first)
