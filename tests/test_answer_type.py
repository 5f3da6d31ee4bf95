"""Answers read by a type: it never takes what the schema refuses, nor reads another value."""

import json
import random
from typing import Any

import jsonschema_rs
import msgspec
import polars as pl
import pytest
from support import MODEL, Declare

from acdc_dagster.reconcile.answer_type import answer_type
from acdc_dagster.reconcile.answers import parse_answers

# Each with a value that fits.
PROPERTIES: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "maxLength": 3, "description": "Short."}, '"a"'),
    ({"type": "string", "minLength": 2}, '"abcd"'),
    ({"type": "string", "enum": ["a", "é", ""]}, '"é"'),
    ({"enum": ["a", "b"]}, '"b"'),
    ({"type": ["string", "null"], "maxLength": 2}, "null"),
    ({"type": "integer"}, "-1"),
    ({"type": "integer", "minimum": 0, "exclusiveMaximum": 3}, "2"),
    ({"type": ["integer", "null"], "maximum": 2}, "null"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 2}, "1.5"),
    ({"type": "boolean"}, "false"),
    ({"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 2}, '["é"]'),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, "[3]"),
]
VALUES = [
    *('"a"', '"é"', '""', '"abcd"', '"😀😀😀"', '"\\ud83d"', '"\\ud83d\\ude00"', '"a\\nb"'),
    *("0", "1", "-1", "2", "3", "3.0", "2.5", "1e2", "1e400", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775809", "true", "false", "null", "NaN", "01"),
    *("[]", '["a"]', '["a", "é", "b"]', '["abc"]', "[1, 2]", "[1.0]", "[null]", "{}", "[[1]]"),
]


def answers(fitting: dict[str, str], chosen: random.Random, count: int) -> list[str]:
    """Objects with some of the properties, and others, in any order and white space.

    Args:
        fitting: A value that fits, by property; it is taken about every other time.
        chosen: Chooses.
        count: How many.
    """
    names = [*fitting, "other"]
    texts: list[str] = []
    for _ in range(count):
        some = chosen.choices(names, k=len(names)) if chosen.random() < 0.3 else names[:-1]
        values = [chosen.choice([fitting.get(name, "1"), chosen.choice(VALUES)]) for name in some]
        pairs = [f'"{name}": {value}' for name, value in zip(some, values, strict=True)]
        text = "{" + chosen.choice([", ", ",", ",\n"]).join(pairs) + "}"
        texts.append(chosen.choice(["", " ", "\n"]) + text + chosen.choice(["", "", "", "x", "\r"]))
    return texts


@pytest.mark.parametrize("seed", range(20))
def test_what_the_type_takes_is_valid_and_reads_the_same(seed: int) -> None:
    """Against the validator and Python's own JSON, over random schemas and answers."""
    chosen = random.Random(seed)
    sampled = {f"p{n}": one for n, one in enumerate(chosen.sample(PROPERTIES, 2))}
    properties = {name: declared for name, (declared, _) in sampled.items()}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if chosen.random() < 0.5],
        "additionalProperties": chosen.random() < 0.5,
    }
    kind = answer_type(schema)
    assert kind is not None
    validator = jsonschema_rs.validator_for(schema, offline=True)
    taken = 0
    for text in answers({name: value for name, (_, value) in sampled.items()}, chosen, 500):
        try:
            read = msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError:
            continue
        taken += 1
        answer = json.loads(text)
        assert validator.is_valid(answer), text
        for number, name in enumerate(properties):
            assert getattr(read, f"f{number}") == answer.get(name), text
    assert taken > 0


@pytest.mark.parametrize(
    "declared",
    [
        {"type": "string", "pattern": "^a"},
        {"type": "string", "format": "date"},
        {"type": "number", "multipleOf": 0.5},
        {"type": "integer", "minimum": 0, "exclusiveMinimum": 0},
        {"type": ["string", "integer"]},
        {"type": "object"},
        {"type": "array"},
        {"enum": ["a", 1]},
        {"enum": ["a", None]},
        {"anyOf": [{"type": "string"}]},
        {"const": "a"},
        True,
    ],
)
def test_a_schema_that_says_more_has_no_type(declared: Any) -> None:
    """Its answers are judged by the validator, one by one."""
    assert answer_type({"type": "object", "properties": {"x": declared}}) is None


@pytest.mark.parametrize(
    "more",
    [
        {"required": ["y"]},
        {"minProperties": 1},
        {"additionalProperties": {"type": "string"}},
        {"oneOf": [{"required": ["x"]}]},
    ],
)
def test_an_object_that_says_more_has_no_type(more: dict[str, Any]) -> None:
    """Whatever stands beside the properties and is not known here."""
    assert answer_type({"type": "object", "properties": {"x": {"type": "string"}}, **more}) is None


def test_a_bad_answer_among_many_is_the_only_one(declare: Declare) -> None:
    """Read together or one by one, over slices, each answer is in its row."""
    any_tags, plain = {"type": "array"}, {"type": "array", "items": {"type": "string"}}
    count = 10_000
    texts = [f'{{"x": {n}, "tags": ["é {n}"]}}' for n in range(count)]
    texts[5000], texts[5001], texts[5002] = "", '{"x": 1.5}', '{"x": 5002.0,\n"tags": ["é 5002"]}'
    expected = [None if n in (5000, 5001) else n for n in range(count)]
    for number, tags in enumerate((any_tags, plain)):
        schema = {"type": "object", "properties": {"x": {"type": "integer"}, "tags": tags}}
        source = {"table": "rows", "id_column": "id"}
        job = declare(
            f"job{number}",
            {"source": source, "model": MODEL, "answer_schema": schema},
            prompt_dot_md="x",
        )
        parsed = parse_answers(job, pl.Series(texts))
        assert parsed.columns["x"].to_list() == expected
        assert parsed.columns["tags"][9] == '["é 9"]'
        assert parsed.errors.is_not_null().arg_true().to_list() == [5000, 5001]
