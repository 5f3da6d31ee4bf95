"""What `acdc check` is asked about: a file, or a partition of a job."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, NoDeploymentError
from acdc_dagster.prefix.examine.columns import order_of_columns
from acdc_dagster.prefix.examine.examination import examine
from acdc_dagster.prefix.examine.report import Report
from acdc_dagster.prefix.tokens.cutter import TokenCutter
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.files.jsonl import RequestFiles, request_files
from acdc_dagster.requests.stage import source_of
from acdc_dagster.requests.tables.table import TableSource

_BLOCK_SIZE = 16
_NO_MODEL = "(the job's)"
# Rows that the order of the columns is judged by.
_ROWS = 200_000


def check_source(
    what: str,
    partition: str | None,
    tokenizer: Path | None,
    block_size: int | None,
    kv_tokens: int,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Examine a file, or the source of a job of this deployment.

    Args:
        what: Path or URI of a batch file; what is no file and the name of a job is that job.
        partition: The job's partition key.
        tokenizer: See `examine`.
        block_size: Tokens in a KV block; the environment's if None, else 16.
        kv_tokens: See `examine`.
        on_progress: See `examine`.

    Raises:
        SourceError: The source cannot be read.
        ModelError: The given tokenizer cannot be used, or the job's prompt cuts to tokens and there
            is none.
        DeclarationError: The environment's or a job's declaration is wrong, the job needs a
            partition or has no such one, or there is neither such a file nor such a job.
    """
    deployment = _deployment()
    if block_size is None:
        local = deployment.environment.backends.local if deployment else None
        block_size = local.engine.block_size if local else _BLOCK_SIZE
    if "://" in what or deployment is None or os.path.exists(what):  # noqa: PTH110 - any text
        source = _files(what, deployment)
        return examine(
            source, what, None, tokenizer, block_size, kv_tokens, on_progress=on_progress
        )
    jobs = deployment.jobs()
    if what not in jobs:
        raise DeclarationError(
            f"{what} is neither a file nor a job of {deployment.root / 'assets'}.",
            f"Correct the path, or choose one of: {', '.join(jobs) or '(no jobs declared)'}.",
        )
    job = jobs[what]
    if (partition is None) != (job.declared.partitions.cadence == "none"):
        raise DeclarationError(
            f"The job {what!r} has {'no ' if partition else ''}partitions.",
            "Leave --partition out." if partition else "Give one with --partition.",
        )
    if partition is not None and not job.declared.partitions.has(partition):
        raise DeclarationError(
            f"The job {what!r} has no partition {partition!r}.",
            f"Give --partition with {job.declared.partitions.described}.",
        )
    cutter = TokenCutter(
        lambda: ModelTokenizer(tokenizer or deployment.model(job.declared.model).path)
    )
    source = source_of(job, deployment, partition or "", cutter)
    columns = order_of_columns(source, _ROWS) if isinstance(source, TableSource) else None
    fields, order = columns or (None, None)
    name = f"{what}, partition {partition}" if partition else what
    declared = job.declared
    report = examine(
        source,
        name,
        declared.model,
        tokenizer,
        block_size,
        kv_tokens,
        declared.max_rejected,
        fields,
        on_progress,
    )
    if order is None or not order.moved:
        return report
    return replace(report, advice=[*report.advice, order.advice])


def _files(what: str, deployment: Deployment | None) -> RequestFiles:
    """The files; a job would give its model to lines that name none of this deployment's."""
    models = list(deployment.environment.models) if deployment else []
    model = models[0] if len(models) == 1 else _NO_MODEL
    if "://" not in what:
        return RequestFiles([Path(what)], model)
    options = deployment.environment.storage_options if deployment else {}
    return RequestFiles(request_files(what, "", Path(), options), model)


def _deployment() -> Deployment | None:
    try:
        return Deployment.load()
    except NoDeploymentError:
        return None
