"""Reading answers by the job's JSON schema into columns with types."""

import json
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import jsonschema_rs
import msgspec
import polars as pl

from acdc_dagster.answer_schema import AnswerColumn
from acdc_dagster.errors import DeclarationError
from acdc_dagster.job import Job
from acdc_dagster.reconcile.answer_type import answer_type
from acdc_dagster.schemas import SCHEMAS
from acdc_dagster.tables import Tables

# Answers that are read in one call.
_TOGETHER = 4096
_TYPES: dict[str, type[pl.DataType]] = {
    "string": pl.String,
    "integer": pl.Int64,
    "number": pl.Float64,
    "boolean": pl.Boolean,
    "json": pl.String,
}


def outputs_schema(job: Job) -> pl.Schema:
    """The columns of the job's `outputs`: the common ones, then one a property of the answer."""
    return pl.Schema({**SCHEMAS["outputs"], **_parsed_schema(job)})


def check_columns(job: Job, tables: Tables) -> None:
    """See that the job's columns fit the `outputs` that are there.

    Raises:
        DeclarationError: A property changed its type; Delta would bring its values to the old one.
    """
    there = tables.scan("outputs").collect_schema()
    by_name = {name.lower(): (name, dtype) for name, dtype in there.items()}
    for column in job.answer_columns:
        known, dtype = by_name.get(column.name.lower()), _TYPES[column.kind]
        if known is not None and known != (column.name, dtype()):
            raise DeclarationError(
                f"{job.folder / 'defs.yaml'}: the property {column.of!r} of answer_schema is a "
                f"column of type {dtype()}, but {tables.uri('outputs')} has {known[0]!r} of type "
                f"{known[1]}.",
                "Give the property another name, or move the old outputs table away.",
            )


@dataclass(frozen=True)
class Parsed:
    """What answers say, by the job's schema; a row an answer.

    Attributes:
        columns: One column a property, typed; null where an answer does not fit the schema.
        errors: Why it does not; null where it does.
    """

    columns: pl.DataFrame
    errors: pl.Series


def parse_answers(job: Job, texts: pl.Series) -> Parsed:
    """Read the texts of answers by the job's schema."""
    parser = _Parser(job)
    found = [
        parser.parse(texts.slice(start, _TOGETHER)) for start in range(0, len(texts), _TOGETHER)
    ]
    none = Parsed(pl.DataFrame(schema=_parsed_schema(job)), _errors([]))
    return Parsed(
        pl.concat([none.columns, *(one.columns for one in found)]),
        pl.concat([none.errors, *(one.errors for one in found)]),
    )


class _Parser:
    """Reads answers by a type where it can; what the type does not take is judged by the schema."""

    def __init__(self, job: Job) -> None:
        schema = job.answer_schema or {}
        self._columns = job.answer_columns
        self._validator = jsonschema_rs.validator_for(schema, offline=True)
        kind = answer_type(schema)
        self._decoder = None if kind is None else msgspec.json.Decoder(kind)

    def parse(self, texts: pl.Series) -> Parsed:
        """What some texts say."""
        answers = self._typed(texts)
        others = [at for at, answer in enumerate(answers) if answer is None]
        rows = [_parse(texts[at], self._columns, self._validator) for at in others]
        columns: dict[str, pl.Series] = {}
        for number, column in enumerate(self._columns):
            field = attrgetter(f"f{number}")
            values: list[Any] = [None if one is None else field(one) for one in answers]
            if column.kind == "json":
                values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
            for at, (row, _) in zip(others, rows, strict=True):
                values[at] = row.get(column.of)
            columns[column.name] = pl.Series(values, dtype=_TYPES[column.kind])
        errors: list[str | None] = [None] * len(answers)
        for at, (_, error) in zip(others, rows, strict=True):
            errors[at] = error
        return Parsed(pl.DataFrame(columns), _errors(errors))

    def _typed(self, texts: pl.Series) -> list[Any]:
        """Each answer as the type, or None: all in one call if they are lines and all fit."""
        decoder, lines = self._decoder, texts.to_list()
        if decoder is None:
            return [None] * len(lines)
        if not texts.null_count() and not texts.str.contains("\n", literal=True).any():
            try:
                answers = decoder.decode_lines("\n".join(lines))
            except (msgspec.DecodeError, RecursionError):
                answers = []
            if len(answers) == len(lines):  # a blank one is no line
                return answers
        return [_decoded(decoder, line) for line in lines]


def _decoded(decoder: msgspec.json.Decoder[Any], text: str | None) -> Any:
    try:
        return None if text is None else decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _errors(errors: list[str | None]) -> pl.Series:
    return pl.Series("error", errors, dtype=pl.String)


def _parsed_schema(job: Job) -> dict[str, type[pl.DataType]]:
    return {column.name: _TYPES[column.kind] for column in job.answer_columns}


def _parse(
    text: str | None, columns: list[AnswerColumn], validator: Any
) -> tuple[dict[str, Any], str | None]:
    """The values by property, and what is wrong with the text if there are none."""
    try:
        answer: Any = json.loads(text or "")
        json.dumps(answer, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"
    fault = next(validator.iter_errors(answer), None)
    if fault is not None:
        return {}, f"not valid against the schema: {fault.message}"
    given = cast("dict[str, Any]", answer)
    try:
        return {column.of: _value(given.get(column.of), column.kind) for column in columns}, None
    except OverflowError as error:
        return {}, f"a number is out of range: {error}"


def _value(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    if kind == "integer":  # JSON schema takes 3.0 for an integer
        whole = int(value)
        if not -(2**63) <= whole < 2**63:
            raise OverflowError("an integer column holds 64 bits")
        return whole
    return float(value) if kind == "number" else value
