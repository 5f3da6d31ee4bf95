"""The plain line of an OpenAI-batch file, nearly all there are, read and checked in one pass.

Plain is: the four fields, the body once and last, and nothing escaped before it. Then the body
stands in the line from its first brace to the last but one. Any other line goes to
`body.parse_line`, which takes its time and says what is wrong.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from acdc_dagster.requests.body import CHAT, ChatBody, Refused, check_body, check_custom_id

_BODY = b'"body"'
# With a letter of "body" escaped its name could stand in the line once more.
_ESCAPED = (b"\\u006", b"\\u0079")


class _Line(Struct, gc=False, forbid_unknown_fields=True):
    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/chat/completions"]
    body: ChatBody


_decode = msgspec.json.Decoder(_Line).decode


def plain_line(line: bytes) -> tuple[str, str, str, str] | None:
    """custom_id, endpoint, model and the body as it stands; None if the line is not plain."""
    try:
        parsed = _decode(line)
        check_custom_id(parsed.custom_id)
        check_body(parsed.body)
    except (msgspec.MsgspecError, RecursionError, Refused):
        return None
    end = line.rstrip()[:-1].rstrip()
    # The body alone is an object: where one ends the line, it is the body.
    if not end.endswith(b"}") or line.count(_BODY) != 1:
        return None
    at = line.index(_BODY)
    if line.find(b"\\", 0, at) != -1 or any(escaped in line for escaped in _ESCAPED):
        return None
    body = end[line.index(b"{", at) :]
    return parsed.custom_id, CHAT, parsed.body.model, body.decode()
