"""Bodies made of whole columns: the same bytes as those made row by row, or none at all."""

from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from acdc_dagster.requests.body import CHAT, parse_body
from acdc_dagster.requests.prompts.columnar import ColumnarBodies
from acdc_dagster.requests.prompts.prompt import Prompt

PATH = Path("assets/job/prompt.md")
FRAME: dict[str, Any] = {
    "model": 'a "model" of é',
    "temperature": 0.1,
    "top_p": 1e-7,
    "max_tokens": 48,
    "stop": ["\n", "\u2028", "\x1f"],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"z": 1.0, "a": [None]}, "strict": True},
    },
}
TEXTS = [
    "",
    " ",
    'say "x"',
    "back\\slash \\n \\",
    "\u2028 between \u2029 lines \u2028",
    "👍🏽 emoji 👩‍👩‍👧",
    "\x00 \x01 \x1f \x7f \x80",
    "\b\f\n\r\t",
    " \t both ends \u3000\n",
    "\x1c\x1d\x1e\x1f odd white space \x85\xa0\u2007\u202f",
    "\u200b\ufeff no white space \u200b\ufeff",
    "</script> <!-- user --> {{ title }} {% raw %}",
    "漢字 \U0010ffff \ufffe \ud7ff",
    "\\u0041 \\\" '",
    "e\u0301 " * 50,
]


def by_rows(prompt: Prompt, rows: pl.DataFrame) -> list[str]:
    """What Jinja and msgspec make of each row."""
    return [
        msgspec.json.encode({**FRAME, "messages": prompt.messages(row)}).decode()
        for row in rows.iter_rows(named=True)
    ]


def by_columns(prompt: Prompt, rows: pl.DataFrame) -> list[str]:
    """What the expression makes of them."""
    bodies = ColumnarBodies.compile(prompt, FRAME)
    assert bodies is not None
    assert bodies.fits(rows.schema)
    return rows.with_columns(body=bodies.body)["body"].to_list()


@pytest.mark.parametrize(
    "text",
    [
        "{{ title }}",
        "\n  {{ title }}{{ n }}\n\n",
        '<!-- system -->\n "Be" \\brief\\. \u2028\x1c\n<!-- user -->\n{{ n }}: {{ title }} \x1f',
        "<!-- user -->\n{{title}}\n<!-- assistant -->\n<!-- user -->\nAgain: {{ title }}.",
        '{{ colour | default("\\u2028 none \\" ") }}{# a note #}{% raw %}{{ x }}{% endraw %}',
        "{{ colour | d('') }}",
        "No column at all\r\n",
        "<!-- system -->\n<!-- user -->\n{{- title -}} x",
        "{{ title | truncate_chars(3) }}|{{ n | truncate_chars(2) }}",
        '{{ colour | default("none") | truncate_chars(2) }}',
    ],
)
def test_the_same_bytes_as_row_by_row(text: str) -> None:
    """Order of fields, floats, escapes, white space at the ends: all as Jinja and msgspec do it."""
    prompt = Prompt.compile(text, PATH)
    rows = pl.DataFrame(
        {
            "title": TEXTS,
            "n": [(-1) ** i * 10**i for i in range(len(TEXTS))],
            "colour": [None if i % 3 == 0 else text for i, text in enumerate(TEXTS)],
        }
    )
    expected = by_rows(prompt, rows)
    assert by_columns(prompt, rows) == expected
    for body in expected:
        parse_body(CHAT, body)


def test_every_character() -> None:
    """Whatever character a text has, first, last or within."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(characters[at : at + 512]) for at in range(0, len(characters), 512)]
    texts += [f"{char}|{char}" for char in characters[:0x3100]]  # beyond is no white space
    rows = pl.DataFrame({"title": texts})
    prompt = Prompt.compile("{{ title }}", PATH)
    assert by_columns(prompt, rows) == by_rows(prompt, rows)
    assert not any(char.isspace() for char in characters[0x3100:])


@pytest.mark.parametrize(
    "dtype", [pl.Int8, pl.Int64, pl.UInt64, pl.Int128], ids=lambda dtype: str(dtype)
)
def test_integers(dtype: type[pl.DataType]) -> None:
    """Integers of any width are written as Python writes them."""
    rows = pl.DataFrame({"n": pl.Series([0, 7, 100], dtype=dtype)})
    prompt = Prompt.compile("{{ n }}", PATH)
    assert by_columns(prompt, rows) == by_rows(prompt, rows)


@pytest.mark.parametrize(
    "text",
    [
        "{{ title | upper }}",
        "{{ title.x }}",
        "{{ title ~ n }}",
        '{{ title | default("x", true) }}',
        "{{ title | default(n) }}",
        "{{ title | default(0) }}",
        '{{ title | default("x") | upper }}',
        "{{ title | truncate_chars(3) | upper }}",
        "{{ title | truncate_chars(3) | truncate_chars(2) }}",
        '{{ title | truncate_chars(3) | default("x") }}',
        "{{ title | truncate_tokens(3) }}",
        "{{ 1 }}",
        "{% if title %}x{% endif %}",
        "{% for x in title %}{{ x }}{% endfor %}",
        "{% set x = title %}{{ x }}",
        "<!-- system -->\n{{ title | length }}\n<!-- user -->\n{{ title }}",
    ],
)
def test_any_other_template_is_left_to_jinja(text: str) -> None:
    """What is more than text and columns has no expression."""
    assert ColumnarBodies.compile(Prompt.compile(text, PATH), FRAME) is None


@pytest.mark.parametrize(
    "value", [1.5, True, [1], {"a": 1}, b"x"], ids=["float", "bool", "list", "struct", "bytes"]
)
def test_any_other_column_is_left_to_jinja(value: object) -> None:
    """polars writes such values other than Python does."""
    bodies = ColumnarBodies.compile(Prompt.compile("{{ title }}", PATH), FRAME)
    assert bodies is not None
    assert not bodies.fits(pl.DataFrame({"title": [value]}).schema)


def test_a_frame_of_no_valid_body_has_no_expression() -> None:
    """Bodies are valid by construction, or each is looked at."""
    prompt = Prompt.compile("{{ title }}", PATH)
    assert ColumnarBodies.compile(prompt, {**FRAME, "temperature": 7}) is None


def test_required_columns() -> None:
    """A column is required if one of its mentions has no default."""
    text = '{{ a }} {{ b | default("x") }} {{ c }} {{ c | default("x") }}'
    bodies = ColumnarBodies.compile(Prompt.compile(text, PATH), FRAME)
    assert bodies is not None
    assert bodies.required == {"a", "c"}
