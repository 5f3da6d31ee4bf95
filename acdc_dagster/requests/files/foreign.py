"""The lines of a request file, whichever provider's batch format they are in.

The format of a line is told by its fields: OpenAI's has `body`, `method` and `url`, that of
Anthropic's Message Batches has `params`, and that of Gemini's batches has `request`.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from acdc_dagster.requests.body import (
    CHAT,
    Refused,
    check_custom_id,
    decode_line,
    parse_body,
    parse_line,
)
from acdc_dagster.requests.files.anthropic import body_of_params
from acdc_dagster.requests.files.gemini import body_of_request
from acdc_dagster.requests.repeated import Repeated


class Format(StrEnum):
    """Whose batch format a line is in."""

    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"
    GEMINI = "Gemini"


class _Line(Struct, frozen=True, gc=False):
    """What the formats' lines have beside their ids."""

    custom_id: Any = None
    key: Any = None
    method: msgspec.Raw = msgspec.Raw()
    url: msgspec.Raw = msgspec.Raw()
    body: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()
    request: msgspec.Raw = msgspec.Raw()

    @property
    def format(self) -> Format:
        """What the fields tell; what they do not tell is taken for OpenAI's."""
        if any(map(bytes, (self.method, self.url, self.body))):
            return Format.OPENAI
        if bytes(self.params):
            return Format.ANTHROPIC
        return Format.GEMINI if bytes(self.request) else Format.OPENAI


_decoder = msgspec.json.Decoder(_Line)
# custom_id, endpoint, model, and the JSON of the body.
Request = tuple[str, str, str, str]


class LineReader:
    """Reads the lines of one file, which are all of the format of the first valid one.

    Args:
        model: The model that converted requests are for. Those of OpenAI's format name their own.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._format: Format | None = None
        self._models = Repeated[str]()

    def read(self, line: bytes) -> Request:
        """The request of one line.

        Raises:
            Refused: Why it is none.
        """
        if self._format in (None, Format.OPENAI):
            try:
                request = parse_line(line, self._models)
            except Refused:
                if decode_line(line, _decoder).format is Format.OPENAI:
                    raise
            else:
                self._format = Format.OPENAI
                return request
        return self._foreign(decode_line(line, _decoder))

    def _foreign(self, line: _Line) -> Request:
        found = line.format
        if found is Format.GEMINI:
            custom_id, convert, given = (
                check_custom_id(line.key, "key"),
                body_of_request,
                line.request,
            )
        else:
            custom_id, convert, given = check_custom_id(line.custom_id), body_of_params, line.params
        if self._format not in (None, found):
            raise Refused(
                "format_mismatch",
                f"The line is in {found}'s format and the file in {self._format}'s; put it into a "
                "file of its own.",
                custom_id,
            )
        request = self._converted(custom_id, convert, given)
        self._format = found
        return request

    def _converted(
        self,
        custom_id: str,
        convert: Callable[[bytes, str], dict[str, Any]],
        given: msgspec.Raw,
    ) -> Request:
        try:
            body = msgspec.json.encode(convert(bytes(given), self._model)).decode()
            parse_body(CHAT, body)
        except Refused as refused:
            raise Refused(refused.code, refused.message, custom_id) from None
        except RecursionError:
            raise Refused("invalid_value", "The request is nested too deeply.", custom_id) from None
        return custom_id, CHAT, self._model, body
