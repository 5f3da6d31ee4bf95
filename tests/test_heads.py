"""Texts cut to a number of tokens: the longest beginning that fits, whatever its characters."""

from pathlib import Path

import pytest

from acdc_dagster.errors import ModelError
from acdc_dagster.prefix.heads import Heads
from acdc_dagster.prefix.tokenizer import ModelTokenizer

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
    heads = Heads(lambda: tokenizer)
    beginnings = [text[:end] for end in range(len(text) + 1)]
    counts = tokenizer.encode(beginnings, chat=True).lengths.tolist()
    for most in range(1, counts[-1] + 2):
        fitting = [end for end, count in enumerate(counts) if count <= most]
        assert heads(text, most) == text[: fitting[-1]], most


def test_a_long_text_is_cut_as_its_beginning_is(tokenizer: ModelTokenizer) -> None:
    """What is far behind the cut changes nothing, and a text without words is looked through."""
    heads = Heads(lambda: tokenizer)
    once = "".join(TEXTS)
    assert heads(once * 1000, 40) == heads(once, 40)
    blanks = " " * 100_000
    head = heads(blanks, 3)
    assert tokenizer.encode([head, head + " "], chat=True).lengths.tolist() == [3, 4]


def test_the_tokenizer_is_loaded_once_and_only_if_needed(model_path: Path) -> None:
    """A job without long texts never waits for it."""
    loaded: list[ModelTokenizer] = []

    def load() -> ModelTokenizer:
        loaded.append(ModelTokenizer(model_path))
        return loaded[0]

    heads = Heads(load)
    assert not loaded
    assert [heads("one two three", most) for most in (1, 2, 3)] == [
        "one",
        "one two",
        "one two three",
    ]
    assert len(loaded) == 1


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    """The fault is the model's."""
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Heads(lambda: ModelTokenizer(tmp_path))("text", 1)
