"""The evaluation set of a job: `eval.jsonl` beside `defs.yaml`, questions with known answers."""

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from acdc_dagster.errors import DeclarationError

FILE = "eval.jsonl"


class EvaluationItem(Struct, frozen=True, forbid_unknown_fields=True):
    """One line.

    Attributes:
        id: Unique in the file.
        row: What the prompt reads of a table's row; in a job with a table.
        body: The body of a request; in a job with request files.
        expected: A text: the answer, but for white space around it. An object: values of fields of
            an answer in JSON; the score is the share of fields that have theirs.
        matches: In its place: a regular expression that is found in the answer.
        scorer: `package.module:function`; it gets the answer's text and `expected`, and returns a
            score from 0 to 1.
    """

    id: str
    row: dict[str, Any] | None = None
    body: dict[str, Any] | None = None
    expected: Any = UNSET
    matches: str | UnsetType = UNSET
    scorer: str | UnsetType = UNSET

    def fault(self, *, of_table: bool) -> str | None:
        """What is wrong with the item; None if nothing is."""
        if (self.row is not None) != of_table or (self.body is not None) == of_table:
            return f"give {'row, as the job has a table' if of_table else 'body'}, and only that"
        if (self.matches is UNSET) == (self.expected is UNSET):
            return "give one of expected and matches"
        if self.scorer is not UNSET:
            return "scorer needs expected" if self.expected is UNSET else None
        if self.matches is UNSET:
            known = isinstance(self.expected, str | dict) and self.expected != {}
            return None if known else "expected is a text, an object with fields, or for a scorer"
        try:
            re.compile(self.matches)
        except re.error as error:
            return f"matches is no regular expression: {error}"
        return None


_decoder = msgspec.json.Decoder(EvaluationItem)


def read_evaluation_set(folder: Path, *, of_table: bool) -> tuple[EvaluationItem, ...]:
    """The items of a job's evaluation set, in their order; none if it has no such file.

    Args:
        folder: The job's.
        of_table: Whether the job's source is a table.

    Raises:
        DeclarationError: The file cannot be read, or a line is no item; it is named.
    """
    path = folder / FILE
    if not path.is_file():
        return ()
    items: dict[str, EvaluationItem] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} cannot be read: {error}", "Save it as UTF-8.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = _decoder.decode(line)
        except msgspec.MsgspecError as error:
            fault: str | None = str(error)
        else:
            fault = item.fault(of_table=of_table)
            if item.id in items:
                fault = f"id {item.id!r} is there twice"
            items[item.id] = item
        if fault is not None:
            raise DeclarationError(f"{path}:{number}: {fault}.", "Correct the line.")
    return tuple(items.values())
