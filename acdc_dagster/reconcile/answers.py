"""Reading answers by the job's JSON schema into columns with types."""

import json
from operator import attrgetter
from typing import Any, cast

import jsonschema_rs
import msgspec
import polars as pl

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
    for name, dtype in _parsed_schema(job).items():
        known = by_name.get(name.lower())
        if known is not None and known != (name, dtype()):
            raise DeclarationError(
                f"{job.folder / 'defs.yaml'}: the property {name!r} of answer_schema is a column "
                f"of type {dtype()}, but {tables.uri('outputs')} has {known[0]!r} of type "
                f"{known[1]}.",
                "Give the property another name, or move the old outputs table away.",
            )


def parse_answers(job: Job, texts: pl.Series) -> pl.DataFrame:
    """What the answers say, by the job's schema.

    Returns:
        A row a text: one column a property, typed, and `parse_error` (null if the text is valid
        JSON that fits the schema; then no property is filled).
    """
    parser = _Parser(job)
    slices = (texts.slice(start, _TOGETHER) for start in range(0, len(texts), _TOGETHER))
    return pl.concat([pl.DataFrame(schema=parser.schema), *map(parser.parse, slices)])


class _Parser:
    """Reads answers by a type where it can; what the type does not take is judged by the schema."""

    def __init__(self, job: Job) -> None:
        schema = job.answer_schema or {}
        self._columns = job.answer_columns
        self._validator = jsonschema_rs.validator_for(schema, offline=True)
        kind = answer_type(schema)
        self._decoder = None if kind is None else msgspec.json.Decoder(kind)
        self.schema = {**_parsed_schema(job), "parse_error": pl.String}

    def parse(self, texts: pl.Series) -> pl.DataFrame:
        """The rows of `parse_answers` for some texts."""
        answers = self._typed(texts)
        others = [at for at, answer in enumerate(answers) if answer is None]
        rows = [_parse(texts[at], self._columns, self._validator) for at in others]
        columns: dict[str, pl.Series] = {}
        for number, (name, kind) in enumerate(self._columns.items()):
            field = attrgetter(f"f{number}")
            values: list[Any] = [None if one is None else field(one) for one in answers]
            if kind == "json":
                values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
            for at, row in zip(others, rows, strict=True):
                values[at] = row.get(name)
            columns[name] = pl.Series(values, dtype=self.schema[name])
        errors: list[str | None] = [None] * len(answers)
        for at, row in zip(others, rows, strict=True):
            errors[at] = row.get("parse_error")
        columns["parse_error"] = pl.Series(errors, dtype=pl.String)
        return pl.DataFrame(columns)

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


def _parsed_schema(job: Job) -> dict[str, type[pl.DataType]]:
    return {name: _TYPES[kind] for name, kind in job.answer_columns.items()}


def _parse(text: str | None, columns: dict[str, str], validator: Any) -> dict[str, Any]:
    try:
        answer: Any = json.loads(text or "")
        json.dumps(answer, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError) as error:
        return {"parse_error": f"not JSON: {error}"}
    fault = next(validator.iter_errors(answer), None)
    if fault is not None:
        return {"parse_error": f"not valid against the schema: {fault.message}"}
    given = cast("dict[str, Any]", answer)
    try:
        return {name: _value(given.get(name), kind) for name, kind in columns.items()}
    except OverflowError as error:
        return {"parse_error": f"a number is out of range: {error}"}


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
