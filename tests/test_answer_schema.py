"""The answer schema: a pydantic model in its place, and the columns that it makes."""

import polars as pl
import pytest
from support import MODEL, Declare

from acdc_dagster.answer_schema import answer_columns
from acdc_dagster.errors import DeclarationError
from acdc_dagster.job import Job
from acdc_dagster.reconcile.answers import parse_answers

MODELS = """
from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import BaseModel, Field


class Kind(str, Enum):
    toy = "toy"
    tool = "tool"


class Part(BaseModel):
    name: str


class Product(BaseModel):
    kind: Kind
    size: Literal["s", "m"] | None = None
    price: float = Field(ge=0, description="In EUR.")
    weight: int | None = None
    gift: bool
    parts: list[Part]
    cost: Kind = Kind.toy


NUMBER = 3
"""


def declared(declare: Declare, schema: str, name: str = "products", models: str = MODELS) -> Job:
    source = {"table": "rows", "id_column": "id"}
    attributes = {"source": source, "model": MODEL, "answer_schema": schema}
    return declare(name, attributes, prompt_dot_md="Tag {{ id }}", answers_dot_py=models)


def test_a_pydantic_model_makes_typed_columns(declare: Declare) -> None:
    """Enums and optional values have the type of what they hold; other models are JSON."""
    job = declared(declare, "answers:Product")
    assert [(c.name, c.kind, c.few_values) for c in job.answer_columns] == [
        ("kind", "string", True),
        ("size", "string", True),
        ("price", "number", False),
        ("weight", "integer", False),
        ("gift", "boolean", True),
        ("parts", "json", False),
        ("answer_cost", "string", True),
    ]
    assert job.answer_columns[2].description == "In EUR."
    assert job.answer_schema is not None
    assert job.answer_schema["required"] == ["kind", "price", "gift", "parts"]
    texts = ['{"kind": "toy", "price": 1, "gift": true, "parts": [{"name": "lid"}]}']
    texts.append(texts[0].replace("toy", "book"))
    parsed = parse_answers(job, pl.Series(texts))
    assert parsed.columns.row(0) == ("toy", None, 1.0, None, True, '[{"name": "lid"}]', None)
    assert parsed.errors.is_null().to_list() == [True, False]


def test_each_job_has_its_own_module(declare: Declare) -> None:
    """Two folders with a file of the same name."""
    declared(declare, "answers:Product")
    other = "from pydantic import BaseModel\n\n\nclass Product(BaseModel):\n    x: int\n"
    job = declared(declare, "answers:Product", "others", other)
    assert [column.name for column in job.answer_columns] == ["x"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("answers:Nothing", "cannot be imported: AttributeError"),
        ("nowhere.at_all:Product", "cannot be imported: ModuleNotFoundError"),
        ("answers:NUMBER", "is no pydantic model"),
        ("answers:Kind", "is no pydantic model"),
    ],
)
def test_what_is_no_model_is_told(declare: Declare, schema: str, told: str) -> None:
    """With the name and the file that names it."""
    with pytest.raises(DeclarationError) as error:
        declared(declare, schema)
    assert told in str(error.value)
    assert f"defs.yaml: {schema}" in str(error.value)


def test_what_a_schema_cannot_say_plainly_is_json() -> None:
    """Two types, a reference to nothing, a property without a schema."""
    schema = {
        "properties": {
            "a": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "b": {"$ref": "#/$defs/gone"},
            "c": True,
        }
    }
    assert [column.kind for column in answer_columns(schema)] == ["json", "json", "json"]
