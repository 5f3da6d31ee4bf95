"""Cutting what a prompt takes of a row: the filters `truncate_chars` and `truncate_tokens`.

    {{ text | truncate_chars(2000) }}
    {{ text | default("") | truncate_tokens(500) }}

Both keep the beginning of the text. Tokens are those of the job's model, so whoever takes the rows
in hands down a `Cutter`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jinja2 import TemplateSyntaxError, Undefined, nodes

from acdc_dagster.errors import ModelError

CHARS, TOKENS = "truncate_chars", "truncate_tokens"
_MOST = 2**31 - 1  # more than any text has


class Cutter(Protocol):
    """Cuts texts by the tokens of the job's model."""

    def head(self, text: str, tokens: int) -> str:
        """The longest beginning of `text` with at most so many tokens."""
        ...

    def chunks(self, text: str, tokens: int, overlap: int) -> list[tuple[int, int]]:
        """Where chunks of at most so many tokens begin and end that cover `text`.

        Each but the first repeats at most `overlap` tokens of the one before.
        """
        ...


def needed(cutter: Cutter | None) -> Cutter:
    """The cutter, where the job cannot do without.

    Raises:
        ModelError: There is none.
    """
    if cutter is None:
        raise ModelError(
            "The job cuts texts by tokens, and no tokenizer to count with was given.",
            "Give take_in or source_of a cutter: prefix.cutter.TokenCutter.",
        )
    return cutter


@dataclass(frozen=True)
class Cut:
    """One cut that a prompt asks for.

    Attributes:
        unit: What is counted.
        most: As many stay.
        names: What the expression before the filter reads, mostly one column.
    """

    unit: Literal["characters", "tokens"]
    most: int
    names: tuple[str, ...]


def cut_of(filter_: nodes.Filter) -> Cut | None:
    """The cut that a filter of a template is; None if it is another filter.

    Raises:
        jinja2.TemplateSyntaxError: It is one, but not written as it must be.
    """
    if filter_.name not in (CHARS, TOKENS):
        return None
    match filter_:
        case nodes.Filter(
            args=[nodes.Const(value=int(most))], kwargs=[], dyn_args=None, dyn_kwargs=None
        ) if 0 < most <= _MOST and most is not True:
            pass
        case _:
            raise TemplateSyntaxError(
                f"{filter_.name} takes one number, from 1 to {_MOST}, like {filter_.name}(500).",
                filter_.lineno,
            )
    read = [] if filter_.node is None else [filter_.node, *filter_.node.find_all(nodes.Name)]
    names = tuple(dict.fromkeys(node.name for node in read if isinstance(node, nodes.Name)))
    if not names:
        raise TemplateSyntaxError(
            f"{filter_.name} must stand behind a column, like {{{{ text | {filter_.name}"
            f"({most}) }}}}.",
            filter_.lineno,
        )
    return Cut("characters" if filter_.name == CHARS else "tokens", most, names)


class Cuts:
    """The cuts of one prompt, and how many rows each has shortened.

    Args:
        cutter: Cuts to tokens; None if no row will be rendered that asks for it.
    """

    def __init__(self, cutter: Cutter | None) -> None:
        self._cutter = cutter
        self._cuts: list[Cut] = []
        self._in_row: set[Cut] = set()
        self._rows = Counter[Cut]()

    def prepare(self, tree: nodes.Template) -> None:
        """Check the cuts of a template that is to be compiled, and have each say which it is.

        Raises:
            jinja2.TemplateSyntaxError: One is not written as it must be.
        """
        for filter_ in tree.find_all(nodes.Filter):
            cut = cut_of(filter_)
            if cut is not None:
                filter_.args = [nodes.Const(len(self._cuts))]
                self._cuts.append(cut)

    @property
    def filters(self) -> dict[str, Callable[[Any, int], Any]]:
        """For the environment that renders prepared templates."""
        return {CHARS: self._cut, TOKENS: self._cut}

    def _cut(self, value: Any, number: int) -> Any:
        if isinstance(value, Undefined):
            return value  # a default may follow
        cut, text = self._cuts[number], str(value)
        if cut.unit == "characters":
            head = text[: cut.most]
        else:
            head = needed(self._cutter).head(text, cut.most)
        if len(head) < len(text):
            self._in_row.add(cut)
        return head

    def begin_row(self) -> None:
        """A row is about to be rendered."""
        self._in_row.clear()

    def end_row(self) -> None:
        """The row was rendered."""
        self._rows.update(self._in_row)

    def count(self, rows: Iterable[tuple[Cut, int]]) -> None:
        """Cuts that were made without the filters, each in so many rows."""
        self._rows.update(dict(rows))

    def forget(self) -> None:
        """The rows come again."""
        self._rows.clear()

    @property
    def warnings(self) -> list[str]:
        """For each cut that shortened rows, how many."""
        return [
            f"{rows:,} {'row was' if rows == 1 else 'rows were'} cut to {cut.most:,} {cut.unit} in "
            f"{', '.join(f'`{name}`' for name in cut.names)}."
            for cut, rows in self._rows.items()
            if rows
        ]
