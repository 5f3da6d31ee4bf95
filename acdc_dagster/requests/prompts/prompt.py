"""The prompt file: Markdown with a Jinja template, cut into messages by comment lines.

    <!-- system -->
    You tag products.

    <!-- user -->
    Product: {{ title }}

A file without such lines is one user message. A column that is null in a row is undefined in its
template: `{{ colour | default("unknown") }}` says what to write, and a bare `{{ colour }}` rejects
the row. Every name in a template is a column; only `range(…)` is Jinja's, unless a column is called
so. To Jinja's filters come those of `cuts`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from acdc_dagster.errors import AcdcError, DeclarationError
from acdc_dagster.requests.prompts.column_order import check_read, with_columns_first
from acdc_dagster.requests.prompts.cuts import Cuts, Cutter

_ROLE_LINE = re.compile(r"^<!--[ \t]*(\w+)[ \t]*-->[ \t]*$", re.MULTILINE)
_ROLES = ("system", "user", "assistant")
_SELF = "column__self"  # Jinja keeps `self` to itself, so that column has this name in templates


class RowError(Exception):
    """The template cannot be rendered for one row; the text says why."""


@dataclass(frozen=True)
class Fields:
    """A message that is nothing but columns and literal text.

    Attributes:
        columns: The columns in their order, each once.
        defaults: What stands for a null of each column; None if it rejects the row.
        literals: The text before each column, and that after the last: one more than columns.
    """

    columns: tuple[str, ...]
    defaults: tuple[str | None, ...]
    literals: tuple[str, ...]


@dataclass(frozen=True)
class Prompt:
    """A compiled prompt.

    Attributes:
        columns: The columns that the templates read.
        templates: Role and syntax tree of each message.
        cuts: What the prompt cuts, and in how many rows.
    """

    columns: frozenset[str]
    templates: tuple[tuple[str, nodes.Template], ...]
    cuts: Cuts
    _messages: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...]
    _reading: tuple[nodes.Template, ...]  # of the messages that read columns

    @staticmethod
    def compile(
        text: str, path: Path, cutter: Cutter | None = None, first: Sequence[str] = ()
    ) -> "Prompt":
        """Compile the prompt file's text.

        Args:
            text: What the file says.
            path: The file, for messages.
            cutter: See `Cuts`.
            first: The columns whose lines go before those of the others in each message, see
                `column_order`.

        Raises:
            DeclarationError: An unknown role, text before the first role, or a template that is
                not valid Jinja, with its line; or lines that cannot be moved.
        """
        pieces = _cut(text, path)
        prompt = _compiled(pieces, path, Cuts(cutter))
        if not first:
            return prompt
        check_read(first, prompt.columns, path)
        moved = [
            (role, with_columns_first(template, first, prompt.columns, f"{path}:{line}"), line)
            for role, template, line in pieces
        ]
        return _compiled(moved, path, Cuts(cutter))

    def fields(self) -> Fields | None:
        """The columns and the literal text of the message that reads columns.

        None if two messages read columns, or none does, or the message has more than literal text,
        `{{ column }}` and `{{ column | default("text") }}`, or reads a column twice.
        """
        return _fields(self._reading[0]) if len(self._reading) == 1 else None

    def messages(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        """The chat messages for one row.

        Raises:
            RowError: A column without a default is null, or the template failed on this row.
            ModelError: The row is to be cut to tokens, and the tokenizer is not there.
        """
        given = {name: row[name] for name in self.columns if row[name] is not None}
        values = given | {_SELF: given["self"]} if "self" in given else given
        try:
            return [
                {"role": role, "content": render(values).strip()} for role, render in self._messages
            ]
        except AcdcError:
            raise
        except Exception as error:  # a template can raise anything; it is this row's fault alone
            nulls = sorted(self.columns - given.keys())
            reason = str(error).replace(_SELF, "self")
            if nulls:
                reason += f" (null in this row: {', '.join(nulls)})"
            raise RowError(reason) from error


def _compiled(pieces: Sequence[tuple[str, str, int]], path: Path, cuts: Cuts) -> Prompt:
    """The prompt of these messages, each with its role, template and first line."""
    jinja = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    cast("Any", jinja).filters.update(cuts.filters)
    # Else a column called dict or namespace would be one of Jinja's functions.
    names = cast("dict[str, Any]", cast("Any", jinja).globals)
    for name in names.keys() - {"range"}:
        del names[name]
    columns: set[str] = set()
    templates: list[tuple[str, nodes.Template]] = []
    messages: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = []
    reading: list[nodes.Template] = []
    for role, template, line in pieces:
        try:
            templates.append((role, jinja.parse(template)))
            tree = jinja.parse(template)
            if _reads_range(tree):
                names.pop("range", None)
            cuts.prepare(tree)
            for name in tree.find_all(nodes.Name):
                name.name = _SELF if name.name == "self" else name.name
            read = meta.find_undeclared_variables(tree)
            compiled = jinja.from_string(tree)
        except TemplateSyntaxError as error:
            raise DeclarationError(
                f"{path}:{line + error.lineno - 1}: {error.message}",
                "Correct the template; {% raw %} … {% endraw %} keeps braces as they are.",
            ) from error
        # Jinja's own parser calls itself, and Python compiles what it makes of the template.
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise DeclarationError(
                f"{path}:{line}: the {role} message is nested too deeply: {error}",
                "Nest fewer parentheses and blocks; {% elif %} needs no block of its own.",
            ) from None
        columns |= {"self" if name == _SELF else name for name in read}
        if read:
            messages.append((role, compiled.render))
            reading.append(templates[-1][1])
        else:
            try:
                messages.append((role, _constant(compiled.render())))
            except Exception as error:
                raise DeclarationError(
                    f"{path}:{line}: the {role} message cannot be rendered: {error}",
                    "Correct the template.",
                ) from error
    return Prompt(frozenset(columns), tuple(templates), cuts, tuple(messages), tuple(reading))


def _reads_range(tree: nodes.Template) -> bool:
    """Whether the template has the name `range` other than to call it."""
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    return any(
        name.name == "range" and id(name) not in called for name in tree.find_all(nodes.Name)
    )


def _fields(tree: nodes.Template) -> Fields | None:
    columns: list[str] = []
    defaults: list[str | None] = []
    literals = [""]
    for part in (node for output in tree.body for node in _parts(output)):
        match part:
            case nodes.TemplateData(data=text):
                literals[-1] += text
                continue
            case nodes.Name(name=column):
                default = None
            case nodes.Filter(
                node=nodes.Name(name=column),
                name="default" | "d",
                args=[nodes.Const(value=str(default))],
                kwargs=[],
                dyn_args=None,
                dyn_kwargs=None,
            ):
                pass
            case _:
                return None
        columns.append(column)
        defaults.append(default)
        literals.append("")
    if len(set(columns)) < len(columns):
        return None
    literals[0], literals[-1] = literals[0].lstrip(), literals[-1].rstrip()  # as in messages()
    return Fields(tuple(columns), tuple(defaults), tuple(literals))


def _parts(node: nodes.Node) -> list[nodes.Expr] | list[nodes.Node]:
    return node.nodes if isinstance(node, nodes.Output) else [node]


def _constant(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _row: text


def _cut(text: str, path: Path) -> list[tuple[str, str, int]]:
    """(role, template, its first line) of each message."""
    marks = list(_ROLE_LINE.finditer(text))
    if not marks:
        return [("user", text, 1)]
    before = text[: marks[0].start()]
    if before.strip():
        raise DeclarationError(
            f"{path}:1: there is text before the first <!-- role --> line.",
            "Put <!-- system --> or <!-- user --> above it.",
        )
    pieces: list[tuple[str, str, int]] = []
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        role = cast("str", mark.group(1))
        line = text.count("\n", 0, mark.start()) + 1
        if role not in _ROLES:
            raise DeclarationError(
                f"{path}:{line}: {role!r} is no role.", f"Use one of: {', '.join(_ROLES)}."
            )
        template = text[mark.end() : following.start() if following else len(text)]
        pieces.append((role, template, line))
    return pieces
