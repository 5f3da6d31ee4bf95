"""Request bodies of whole columns at once, for prompts that only put columns into text.

Most prompts are text with `{{ column }}` and `{{ column | default("text") }}` in it, perhaps cut by
`truncate_chars`. Over columns of text and integers, such a prompt is a concatenation, and a body is
JSON whose only variable parts are the contents of its messages. What polars writes here is what
Jinja and msgspec write row by row, byte for byte; any other prompt or column type is left to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import polars as pl
from jinja2 import nodes

from acdc_dagster.requests.body import CHAT, Refused, parse_body
from acdc_dagster.requests.prompts.cuts import Cut, cut_of
from acdc_dagster.requests.prompts.prompt import Prompt

# What Python's str.strip removes; Rust's trim, and so polars' default, leaves U+001C to U+001F.
WHITESPACE = "".join(char for char in map(chr, range(0x3001)) if char.isspace())


@dataclass(frozen=True)
class _Column:
    """`{{ name }}`, perhaps with `default("…")`, and after that perhaps cut to characters."""

    name: str
    default: str | None
    cut: Cut | None = None

    @property
    def whole(self) -> pl.Expr:
        """Its text, not cut."""
        value = pl.col(self.name).cast(pl.String)
        return value if self.default is None else value.fill_null(self.default)

    @property
    def text(self) -> pl.Expr:
        """What stands in the prompt."""
        return self.whole if self.cut is None else self.whole.str.head(self.cut.most)


_Content = tuple[str | _Column, ...]


@dataclass(frozen=True)
class ColumnarBodies:
    """The bodies of a job's requests as an expression over its table's columns."""

    _head: str
    _messages: tuple[tuple[str, _Content], ...]

    @staticmethod
    def compile(prompt: Prompt, frame: Mapping[str, Any]) -> "ColumnarBodies | None":
        """The bodies for a prompt; None if it does more than put columns into text.

        Args:
            prompt: The compiled prompt.
            frame: What the bodies have in common: all fields but `messages`. If no valid body has
                them, it is None too, so that each row is refused by itself.
        """
        messages: list[tuple[str, _Content]] = []
        for role, tree in prompt.templates:
            content = _content(tree)
            if content is None:
                return None
            messages.append((role, content))
        # Bodies differ in the text of their messages alone, and any text is a valid content: if
        # one body is valid, all are.
        empty = [{"role": role, "content": ""} for role, _ in messages]
        try:
            parse_body(CHAT, msgspec.json.encode({**frame, "messages": empty}))
        except Refused:
            return None
        head = msgspec.json.encode({**frame, "messages": []}).decode()
        return ColumnarBodies(head.removesuffix("]}"), tuple(messages))

    @cached_property
    def _mentions(self) -> list[_Column]:
        """Each mention of a column."""
        pieces = [piece for _, content in self._messages for piece in content]
        return [piece for piece in pieces if isinstance(piece, _Column)]

    @cached_property
    def required(self) -> set[str]:
        """Columns without a default somewhere: a row in which one is null has no body."""
        return {column.name for column in self._mentions if column.default is None}

    def fits(self, schema: pl.Schema) -> bool:
        """Whether the columns have types that this module writes as Python does."""
        types = [schema[column.name] for column in self._mentions]
        return all(dtype == pl.String or dtype.is_integer() for dtype in types)

    @property
    def body(self) -> pl.Expr:
        """The JSON of a row's body; only for rows with all `required` columns."""
        pieces: list[pl.Expr] = []
        for number, (role, content) in enumerate(self._messages):
            message = pl.struct(role=pl.lit(role), content=_text(content))
            pieces += [pl.lit("," if number else self._head), message.struct.json_encode()]
        return pl.concat_str([*pieces, pl.lit("]}")])

    @property
    def cuts(self) -> dict[Cut, pl.Expr]:
        """For each cut, whether it shortens the text of a row."""
        found: dict[Cut, pl.Expr] = {}
        for column in self._mentions:
            if column.cut is not None:
                shortened = column.whole.str.len_chars() > column.cut.most
                before = found.get(column.cut)
                found[column.cut] = shortened if before is None else before | shortened
        return found


def _content(tree: nodes.Template) -> _Content | None:
    """The pieces of a template; None if it has others than text and columns."""
    pieces: list[str | _Column] = []
    for statement in tree.body:
        if not isinstance(statement, nodes.Output):
            return None
        for node in statement.nodes:
            piece = _piece(node)
            if piece is None:
                return None
            pieces.append(piece)
    return tuple(pieces)


def _piece(node: nodes.Expr) -> str | _Column | None:
    match node:
        case nodes.TemplateData(data=text):
            return text
        case nodes.Name(name=name):
            return _Column(name, None)
        case nodes.Filter(
            name="default" | "d",
            node=nodes.Name(name=name),
            args=[nodes.Const(value=str(default))],
            kwargs=[],
            dyn_args=None,
            dyn_kwargs=None,
        ):
            return _Column(name, default)
        case nodes.Filter(node=nodes.Expr() as expression):
            cut, column = cut_of(node), _piece(expression)
            if cut is None or cut.unit == "tokens" or not isinstance(column, _Column):
                return None
            return replace(column, cut=cut) if column.cut is None else None
        case _:
            return None


def _text(content: _Content) -> pl.Expr:
    if all(isinstance(piece, str) for piece in content):
        return pl.lit("".join(map(str, content)).strip())
    pieces = [pl.lit(piece) if isinstance(piece, str) else piece.text for piece in content]
    return pl.concat_str(pieces).str.strip_chars(WHITESPACE)
