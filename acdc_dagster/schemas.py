"""The columns of the tables that a job's rows move through."""

from typing import Literal

import polars as pl

TableName = Literal[
    "raw_requests",
    "rejected",
    "source_chunks",
    "sorted_requests",
    "request_map",
    "profile",
    "inference",
    "outputs",
    "dead_letter",
    "history",
    "retries",
    "images",
    "requeued",
    "spot_checks",
    "evaluation",
    "runs",
]

_Type = pl.DataType | type[pl.DataType]


def _schema(*columns: tuple[str, _Type]) -> pl.Schema:
    return pl.Schema([("partition_key", pl.String), *columns])


SCHEMAS: dict[TableName, pl.Schema] = {
    "raw_requests": _schema(
        ("custom_id", pl.String),
        ("endpoint", pl.String),
        ("model", pl.String),
        ("body", pl.String),  # JSON, byte for byte as given in the OpenAI format
        ("source", pl.String),
        ("line", pl.Int64),  # from 1: line of the file, row of the table
        ("input_rows", pl.Int64),  # rows of the source that are this very request
        ("prompt_version", pl.String),  # see Job.prompt_version
    ),
    "rejected": _schema(
        ("stage", pl.String),  # raw_requests or sorted_requests: who found it
        ("source", pl.String),
        ("line", pl.Int64),
        ("custom_id", pl.String),
        ("code", pl.String),
        ("message", pl.String),
        ("input_rows", pl.Int64),
        ("byte_offset", pl.Int64),  # of the line in the file, unpacked; null for a table
        ("excerpt", pl.String),
        ("original", pl.Binary),
    ),
    "source_chunks": _schema(
        ("source", pl.String),
        ("first_line", pl.Int64),  # from 1: line of the file, row of the table
        ("rows", pl.Int64),  # lines of the file, blank ones too; rows of the table
        ("byte_offset", pl.Int64),  # in the unpacked file; null for a URI or a table
        ("bytes", pl.Int64),
        ("sha256", pl.String),  # 64 hexadecimal digits
        ("columns", pl.String),  # of a table: those that were read
    ),
    "sorted_requests": _schema(
        ("position", pl.Int64),  # from 0, in prefix order
        ("request_hash", pl.String),
        ("token_ids", pl.Binary),  # prompt_tokens little-endian numbers, of 2 or 4 bytes each
        ("prompt_tokens", pl.Int32),
        ("lcp", pl.Int32),  # tokens shared with the request before it
        ("max_tokens", pl.Int32),  # most tokens of the answer
        ("sampling", pl.String),  # JSON of what the engine needs beside the tokens
        ("images", pl.List(pl.String)),  # sha256 of each, in the order of their places
        ("image_tokens", pl.Int32),  # what they add to prompt_tokens; null if not known
    ),
    # what the requests of a partition show, each image once, in the order of sha256
    "images": _schema(
        ("sha256", pl.String),  # 64 hexadecimal digits
        ("media_type", pl.String),
        ("content", pl.Binary),
        ("width", pl.Int32),  # pixels as stored
        ("height", pl.Int32),
    ),
    # requests that are asked again: the rows of sorted_requests, with prompts of their own
    "retries": _schema(
        ("attempt", pl.Int32),  # the same in all rows of a partition
        ("shard", pl.Int32),
        ("error_class", pl.String),  # why
        ("position", pl.Int64),  # from 0, in prefix order; those of a shard follow one another
        ("request_hash", pl.String),  # that of sorted_requests, whatever is asked now
        ("token_ids", pl.Binary),
        ("prompt_tokens", pl.Int32),
        ("lcp", pl.Int32),
        ("max_tokens", pl.Int32),
        ("sampling", pl.String),
        ("images", pl.List(pl.String)),
        ("image_tokens", pl.Int32),
    ),
    "requeued": _schema(
        ("custom_id", pl.String),
        ("request_hash", pl.String),
        ("after_attempt", pl.Int32),  # the last one so far; later ones count anew
        ("requeued_at", pl.Datetime("us", "UTC")),
    ),
    "request_map": _schema(
        ("custom_id", pl.String),
        ("request_hash", pl.String),
        ("line", pl.Int64),
        ("input_rows", pl.Int64),
        ("prompt_version", pl.String),  # that of raw_requests
    ),
    "profile": _schema(
        ("input_rows", pl.Int64),
        ("valid_requests", pl.Int64),
        ("distinct_requests", pl.Int64),
        ("prompt_tokens", pl.Int64),
        ("sample_rows", pl.Int64),
        ("prompt_p50", pl.Int64),
        ("prompt_p95", pl.Int64),
        ("prompt_max", pl.Int64),
        ("sharing", pl.Float64),
        ("hit_rate_bound", pl.Float64),
        ("plan", pl.String),  # JSON of planning.plan.Plan
        ("why", pl.String),
    ),
    "inference": _schema(
        ("request_hash", pl.String),
        ("attempt", pl.Int32),
        ("text", pl.String),
        ("finish_reason", pl.String),
        ("error_class", pl.String),
        ("error_message", pl.String),
        ("prompt_tokens", pl.Int32),
        ("cached_tokens", pl.Int32),
        ("completion_tokens", pl.Int32),
        ("reasoning", pl.String),
        ("reasoning_tokens", pl.Int32),
        ("choices", pl.String),  # JSON of the answers after the first
        ("logprobs", pl.String),  # JSON, as the OpenAI API gives them
        ("embedding", pl.List(pl.Float32)),
        ("started_at", pl.Datetime("us", "UTC")),
        ("finished_at", pl.Datetime("us", "UTC")),
        ("shard", pl.Int32),
        ("chunk", pl.Int64),
        ("worker", pl.String),
        ("engine", pl.String),
        ("run_id", pl.String),
    ),
    # outputs has the columns of the job's answer schema after these
    "outputs": _schema(
        ("custom_id", pl.String),
        ("status", pl.String),
        ("text", pl.String),
        ("reasoning", pl.String),
        ("finish_reason", pl.String),
        ("error_class", pl.String),
        ("prompt_tokens", pl.Int32),
        ("cached_tokens", pl.Int32),
        ("completion_tokens", pl.Int32),
        ("reasoning_tokens", pl.Int32),
        ("cost", pl.Float64),
        ("attempts", pl.Int32),
        ("reused", pl.Boolean),
        ("input_rows", pl.Int64),
        ("line", pl.Int64),
        ("request_hash", pl.String),
        ("prompt_version", pl.String),
        ("model", pl.String),
        ("model_revision", pl.String),
        ("engine", pl.String),
        ("choices", pl.String),
        ("logprobs", pl.String),
        ("embedding", pl.List(pl.Float32)),
    ),
    "dead_letter": _schema(
        ("custom_id", pl.String),
        ("error_class", pl.String),
        ("message", pl.String),
        ("remedy", pl.String),
        ("attempts", pl.Int32),
        ("text", pl.String),
        ("input_rows", pl.Int64),
        ("line", pl.Int64),
        ("request_hash", pl.String),
    ),
    "spot_checks": _schema(
        ("custom_id", pl.String),
        ("line", pl.Int64),
        ("input", pl.String),
        ("text", pl.String),
        ("status", pl.String),
        ("error_class", pl.String),
        ("prompt_version", pl.String),
    ),
    # of the job's evaluation set; the last two columns are filled once outputs are
    "evaluation": _schema(
        ("item", pl.String),
        ("request_hash", pl.String),
        ("text", pl.String),
        ("score", pl.Float64),  # 0 to 1; null if the engine failed
    ),
    "runs": _schema(
        ("run_id", pl.String),
        ("recorded_at", pl.Datetime("us", "UTC")),
        ("code_version", pl.String),
        ("declaration", pl.String),  # JSON of defs.yaml
        ("prompt_version", pl.String),
        ("prompt_hash", pl.String),
        ("model", pl.String),
        ("model_revision", pl.String),
        ("plan", pl.String),  # JSON of planning.plan.Plan
        ("engine", pl.String),
        ("device", pl.String),
        ("input_rows", pl.Int64),
        ("outputs", pl.Int64),
        ("rejected", pl.Int64),
        ("dead_letter", pl.Int64),
        ("failures", pl.String),  # JSON: ids by class of failure
        # see reconcile.run_record.Health
        ("computed", pl.Int64),
        ("seconds", pl.Float64),
        ("items_per_minute", pl.Float64),
        ("failure_rate", pl.Float64),
        ("retry_rate", pl.Float64),
        ("mean_context", pl.Float64),
        ("latency_p99", pl.Float64),
        ("cost", pl.Float64),
        ("currency", pl.String),
        # see reconcile.evaluation.Evaluation
        ("evaluation_score", pl.Float64),
        ("evaluation_set", pl.String),
        ("evaluation_kept", pl.Boolean),  # the job's limit
    ),
    "history": _schema(
        ("run_id", pl.String),
        ("shard", pl.Int32),
        ("model", pl.String),
        ("model_revision", pl.String),
        ("engine", pl.String),
        ("device", pl.String),
        ("replicas", pl.Int32),
        ("settings", pl.String),  # JSON of planning.plan.EngineSettings
        ("requests", pl.Int64),
        ("failed", pl.Int64),
        ("prompt_tokens", pl.Int64),
        ("cached_tokens", pl.Int64),
        ("completion_tokens", pl.Int64),
        ("seconds", pl.Float64),  # the engine was up
        ("batch_fill", pl.Float64),
        ("kv_usage", pl.Float64),  # the most
        ("preemptions", pl.Int64),
        ("drafts", pl.Int64),
        ("accepted", pl.List(pl.Int64)),
        ("restarts", pl.Int32),
        ("finished_at", pl.Datetime("us", "UTC")),
        ("ended", pl.String),  # see inference.history.Ended; null: complete
        ("outlier", pl.String),  # why no plan learns from it: restarted, preempted, contended
    ),
}


# rejected is written by two stages, each of which replaces only what it wrote.
PARTITION_BY: dict[TableName, list[str]] = {"rejected": ["partition_key", "stage"]}


def row_schema(name: TableName) -> pl.Schema:
    """The polars columns of a table's rows, without the keys that `Tables.replace` adds."""
    keys = PARTITION_BY.get(name, ["partition_key"])
    columns = SCHEMAS[name].items()
    return pl.Schema({column: dtype for column, dtype in columns if column not in keys})
