"""What the columns of a job's table have to do with how much its prompts share."""

from polars.exceptions import PolarsError

from acdc_dagster.prefix.examine.field_order import FieldOrder, field_order
from acdc_dagster.requests.prompts.prompt import Fields
from acdc_dagster.requests.tables.table import TableSource


def order_of_columns(source: TableSource, rows: int) -> tuple[Fields, FieldOrder] | None:
    """The prompt's columns, and what another order of them would share.

    None if the prompt is not simple (see `Prompt.fields`) or a column has no text, such as a list.

    Args:
        source: The job's table.
        rows: About how many of its first rows are looked at.

    Raises:
        SourceError: The table broke or was changed while it was read.
    """
    try:
        found = source.fields(rows)
        return None if found is None else (found[1], field_order(found[0], found[1].literals))
    except PolarsError:
        return None


def columns_of(fields: Fields, one: str, other: str) -> tuple[str, ...]:
    """The columns whose values part two prompts, in their order; none if they part before any.

    They are told by the literal texts of the prompt, so a value that holds the text after it may
    give the name of the next column.

    Args:
        fields: Of the prompt.
        one: A rendered prompt from its beginning to where it goes on like the other,
        other: and the other one.
    """
    begin = _alike(one, other)
    end = max(len(one) - _alike(one[::-1], other[::-1]), begin)
    before = _columns_in(fields, one[:begin])
    return fields.columns[before - 1 : _columns_in(fields, one[:end])] if before else ()


def _alike(one: str, other: str) -> int:
    """Characters that two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _columns_in(fields: Fields, text: str) -> int:
    """How many of the columns begin within a text."""
    end = 0
    for number, literal in enumerate(fields.literals[:-1]):
        place = text.find(literal, end)
        if place < 0:
            return number
        end = place + len(literal)
    return len(fields.columns)
