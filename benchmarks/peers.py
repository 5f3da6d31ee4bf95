"""What the package is measured against: bounds, the straightforward way, and Daft.

Each function that returns `Work` is a step of `benchmarks.measure`: what it does is not timed, what
it returns is.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from benchmarks.measure import Work
from benchmarks.ours import encoder


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str


class _Body(msgspec.Struct, gc=False):
    model: str
    messages: list[_Message]
    max_tokens: int
    temperature: float


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    method: str
    url: str
    body: _Body


def parse(file: str) -> Work:
    """The least that reading a request file costs: every line through a typed msgspec decoder.

    Nothing is kept but the custom_id and the last message, nothing is checked or written.
    """
    decode = msgspec.json.Decoder(_Line).decode

    def read() -> int:
        kept: list[tuple[str, str]] = []
        with Path(file).open("rb") as lines:
            for line in lines:
                found = decode(line)
                kept.append((found.custom_id, found.body.messages[-1].content))
        return len(kept)

    return read


def naive(file: str, model: str, out: str, *, package_tokenizer: bool = False) -> Work:
    """The straightforward way from a request file to distinct token lists in order, as Parquet.

    json.loads, the chat template by jinja2, tokenizers one prompt at a time, a dict of tuples,
    sorted lists, a loop over neighbours.

    Args:
        file: The request file.
        model: The model's folder.
        out: The Parquet file to write.
        package_tokenizer: Tokenise all prompts with this package's tokenizer instead.
    """
    render = _chat_template(Path(model))
    encode = _package(Path(model)) if package_tokenizer else _one_by_one(Path(model))
    encode(["warm up"])

    def write() -> dict[str, int]:
        texts = [render(request["body"]["messages"]) for request in _requests(file)]
        distinct = {tuple(ids): ids for ids in encode(texts)}
        ordered = sorted(distinct.values())
        lcp = [0, *(_common_prefix(left, right) for left, right in pairwise(ordered))]
        pl.DataFrame({"token_ids": ordered, "lcp": lcp}).write_parquet(out)
        return {
            "rows": len(texts),
            "distinct": len(ordered),
            "prompt_tokens": sum(map(len, ordered)),
            "shared_tokens": sum(lcp),
        }

    return write


def _requests(file: str) -> Iterator[dict[str, Any]]:
    with Path(file).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _chat_template(model: Path) -> Callable[[list[dict[str, str]]], str]:
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = jinja.from_string(config["chat_template"])
    return lambda messages: template.render(messages=messages, add_generation_prompt=True)


def _one_by_one(model: Path) -> Callable[[list[str]], list[list[int]]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda texts: [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def _package(model: Path) -> Callable[[list[str]], list[list[int]]]:
    encode = encoder(model)

    def lists(texts: list[str]) -> list[list[int]]:
        found = encode(texts)
        borders = pairwise(found.offsets.tolist())
        return [found.tokens[low:high].tolist() for low, high in borders]

    return lists


def _common_prefix(left: list[int], right: list[int]) -> int:
    shared = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def texts(file: str, model: str, out: str, rows: int | None = None) -> Work:
    """The rendered prompts of a request file as a Parquet file with columns `row` and `text`."""
    render = _chat_template(Path(model))

    def write() -> int:
        rendered = [render(line["body"]["messages"]) for line in islice(_requests(file), rows)]
        pl.DataFrame({"text": rendered}).with_row_index("row").write_parquet(out)
        return len(rendered)

    return write


def sort_tokens(tokens: str) -> Work:
    """A bare polars arg_sort of token sequences as big-endian bytes, which are made beforehand.

    Two bytes a token if all ids fit, else four: the fewer there are, the faster the sort.
    """
    with np.load(tokens) as stored:
        ids, offsets = stored["ids"], stored["offsets"]
    flat = ids.astype(">u2" if ids.max() < 1 << 16 else ">u4")
    keys = [flat[low:high].tobytes() for low, high in pairwise(offsets.tolist())]
    series = pl.Series(keys, dtype=pl.Binary)
    series[:64].arg_sort()
    return lambda: len(series.arg_sort())


def sort_lists(tokens: str, rows: int) -> Work:
    """Order and LCP in plain Python: sorted lists and a loop over neighbours; the sum of LCPs."""
    with np.load(tokens) as stored:
        ids, offsets = stored["ids"], stored["offsets"][: rows + 1]
    sequences = [ids[low:high].tolist() for low, high in pairwise(offsets.tolist())]
    return lambda: sum(_common_prefix(*pair) for pair in pairwise(sorted(sequences)))


def daft_order(texts: str, out: str) -> Work:
    """Daft's prefix routing: a Parquet file of texts to the order in which vLLM would get them.

    `prompt(provider="vllm-prefix-caching")` runs Daft's own sink over the file; its stand-in for
    vLLM answers each prompt with itself at once, so the rows come back as they were submitted. The
    order is saved to `out`.
    """
    import daft
    import daft.execution.vllm as engines
    from daft.functions.ai import prompt

    # The sink asks this module for its engine.
    engines.LocalVLLMExecutor = engines.BlockingVLLMExecutor = engines.DummyVLLMExecutor

    def submitted(frame: Any) -> list[int]:
        answer = prompt(daft.col("text"), provider="vllm-prefix-caching", model="none")
        return frame.with_column("answer", answer).select("row", "answer").to_arrow()["row"]

    submitted(daft.from_pydict({"row": [0, 1], "text": ["a", "b"]}))

    def order() -> int:
        rows = np.asarray(submitted(daft.read_parquet(texts)))
        np.save(out, rows.astype(np.int64))
        return len(rows)

    return order
