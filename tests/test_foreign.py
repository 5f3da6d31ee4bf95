"""Batch files of Anthropic and Gemini: what becomes of each field, and what is refused."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import MODEL, Declare, Taken, request_line, take_files

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.prefix.identity import settings_of
from acdc_dagster.requests.body import CHAT, ChatBody, parse_body
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables

JSON = {"responseMimeType": "application/json"}


def anthropic(custom_id: object = "a", **params: Any) -> str:
    """A line of a Message Batches file; a field that is `...` is left out."""
    given = {
        "model": "claude-x",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Hello"}],
        **params,
    }
    kept = {name: value for name, value in given.items() if value is not ...}
    return json.dumps({"custom_id": custom_id, "params": kept})


def gemini(key: object = "g", **request: Any) -> str:
    """A line of a Gemini batch file."""
    given = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}], **request}
    return json.dumps({"key": key, "request": given})


def take(folder: Path, *lines: str) -> Taken:
    """The intake of one file with these lines."""
    file = folder / "requests.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return take_files([file], MODEL)


def the_body(folder: Path, line: str) -> dict[str, Any]:
    """The body that a line becomes."""
    taken = take(folder, line)
    assert taken.rejections == []
    assert taken.requests.select("endpoint", "model").rows() == [(CHAT, MODEL)]
    return json.loads(taken.requests["body"][0])


def the_rejection(folder: Path, line: str) -> Rejection:
    """Why a line is rejected."""
    (rejection,) = take(folder, line).rejections
    assert rejection.original == line.encode()
    return rejection


def test_an_anthropic_request_is_carried_over(tmp_path: Path) -> None:
    """Every supported parameter gets its counterpart, and the model is the job's."""
    line = anthropic(
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        service_tier="standard_only",
        stream=False,
        tools=[
            {
                "name": "look",
                "description": "Looks.",
                "input_schema": {"type": "object", "properties": {"at_what": {"type": "string"}}},
            }
        ],
        tool_choice={"type": "auto", "disable_parallel_tool_use": False},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    assert the_body(tmp_path, line) == {
        "model": MODEL,
        "messages": [
            {
                "role": "system",
                "content": [
                    {"type": "text", "text": "Be brief."},
                    {"type": "text", "text": "Be kind."},
                ],
            },
            {"role": "user", "content": "Hello"},
        ],
        "max_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": {
                        "type": "object",
                        "properties": {"at_what": {"type": "string"}},
                    },
                },
            }
        ],
        "tool_choice": "auto",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
        },
        "metadata": {"user_id": "u"},
        "service_tier": "standard_only",
    }


def test_tool_blocks_become_calls_and_tool_messages(tmp_path: Path) -> None:
    """A tool_use is a call of its message, a tool_result a message of role tool before the text."""
    line = anthropic(
        system="Be brief.",
        messages=[
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "Rome é"}},
                    {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "content": [{"type": "text", "text": "rain"}],
                        "is_error": False,
                    },
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
    )
    assert the_body(tmp_path, line)["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at":"Rome é"}'},
                },
                {"id": "t2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "t2", "content": "rain"},
        {"role": "user", "content": "So?"},
    ]


def test_turns_of_one_role_are_joined(tmp_path: Path) -> None:
    """Messages of one role in a row are one turn, as Anthropic's API reads them."""
    messages = [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    (message,) = the_body(tmp_path, anthropic(messages=messages))["messages"]
    assert [part["text"] for part in message["content"]] == ["One.", "Two."]


def test_a_begun_answer_is_continued(tmp_path: Path) -> None:
    """An assistant's turn at the end is the beginning of the answer, not an answer of its own."""
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "{"}]
    body = the_body(tmp_path, anthropic(messages=messages))
    assert body["messages"][-1] == {"role": "assistant", "content": "{"}
    assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)


def test_cache_control_changes_nothing(tmp_path: Path) -> None:
    """What says how to cache is allowed wherever the API has it, and is left out."""
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "Hello"}
    tool = {"name": "f", "input_schema": {"type": "object"}}
    plain = anthropic(system=[text], messages=[{"role": "user", "content": [text]}], tools=[tool])
    marked = anthropic(
        system=[text | mark],
        messages=[{"role": "user", "content": [text | mark]}],
        tools=[tool | mark],
        **mark,
    )
    assert the_body(tmp_path, marked) == the_body(tmp_path, plain)


USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("params", "code", "said"),
    [
        ({"thinking": {"type": "enabled"}}, "unsupported_parameter", "thinking"),
        ({"container": "c"}, "unsupported_parameter", "container"),
        ({"mcp_servers": []}, "unsupported_parameter", "mcp_servers"),
        ({"output_config": {"effort": "low"}}, "unsupported_parameter", "effort"),
        ({"stream": True}, "unsupported_parameter", "stream"),
        ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "auto"}}, "missing_required_parameter", "tool_choice"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "invalid_value",
            "web_search",
        ),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": ...}, "missing_required_parameter", "max_tokens"),
        ({"temperature": 1.5}, "invalid_value", "temperature"),
        ({"top_k": -1}, "invalid_value", "top_k"),
        ({"stop_sequences": "x"}, "invalid_value", "stop_sequences"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "invalid_value", "role"),
        ({"messages": ...}, "missing_required_parameter", "messages"),
    ],
)
def test_an_anthropic_parameter_that_cannot_be_carried_over_names_itself(
    tmp_path: Path, params: dict[str, Any], code: str, said: str
) -> None:
    """What would change the answer, and what is wrong, rejects its row by name."""
    rejection = the_rejection(tmp_path, anthropic("id", **params))
    assert (rejection.custom_id, rejection.code) == ("id", code)
    assert said in rejection.message


@pytest.mark.parametrize(
    ("role", "content", "said"),
    [
        ("user", [{"type": "image", "source": {}}], "image"),
        ("user", [{"type": "document", "source": {}}], "document"),
        ("user", [TEXT | {"citations": [{}]}], "citations"),
        ("user", [{"type": "tool_result", "tool_use_id": "t", "is_error": True}], "is_error"),
        (
            "user",
            [RESULT | {"content": [{"type": "image", "source": {}}]}],
            "image",
        ),
        ("user", [TEXT, RESULT], "content[1]"),
        ("user", [USE], "tool_use of a user"),
        ("assistant", [{"type": "thinking", "thinking": "x", "signature": "s"}], "thinking"),
        ("assistant", [{"type": "server_tool_use"}], "server_tool_use"),
        ("assistant", [USE, TEXT], "content[1]"),
        ("assistant", [RESULT], "tool_result of an assistant"),
        ("assistant", [], "content"),
    ],
)
def test_a_block_that_no_chat_has_says_where_it_stands(
    tmp_path: Path, role: str, content: list[dict[str, Any]], said: str
) -> None:
    """An image, a thought or a block out of order rejects its row with its place."""
    messages = [
        {"role": "user" if role == "assistant" else "assistant", "content": "x"},
        {"role": role, "content": content},
        {"role": "user", "content": "x"},
    ]
    rejection = the_rejection(tmp_path, anthropic(messages=messages))
    assert "messages[1]" in rejection.message
    assert said in rejection.message


@pytest.mark.parametrize("content", ["", [USE]])
def test_an_answer_that_cannot_be_continued_is_refused(tmp_path: Path, content: object) -> None:
    """A last turn of the assistant must be text."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    rejection = the_rejection(tmp_path, anthropic(messages=messages))
    assert rejection.code == "unsupported_content"
    assert "continued" in rejection.message


CAMEL: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "generationConfig": {
        "maxOutputTokens": 8,
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 40,
        "stopSequences": ["END"],
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": -0.2,
        "candidateCount": 1,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object", "properties": {"my_tag": {"type": "string"}}},
    },
    "tools": [
        {
            "functionDeclarations": [
                {
                    "name": "look",
                    "description": "Looks.",
                    "parametersJsonSchema": {
                        "type": "object",
                        "properties": {"at_what": {"type": "string"}},
                    },
                }
            ]
        }
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "NONE"}},
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "labels": {"team_name": "t"},
    "model": "models/gemini-x",
}
SNAKE: dict[str, Any] = {
    "system_instruction": CAMEL["systemInstruction"],
    "generation_config": {
        "max_output_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40.0,
        "stop_sequences": ["END"],
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.2,
        "candidate_count": 1,
        "response_mime_type": "application/json",
        "response_json_schema": CAMEL["generationConfig"]["responseJsonSchema"],
    },
    "tools": [
        {
            "function_declarations": [
                {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": {
                        "type": "OBJECT",
                        "properties": {"at_what": {"type": "STRING"}},
                    },
                }
            ]
        }
    ],
    "tool_config": {"function_calling_config": {"mode": "NONE"}},
    "safety_settings": CAMEL["safetySettings"],
    "labels": CAMEL["labels"],
}


@pytest.mark.parametrize("request_fields", [CAMEL, SNAKE], ids=["camelCase", "snake_case"])
def test_a_gemini_request_is_carried_over(tmp_path: Path, request_fields: dict[str, Any]) -> None:
    """Every supported field gets its counterpart in either spelling; names of the user stay."""
    assert the_body(tmp_path, gemini(**request_fields)) == {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ],
        "max_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.2,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": {
                        "type": "object",
                        "properties": {"at_what": {"type": "string"}},
                    },
                },
            }
        ],
        "tool_choice": "none",
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "schema": {"type": "object", "properties": {"my_tag": {"type": "string"}}},
                "strict": True,
            },
        },
        "metadata": {"team_name": "t"},
    }


def test_function_parts_become_calls_and_tool_messages(tmp_path: Path) -> None:
    """Calls without ids get some, and each response goes to the call of its id, else its name."""
    contents = [
        {"parts": [{"text": "Weather?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Looking."},
                {"functionCall": {"name": "look", "args": {"at_what": "Rome"}}},
                {"functionCall": {"name": "ask"}},
                {"functionCall": {"id": "mine", "name": "look", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "mine", "name": "look", "response": {"r": 1}}},
                {"functionResponse": {"name": "ask", "response": {"output_text": "é"}}},
                {"functionResponse": {"name": "look", "response": {}}},
                {"text": "So?"},
            ],
        },
    ]
    _, model, *rest = the_body(tmp_path, gemini(contents=contents))["messages"]
    assert model["content"] == "Looking."
    assert [(call["id"], call["function"]) for call in model["tool_calls"]] == [
        ("call00001", {"name": "look", "arguments": '{"at_what":"Rome"}'}),
        ("call00002", {"name": "ask", "arguments": "{}"}),
        ("mine", {"name": "look", "arguments": "{}"}),
    ]
    assert rest == [
        {"role": "tool", "tool_call_id": "mine", "name": "look", "content": '{"r":1}'},
        {
            "role": "tool",
            "tool_call_id": "call00002",
            "name": "ask",
            "content": '{"output_text":"é"}',
        },
        {"role": "tool", "tool_call_id": "call00001", "name": "look", "content": "{}"},
        {"role": "user", "content": "So?"},
    ]


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"type": "STRING", "format": "enum", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        ({"type": "INTEGER", "format": "int32", "minimum": 1}, {"type": "integer", "minimum": 1}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        (
            {"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": "1", "maxItems": 3},
            {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
        ),
        (
            {"type": "BOOLEAN", "nullable": True},
            {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        ),
        ({"anyOf": [{"type": "STRING"}, {"type": "NULL"}]}, None),
    ],
)
def test_a_gemini_schema_becomes_json_schema(
    tmp_path: Path, schema: dict[str, Any], plain: dict[str, Any] | None
) -> None:
    """Types are in lower case, and what OpenAPI says in its own way is said in JSON Schema's."""
    plain = plain or {"anyOf": [{"type": "string"}, {"type": "null"}]}
    config = {**JSON, "responseSchema": {"type": "OBJECT", "properties": {"p": schema}}}
    given = the_body(tmp_path, gemini(generationConfig=config))["response_format"]["json_schema"]
    assert given["schema"] == {"type": "object", "properties": {"p": plain}}


def test_properties_come_in_their_declared_order(tmp_path: Path) -> None:
    """The engine writes an answer in the order of the schema's properties."""
    schema = {
        "type": "OBJECT",
        "properties": {name: {"type": "STRING"} for name in ("a", "b", "c")},
        "propertyOrdering": ["c", "a"],
    }
    config = {**JSON, "responseSchema": schema}
    given = the_body(tmp_path, gemini(generationConfig=config))["response_format"]["json_schema"]
    assert list(given["schema"]["properties"]) == ["c", "a", "b"]
    assert "propertyOrdering" not in given["schema"]


@pytest.mark.parametrize(("given", "seed"), [(-1, 2**32 - 1), (-2, -2), (0, 0)])
def test_every_gemini_seed_stays_a_seed(tmp_path: Path, given: int, seed: int) -> None:
    """A seed of -1, which would be none to the engine, becomes one that no other request has."""
    body = the_body(tmp_path, gemini(generationConfig={"seed": given, "temperature": 1}))
    assert body["seed"] == seed
    parsed = parse_body(CHAT, json.dumps(body))
    assert settings_of(parsed, {}).deterministic


def test_json_without_a_schema_is_any_object(tmp_path: Path) -> None:
    """The MIME type alone asks for JSON of any shape."""
    body = the_body(tmp_path, gemini(generationConfig=JSON))
    assert body["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("request_fields", "said"),
    [
        ({"cachedContent": "cachedContents/x"}, "cachedContent"),
        ({"tools": [{"googleSearch": {}}]}, "googleSearch"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "mode"),
        ({"systemInstruction": {"parts": [{"inlineData": {}}]}}, "inlineData"),
        ({"generationConfig": {"thinkingConfig": {}}}, "thinkingConfig"),
        ({"generation_config": {"thinking_config": {}}}, "thinkingConfig"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities"),
        ({"generationConfig": {"candidateCount": 2}}, "candidateCount"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "responseMimeType"),
        ({"generationConfig": {"responseSchema": {"type": "STRING"}}}, "responseMimeType"),
        ({"generationConfig": {"temperature": 2.5}}, "temperature"),
        ({"generationConfig": {"topK": 1.5}}, "topK"),
        (
            {"generationConfig": {**JSON, "responseSchema": {"minItems": "9" * 5000}}},
            "minItems",
        ),
        ({"generationConfig": {"topK": 1, "top_k": 1}}, "topK twice"),
        ({"generationConfig": {**JSON, "responseSchema": {"type": "TEXT"}}}, "responseSchema.type"),
        ({"generationConfig": {**JSON, "responseSchema": {"example": 1}}}, "example"),
        (
            {"generationConfig": {**JSON, "responseSchema": {"type": "INTEGER", "enum": ["1"]}}},
            "responseSchema.enum",
        ),
        (
            {"generationConfig": {**JSON, "responseSchema": {}, "responseJsonSchema": {}}},
            "responseJsonSchema",
        ),
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "user", "parts": []}]}, "parts"),
        ({"contents": [{"role": "system", "parts": [{"text": "x"}]}]}, "role"),
        ({"contents": [{"role": "model", "parts": [{"text": "x"}]}]}, "role model"),
        ({"contents": [{"parts": [{"inlineData": {}}]}]}, "inlineData"),
        ({"contents": [{"parts": [{"fileData": {}}]}]}, "fileData"),
        ({"contents": [{"parts": [{"text": "x", "thought": True}]}]}, "thought"),
        ({"contents": [{"parts": [{}]}]}, "parts[0]"),
        ({"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}, "functionCall of a user"),
        (
            {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]},
            "responds to no functionCall",
        ),
    ],
)
def test_a_gemini_field_that_cannot_be_carried_over_names_itself(
    tmp_path: Path, request_fields: dict[str, Any], said: str
) -> None:
    """What would change the answer, and what is wrong, rejects its row by name."""
    rejection = the_rejection(tmp_path, gemini("id", **request_fields))
    assert rejection.custom_id == "id"
    assert rejection.message.startswith("request")
    assert said in rejection.message


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (anthropic(None), "missing_required_parameter", "custom_id"),
        (anthropic(7), "invalid_custom_id", "quotes"),
        (anthropic(" "), "invalid_custom_id", "custom_id"),
        (gemini(None), "missing_required_parameter", "key is missing"),
        (gemini(7), "invalid_custom_id", "key must be a string, not 7; put it in quotes"),
        (gemini(""), "invalid_custom_id", "key"),
        ('{"custom_id": "a", "params": "x"}', "invalid_value", "params"),
        ('{"key": "a", "request": null}', "invalid_value", "request"),
    ],
)
def test_ids_follow_the_same_rules(tmp_path: Path, line: str, code: str, said: str) -> None:
    """An id is text in every format, and a message calls it what the format calls it."""
    rejection = the_rejection(tmp_path, line)
    assert rejection.code == code
    assert said in rejection.message


@pytest.mark.parametrize("depth", [800, 100_000])
def test_a_deep_request_is_refused(tmp_path: Path, depth: int) -> None:
    """Nesting that cannot be followed rejects its row; its neighbours run."""
    schema = '{"type":"OBJECT","items":' * depth + "{}" + "}" * depth
    line = gemini("deep", generationConfig={**JSON, "responseSchema": "S"})
    taken = take(tmp_path, line.replace('"S"', schema), gemini("b"))
    assert [rejection.line for rejection in taken.rejections] == [1]
    assert "deep" in taken.rejections[0].message
    assert taken.requests["custom_id"].to_list() == ["b"]


LINES: dict[str, Callable[[str], str]] = {
    "OpenAI": request_line,
    "Anthropic": anthropic,
    "Gemini": gemini,
}


@pytest.mark.parametrize("first", LINES)
@pytest.mark.parametrize("other", LINES)
def test_a_file_is_of_one_format(tmp_path: Path, first: str, other: str) -> None:
    """The first valid line says which; lines of another are rejected, naming both."""
    bad = json.dumps({**json.loads(LINES[other]("bad")), "custom_id": 1, "key": 1})
    taken = take(tmp_path, bad, LINES[first]("1"), LINES[other]("2"), LINES[first]("3"))
    ids = taken.requests["custom_id"].to_list()
    if first == other:
        assert ids == ["1", "2", "3"]
        return
    assert ids == ["1", "3"]
    rejection = taken.rejections[1]
    assert (rejection.line, rejection.code, rejection.custom_id) == (3, "format_mismatch", "2")
    assert first in rejection.message
    assert other in rejection.message


def test_each_file_has_its_format(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables]
) -> None:
    """Files of all formats make one partition, whose requests are all for the job's model."""
    for name, line in LINES.items():
        (deployment.root / f"{name}.jsonl").write_text(line(name))
    job = declare("files", {"source": {"requests": "*.jsonl"}, "model": MODEL})
    stats = take_in(job, deployment, tables(job), "all")
    rows = tables(job).read("raw_requests").sort("custom_id")
    assert stats.rejected == 0
    assert rows["custom_id"].to_list() == ["Anthropic", "Gemini", "OpenAI"]
    assert rows["model"].unique().to_list() == [MODEL]
    for body in rows["body"]:
        messages = json.loads(body)["messages"]
        assert messages == [{"role": "user", "content": "Hello"}]


def nasty_text(dice: random.Random) -> str:
    """Text with what formats, encodings and templates trip over."""
    pieces = [
        "é",
        "漢字",
        "😀",
        "\x00",
        "\\n",
        "\n",
        "\r\n",
        '"',
        "{{ x }}",
        "<|im_end|>",
        " ",
        "a_b",
    ]
    return "".join(dice.choices(pieces, k=dice.randrange(1, 12)))


@pytest.mark.parametrize("seed", range(20))
def test_text_survives_unchanged(tmp_path: Path, seed: int) -> None:
    """System text, and the texts of all turns, are in the body as they were, and in order."""
    dice = random.Random(seed)
    system = nasty_text(dice)
    turns = [[nasty_text(dice) for _ in range(dice.randrange(1, 4))] for _ in range(5)]
    roles = ["user", "assistant", "user", "assistant", "user"]
    blocks = [[{"type": "text", "text": text} for text in turn] for turn in turns]
    lines = [
        anthropic(
            system=system,
            messages=[
                {"role": role, "content": content}
                for role, content in zip(roles, blocks, strict=True)
            ],
        ),
        gemini(
            systemInstruction={"parts": [{"text": system}]},
            contents=[
                {
                    "role": "user" if role == "user" else "model",
                    "parts": [{"text": text} for text in turn],
                }
                for role, turn in zip(roles, turns, strict=True)
            ],
        ),
    ]
    for line in lines:
        body = parse_body(CHAT, take(tmp_path, line).requests["body"][0])
        assert isinstance(body, ChatBody)
        assert [message.role for message in body.messages] == ["system", *roles]
        assert [message.text() for message in body.messages] == [
            system,
            *("\n".join(turn) for turn in turns),
        ]
