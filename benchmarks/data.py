"""Request files to measure with, made from nothing but a seed: English-like prose in a few shapes.

    python -m benchmarks.data SET ROWS FILE [--seed N]

- `three`: three parts. 20 groups of Zipf popularity, each with instructions of 800 to 1,000 tokens;
  five worked examples; an item of 50 to 400 tokens. 6 % of the rows repeat an earlier one.
- `half`: like `three`, but one group is half of all rows.
- `seed`: one rubric of about 4,000 tokens before every item.
- `flat`: an item in each row, and nothing shared but what the chat template adds.
- `short`: 20 groups with instructions of 100 to 200 tokens, and items of 10 to 60: for jobs of very
  many rows.

Rows come in random order. They are made and written a block at a time, so a file of 10^7 rows needs
no more memory than one of 10^4; a name that ends in .gz is compressed on the way. Words are drawn
with Zipf frequencies from a list that is mostly English, so a tokenizer sees frequent whole words,
a long tail of rare ones, numbers and punctuation.
"""

import argparse
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Work

MODEL = "smollm2-135m-instruct"

_BLOCK = 2_000  # rows made at once
_REPEATABLE = 20_000  # earlier rows that a repeated one is chosen from
_TOKENS_PER_WORD = 1.6  # of this prose, with the tokenizer of SmolLM2

_WORDS = Path(__file__).with_name("words.txt")  # frequent words, a blank line, stems
_PREFIXES = ["re", "un", "over", "out", "under", "pre", "mis", "inter", "counter"]
_SUFFIXES = ["er", "able", "ment", "ness", "less", "ful", "ly", "ship"]


@dataclass(frozen=True)
class DataSet:
    """The shape of a set.

    Attributes:
        popularity: Relative frequency of each group of rows with a beginning of its own; no group
            at all if empty.
        instructions: Least and most tokens, about, of a group's system message.
        examples: Worked examples after it, one user and one assistant message each.
        item: Least and most tokens, about, of the last user message.
        repeated: Share of rows that repeat an earlier row's request under another custom_id.
    """

    popularity: tuple[float, ...] = ()
    instructions: tuple[int, int] = (800, 1000)
    examples: int = 0
    item: tuple[int, int] = (50, 400)
    repeated: float = 0.0


_ZIPF = tuple(1 / rank for rank in range(1, 21))
SETS = {
    "three": DataSet(_ZIPF, examples=5, repeated=0.06),
    "half": DataSet((sum(_ZIPF[1:]), *_ZIPF[1:]), examples=5, repeated=0.06),
    "seed": DataSet((1.0,), instructions=(4000, 4000)),
    "flat": DataSet(),
    "short": DataSet(_ZIPF, instructions=(100, 200), item=(10, 60)),
}


class Prose:
    """Endless text, the same for the same generator.

    Args:
        rng: Where all chance comes from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        words = np.array(_words(rng), dtype=object)
        # Zipf-Mandelbrot: 1 / (rank + 2.7)^1.15, which fits English closer than 1 / rank.
        share = 1 / (np.arange(1, len(words) + 1, dtype=np.float64) + 2.7) ** 1.15
        self._cumulative = np.cumsum(share / share.sum())
        start = np.array([word.capitalize() for word in words], dtype=object)
        # A word as it stands inside a sentence, at its start, before a comma, at its end, and
        # at the end of a paragraph.
        self._forms = np.stack(
            [words + " ", start + " ", words + ", ", words + ". ", words + ".\n"]
        )

    def texts(self, tokens: NDArray[np.int64]) -> list[str]:
        """Texts of about so many tokens each."""
        words = np.maximum((tokens / _TOKENS_PER_WORD).astype(np.int64), 1)
        total = int(words.sum())
        ends = np.cumsum(words)
        drawn = np.searchsorted(self._cumulative, self._rng.random(total))
        chance = self._rng.random(total)
        form = np.select([chance < 0.01, chance < 0.07, chance < 0.12], [4, 3, 2], 0)
        form[ends - 1] = 3
        after_end = np.concatenate([[True], form[:-1] >= 3])
        form = np.where(after_end & (form == 0), 1, form)
        written = self._forms[form, np.minimum(drawn, len(self._cumulative) - 1)].tolist()
        borders = pairwise([0, *ends.tolist()])
        return ["".join(written[low:high]).rstrip() for low, high in borders]

    def between(self, least_and_most: tuple[int, int], texts: int) -> list[str]:
        """Texts of lengths spread evenly between two numbers of tokens."""
        least, most = least_and_most
        return self.texts(self._rng.integers(least, most + 1, texts))


def _words(rng: np.random.Generator) -> list[str]:
    """Frequent words first, then inflected ones, then a long tail of derived ones and numbers."""
    frequent, stems = (part.split() for part in _WORDS.read_text(encoding="utf-8").split("\n\n"))
    common = [*stems, *(stem + ending for stem in stems for ending in ("s", "ed", "ing"))]
    derived = [start + stem + end for start in _PREFIXES for stem in stems for end in _SUFFIXES]
    rare = [
        *(derived[at] for at in rng.permutation(len(derived))[:20_000]),
        *(str(number) for number in rng.integers(0, 100_000, 2_000)),
    ]
    return [
        *frequent,
        *(common[at] for at in rng.permutation(len(common))),
        *(rare[at] for at in rng.permutation(len(rare))),
    ]


def request_lines(data_set: DataSet, rows: int, seed: int = 7) -> Iterator[bytes]:
    """The lines of an OpenAI-batch file, each with its line end.

    Args:
        data_set: The shape.
        rows: Lines in all.
        seed: The same seed gives the same lines; a longer file starts with a shorter one's.
    """
    rng = np.random.default_rng(seed)
    prose = Prose(rng)
    heads = [_head(_shared_messages(data_set, prose)) for _ in data_set.popularity] or [_head([])]
    popularity = np.array(data_set.popularity or (1.0,))
    cumulative = np.cumsum(popularity / popularity.sum())
    tail = b'}],"max_tokens":64,"temperature":0}}\n'
    earlier: list[bytes] = []
    for start in range(0, rows, _BLOCK):
        items = prose.between(data_set.item, _BLOCK)
        groups = np.minimum(np.searchsorted(cumulative, rng.random(_BLOCK)), len(heads) - 1)
        repeated = rng.random(_BLOCK) < data_set.repeated
        slots = rng.integers(0, _REPEATABLE, _BLOCK)
        for at in range(min(_BLOCK, rows - start)):
            if repeated[at] and earlier:
                body = earlier[slots[at] % len(earlier)]
            else:
                body = heads[groups[at]] + msgspec.json.encode(items[at]) + tail
                if data_set.repeated and len(earlier) < _REPEATABLE:
                    earlier.append(body)
                elif data_set.repeated:
                    earlier[slots[at]] = body
            yield b'{"custom_id":"row-%d","method":"POST",' % (start + at) + body


def _shared_messages(data_set: DataSet, prose: Prose) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": prose.between(data_set.instructions, 1)[0]}]
    for _ in range(data_set.examples):
        messages.append({"role": "user", "content": prose.between((40, 80), 1)[0]})
        messages.append({"role": "assistant", "content": prose.between((10, 30), 1)[0]})
    return messages


def _head(messages: list[dict[str, str]]) -> bytes:
    """The line from the url up to the content of the last user message."""
    body: dict[str, Any] = {"model": MODEL, "messages": [*messages, {"role": "user"}]}
    line = msgspec.json.encode({"url": "/v1/chat/completions", "body": body})
    return line.removeprefix(b"{").removesuffix(b"}]}}") + b',"content":'


def request_file(name: str, rows: int, file: str, seed: int = 7) -> Work:
    """Write a file of one of the `SETS`; the bytes of JSONL in it, before any compression."""

    def write() -> int:
        size = 0
        with _opened(Path(file)) as stream:
            for line in request_lines(SETS[name], rows, seed):
                size += stream.write(line)
        return size

    return write


def _opened(file: Path) -> BinaryIO:
    if file.suffix == ".gz":
        return cast("BinaryIO", gzip.open(file, "wb", compresslevel=1))
    return file.open("wb", buffering=1 << 20)


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("rows", type=int)
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    size = request_file(options.set, options.rows, options.file, options.seed)()
    print(f"{options.file}: {options.rows} rows, {size / 1e9:.3f} GB of JSONL")


if __name__ == "__main__":
    main()
