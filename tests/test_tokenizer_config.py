"""What stands beside tokenizer.json: which tokens are special, and which are found in a prompt."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_families import FAMILIES
from served import ours, serving
from tokenizers import Tokenizer

from acdc_dagster.errors import ModelError
from acdc_dagster.prefix.tokens.tokenizer_config import TokenizerConfig
from acdc_dagster.requests.body import CHAT, COMPLETIONS

# By family and what is said: tokenizer_config.json, special_tokens_map.json.
SAID: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    ("smollm", "nothing"): ({"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ("smollm", "first and last token"): (
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "add_bos_token": True,
            "add_eos_token": True,
        },
        {},
    ),
    ("mistral", "no first token"): (FAMILIES["mistral"].config | {"add_bos_token": False}, {}),
    ("smollm", "the map"): (
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_start|>"},
        {
            "eos_token": {"content": "<|im_end|>", "lstrip": True, "normalized": False},
            "pad_token": "[PAD]",
            "unk_token": {"content": "[UNK]", "rstrip": True, "normalized": False},
        },
    ),
    ("smollm", "a map that is not read"): (
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "added_tokens_decoder": {
                "2": {"content": "<|im_end|>", "lstrip": True, "special": True},
            },
        },
        {"eos_token": "<|im_start|>", "pad_token": "[PAD]"},
    ),
    ("smollm", "tokens of the model's own"): (
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "image_token": "[IMG]",
            "extra_special_tokens": {"audio_token": "[AUDIO]", "stop": "[STOP]"},
        },
        {},
    ),
    ("llama", "more tokens"): (
        FAMILIES["llama"].config | {"additional_special_tokens": ["[PAD]", "<|eot_id|>", "city"]},
        {},
    ),
    ("llama", "a plain piece as a token"): (FAMILIES["llama"].config | {"pad_token": "user"}, {}),
    ("llama", "special tokens as text"): (
        FAMILIES["llama"].config | {"split_special_tokens": True},
        {},
    ),
}

TEXTS = [
    "a <|im_end|>  b <|im_start|> [PAD] [UNK]  c <|eot_id|> d",
    " [IMG][AUDIO] [STOP]</s> the user of a city <s>",
]
NAMES = (
    "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token }}|{{ stop }}"
)


def told(folder: Path, said: tuple[str, str]) -> Path:
    """A model's folder that says this."""
    config, names = SAID[said]
    family = replace(FAMILIES[said[0]], template=NAMES, config=config)
    model = family.write(folder)
    if names:
        (model / "special_tokens_map.json").write_text(json.dumps(names))
    return model


@pytest.mark.engine
@pytest.mark.parametrize("said", SAID, ids=" ".join)
def test_tokens_are_found_as_the_engine_finds_them(tmp_path: Path, said: tuple[str, str]) -> None:
    """Special tokens that stand only in the configuration, or with other flags there."""
    model = told(tmp_path, said)
    served = serving(model)
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    asked: list[Any] = [(COMPLETIONS, {"model": "m", "prompt": text}) for text in TEXTS]
    asked += [(CHAT, chat)]
    assert [ours(model, endpoint, [one])[0] for endpoint, one in asked] == [
        served(*one) for one in asked
    ]


def test_a_token_without_a_name_is_undefined(tmp_path: Path) -> None:
    """A token that the model does not have writes nothing, and no word for nothing."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": None, "add_token": 1}))
    assert TokenizerConfig(tmp_path).special_tokens == {}


def test_a_token_that_only_the_configuration_knows_is_found(tmp_path: Path) -> None:
    """It gets the next id, and blanks beside it belong to it if its flags say so."""
    model = told(tmp_path, ("smollm", "the map"))
    tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    TokenizerConfig(model).apply(tokenizer)
    assert tokenizer.encode("[UNK]  [PAD] ").ids[:2] == [size, size + 1]


def test_a_configuration_that_is_no_json_is_named(tmp_path: Path) -> None:
    """A broken file is a fault of the model, with its path."""
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer_config"):
        TokenizerConfig(tmp_path)
