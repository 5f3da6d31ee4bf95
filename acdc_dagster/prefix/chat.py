"""A model's chat template: from the messages of a body to the prompt's text."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from acdc_dagster.errors import ModelError
from acdc_dagster.requests.body import ChatBody, Refused

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """The chat template in a model's folder.

    Args:
        folder: Holds the template in chat_template.jinja or tokenizer_config.json.

    Raises:
        ModelError: A file is no JSON, or the template no Jinja.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = _json(folder / "tokenizer_config.json")
        self._special = {name: _content(config.get(name)) for name in _SPECIAL}
        self._source = _source(folder, config)
        self._template = _chat_template(folder, self._source)

    @property
    def source(self) -> str | None:
        """The Jinja text of the template."""
        return self._source

    def render(self, body: ChatBody) -> str:
        """The prompt's text as the engine would see it.

        Raises:
            Refused: There is no chat template, or it does not take these messages.
        """
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


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    source: Any = (
        file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    )
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in cast("list[dict[str, str]]", source)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _chat_template(folder: Path, source: str | None) -> Template | None:
    if source is None:
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
