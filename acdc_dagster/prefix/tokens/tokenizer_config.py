"""What a model's folder says of its tokenizer beside tokenizer.json, read as transformers reads it.

The rules are those of transformers 5, with which vLLM loads a tokenizer.
"""

import json
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken

from acdc_dagster.errors import ModelError

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


class TokenizerConfig:
    """The files tokenizer_config.json and special_tokens_map.json, and the chat templates.

    Args:
        folder: The model's folder; a file that is not there says nothing.

    Attributes:
        special_tokens: The text of each special token that has a name, such as `bos_token`.
        chat_templates: Jinja text by name; a model with one template calls it `default`.
        split_special_tokens: Special tokens in a prompt are read as plain text.

    Raises:
        ModelError: A file is no JSON.
    """

    def __init__(self, folder: Path) -> None:
        config = _json(folder / "tokenizer_config.json")
        self._decoder = cast("dict[str, dict[str, Any]]", config.get("added_tokens_decoder", {}))
        if "added_tokens_decoder" not in config:
            config |= _json(folder / "special_tokens_map.json")
        extra: Any = config.get("extra_special_tokens") or config.get("additional_special_tokens")
        own = cast("dict[str, Any]", extra) if isinstance(extra, dict) else {}
        self._extra = cast("list[Any]", extra) if isinstance(extra, list) else []
        # In this order the tokens that are missing from tokenizer.json get their ids.
        names = [*_NAMED, *(name for name in config if name.endswith("_token"))]
        self._named = {name: config[name] for name in names if _text(config.get(name))} | own
        self.special_tokens = {name: _text(token) for name, token in self._named.items()}
        self.split_special_tokens = bool(config.get("split_special_tokens", False))
        self.chat_templates = _chat_templates(folder, config)

    def apply(self, tokenizer: Any) -> None:
        """Make a `tokenizers.Tokenizer` find the special tokens that these files name or change."""
        tokenizer.encode_special_tokens = self.split_special_tokens
        tokenizer.add_tokens([_added(token) for _, token in sorted(self._decoder.items(), key=_id)])
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        missing = [
            token for token in (*self._named.values(), *self._extra) if _text(token) not in known
        ]
        tokenizer.add_tokens([_added(token, special=True) for token in missing])


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}", "Mend or replace the file.") from error
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _id(entry: tuple[str, Any]) -> int:
    return int(entry[0])


def _text(token: Any) -> str:
    """A token's text, which some configs write as an object; empty for what is no token."""
    text: Any = cast("dict[str, Any]", token).get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _added(token: Any, **flags: bool) -> AddedToken:
    if isinstance(token, dict):
        entry = cast("dict[str, Any]", token)
        flags |= {name: entry[name] for name in _FLAGS if name in entry}
    return AddedToken(_text(cast("Any", token)), **flags)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    files = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    declared: Any = config.get("chat_template")
    if isinstance(declared, list):
        entries = cast("list[dict[str, str]]", declared)
        return {entry["name"]: entry["template"] for entry in entries}
    return {"default": declared} if isinstance(declared, str) else {}
