"""This package's side of the measures; the only module here that knows its functions.

Each function that returns `Work` is a step of `benchmarks.measure`: what it does is not timed, what
it returns is.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from deltalake import DeltaTable
from numpy.typing import NDArray

from acdc_dagster.deployment import Deployment, Model
from acdc_dagster.job import Job
from acdc_dagster.planning.shards import cut_points
from acdc_dagster.prefix.cache import block_paths, simulated_hit_rate
from acdc_dagster.prefix.order import Tokens, hit_rate, prefix_order, shared_with_previous
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.prefix.tokenizer import ModelTokenizer
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables
from benchmarks.data import MODEL, SETS, request_lines
from benchmarks.measure import Work

BLOCK = 16  # tokens in a KV block
CACHE = 65_536  # tokens that the simulated prefix cache holds

_PARTITION = "all"
_WARM_UP = 64  # rows


@dataclass(frozen=True)
class _Place:
    """A deployment with one job that reads one request file."""

    job: Job
    deployment: Deployment
    model: Model
    tables: Tables


def prepare(file: str, folder: str, model: str) -> Work:
    """A request file to the tables of `sorted_requests`: both stages, JSONL to Delta.

    A few rows are prepared first, so that what is imported or built once a process is not counted.

    Args:
        file: The request file.
        folder: For the deployment and its tables; emptied first.
        model: The model's folder.
    """
    place = Path(folder)
    shutil.rmtree(place, ignore_errors=True)
    few = place / "warm_up" / "requests.jsonl"
    few.parent.mkdir(parents=True)
    few.write_bytes(b"".join(request_lines(SETS["three"], _WARM_UP)))
    _prepare(_deployed(few, place / "warm_up", Path(model)))
    ready = _deployed(Path(file), place, Path(model))
    return lambda: _prepare(ready)


def _deployed(file: Path, root: Path, model: Path) -> _Place:
    folder = root / "assets" / "prepared"
    folder.mkdir(parents=True)
    (root / "resources").mkdir()
    environment = {"tables": "tables", "models": {MODEL: {"path": str(model.resolve())}}}
    (root / "resources" / "local.yaml").write_text(yaml.safe_dump(environment), encoding="utf-8")
    declared = {
        "type": "acdc_dagster.BatchInferenceComponent",
        "attributes": {"source": {"requests": str(file.resolve())}, "model": MODEL},
    }
    (folder / "defs.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    deployment = Deployment.load(root, "local")
    job = Job.load(folder)
    tables = Tables(deployment.tables_root, job.name)
    return _Place(job, deployment, deployment.model(MODEL), tables)


def _prepare(place: _Place) -> dict[str, Any]:
    raw = take_in(place.job, place.deployment, place.tables, _PARTITION)
    found = sort_requests(place.model, place.tables, _PARTITION, BLOCK)
    return {
        "input_rows": raw.input_rows,
        "distinct": found.distinct,
        "prompt_tokens": found.prompt_tokens,
        "shared_tokens": round(found.sharing * found.prompt_tokens),
        "spilled_bytes": getattr(found, "spilled_bytes", 0),
    }


def table_sizes(folder: str, name: str) -> Work:
    """Bytes of `sorted_requests` as `prepare` left it in `folder`, and of its rows shuffled."""
    written = Tables(f"{folder}/tables", "prepared")

    def sizes() -> dict[str, int]:
        rows = written.read("sorted_requests", _PARTITION)
        shuffled = Tables(f"{folder}/{name}", "prepared")
        order = np.random.default_rng(7).permutation(rows.height)
        shuffled.replace("sorted_requests", _PARTITION, rows[order].drop("partition_key"))
        return {"sorted": _bytes(written), "shuffled": _bytes(shuffled)}

    return sizes


def _bytes(tables: Tables) -> int:
    uri = tables.uri("sorted_requests")
    return sum(pl.Series(DeltaTable(uri).get_add_actions().column("size_bytes")).to_list())


def encoder(model: Path) -> Callable[[list[str]], list[list[int]]]:
    """From rendered prompts to token ids as the package makes them; loads the tokenizer once."""
    tokenizer = ModelTokenizer(model)
    return lambda texts: tokenizer.encode(texts, chat=True)


def tokens_of(texts: str, model: str, out: str) -> Work:
    """Tokenise a Parquet file of texts (column `text`) into an .npz of ids and offsets."""

    encode = encoder(Path(model))

    def tokenise() -> dict[str, int]:
        found = encode(pl.read_parquet(texts, columns=["text"])["text"].to_list())
        offsets = np.cumsum([0, *map(len, found)])
        ids = np.fromiter(chain.from_iterable(found), np.int32, offsets[-1])
        np.savez(out, ids=ids, offsets=offsets)
        return {"rows": len(found), "tokens": len(ids)}

    return tokenise


def _load(tokens: str) -> list[Tokens]:
    with np.load(tokens) as stored:
        return _sequences(stored["ids"], stored["offsets"])


def _sequences(ids: Tokens, offsets: NDArray[np.int64]) -> list[Tokens]:
    return [ids[low:high] for low, high in pairwise(offsets.tolist())]


@dataclass(frozen=True)
class _Ordered:
    """Positions in prefix order, and in that order the LCP array and the lengths."""

    order: NDArray[np.int64]
    lcp: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @staticmethod
    def of(sequences: list[Tokens]) -> "_Ordered":
        order = prefix_order(sequences)
        ordered = [sequences[at] for at in order]
        lengths = np.fromiter(map(len, ordered), np.int64, len(ordered))
        return _Ordered(np.asarray(order), shared_with_previous(ordered), lengths)


def order_tokens(tokens: str, rows: int | None = None) -> Work:
    """Prefix order and LCP array of token arrays that lie in memory; the sum of the LCPs."""
    sequences = _load(tokens)[:rows]
    _Ordered.of(sequences[:_WARM_UP])
    return lambda: int(_Ordered.of(sequences).lcp.sum())


def order_texts(texts: str, out: str) -> Work:
    """A Parquet file of texts to the rows in prefix order, with the LCP array.

    Four bytes stand for a token, so the order is that of the texts. The order is saved to `out`.
    """
    few = pl.read_parquet(texts, columns=["text"], n_rows=_WARM_UP)["text"].to_list()
    _Ordered.of(_text_tokens(few))

    def order() -> int:
        found = _Ordered.of(_text_tokens(pl.read_parquet(texts)["text"].to_list()))
        np.save(out, found.order)
        return int(found.lcp.sum())

    return order


def _text_tokens(texts: Sequence[str]) -> list[Tokens]:
    encoded = [text.encode() for text in texts]
    padded = [text + bytes(-len(text) % 4) for text in encoded]
    ids = np.frombuffer(b"".join(padded), dtype=">u4").astype(np.int32) & 0x7FFFFFFF
    return _sequences(ids, np.cumsum([0, *(len(text) // 4 for text in padded)]))


def hit_rates(tokens: str, orders: dict[str, str]) -> Work:
    """Hit rates of a set of tokenised prompts: bound, simulated in prefix order, and in others.

    Args:
        tokens: What `tokens_of` wrote.
        orders: Name → .npy file of row numbers in the order in which they would run.
    """
    sequences = _load(tokens)

    def rates() -> dict[str, float]:
        found = _Ordered.of(sequences)
        lcp, lengths = found.lcp, found.lengths
        paths = block_paths(lcp, lengths, BLOCK)
        rates = {"predicted": hit_rate(lcp, lengths, BLOCK)}
        place = np.argsort(found.order)  # of each row in prefix order
        rows = {"sorted": found.order} | {name: np.load(file) for name, file in orders.items()}
        for name, some in rows.items():
            at = place[some]
            run = (paths[one] for one in at)
            rates[name] = simulated_hit_rate(run, lengths[at], BLOCK, CACHE)
        return rates

    return rates


def shards(tokens: str, count: int, answer_tokens: int = 64) -> Work:
    """What cutting the prefix order into shards costs.

    `loss` is the hit tokens that the cuts lose over all hit tokens, `imbalance` the work of the
    most loaded shard over the mean. Work is the prompt tokens computed anew and the answer's.
    """
    sequences = _load(tokens)

    def cut() -> dict[str, float]:
        found = _Ordered.of(sequences)
        lcp, lengths = found.lcp, found.lengths
        hits = np.minimum(lcp, lengths - 1) // BLOCK * BLOCK
        ranges = cut_points(lcp, (lengths - hits + answer_tokens).astype(np.float64), count)
        starts = np.array([start for start, _ in ranges[1:]], dtype=np.int64)
        lost = int(hits[starts].sum())
        hits[starts] = 0  # a shard's first request finds an empty cache
        work = np.add.reduceat(lengths - hits + answer_tokens, [start for start, _ in ranges])
        return {
            "loss": lost / max(int(hits.sum()) + lost, 1),
            "imbalance": float(work.max() / work.mean()),
            "shards": len(ranges),
        }

    return cut
