"""The plain line of an OpenAI-batch file, nearly all there are, read and checked in one pass.

Plain is: the four fields, each once, the body last and of plain messages, and nothing escaped
before it. Then the body stands in the line from its first brace to the last but one. Any other line
goes to `body.parse_line`, which takes its time and says what is wrong.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from acdc_dagster.requests.body import (
    CHAT,
    ChatSampling,
    Refused,
    check_custom_id,
    check_response_format,
)

_BODY = b'"body"'
_BEFORE = (b'"custom_id"', b'"method"', b'"url"')


class _Message(Struct, gc=False, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _Body(ChatSampling, gc=False, frozen=True, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[_Message], Meta(min_length=1)]


class _Line(Struct, gc=False, forbid_unknown_fields=True):
    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/chat/completions"]
    body: _Body


_decode = msgspec.json.Decoder(_Line).decode


def plain_line(line: bytes) -> tuple[str, str, str, str] | None:
    """custom_id, endpoint, model and the body as it stands; None if the line is not plain."""
    try:
        parsed = _decode(line)
        check_custom_id(parsed.custom_id)
        check_response_format(parsed.body.response_format)
    except (msgspec.MsgspecError, RecursionError, Refused):
        return None
    at = line.index(_BODY)
    before = line[:at]
    if b"\\" in before or line.count(_BODY) != 1 or not all(name in before for name in _BEFORE):
        return None
    end = line.rstrip()
    body = end[line.index(b"{", at) : -1].rstrip()
    return parsed.custom_id, CHAT, parsed.body.model, body.decode()
