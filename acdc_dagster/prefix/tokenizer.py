"""From a request body to the token ids that the engine would see."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from acdc_dagster.errors import ModelError
from acdc_dagster.requests.body import Body, ChatBody, Refused

_BATCH = 1024
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


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
        self._folder = folder
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
        config = _json(file.parent / "tokenizer_config.json")
        self._special = {name: _content(config.get(name)) for name in _SPECIAL}
        self._template = _chat_template(file.parent, config)

    def render(self, body: Body) -> str:
        """See `PromptTokenizer.render`."""
        if not isinstance(body, ChatBody):
            return body.prompt
        if self._template is None:
            raise Refused(
                "chat_template_missing",
                f"The model in {self._folder} has no chat template; ask it at /v1/completions.",
            )
        messages = [
            {"role": message.role, "content": message.text()}
            | ({"name": message.name} if message.name else {})
            for message in body.messages
        ]
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, **self._special
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise Refused(
                "chat_template_error", f"The model's chat template refuses the messages: {error}."
            ) from None

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


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}", "Mend or replace the file.") from error
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _content(token: Any) -> str | None:
    """A special token, which some configs write as an object with its content."""
    if isinstance(token, dict):
        return cast("dict[str, str | None]", token).get("content")
    return token


def _chat_template(folder: Path, config: dict[str, Any]) -> Template | None:
    file = folder / "chat_template.jinja"
    source: Any = (
        file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    )
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in cast("list[dict[str, str]]", source)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    # The environment that Hugging Face models write their templates for.
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    untyped: Any = jinja
    untyped.filters["tojson"] = _tojson
    names: dict[str, Any] = untyped.globals
    names["raise_exception"] = _raise_exception
    names["strftime_now"] = _strftime_now
    try:
        return jinja.from_string(source)
    except TemplateError as error:
        raise ModelError(
            f"The chat template of {folder} is not valid: {error}", "Mend or replace it."
        ) from error


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
