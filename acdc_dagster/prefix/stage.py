"""Stage 2: render, tokenise, deduplicate and sort the valid requests of one partition."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from acdc_dagster.deployment import Model
from acdc_dagster.prefix.identity import EngineRequest, engine_request
from acdc_dagster.prefix.order import hit_rate, prefix_order, shared_with_previous, sharing
from acdc_dagster.prefix.tokenizer import ModelTokenizer, PromptTokenizer
from acdc_dagster.requests.body import CHAT, Refused, parse_body
from acdc_dagster.requests.rejected import Rejection, rejected_rows
from acdc_dagster.tables import Tables

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class SortedStats:
    """What stage 2 did.

    Attributes:
        requests: custom_ids whose requests can run.
        distinct: Requests to run; the others repeat one of them.
        rejected: Rows of the source that only the tokenizer could refuse.
        prompt_tokens: Over distinct requests.
        sharing: Share of prompt tokens that repeat a prefix (see `order.sharing`).
        hit_rate_bound: See `order.hit_rate`.
    """

    requests: int
    distinct: int
    rejected: int
    prompt_tokens: int
    sharing: float
    hit_rate_bound: float


@dataclass(frozen=True)
class Tokenised:
    """The rows of `raw_requests` that can run, with the engine's view of each, and the others."""

    rows: pl.DataFrame
    requests: list[EngineRequest]
    refused: list[Rejection]


def sort_requests(model: Model, tables: Tables, partition: str, block_size: int) -> SortedStats:
    """Fill `sorted_requests`, `request_map` and this stage's part of `rejected`.

    Args:
        model: The model that answers; its tokenizer and chat template are used.
        tables: The job's tables; `raw_requests` is read.
        partition: The partition key.
        block_size: Tokens in a KV block, for the bound of the hit rate.

    Raises:
        ModelError: The tokenizer cannot be used.
        TableError: The storage refused; run the partition again.
    """
    raw = tables.read("raw_requests", partition)
    found = tokenise(raw, ModelTokenizer(model.path), model, sampling_defaults(model))
    hashes = [
        request.request_hash(model, f"{partition}/{custom_id}")
        for request, custom_id in zip(found.requests, found.rows["custom_id"], strict=True)
    ]
    first: dict[str, int] = {}
    for at, request_hash in enumerate(hashes):
        first.setdefault(request_hash, at)
    # By hash before by prefix: equal prompts of different sampling stand in a stable order.
    distinct = [at for _, at in sorted(first.items())]
    tokens = [found.requests[at].tokens for at in distinct]
    order = [distinct[at] for at in prefix_order(tokens)]
    tokens = [found.requests[at].tokens for at in order]
    lcp = shared_with_previous(tokens)
    lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
    tables.replace("rejected", partition, rejected_rows(found.refused), stage="sorted_requests")
    tables.replace(
        "request_map",
        partition,
        found.rows.select("custom_id", "line", "input_rows").with_columns(
            pl.Series("request_hash", hashes, dtype=pl.String)
        ),
    )
    tables.replace(
        "sorted_requests",
        partition,
        pl.DataFrame(
            {
                "position": pl.Series(range(len(order)), dtype=pl.Int64),
                "request_hash": pl.Series([hashes[at] for at in order], dtype=pl.String),
                "token_ids": pl.Series(tokens, dtype=pl.List(pl.Int32)),
                "prompt_tokens": pl.Series(lengths, dtype=pl.Int32),
                "lcp": pl.Series(lcp, dtype=pl.Int32),
                "sampling": pl.Series(
                    [found.requests[at].sampling for at in order], dtype=pl.String
                ),
            }
        ),
    )
    return SortedStats(
        requests=found.rows.height,
        distinct=len(order),
        rejected=sum(rejection.input_rows for rejection in found.refused),
        prompt_tokens=int(lengths.sum()),
        sharing=sharing(lcp, lengths),
        hit_rate_bound=hit_rate(lcp, lengths, block_size),
    )


def tokenise(
    raw: pl.DataFrame, tokenizer: PromptTokenizer, model: Model, defaults: dict[str, Any]
) -> Tokenised:
    """Render and tokenise the rows of `raw_requests`; those that cannot run are set aside."""
    kept: list[int] = []
    bodies: list[Any] = []
    texts: list[str] = []
    refused: list[Rejection] = []
    rows = list(raw.iter_rows(named=True))
    for at, row in enumerate(rows):
        try:
            body = parse_body(row["endpoint"], row["body"])
            texts.append(tokenizer.render(body))
        except Refused as error:
            refused.append(_rejection(row, error))
        else:
            kept.append(at)
            bodies.append(body)
    # One endpoint a partition: stage 1 sees to that.
    chat = bool(rows) and rows[0]["endpoint"] == CHAT
    running: list[int] = []
    requests: list[EngineRequest] = []
    for at, body, ids in zip(kept, bodies, tokenizer.encode(texts, chat=chat), strict=True):
        try:
            requests.append(engine_request(body, ids, model, defaults))
        except Refused as error:
            refused.append(_rejection(rows[at], error))
        else:
            running.append(at)
    return Tokenised(raw[running], requests, refused)


def sampling_defaults(model: Model) -> dict[str, Any]:
    """The model's own defaults, which `vllm serve` also falls back to."""
    path = model.path / "generation_config.json"
    if not path.is_file():
        return {}
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: config[name] for name in _DEFAULTS if config.get(name) is not None}


def _rejection(row: dict[str, Any], refused: Refused) -> Rejection:
    named = Refused(refused.code, refused.message, row["custom_id"])
    original = row["body"].encode()
    return Rejection.of(named, row["source"], row["line"], original, row["input_rows"])
