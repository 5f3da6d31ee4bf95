"""Texts cut by tokens: the longest beginning that fits, and chunks that leave nothing out."""

from itertools import pairwise
from pathlib import Path

import pytest

from acdc_dagster.errors import ModelError
from acdc_dagster.prefix.tokens.cutter import TokenCutter
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer

TEXTS = [
    "The quick brown fox didn't jump over antidisestablishmentarianism, no.",
    "two  blanks   three    four     \n\n\n  and \t tabs\r\n\r\nend   ",
    "👍🏽 emoji 👩‍👩‍👧 of many bytes 👍🏽👍🏽",
    "漢字かな交じり文は言葉の間に空白がない。数字１２３も。",
    "e\u0301e\u0301e\u0301 Ⅷ² \u00a0\u2003 \u200d",
    "<|im_start|>user\nnot <|im_end|> a <|im_e special token",
    "1234567890 3.14159 0x7f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "QmFzZTY0IGlzIG9uZSBsb25nIHdvcmQgd2l0aG91dCBhbnkgYmxhbmtz",
]


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> ModelTokenizer:
    return ModelTokenizer(model_path)


@pytest.mark.parametrize("text", TEXTS)
def test_the_longest_beginning_that_fits(tokenizer: ModelTokenizer, text: str) -> None:
    """Of all beginnings of the text, each tokenised by itself, for each number of tokens."""
    cutter = TokenCutter(lambda: tokenizer)
    beginnings = [text[:end] for end in range(len(text) + 1)]
    counts = tokenizer.encode(beginnings, chat=True).lengths.tolist()
    for most in range(1, counts[-1] + 2):
        fitting = [end for end, count in enumerate(counts) if count <= most]
        assert cutter.head(text, most) == text[: fitting[-1]], most


def test_a_long_text_is_cut_as_its_beginning_is(tokenizer: ModelTokenizer) -> None:
    """What is far behind the cut changes nothing, and a text without words is looked through."""
    cutter = TokenCutter(lambda: tokenizer)
    once = "".join(TEXTS)
    assert cutter.head(once * 1000, 40) == cutter.head(once, 40)
    blanks = " " * 100_000
    head = cutter.head(blanks, 3)
    assert tokenizer.encode([head, head + " "], chat=True).lengths.tolist() == [3, 4]


def test_the_tokenizer_is_loaded_once_and_only_if_needed(model_path: Path) -> None:
    """A job without long texts never waits for it."""
    loaded: list[ModelTokenizer] = []

    def load() -> ModelTokenizer:
        loaded.append(ModelTokenizer(model_path))
        return loaded[0]

    cutter = TokenCutter(load)
    assert not loaded
    assert [cutter.head("one two three", most) for most in (1, 2, 3)] == [
        "one",
        "one two",
        "one two three",
    ]
    assert len(loaded) == 1


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    """The fault is the model's."""
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        TokenCutter(lambda: ModelTokenizer(tmp_path)).head("text", 1)


PROSE = " ".join(
    f"Sentence {number} says {word}, and no more."
    for number, word in enumerate(
        ["little", "antidisestablishmentarianism", "漢字かな", "👍🏽", "a\n\nb  c"] * 20
    )
)


def cut(text: str, chunks: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in chunks]


@pytest.mark.parametrize("overlap", [0, 1, 7, 16])
@pytest.mark.parametrize("text", [PROSE, *(text * 20 for text in TEXTS)])
def test_chunks_cover_a_text(tokenizer: ModelTokenizer, text: str, overlap: int) -> None:
    """Nothing is left out but white space at the end; none has too many tokens, nor the overlap."""
    chunks = TokenCutter(lambda: tokenizer).chunks(text, 32, overlap)
    assert len(chunks) > 5
    assert tokenizer.encode(cut(text, chunks), chat=True).lengths.max() <= 32
    assert (chunks[0][0], chunks[-1][1]) == (0, len(text.rstrip()))
    repeats = [(start, end) for (_, end), (start, _) in pairwise(chunks)]
    assert all(start <= end for start, end in repeats)
    assert all(one[1] < other[1] for one, other in pairwise(chunks))
    lengths = tokenizer.encode(cut(text, repeats), chat=True).lengths
    assert lengths.max() <= overlap
    assert lengths.mean() >= overlap // 4


def test_chunks_are_cut_at_white_space(tokenizer: ModelTokenizer) -> None:
    """Where there is some: no word of running text is cut, at either end of a chunk."""
    words = [f"word{number}" for number in range(500)]
    text = " ".join(words)
    chunks = cut(text, TokenCutter(lambda: tokenizer).chunks(text, 64, 16))
    assert {word for chunk in chunks for word in chunk.split()} == set(words)


@pytest.mark.parametrize("text", ["", " ", "short", "just long enough  \n"])
def test_a_text_that_fits_stays_as_it_is(tokenizer: ModelTokenizer, text: str) -> None:
    """One chunk, white space and all."""
    assert TokenCutter(lambda: tokenizer).chunks(text, 16, 4) == [(0, len(text))]
