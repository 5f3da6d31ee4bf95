"""What makes two requests the same, and what of a body reaches the engine."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from acdc_dagster.models import Model
from acdc_dagster.prefix.identity import hash_head, request_hash, room_for_answer, settings_of
from acdc_dagster.prefix.segments import IdOrder, Segments
from acdc_dagster.prefix.sequences import Sequences
from acdc_dagster.prefix.stage import sampling_defaults
from acdc_dagster.requests.body import CHAT, COMPLETIONS, EMBEDDINGS, Refused, parse_body

MODEL = Model("small", Path("models/small"), "r1", context_length=100)
IDS = [5, 70_000, 6]
SPECIAL = [5]


@dataclass(frozen=True)
class Asked:
    """A request as the engine gets it."""

    ids: list[int]
    sampling: str
    deterministic: bool


def ask(
    ids: list[int] | None = None,
    model: Model = MODEL,
    defaults: dict[str, Any] | None = None,
    **body: Any,
) -> Asked:
    """A chat request with these token ids."""
    chat = {"model": "small", "messages": [{"role": "user", "content": "x"}], **body}
    ids = IDS if ids is None else ids
    settings = settings_of(parse_body(CHAT, json.dumps(chat)), defaults or {})
    tokens = settings.max_tokens(room_for_answer(len(ids), model))
    return Asked(ids, settings.sampling(tokens), settings.deterministic)


def sampling(defaults: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    """What reaches the engine beside the tokens."""
    return json.loads(ask(defaults=defaults, **body).sampling)


def hash_of(request: Asked, model: Model = MODEL, salt: str = "") -> str:
    """Its request hash."""
    segments = Segments(IdOrder(2**17, SPECIAL), 2**17, SPECIAL)
    numbers = segments.add(Sequences.of([request.ids])).tokens
    head = hash_head(model, request.sampling, "" if request.deterministic else salt)
    return request_hash(segments.digests[numbers].tobytes(), head).hex()


GREEDY = {"temperature": 0, "max_tokens": 8}
BASE = hash_of(ask(**GREEDY))


def test_the_same_request_has_the_same_hash() -> None:
    """Nothing but the request and its model is in the hash, in a form that storage can take."""
    assert hash_of(ask(**GREEDY)) == BASE
    assert re.fullmatch("[0-9a-f]{32}", BASE)


@pytest.mark.parametrize(
    "body",
    [
        {**GREEDY, "seed": 1},
        {**GREEDY, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
        {**GREEDY, "user": "u", "metadata": {"k": "v"}, "store": True, "n": 1, "stream": False},
        {"temperature": 0.0, "max_completion_tokens": 8},
        {"temperature": 0, "max_tokens": 50, "max_completion_tokens": 8},
        {**GREEDY, "response_format": {"type": "text"}},
        {**GREEDY, "logprobs": False, "top_logprobs": 0},
        {**GREEDY, "stop": [], "bad_words": [], "stop_token_ids": [], "logit_bias": {}},
        {**GREEDY, "min_tokens": 0, "ignore_eos": False, "skip_special_tokens": True},
        {**GREEDY, "logprobs": False, "request_id": "r", "priority": 9},
    ],
)
def test_what_changes_no_answer_changes_no_hash(body: dict[str, Any]) -> None:
    """Greedy decoding reads no seed and no top_p; bookkeeping of the API reaches no engine."""
    assert hash_of(ask(**body)) == BASE


def structured(schema: dict[str, Any]) -> dict[str, Any]:
    """A body that wants answers of this schema."""
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    }


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 9},
        {"temperature": 0.5, "seed": 1},
        {"presence_penalty": 1},
        {"frequency_penalty": 1},
        {"repetition_penalty": 1.1},
        {"stop": "END"},
        structured({"type": "object"}),
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"logprobs": True},
        {"n": 2},
        {"min_tokens": 1},
        {"ignore_eos": True},
        {"stop_token_ids": [1]},
        {"allowed_token_ids": [1]},
        {"logit_bias": {"1": 2}},
        {"bad_words": ["no"]},
        {"include_stop_str_in_output": True},
        {"skip_special_tokens": False},
    ],
)
def test_what_changes_the_answer_changes_the_hash(body: dict[str, Any]) -> None:
    """Every part of the sampling that greedy decoding reads is in the hash."""
    assert hash_of(ask(**{**GREEDY, **body})) != BASE


def test_sampled_requests_differ_by_all_that_shapes_them() -> None:
    """Under sampling, seed, top_p, top_k and min_p count too."""
    bodies: list[dict[str, Any]] = [{}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"seed": 2}]
    hashes = {hash_of(ask(**{"temperature": 1, "seed": 1, **body})) for body in bodies}
    assert len(hashes) == len(bodies)


@pytest.mark.parametrize(
    "ids",
    [[5, 70_000], [5, 70_000, 7], [5, 70_000, 6, 0], [6, 70_000, 5], [5, 70_000 % 2**16, 6]],
)
def test_other_tokens_are_another_request(ids: list[int]) -> None:
    """The hash is over the whole token sequence in its order."""
    assert hash_of(ask(ids, **GREEDY)) != BASE


def test_the_hash_does_not_depend_on_other_requests() -> None:
    """It covers the tokens, whatever segments were seen before and wherever they are cut."""
    prompts = [[5, 6, 7, 5, 8], [7, 5, 8], [5, 6, 7], [5, 8, 5, 6, 7]]
    alone = [hash_of(ask(ids, **GREEDY)) for ids in prompts]
    assert len(set(alone)) == len(prompts)
    segments = Segments(IdOrder(9, SPECIAL), 9, SPECIAL)
    found = segments.add(Sequences.of(prompts))
    head = hash_head(MODEL, ask(**GREEDY).sampling)
    together = [request_hash(segments.digests[found[at]].tobytes(), head).hex() for at in range(4)]
    assert together == alone


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"revision": "r2"}, {"reasoning_parser": "qwen3"}]
)
def test_another_model_is_another_request(change: dict[str, str]) -> None:
    """Results of different models or revisions never mix."""
    assert hash_of(ask(**GREEDY), replace(MODEL, **change)) != BASE


def test_the_place_of_a_model_is_not_its_identity() -> None:
    """A model that is moved, or cut to another context, gives the results it gave."""
    moved = replace(MODEL, path=Path("/elsewhere"), context_length=99)
    assert hash_of(ask(model=moved, **GREEDY), moved) == BASE


@pytest.mark.parametrize(
    ("body", "salted"),
    [
        ({"temperature": 0}, False),
        ({"temperature": 0, "seed": 1}, False),
        ({"temperature": 1, "seed": 1}, False),
        ({"temperature": 1}, True),
        ({"temperature": 1, "seed": -1}, True),  # vLLM's word for no seed
        ({}, True),  # the API's default temperature is 1
    ],
)
def test_only_sampled_requests_are_salted(body: dict[str, Any], salted: bool) -> None:
    """Equal requests are answered once, but for those whose answers are meant to differ."""
    request = ask(**body)
    assert request.deterministic is not salted
    assert (hash_of(request, salt="p/a") != hash_of(request, salt="p/b")) is salted
    assert hash_of(request, salt="p/a") == hash_of(request, salt="p/a")


@pytest.mark.parametrize(
    ("body", "max_tokens"),
    [
        ({}, 97),
        ({"max_tokens": 8}, 8),
        ({"max_tokens": 97}, 97),
        ({"max_tokens": 98}, 97),
        ({"max_tokens": 2**40}, 97),
        ({"max_completion_tokens": 8}, 8),
        ({"max_completion_tokens": 98, "max_tokens": 8}, 97),
    ],
)
def test_the_answer_fits_the_room(body: dict[str, Any], max_tokens: int) -> None:
    """An answer gets what was asked for, at most what the prompt leaves of the context."""
    assert sampling(**body)["max_tokens"] == max_tokens


@pytest.mark.parametrize("tokens", [100, 101, 20_031])
def test_a_prompt_that_leaves_no_room(tokens: int) -> None:
    """It is refused with the measured tokens, the limit and the model's name."""
    with pytest.raises(Refused) as caught:
        ask([1] * tokens, **GREEDY)
    assert caught.value.code == "context_length_exceeded"
    for said in (f"{tokens} tokens", "100", "small"):
        assert said in caught.value.message


def test_one_token_of_room_is_enough() -> None:
    """The longest prompt that runs leaves one token for the answer."""
    assert json.loads(ask([1] * 99, **GREEDY).sampling)["max_tokens"] == 1


def test_a_prompt_without_tokens_is_refused() -> None:
    """An empty prompt, or one of which the tokenizer leaves nothing, is known before any engine."""
    with pytest.raises(Refused) as caught:
        ask([], **GREEDY)
    assert caught.value.code == "empty_prompt"
    with pytest.raises(Refused) as caught:
        parse_body(COMPLETIONS, json.dumps({"model": "small", "prompt": ""}))
    assert caught.value.code == "empty_prompt"


def test_a_vector_is_asked_for_once() -> None:
    """A text's vector is the same each time; the whole context may be the text."""
    body = parse_body(EMBEDDINGS, json.dumps({"model": "small", "input": "x"}))
    settings = settings_of(body, {"temperature": 0.6})
    assert settings.deterministic
    assert json.loads(settings.sampling(0)) == {"max_tokens": 0, "task": "embed"}
    assert room_for_answer(100, MODEL, least=0) == 0
    with pytest.raises(Refused):
        room_for_answer(101, MODEL, least=0)


def test_the_models_own_defaults_hold_where_the_body_says_nothing() -> None:
    """As in `vllm serve`: generation_config.json comes after the body and before the API."""
    defaults = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.2}
    assert sampling(defaults, max_tokens=8) == {"max_tokens": 8, **defaults}
    assert sampling(defaults, max_tokens=8, temperature=1, top_p=0.5) == {
        "max_tokens": 8,
        "temperature": 1,
        "top_p": 0.5,
        "repetition_penalty": 1.2,
    }
    assert sampling(defaults, **GREEDY) == {**GREEDY, "repetition_penalty": 1.2}
    assert sampling(max_tokens=8) == {"max_tokens": 8, "temperature": 1}


def test_defaults_are_read_from_the_models_folder(tmp_path: Path) -> None:
    """Only what shapes the sampling is taken, and a model without the file has none."""
    model = replace(MODEL, path=tmp_path)
    assert sampling_defaults(model) == {}
    config = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert sampling_defaults(model) == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize(("stop", "given"), [("END", ["END"]), (["a", "b"], ["a", "b"])])
def test_stop_is_a_list(stop: object, given: list[str]) -> None:
    """One stop text is a list of one, so that both forms are the same request."""
    assert sampling(stop=stop)["stop"] == given


def test_two_words_for_one_thing_are_one_request() -> None:
    """OpenAI's response_format and vLLM's structured_outputs; a bias whatever its tokens' order."""
    schema = {"type": "object"}
    assert ask(**structured(schema)) == ask(structured_outputs={"json": schema})
    form = {"type": "json_object"}
    assert ask(response_format=form) == ask(structured_outputs={"json_object": True})
    assert ask(logit_bias={"10": 1, "9": -1}) == ask(logit_bias={"9": -1, "10": 1})
    assert sampling(logit_bias={"10": 1, "9": -1})["logit_bias"] == {"9": -1, "10": 1}


def test_a_forced_call_is_a_schema() -> None:
    """A named function's arguments, or a list of any calls; of one, if they are not parallel."""
    parameters = {"type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}}
    defined = {**parameters, "$defs": {"c": {"type": "string"}}}
    tools = [{"function": {"name": "f", "parameters": defined}}, {"function": {"name": "g"}}]
    named = sampling(tools=tools, tool_choice={"function": {"name": "f"}})
    assert named["structured_outputs"]["json"] == defined
    nothing = sampling(tools=tools, tool_choice={"function": {"name": "g"}})
    assert nothing["structured_outputs"]["json"] == {"type": "object", "properties": {}}
    body: dict[str, Any] = {"tools": tools, "tool_choice": "required"}
    schema = sampling(**body)["structured_outputs"]["json"]
    assert schema["$defs"] == defined["$defs"]
    first, second = schema["items"]["anyOf"]
    assert first["properties"] == {
        "name": {"type": "string", "enum": ["f"]},
        "parameters": parameters,
    }
    assert second["properties"]["name"]["enum"] == ["g"]
    assert "maxItems" not in schema
    one = sampling(**body, parallel_tool_calls=False)["structured_outputs"]["json"]
    assert one == {**schema, "maxItems": 1}
    assert "structured_outputs" not in sampling(tools=tools, tool_choice="auto")


@pytest.mark.parametrize("names", [["reason", "answer"], ["answer", "reason"]])
def test_the_answers_schema_reaches_the_engine_as_it_is(names: list[str]) -> None:
    """Its properties too keep their order: an engine writes them in the order of the schema."""
    schema = {"type": "object", "properties": {name: {} for name in names}, "required": names}
    given = sampling(**structured(schema))["structured_outputs"]["json"]
    assert json.dumps(given) == json.dumps(schema)
