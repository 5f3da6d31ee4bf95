"""From a request body to the token ids that the engine would see."""

from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from acdc_dagster.errors import ModelError
from acdc_dagster.prefix.chat import ChatTemplate
from acdc_dagster.prefix.tokenizer_config import TokenizerConfig
from acdc_dagster.requests.body import Body, ChatBody

_BATCH = 1024


class PromptTokenizer(Protocol):
    """Turns bodies into token ids."""

    def render(self, body: Body) -> str:
        """The prompt's text as the engine would see it.

        Raises:
            Refused: The chat template does not take these messages.
        """
        ...

    def encode(self, texts: list[str], *, chat: bool) -> list[list[int]]:
        """Token ids of rendered prompts; `chat` ones carry their special tokens as text."""
        ...


class ModelTokenizer:
    """A model's own tokenizer and chat template, read from its folder.

    Args:
        folder: Holds tokenizer.json, and the chat template in chat_template.jinja or
            tokenizer_config.json.

    Raises:
        ModelError: The tokenizer cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json" if folder.is_dir() else folder
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust library raises bare Exception
            raise ModelError(
                f"The tokenizer {file} cannot be read: {error}",
                "Name a model folder with a tokenizer.json of the Hugging Face tokenizers library.",
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        TokenizerConfig(file.parent).apply(self._tokenizer)
        self._chat = ChatTemplate(file.parent)

    def render(self, body: Body) -> str:
        """See `PromptTokenizer.render`."""
        return self._chat.render(body) if isinstance(body, ChatBody) else body.prompt

    def encode(self, texts: list[str], *, chat: bool) -> list[list[int]]:
        """See `PromptTokenizer.encode`."""
        ids: list[list[int]] = []
        for at in range(0, len(texts), _BATCH):  # an encoding weighs ten times its ids
            some = texts[at : at + _BATCH]
            encodings = self._tokenizer.encode_batch_fast(some, add_special_tokens=not chat)
            ids.extend(encoding.ids for encoding in encodings)
        return ids


class ByteEstimate:
    """Stands in where no tokenizer is at hand: four bytes of text count as one token.

    Text order and token order share the same prefixes to a few tokens in a million, so ratios are
    good estimates and token totals are rough ones.
    """

    def render(self, body: Body) -> str:
        """See `PromptTokenizer.render`; the common `<|im_start|>` layout."""
        if not isinstance(body, ChatBody):
            return body.prompt
        turns = [f"<|im_start|>{m.role}\n{m.text()}<|im_end|>\n" for m in body.messages]
        return "".join([*turns, "<|im_start|>assistant\n"])

    def encode(self, texts: list[str], *, chat: bool) -> list[list[int]]:
        """See `PromptTokenizer.encode`; ids are four bytes read as a number of 31 bits."""
        return [self._chunks(text.encode("utf-8")) for text in texts]

    @staticmethod
    def _chunks(text: bytes) -> list[int]:
        return [
            int.from_bytes(text[at : at + 4].ljust(4, b"\0"), "big") & 0x7FFFFFFF
            for at in range(0, len(text), 4)
        ]
