"""vLLM's adapter: the parameters of a request, and what is told of its answer, on a real engine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_client import ROOM, Client, started

from acdc_dagster.inference.engines.protocol import RequestRefused
from acdc_dagster.inference.engines.vllm_engine import VllmEngine
from acdc_dagster.inference.engines.vllm_sampling import parameters_of
from acdc_dagster.prefix.identity import settings_of
from acdc_dagster.requests.body import CHAT, COMPLETIONS, parse_body

pytestmark = pytest.mark.engine

MESSAGES = [{"role": "user", "content": "Name three fruits."}]


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[VllmEngine]:
    """One engine for all tests here, in this process."""
    made = started(model_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(engine: VllmEngine, model_path: Path) -> Client:
    """Asks the one engine."""
    return Client(engine, model_path)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [
    {"type": "function", "function": {"name": "find", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "end"}},
]
BODIES: list[dict[str, Any]] = [
    {},
    {"temperature": 0, "top_p": 0.3, "top_k": 4, "min_p": 0.1, "seed": 4},
    {"temperature": 0.7, "top_p": 0.3, "top_k": 4, "min_p": 0.1, "seed": 4},
    {"seed": -1, "top_k": -1},
    {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2},
    {"n": 3, "temperature": 1},
    {"stop": "x", "stop_token_ids": [5, 6, 5], "include_stop_str_in_output": True},
    {"stop": ["x", "why"], "min_tokens": 3, "ignore_eos": True},
    {"logit_bias": {"12": 5, "3": -100}, "allowed_token_ids": [3, 12], "bad_words": ["no", "no"]},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
    {"structured_outputs": {"regex": "[ab]+", "whitespace_pattern": " "}},
    {"structured_outputs": {"choice": ["a", "b"], "disable_any_whitespace": True}},
    {"structured_outputs": {"grammar": 'root ::= "a"'}},
    {"structured_outputs": {"json_object": True}},
]
CHATS: list[dict[str, Any]] = [
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 4},
    {"logprobs": False, "top_logprobs": 0},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "find"}}},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "end"}}},
    {"tools": TOOLS, "tool_choice": "auto"},
]
DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}


@pytest.mark.parametrize("defaults", [{}, DEFAULTS], ids=["API", "model"])
@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        *((CHAT, {"messages": MESSAGES, **body}) for body in [*BODIES, *CHATS]),
        *((COMPLETIONS, {"prompt": "Once", **body}) for body in [*BODIES, {"logprobs": 3}]),
    ],
)
def test_the_parameters_are_those_of_vllm_serve(
    endpoint: str, body: dict[str, Any], defaults: dict[str, Any]
) -> None:
    """Field by field what vLLM's own server makes of the same body."""
    raw = json.dumps({"model": "m", **body})
    ours, _ = parameters_of(settings_of(parse_body(endpoint, raw), defaults).sampling(9))
    theirs = served(endpoint, json.loads(raw), defaults)
    names = [name for name in theirs.__struct_fields__ if name != "skip_clone"]
    expected = {name: getattr(theirs, name) for name in names}
    if theirs.temperature == 0:
        expected["seed"] = None  # nothing reads it
    assert {name: getattr(ours, name) for name in names} == expected


def served(endpoint: str, body: dict[str, Any], defaults: dict[str, Any]) -> Any:
    """The parameters that `vllm serve` makes, with a tool parser that takes calls as JSON."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.tool_parsers.abstract_tool_parser import ToolParser

    if endpoint == COMPLETIONS:
        return CompletionRequest(**body).to_sampling_params(9, defaults)
    request: Any = ChatCompletionRequest(**body)
    tokenizer: Any = None
    return ToolParser(tokenizer).adjust_request(request).to_sampling_params(9, defaults)


@pytest.mark.parametrize(
    ("structure", "fits"),
    [
        ({"choice": ["pear", "plum"]}, lambda text: text in ("pear", "plum")),
        ({"regex": "[0-9]{3}"}, lambda text: len(text) == 3 and text.isdigit()),
        ({"grammar": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
        ({"json": SCHEMA}, lambda text: isinstance(json.loads(text)["a"], int)),
    ],
    ids=["choice", "regex", "grammar", "json"],
)
def test_an_answer_has_the_shape_that_is_asked_for(
    client: Client, structure: dict[str, Any], fits: Any
) -> None:
    """The engine is held to each kind of structure."""
    assert fits(client.ask(structured_outputs=structure, max_tokens=ROOM).text)


def test_a_forced_call_is_json(client: Client) -> None:
    """The arguments of the function that is named."""
    choice = {"type": "function", "function": {"name": "find"}}
    answer = client.ask(tools=TOOLS, tool_choice=choice, max_tokens=ROOM)
    assert isinstance(json.loads(answer.text or "")["a"], int)


@pytest.mark.parametrize(
    "structure", [{"regex": "("}, {"grammar": "::="}, {"json": {"type": "nonsense"}}]
)
def test_a_structure_that_is_none_is_refused(client: Client, structure: dict[str, Any]) -> None:
    """Only the request is refused: the engine takes the next one."""
    with pytest.raises(RequestRefused):
        client.ask(structured_outputs=structure)
    assert client.ask(max_tokens=1).completion_tokens == 1


def test_choices_of_a_sampled_request(client: Client) -> None:
    """The first is the answer, and the others stand beside it; all their tokens count."""
    answer = client.ask(temperature=1, seed=1, n=3, max_tokens=5, ignore_eos=True)
    others = json.loads(answer.choices or "")
    assert len({answer.text, *(other["text"] for other in others)}) == 3
    assert [other["completion_tokens"] for other in others] == [5, 5]
    assert answer.completion_tokens == 15


def test_choices_of_a_greedy_request_are_equal(client: Client) -> None:
    """It is computed once, and is all of its choices."""
    answer = client.ask(n=3, max_tokens=5, ignore_eos=True)
    others = json.loads(answer.choices or "")
    assert [other["text"] for other in others] == [answer.text] * 2
    assert answer.completion_tokens == 5


def test_logprobs_of_a_chat(client: Client) -> None:
    """One entry a token, in OpenAI's form; of a greedy answer each token is the likeliest."""
    answer = client.ask(logprobs=True, top_logprobs=2, max_tokens=4)
    told = json.loads(answer.logprobs or "")["content"]
    assert "".join(token["token"] for token in told) == answer.text
    for token in told:
        assert bytes(token["bytes"]).decode() == token["token"]
        first, second = token["top_logprobs"]
        assert (first["token"], first["logprob"]) == (token["token"], token["logprob"])
        assert 0 >= first["logprob"] >= second["logprob"]
    (alone, *_) = json.loads(client.ask(logprobs=True).logprobs or "")["content"]
    assert alone["top_logprobs"] == []


def test_logprobs_of_a_completion(client: Client) -> None:
    """Lists by token, in the older form of the API."""
    answer = client.ask(COMPLETIONS, prompt="Once upon a", logprobs=1, max_tokens=4)
    told = json.loads(answer.logprobs or "")
    text = answer.text or ""
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert text[offset:].startswith(token)
    for token, logprob, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
    assert client.ask(max_tokens=1).logprobs is None


def test_a_prompt_of_token_ids(client: Client) -> None:
    """The same answer as to the text that they are of."""
    ids = client.ids(COMPLETIONS, {"model": "m", "prompt": "Once upon a"})
    answer = client.ask(COMPLETIONS, prompt=ids)
    assert answer.prompt_tokens == len(ids)
    assert answer.text == client.ask(COMPLETIONS, prompt="Once upon a").text != ""


def test_what_ends_an_answer(client: Client) -> None:
    """A stop text is cut off or kept; a token id ends it too; min_tokens and ignore_eos do not."""
    free = client.ask(max_tokens=12).text or ""
    stop = free[4:7]
    assert client.ask(stop=stop).text == free[: free.index(stop)]
    kept = client.ask(stop=stop, include_stop_str_in_output=True).text or ""
    assert kept.endswith(stop)
    only = client.ask(max_tokens=12, allowed_token_ids=[28], min_tokens=3, stop_token_ids=[28])
    assert (only.finish_reason, only.completion_tokens) == ("stop", 4)
