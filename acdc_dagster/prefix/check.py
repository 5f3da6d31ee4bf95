"""What `acdc check` is asked about: a file, or a partition of a job."""

from pathlib import Path

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.prefix.cutter import TokenCutter
from acdc_dagster.prefix.examination import examine
from acdc_dagster.prefix.report import Report
from acdc_dagster.prefix.tokenizer import ModelTokenizer
from acdc_dagster.requests.jsonl import RequestFiles
from acdc_dagster.requests.stage import source_of

_BLOCK_SIZE = 16


def check_source(
    what: str,
    partition: str | None,
    tokenizer: Path | None,
    block_size: int | None,
    kv_tokens: int,
) -> Report:
    """Examine a file, or the source of a job of this deployment.

    Args:
        what: Path of an OpenAI-batch file; what is no file and the name of a job is that job.
        partition: The job's partition key.
        tokenizer: See `examine`.
        block_size: Tokens in a KV block; the environment's if None, else 16.
        kv_tokens: See `examine`.

    Raises:
        SourceError: The source cannot be read.
        ModelError: The given tokenizer cannot be used, or the job's prompt cuts to tokens and there
            is none.
        DeclarationError: The job's declaration is wrong, or it needs a partition.
    """
    deployment = _deployment()
    if block_size is None:
        local = deployment.environment.backends.local if deployment else None
        block_size = local.engine.block_size if local else _BLOCK_SIZE
    if deployment is None or Path(what).exists() or what not in deployment.jobs():
        return examine(RequestFiles([Path(what)]), what, None, tokenizer, block_size, kv_tokens)
    job = deployment.job(what)
    if (partition is None) != (job.declared.partitions.cadence == "none"):
        raise DeclarationError(
            f"The job {what!r} has {'no ' if partition else ''}partitions.",
            "Leave --partition out." if partition else "Give one with --partition.",
        )
    cutter = TokenCutter(
        lambda: ModelTokenizer(tokenizer or deployment.model(job.declared.model).path)
    )
    source = source_of(job, deployment, partition or "", cutter)
    name = f"{what}, partition {partition}" if partition else what
    return examine(source, name, job.declared.model, tokenizer, block_size, kv_tokens)


def _deployment() -> Deployment | None:
    try:
        return Deployment.load()
    except DeclarationError:
        return None
