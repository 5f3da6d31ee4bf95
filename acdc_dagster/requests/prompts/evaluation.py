"""The requests of an evaluation set: made as the job makes those of its rows."""

import msgspec
import polars as pl

from acdc_dagster.errors import DeclarationError
from acdc_dagster.evaluation_set import FILE, EvaluationItem
from acdc_dagster.job import Job
from acdc_dagster.requests.body import CHAT, COMPLETIONS, Refused, parse_body
from acdc_dagster.requests.prompts.bodies import Bodies, prompt_of
from acdc_dagster.requests.prompts.cuts import Cutter
from acdc_dagster.schemas import row_schema


def evaluation_requests(job: Job, cutter: Cutter | None = None) -> pl.DataFrame:
    """Rows like those of `raw_requests`, one an item with its id; none without a set.

    Args:
        job: The job.
        cutter: See `requests.stage.take_in`.

    Raises:
        DeclarationError: An item is no valid request.
    """
    asks = None if job.prompt is None else _Asks(job, cutter)
    rows: list[dict[str, object]] = []
    for number, item in enumerate(job.evaluation, start=1):
        try:
            endpoint, body = _of_body(job, item) if asks is None else (CHAT, asks.body(item))
        except Refused as refused:
            raise unfit(job, item.id, refused.message) from None
        rows.append(
            {
                "custom_id": item.id,
                "endpoint": endpoint,
                "model": job.declared.model,
                "body": body,
                "source": FILE,
                "line": number,
                "input_rows": 0,
            }
        )
    return pl.DataFrame(rows, schema=row_schema("raw_requests"))


def unfit(job: Job, item: str, reason: str) -> DeclarationError:
    """The fault of an item that the job cannot ask."""
    return DeclarationError(
        f"{job.folder / FILE}: item {item!r} is no valid request: {reason}",
        "Correct the item, or take it out.",
    )


class _Asks:
    """Puts the rows of items into the job's prompt; what a row lacks is null."""

    def __init__(self, job: Job, cutter: Cutter | None) -> None:
        prompt = prompt_of(job, cutter)
        self._columns = sorted(prompt.columns)
        self._bodies = Bodies(job, prompt, cutter)

    def body(self, item: EvaluationItem) -> str:
        row = {name: (item.row or {}).get(name) for name in self._columns}
        made, refusals = self._bodies.of(pl.DataFrame([row]), pl.Series([item.id]))
        if refusals:
            raise refusals[0]
        return str(made[0])


def _of_body(job: Job, item: EvaluationItem) -> tuple[str, str]:
    body = {"model": job.declared.model, **(item.body or {})}
    endpoint = CHAT if "messages" in body else COMPLETIONS
    raw = msgspec.json.encode(body).decode()
    parse_body(endpoint, raw)
    return endpoint, raw
