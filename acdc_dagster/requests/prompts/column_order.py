"""A prompt with the lines of some columns first, as a job's `column_order` says.

Rows share the beginnings of their prompts, so a column that repeats is worth most in front. Whole
lines are moved, and nothing in them changes: what a line says of its column stays with it.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, TemplateSyntaxError, nodes

from acdc_dagster.errors import DeclarationError

_REMEDY = "Put each column on a line of its own, or leave out column_order and move them by hand."


def with_columns_first(
    template: str, columns: Sequence[str], read: frozenset[str], where: str
) -> str:
    """The template of a message with the lines of `columns`, in their order, before the others.

    The lines above the first that reads a column stay where they are, and so do those below the
    last. Any other line without a column belongs to the next line with one, and moves with it.

    Args:
        template: Of one message; valid Jinja.
        columns: Those that the template does not read are passed over.
        read: All columns that the prompt reads.
        where: The message's place, for messages.

    Raises:
        DeclarationError: Lines cannot be moved: one to be moved reads two columns, an expression or
            a block goes over several lines, one uses what another sets, or a mark strips the line
            break beside it.
    """
    lines = template.splitlines(keepends=True)
    names = [_columns_of(line, read) for line in lines]
    if not any(found.intersection(columns) for found in names):
        return template
    _check_movable(template, lines, where)
    reading = [at for at, found in enumerate(names) if found]
    begins = [reading[0], *(at + 1 for at in reading)]
    rest = [(names[at], lines[begin : at + 1]) for begin, at in zip(begins, reading, strict=False)]
    moved: list[list[str]] = []
    for column in columns:
        for found, block in [block for block in rest if column in block[0]]:
            if len(found) > 1:
                raise _immovable(where, f"one reads several columns, {', '.join(sorted(found))}")
            moved.append(block)
            rest.remove((found, block))
    ordered = [line for block in (*moved, *(block for _, block in rest)) for line in block]
    # The last line of a file may have no line break; it needs one where another comes after it.
    ordered = [line if line.endswith("\n") else line + "\n" for line in ordered]
    return "".join([*lines[: reading[0]], *ordered, *lines[reading[-1] + 1 :]])


def check_read(columns: Sequence[str], read: frozenset[str], path: Path) -> None:
    """Check that the prompt reads all `columns` of a `column_order`.

    Raises:
        DeclarationError: It does not read one.
    """
    for column in columns:
        if column not in read:
            near = difflib.get_close_matches(column, read, n=1)
            raise DeclarationError(
                f"column_order names {column!r}, which {path} does not read.",
                (f"Did you mean {near[0]!r}? " if near else "")
                + f"It reads: {', '.join(sorted(read)) or 'no column'}.",
            )


def _columns_of(line: str, read: frozenset[str]) -> set[str]:
    """The columns that a line reads; none if it is no template by itself."""
    try:
        tree = Environment(autoescape=False).parse(line)  # noqa: S701 - nothing is rendered
    except TemplateSyntaxError:
        return set()
    return _names(tree, "load") & read - _names(tree, "store")


def _names(tree: nodes.Template, context: str) -> set[str]:
    return {name.name for name in tree.find_all(nodes.Name) if name.ctx == context}


def _check_movable(template: str, lines: Sequence[str], where: str) -> None:
    jinja = Environment(autoescape=False)  # noqa: S701 - nothing is rendered
    marks = [mark for _, kind, mark in jinja.lex(template) if kind.endswith(("_begin", "_end"))]
    if any("-" in mark or "+" in mark for mark in marks):
        raise _immovable(where, "a mark like {{- strips the line break beside it")
    trees: list[nodes.Template] = []
    for line in lines:
        try:
            trees.append(jinja.parse(line))
        except TemplateSyntaxError:
            raise _immovable(where, "an expression or a block goes over several lines") from None
    for setting in trees:
        for using in trees:
            if using is not setting and _names(setting, "store") & _names(using, "load"):
                raise _immovable(where, "one uses what another sets")


def _immovable(where: str, why: str) -> DeclarationError:
    return DeclarationError(f"{where}: column_order cannot move its lines: {why}.", _REMEDY)
