"""Why a row is no request, in the words of the OpenAI API where it has some."""

import msgspec

# Characters of a message.
_MOST = 500
# What a body may hold with one value only: another one is not supported, rather than wrong.
_OF_ONE_VALUE = ("`$.stream`", "`$.echo`", "`$.include_reasoning`", "`$.encoding_format`")


def shortened(message: str) -> str:
    """A message that repeats what a row says, of whatever length, in 500 characters at most."""
    return message if len(message) <= _MOST else f"{message[: _MOST - 100]} … {message[-97:]}"


class Refused(Exception):
    """A row is no valid request: `code` in OpenAI's words where it has one, and why in short."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        self.code = code
        self.message = shortened(message)
        super().__init__(self.message)
        self.custom_id = custom_id


def refusal(at: str, error: Exception) -> Refused:
    """What to refuse a row with whose part `at` msgspec could not decode."""
    if not isinstance(error, msgspec.ValidationError):
        return Refused("invalid_json_line", f"{at}: {error}.")
    return Refused(_code(str(error)), f"{at}: {error}.")


# A list that is not one of token ids holds several prompts, and a request has one.
_SEVERAL = tuple(
    f"got `{kind}` - at `$.{name}[0]`" for kind in ("str", "array") for name in ("prompt", "input")
)


def _code(error: str) -> str:
    if "missing required field" in error:
        return "missing_required_parameter"
    if "unknown field" in error or any(said in error for said in (*_OF_ONE_VALUE, *_SEVERAL)):
        return "unsupported_parameter"
    return "invalid_value"
