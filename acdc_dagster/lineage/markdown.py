"""Text of models and users in Markdown, where it must stay text."""

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&:@$^=])")
_SPACE = re.compile(r"\s*\n\s*")
_CHARACTERS = 400


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; each value is one short line, and nothing in it is markup."""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(value: object) -> str:
    text = "" if value is None else str(value).strip()
    if len(text) > _CHARACTERS:  # both ends: what rows share stands first in a prompt
        half = _CHARACTERS // 2
        text = f"{text[:half]} … {text[-half:]}"
    return _SPECIAL.sub(r"\\\1", _SPACE.sub(" ⏎ ", text))
