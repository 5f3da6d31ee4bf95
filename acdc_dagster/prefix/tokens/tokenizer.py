"""From text to token ids: exactly those of the model's own tokenizer, as fast as can be had."""

import json
import random
import re
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import numpy as np
from tokenizers import Tokenizer

from acdc_dagster.errors import ModelError
from acdc_dagster.prefix.sequences import Sequences, narrowest, starts_of
from acdc_dagster.prefix.tokens.digits import DigitsApart, without_digit_step
from acdc_dagster.prefix.tokens.tokenizer_config import TokenizerConfig

_BATCH = 1024  # an encoding of the reference weighs ten times its ids
# Characters up to which loading the fast library does not pay.
_SLOWLY = 500_000
# Texts of the job that the fast library must get right before it is used: so many, so many
# characters, and so many of each later batch.
_SAMPLE, _SAMPLE_CHARACTERS, _LATER = 64, 100_000, 2


class DisagreementError(Exception):
    """The fast library gave other ids than the reference on a text of this job.

    What it encoded before cannot be trusted: start again; the tokenizer will not use it any more.
    """


class PromptTokenizer(Protocol):
    """Turns texts into token ids."""

    @property
    def ids(self) -> int:
        """All ids are below this."""
        ...

    @property
    def cuts(self) -> dict[str, int]:
        """The special tokens before which a text may be cut, with their ids.

        The pieces, tokenised one by one, give the ids of the whole.
        """
        ...

    @property
    def longest(self) -> int:
        """Most bytes of text that one token can stand for; 0 if not known."""
        ...

    def encode(self, texts: list[str], *, chat: bool) -> Sequences:
        """Token ids of texts; `chat` ones carry their special tokens as text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens too."""
        ...


class ModelTokenizer:
    """A model's own tokenizer, read from its folder.

    The Hugging Face `tokenizers` library is the reference. `fastokens` is used in its place where
    it is installed, takes the tokenizer, and gives the same ids for hard strings and for a sample
    of the very texts that are asked for.

    Args:
        path: tokenizer.json, or the folder that holds it.
        tell: Gets a message if the fast library is not used although it is installed.

    Raises:
        ModelError: The tokenizer cannot be read.
    """

    def __init__(self, path: Path, tell: Callable[[str], None] | None = None) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._reference: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust library raises bare Exception
            raise ModelError(
                f"The tokenizer {file} cannot be read: {error}",
                "Name a model folder with a tokenizer.json of the Hugging Face tokenizers library.",
            ) from error
        self._reference.no_truncation()
        self._reference.no_padding()
        config = TokenizerConfig(file.parent)
        config.apply(self._reference)
        self._description: dict[str, Any] = msgspec.json.decode(self._reference.to_str())
        self._splits_special = config.split_special_tokens
        self._tell = tell
        self._fast: Any = None
        self._fast_may_come = not self._splits_special
        self._trusted = False
        self._characters = 0

    @property
    def ids(self) -> int:
        """See `PromptTokenizer`."""
        added = [token["id"] + 1 for token in self._description.get("added_tokens", [])]
        return max([self._reference.get_vocab_size(), *added])

    @property
    def cuts(self) -> dict[str, int]:
        """See `PromptTokenizer`; none if the tokenizer turns out not to respect them."""
        return self._cuts

    @cached_property
    def _cuts(self) -> dict[str, int]:
        """The special tokens that cut, seen to do so.

        A token that is taken from the text as it stands, before normalisation, and takes no blanks
        with it, separates what is left and right of it. That is checked, not assumed: a
        pre-tokenizer may still look at what comes first.
        """
        found = {
            str(token["content"]): int(token["id"])
            for token in self._description.get("added_tokens", [])
            if not (
                token["normalized"] or token["lstrip"] or token["rstrip"] or token["single_word"]
            )
        }
        if not found or self._splits_special:
            return {}
        texts = [_joined(hard, list(found)) for hard in _hard_strings()]
        before = re.compile("(?=" + "|".join(map(re.escape, _longest_first(found))) + ")")
        pieces = [before.split(text) for text in texts]
        whole = self._by_reference(texts, chat=True)
        parts = self._by_reference(list(chain.from_iterable(pieces)), chat=True)
        joined = parts.joined(starts_of(np.array([len(some) for some in pieces], dtype=np.int64)))
        return found if _same(whole, joined) else {}

    @property
    def longest(self) -> int:
        """See `PromptTokenizer`."""
        return self._longest

    @cached_property
    def _longest(self) -> int:
        """Told for the byte-level vocabularies, where each byte is a letter."""
        model = self._description["model"]
        if model.get("type") != "BPE" or "ByteLevel" not in json.dumps(
            self._description.get("pre_tokenizer")
        ):
            return 0
        vocabulary = cast("dict[str, int]", model["vocab"])
        added = [str(t["content"]) for t in self._description.get("added_tokens", [])]
        return max(
            max(map(len, vocabulary), default=0),
            max((len(token.encode()) for token in added), default=0),
        )

    def encode(self, texts: list[str], *, chat: bool) -> Sequences:
        """See `PromptTokenizer.encode`.

        Raises:
            DisagreementError: Earlier results are not to be trusted; encode them again.
        """
        self._characters += sum(map(len, texts))
        if self._fast_may_come and self._characters > _SLOWLY:
            self._fast_may_come = False
            self._fast = _fast_tokenizer(self._description)
        if self._fast is None or not texts:
            return self._by_reference(texts, chat=chat)
        if not self._trusted:
            if not self._agrees([*_hard_strings(), *_sample(texts, _SAMPLE)], chat=chat):
                self._drop()
                return self._by_reference(texts, chat=chat)
            self._trusted = True
        elif not self._agrees(_sample(texts, _LATER), chat=chat):
            self._drop()
            raise DisagreementError
        return self._by_fast(texts, chat=chat)

    def decode(self, ids: list[int]) -> str:
        """See `PromptTokenizer.decode`."""
        return self._reference.decode(ids, skip_special_tokens=False)

    def ends(self, text: str) -> list[tuple[int, int | None]]:
        """Of each token of a text, where it ends in characters, and the number of its word.

        A word is what is tokenised by itself; None if the token is not part of one.
        """
        found = self._reference.encode(text, add_special_tokens=False)
        ends = (end for _, end in found.offsets)
        return list(zip(ends, found.word_ids, strict=True))

    def _drop(self) -> None:
        self._fast = None
        if self._tell is not None:
            self._tell(
                "fastokens gives other token ids than the model's tokenizer for this job; the "
                "slower Hugging Face library is used."
            )

    def _agrees(self, texts: list[str], *, chat: bool) -> bool:
        try:
            fast = self._by_fast(texts, chat=chat)
        except Exception:  # whatever it raises, it is not used
            return False
        return _same(fast, self._by_reference(texts, chat=chat))

    def _by_fast(self, texts: list[str], *, chat: bool) -> Sequences:
        ids, offsets = self._fast.encode_batch_flat(texts, add_special_tokens=not chat)
        tokens = np.frombuffer(ids, dtype="<u4").astype(narrowest(self.ids))
        return Sequences(tokens, np.frombuffer(offsets, dtype="<u8").astype(np.int64))

    def _by_reference(self, texts: list[str], *, chat: bool) -> Sequences:
        dtype = narrowest(self.ids)
        parts: list[Sequences] = []
        for at in range(0, len(texts), _BATCH):
            some = texts[at : at + _BATCH]
            encodings = self._reference.encode_batch_fast(some, add_special_tokens=not chat)
            parts.append(Sequences.of([encoding.ids for encoding in encodings], dtype))
        return Sequences.concat(parts, dtype)


def _same(one: Sequences, other: Sequences) -> bool:
    """Whether two hold the same sequences."""
    return np.array_equal(one.offsets, other.offsets) and np.array_equal(one.tokens, other.tokens)


class ByteEstimate:
    """Stands in where no tokenizer is at hand: four bytes of text count as one token.

    Text order and token order share the same prefixes to a few tokens in a million, so ratios are
    good estimates and token totals are rough ones.
    """

    ids = 2**32
    longest = 4

    @property
    def cuts(self) -> dict[str, int]:
        """See `PromptTokenizer`."""
        return {}

    def encode(self, texts: list[str], *, chat: bool) -> Sequences:
        """See `PromptTokenizer.encode`; an id is four bytes read as a number."""
        padded = [_padded(text.encode("utf-8", errors="surrogatepass")) for text in texts]
        lengths = np.array([len(text) // 4 for text in padded], dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        return Sequences(np.frombuffer(b"".join(padded), dtype=">u4").astype(np.uint32), offsets)

    def decode(self, ids: list[int]) -> str:
        """See `PromptTokenizer.decode`."""
        text = np.array(ids, dtype=">u4").tobytes()
        return text.decode("utf-8", errors="replace").rstrip("\0")


def _padded(text: bytes) -> bytes:
    return text + b"\0" * (-len(text) % 4)


def _fast_tokenizer(description: dict[str, Any]) -> Any:
    try:
        fastokens: Any = import_module("fastokens")
        simpler = without_digit_step(description)
        text = msgspec.json.encode(description if simpler is None else simpler).decode()
        fast = fastokens.Tokenizer.from_json_str(text)
        return fast if simpler is None else DigitsApart(fast)
    except Exception:  # not installed, or it does not know this kind of tokenizer
        return None


def _hard_strings() -> list[str]:
    """Strings that tokenizers are known to differ on, the same each time."""
    chosen = random.Random(0)  # noqa: S311 - no secret
    atoms = [*" \n\t\r'sdtm019aZé中़́🙂²Ⅷ\u00a0\u2003\u200d_-.,!?<|>", "'ll", "'RE", "  1", "\r\n\n"]
    return ["".join(chosen.choices(atoms, k=chosen.randint(0, 30))) for _ in range(300)]


def _joined(text: str, specials: list[str]) -> str:
    """The text with special tokens strewn into it."""
    chosen = random.Random(text)  # noqa: S311 - no secret
    pieces = [text[:7], text[7:16], text[16:]]
    return "".join(chosen.choice(specials) + piece for piece in pieces)


def _longest_first(tokens: dict[str, int]) -> list[str]:
    return sorted(tokens, key=len, reverse=True)


def _sample(texts: list[str], count: int) -> list[str]:
    """Some of the texts, spread evenly, with a bound on their length."""
    step = max(len(texts) // count, 1)
    return [text[: _SAMPLE_CHARACTERS // count] for text in texts[::step][:count]]
