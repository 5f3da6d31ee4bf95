"""Reasoning is told from the answer, by vLLM's parsers and in the engine."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_client import Client, started

from acdc_dagster.errors import BackendError
from acdc_dagster.inference.engines.vllm_reasoning import Reasoning
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.body import COMPLETIONS

pytestmark = pytest.mark.engine

# Tokens of the sample model that nothing uses.
START, END = 11, 12


@pytest.fixture(scope="module")
def thinker(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample model with <think> and </think> among its tokens."""
    folder = tmp_path_factory.mktemp("thinker")
    for file in model_path.iterdir():
        text = file.read_bytes()
        if file.suffix == ".json":
            text = text.replace(b"<jupyter_start>", b"<think>")
            text = text.replace(b"<jupyter_text>", b"</think>")
        (folder / file.name).write_bytes(text)
    description = json.loads((folder / "tokenizer.json").read_text())
    for token in description["added_tokens"]:
        token["special"] = token["special"] and token["id"] not in (START, END)
    (folder / "tokenizer.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(scope="module")
def split(thinker: Path) -> Callable[[str, str, str], dict[str, Any]]:
    """Splits an answer: by a parser's name, after a prompt."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(thinker)
    ids = ModelTokenizer(thinker)

    def made(name: str, prompt: str, answer: str) -> dict[str, Any]:
        parser = Reasoning(name, tokenizer, None)
        prompt_ids, answer_ids = (part.tolist() for part in ids.encode([prompt, answer], chat=True))
        return parser.split(prompt_ids, answer, answer_ids)

    return made


TURN = "<|im_start|>assistant\n"


@pytest.mark.parametrize("parser", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize(
    ("prompt", "answer", "reasoning", "text"),
    [
        (TURN, "<think>So it is</think>Yes", "So it is", "Yes"),
        (f"{TURN}<think>", "So it is</think>Yes", "So it is", "Yes"),
        (f"{TURN}<think>", "So it", "So it", ""),
        (f"{TURN}<think>\n\n</think>\n\n", "Yes", None, "Yes"),
        (f"{TURN}<think>", "</think>Yes", None, "Yes"),
    ],
    ids=["begun by the answer", "begun by the prompt", "cut", "switched off", "none"],
)
def test_reasoning_is_told_apart(
    split: Callable[[str, str, str], dict[str, Any]],
    parser: str,
    prompt: str,
    answer: str,
    reasoning: str | None,
    text: str,
) -> None:
    """Wherever it begins, and whether it ends."""
    parts = split(parser, prompt, answer)
    assert (parts.get("reasoning"), parts["text"]) == (reasoning, text)
    tokens = {"So it is": 3, "So it": 2}
    assert parts.get("reasoning_tokens") == tokens.get(reasoning or "")


@pytest.fixture(scope="module")
def client(thinker: Path) -> Iterator[Client]:
    """An engine whose model reasons."""
    engine = started(thinker, reasoning_parser="deepseek_r1")
    yield Client(engine, thinker)
    engine.close()


THINKING = {"add_generation_prompt": False, "continue_final_message": True}
MESSAGES = [
    {"role": "user", "content": "Is it a plum?"},
    {"role": "assistant", "content": "<think>So"},
]


def test_the_engine_reasons_before_it_is_held_to_a_structure(client: Client) -> None:
    """The structure is that of the answer; the reasoning before it is free."""
    body: dict[str, Any] = {**THINKING, "messages": MESSAGES, "max_tokens": 24}
    free = client.ask(**body)
    assert (free.text, free.reasoning_tokens) == ("", free.completion_tokens)
    assert free.reasoning
    at_once = {"logit_bias": {f"{END}": 100}, "structured_outputs": {"choice": ["plum", "pear"]}}
    answer = client.ask(**body, **at_once)
    assert (answer.reasoning, answer.text in ("plum", "pear")) == (None, True)


def test_a_completion_is_not_split(client: Client) -> None:
    """As in `vllm serve`, only a chat's answer has reasoning."""
    answer = client.ask(COMPLETIONS, prompt="<think>So", max_tokens=4)
    assert answer.text
    assert answer.reasoning is None


def test_a_parser_that_is_none_stops_the_start(thinker: Path) -> None:
    """Its name is in the fault."""
    with pytest.raises(BackendError, match="nonsense"):
        started(thinker, reasoning_parser="nonsense")
