"""This package's side of the measures; the only module here that knows its functions.

Each function that returns `Work` is a step of `benchmarks.measure`: what it does is not timed, what
it returns is.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from deltalake import DeltaTable
from numpy.typing import NDArray

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.planning.shards import cut_points, request_cost, shard_imbalance, shard_loss
from acdc_dagster.prefix.examine.cache import predicted_hit_rate, simulated_hit_rate
from acdc_dagster.prefix.order import common_prefixes, hit_rate, prefix_order
from acdc_dagster.prefix.sequences import Sequences
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
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
        "spilled_bytes": found.spilled_bytes,
    }


def table_sizes(folder: str, name: str) -> Work:
    """Bytes of `sorted_requests` as `prepare` left it in `folder`, and of its rows otherwise.

    `shuffled` is in random order; `front_coded` keeps of each prompt only the tokens beyond those
    that it shares with the one before, which is the least that an order can make of them.
    """
    written = Tables(f"{folder}/tables", "prepared")

    def sizes() -> dict[str, int]:
        rows = written.read("sorted_requests", _PARTITION).sort("position").drop("partition_key")
        order = np.random.default_rng(7).permutation(rows.height)
        width = pl.col("token_ids").bin.size() // pl.col("prompt_tokens")
        fresh = pl.col("token_ids").bin.slice(pl.col("lcp") * width)
        others = {"shuffled": rows[order], "front_coded": rows.with_columns(token_ids=fresh)}
        found = {"sorted": _bytes(written)}
        for kind, other in others.items():
            tables = Tables(f"{folder}/{name}/{kind}", "prepared")
            tables.replace("sorted_requests", _PARTITION, other)
            found[kind] = _bytes(tables)
        return found

    return sizes


def _bytes(tables: Tables) -> int:
    uri = tables.uri("sorted_requests")
    return sum(pl.Series(DeltaTable(uri).get_add_actions().column("size_bytes")).to_list())


def encoder(model: Path) -> Callable[[list[str]], Sequences]:
    """From rendered prompts to token ids as the package makes them; loads the tokenizer once."""
    tokenizer = ModelTokenizer(model)
    return lambda texts: tokenizer.encode(texts, chat=True)


def tokens_of(texts: str, model: str, out: str) -> Work:
    """Tokenise a Parquet file of texts (column `text`) into an .npz of ids and offsets."""

    encode = encoder(Path(model))

    def tokenise() -> dict[str, int]:
        found = encode(pl.read_parquet(texts, columns=["text"])["text"].to_list())
        np.savez(out, ids=found.tokens, offsets=found.offsets)
        return {"rows": len(found), "tokens": len(found.tokens)}

    return tokenise


def _load(tokens: str, rows: int | None = None) -> Sequences:
    with np.load(tokens) as stored:
        offsets = stored["offsets"][: None if rows is None else rows + 1]
        return Sequences(stored["ids"][: offsets[-1]], offsets)


@dataclass(frozen=True)
class _Ordered:
    """Positions in prefix order, and in that order the LCP array and the lengths."""

    order: NDArray[np.int64]
    lcp: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @staticmethod
    def of(sequences: Sequences) -> "_Ordered":
        order = prefix_order(sequences)
        lcp = np.zeros(len(order), dtype=np.int64)
        lcp[1:] = common_prefixes(sequences, order[:-1], order[1:])
        return _Ordered(order, lcp, sequences.lengths[order])


def order_tokens(tokens: str, rows: int | None = None) -> Work:
    """Prefix order and LCP array of token arrays that lie in memory; the sum of the LCPs."""
    sequences = _load(tokens, rows)
    _Ordered.of(_load(tokens, _WARM_UP))
    return lambda: int(_Ordered.of(sequences).lcp.sum())


def order_texts(texts: str, out: str) -> Work:
    """A Parquet file of texts to the rows in prefix order, with the LCP array.

    A byte stands for a token, so the order is that of the texts. The order is saved to `out`.
    """
    _Ordered.of(_bytes_of(texts, _WARM_UP))

    def order() -> int:
        found = _Ordered.of(_bytes_of(texts))
        np.save(out, found.order)
        return int(found.lcp.sum())

    return order


def _bytes_of(texts: str, rows: int | None = None) -> Sequences:
    column = pl.read_parquet(texts, columns=["text"], n_rows=rows)["text"].cast(pl.Binary)
    array: Any = column.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    return Sequences(
        np.frombuffer(data, dtype=np.uint8),
        np.frombuffer(offsets, dtype=np.int64)[array.offset :][: len(array) + 1],
    )


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
        rates = {
            "predicted": hit_rate(lcp, lengths, BLOCK),
            "sorted": simulated_hit_rate(lcp, lengths, BLOCK, CACHE),
            "predicted_shuffled": predicted_hit_rate(lcp, lengths, BLOCK, CACHE),
        }
        place = np.argsort(found.order)  # of each row in prefix order
        shuffled = np.random.default_rng(7).permutation(len(place))
        rows = {name: np.load(file) for name, file in orders.items()}
        for name, some in ({"shuffled": shuffled} | rows).items():
            rates[name] = simulated_hit_rate(lcp, lengths, BLOCK, CACHE, place[some])
        return rates

    return rates


def shards(tokens: str, count: int, answer_tokens: int = 64) -> Work:
    """What cutting the prefix order into shards costs.

    `loss` is the shared tokens that the cuts lose over all shared tokens, `imbalance` the cost of
    the dearest shard over the mean.
    """
    sequences = _load(tokens)

    def cut() -> dict[str, float]:
        found = _Ordered.of(sequences)
        lcp, lengths = found.lcp, found.lengths
        cost = request_cost(lengths, lcp, answer_tokens)
        ranges = cut_points(lcp, cost, count)
        return {
            "loss": shard_loss(lcp, ranges),
            "imbalance": shard_imbalance(cost, ranges),
            "shards": len(ranges),
        }

    return cut
