"""The request bodies that a job makes of the rows of its table."""

from collections.abc import Mapping
from typing import Any

import msgspec
import polars as pl

from acdc_dagster.errors import DeclarationError
from acdc_dagster.job import Job
from acdc_dagster.requests.body import CHAT, Refused, check_custom_id, parse_body
from acdc_dagster.requests.prompts.chunks import Splitter, as_one
from acdc_dagster.requests.prompts.columnar import WHITESPACE, ColumnarBodies
from acdc_dagster.requests.prompts.cuts import Cutter
from acdc_dagster.requests.prompts.prompt import Prompt, RowError


def prompt_of(job: Job, cutter: Cutter | None = None) -> Prompt:
    """The job's prompt, compiled.

    Raises:
        DeclarationError: It is wrong, or does not read the column that the job splits, or one of
            its column order.
    """
    first = job.declared.column_order
    prompt = Prompt.compile(job.prompt or "", job.prompt_path, cutter, first)
    split = job.declared.too_long.split
    if split is not None and split.column not in prompt.columns:
        raise DeclarationError(
            f"{job.folder / 'defs.yaml'}: too_long.split.column is {split.column!r}, which "
            f"{job.prompt_path} does not read.",
            "Read it in the prompt, or name a column that is read: "
            f"{', '.join(sorted(prompt.columns)) or 'there is none yet'}.",
        )
    return prompt


class Bodies:
    """Makes the bodies of chat requests: of whole columns where it can, else row by row."""

    def __init__(self, job: Job, prompt: Prompt, cutter: Cutter | None) -> None:
        self._prompt = prompt
        self._frame = _frame(job)
        split = job.declared.too_long.split
        self._splitter = None if split is None else Splitter(split, cutter)
        self._columnar = None if split else ColumnarBodies.compile(prompt, self._frame)

    def forget(self) -> None:
        """The rows come again."""
        self._prompt.cuts.forget()
        if self._splitter is not None:
            self._splitter.forget()

    @property
    def warnings(self) -> list[str]:
        """How many rows were cut or split."""
        split = [] if self._splitter is None else self._splitter.warnings
        return [*split, *self._prompt.cuts.warnings]

    def of(self, rows: pl.DataFrame, ids: pl.Series) -> tuple[pl.Series, dict[int, Refused]]:
        """The JSON of each row's body, null where there is none; and why, by the row's place.

        If the job splits texts, it is the bodies of the row's chunks, see `chunks`.

        Args:
            rows: With the columns that the prompt reads.
            ids: Their custom_ids as text, or null.
        """
        bodies = self._of_columns(rows, ids)
        left = bodies.is_null().arg_true()
        made: list[str | None] = []
        refusals: dict[int, Refused] = {}
        for place, row in zip(left, rows[left].iter_rows(named=True), strict=True):
            try:
                made.append(self._of_row(ids[place], row))
            except Refused as refused:
                made.append(None)
                refusals[place] = refused
        if len(refusals) < len(made):
            bodies = bodies.scatter(left, pl.Series(made, dtype=pl.String))
        return bodies, refusals

    def _of_columns(self, rows: pl.DataFrame, ids: pl.Series) -> pl.Series:
        """The bodies of rows that are plainly valid; null for the rest."""
        if self._columnar is None or not self._columnar.fits(rows.schema):
            return pl.Series([None], dtype=pl.String).new_from_index(0, rows.height)
        # An expression of literals alone has height 1, so it stands beside a column.
        bodies = rows.select(
            pl.when(
                pl.lit(ids.str.strip_chars(WHITESPACE)) != "",
                *(pl.col(name).is_not_null() for name in self._columnar.required),
            )
            .then(self._columnar.body)
            .alias("body")
        )["body"]
        if self._columnar.cuts:
            made = rows.filter(bodies.is_not_null())
            shortened = made.select(where.sum() for where in self._columnar.cuts.values())
            self._prompt.cuts.count(zip(self._columnar.cuts, shortened.row(0), strict=True))
        return bodies

    def _of_row(self, custom_id: str | None, row: Mapping[str, Any]) -> str:
        custom_id = check_custom_id(custom_id)
        parts = [row] if self._splitter is None else self._splitter.parts(row)
        self._prompt.cuts.begin_row()
        bodies = [self._of_part(custom_id, part) for part in parts]
        self._prompt.cuts.end_row()
        return as_one(bodies)

    def _of_part(self, custom_id: str, row: Mapping[str, Any]) -> str:
        try:
            messages = self._prompt.messages(row)
        except RowError as error:
            raise Refused("null_or_bad_field", f"The prompt fails: {error}", custom_id) from None
        body = msgspec.json.encode({**self._frame, "messages": messages}).decode()
        parse_body(CHAT, body)
        return body


def _frame(job: Job) -> dict[str, Any]:
    """What the bodies of all rows have in common."""
    frame: dict[str, Any] = {"model": job.declared.model, **job.declared.sampling.as_body()}
    if job.answer_schema is not None:
        frame["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": job.answer_schema, "strict": True},
        }
    return frame
