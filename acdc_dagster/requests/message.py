"""What a chat is made of: messages, the calls in them, and the tools that can be called."""

from typing import Any, Literal

from msgspec import Struct


class TextPart(
    Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    """A piece of text of a message."""

    text: str


class ImageUrl(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Where an image is: a `data:` URL. Engines give all images the detail that they can take."""

    url: str
    detail: Literal["auto"] | None = None


class ImagePart(
    Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="image_url"
):
    """An image of a message; only a multimodal model takes it."""

    image_url: ImageUrl


# A chat template may write a call or a tool out as JSON: the fields below stand in the order in
# which vLLM hands them to it.
class CalledFunction(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a tool call calls; `arguments` is JSON as the model wrote it."""

    arguments: str
    name: str


class ToolCall(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One call in an assistant message."""

    id: str
    function: CalledFunction
    type: Literal["function"]


class Function(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One entry of `tools`."""

    function: Function
    type: Literal["function"] = "function"


class Message(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One chat message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # an older name of `reasoning`

    def text(self) -> str:
        """The content as one text; a list's parts, if not empty, joined by line ends as in vLLM."""
        if isinstance(self.content, str):
            return self.content
        texts = [part.text for part in self.content or () if isinstance(part, TextPart)]
        return "\n".join(text for text in texts if text)

    def image_urls(self) -> list[str]:
        """The addresses of its images, in order."""
        if not isinstance(self.content, list):
            return []
        return [part.image_url.url for part in self.content if isinstance(part, ImagePart)]
