"""OpenAI-batch files: which lines become requests, which are rejected, and with what words."""

import gzip
import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import MODEL, Declare, Taken, request_line, take_files, take_source

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import SourceError
from acdc_dagster.job import Job
from acdc_dagster.requests.body import CHAT, COMPLETIONS, EMBEDDINGS, ChatBody, parse_body
from acdc_dagster.requests.files.jsonl import RequestFiles, request_files
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.stage import source_of, take_in
from acdc_dagster.tables import Tables

BOM = b"\xef\xbb\xbf"

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def take(folder: Path, *lines: str | bytes, model: str | None = MODEL) -> Taken:
    """The intake of one file with these lines."""
    file = folder / "requests.jsonl"
    file.write_bytes(b"".join(_bytes(line) + b"\n" for line in lines))
    return take_files([file], model)


def the_rejection(taken: Taken) -> Rejection:
    """The only rejection."""
    (rejection,) = taken.rejections
    return rejection


def lines_by_id(taken: Taken) -> dict[str, int]:
    """The line of each request."""
    return dict(taken.requests.select("custom_id", "line").iter_rows())


def envelope(**changes: Any) -> str:
    """A valid line with other fields around the body; a field that is `...` is left out."""
    line = {**json.loads(request_line()), **changes}
    return json.dumps({name: value for name, value in line.items() if value is not ...})


def _bytes(line: str | bytes) -> bytes:
    return line.encode() if isinstance(line, str) else line


A, B = request_line("a").encode(), request_line("b").encode()


@pytest.mark.parametrize(
    ("content", "line_of_b"),
    [
        pytest.param(A + b"\n" + B + b"\n", 2, id="LF"),
        pytest.param(A + b"\r\n" + B + b"\r\n", 2, id="CRLF"),
        pytest.param(A + b"\n" + B, 2, id="no last line end"),
        pytest.param(A + b"\n" + B + b"\n\n\r\n\n", 2, id="several last line ends"),
        pytest.param(A + b"\n\n \t \n\r\n" + B, 5, id="blank lines"),
        pytest.param(BOM + A + b"\n" + B, 2, id="byte order mark"),
        pytest.param(A + b" \t\r\n  " + B, 2, id="space around the object"),
    ],
)
def test_layout_changes_no_request(tmp_path: Path, content: bytes, line_of_b: int) -> None:
    """Line ends, blank lines and a BOM change no request, and line numbers stay the file's."""
    file = tmp_path / "requests.jsonl"
    file.write_bytes(content)
    taken = take_files([file], MODEL)
    assert lines_by_id(taken) == {"a": 1, "b": line_of_b}
    assert taken.requests["body"].unique().to_list() == [json.dumps(json.loads(A)["body"])]
    assert (taken.input_rows, taken.rejections, taken.warnings) == (2, [], [])


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("null", "invalid_json_line", "not an object"),
        ("[1,2]", "invalid_json_line", "not an object"),
        ('"x"', "invalid_json_line", "not an object"),
        ('{"custom_id":"r1"', "invalid_json_line", "not valid JSON"),
        (request_line("r1")[:-40], "invalid_json_line", "not valid JSON"),
        (request_line("r1") + request_line("r2"), "invalid_json_line", "not valid JSON"),
        ('{"custom_id":' + "[" * 100_000 + "]" * 100_000 + "}", "invalid_json_line", "nested"),
        (request_line("r1", temperature=float("nan")), "invalid_json_line", "not valid JSON"),
        (request_line("lone \ud800"), "invalid_json_line", "not valid JSON"),
        ('{"body":"s"}', "missing_required_parameter", "custom_id"),
        (envelope(custom_id=...), "missing_required_parameter", "custom_id"),
        (envelope(custom_id=None), "missing_required_parameter", "custom_id"),
        (envelope(custom_id=""), "invalid_custom_id", "custom_id"),
        (envelope(custom_id=" \t"), "invalid_custom_id", "custom_id"),
        (envelope(custom_id=7), "invalid_custom_id", "quotes"),
        (envelope(custom_id=["r1"]), "invalid_custom_id", "string"),
        (envelope(body=...), "missing_required_parameter", "body"),
        (envelope(body="s"), "invalid_value", "body"),
        (envelope(body=None), "invalid_value", "body"),
        (envelope(method="GET"), "invalid_method", "POST"),
        (envelope(method=...), "invalid_method", "POST"),
        (envelope(url="/v1/nope"), "invalid_url", CHAT),
        (envelope(url="/v1/score"), "invalid_url", COMPLETIONS),
        (envelope(url=...), "invalid_url", CHAT),
    ],
)
def test_a_bad_line_is_rejected_alone(tmp_path: Path, line: str, code: str, said: str) -> None:
    """A line that is no request is rejected with line number, code and reason; the rest runs."""
    taken = take(tmp_path, A, line, B)
    rejection = the_rejection(taken)
    assert (rejection.line, rejection.code) == (2, code)
    assert said in rejection.message
    assert rejection.original == line.encode()
    assert lines_by_id(taken) == {"a": 1, "b": 3}


def test_the_id_of_a_rejected_line_is_kept(tmp_path: Path) -> None:
    """A rejection says which request it was wherever the line has a usable id."""
    taken = take(tmp_path, envelope(custom_id="bad url", url="/v1/nope"))
    assert the_rejection(taken).custom_id == "bad url"


def test_invalid_utf8_is_named_and_never_replaced(tmp_path: Path) -> None:
    """A byte that is no UTF-8 rejects its line with its offset; the bytes stay as they were."""
    line = request_line("caf\x00", "x").replace("\\u0000", "#").encode().replace(b"#", b"\xe9")
    taken = take(tmp_path, A, line, B)
    rejection = the_rejection(taken)
    assert rejection.line == 2
    assert f"byte {line.index(0xE9)}" in rejection.message
    assert rejection.original == line
    assert "\\xe9" in rejection.excerpt
    assert lines_by_id(taken) == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    "custom_id",
    [
        "007",
        " padded ",
        "x" * 5000,
        "a/b:c d é 漢字 😀",
        "{}{0}%s$&",
        'quote" and \\',
        "nul\x00",
    ],
)
def test_ids_stay_as_they_are(tmp_path: Path, custom_id: str) -> None:
    """Any text that is not blank is an id, and comes out exactly as it went in."""
    assert lines_by_id(take(tmp_path, request_line(custom_id))) == {custom_id: 1}


def test_a_number_is_never_taken_for_its_text(tmp_path: Path) -> None:
    """The id 7 is rejected and the id "7" runs, in either order: they are not merged."""
    for lines in ([request_line(7), request_line("7")], [request_line("7"), request_line(7)]):
        taken = take(tmp_path, *lines)
        assert list(lines_by_id(taken)) == ["7"]
        assert taken.requests["input_rows"].to_list() == [1]
        assert the_rejection(taken).code == "invalid_custom_id"


def test_the_same_request_twice_is_one(tmp_path: Path) -> None:
    """The same id with the same body is one request that stands for both rows, and is reported."""
    taken = take(tmp_path, A, B, A)
    assert taken.requests.select("custom_id", "line", "input_rows").rows() == [
        ("a", 1, 2),
        ("b", 2, 1),
    ]
    (warning,) = taken.warnings
    assert "'a'" in warning
    assert "1, 3" in warning
    assert (taken.input_rows, taken.rejections) == (3, [])


def test_many_repeats_are_reported_in_few_words(tmp_path: Path) -> None:
    """Warnings stay short however many ids are repeated, and still say how many there are."""
    ids = [f"id-{number}" for number in range(40)]
    taken = take(tmp_path, *(request_line(name) for name in ids * 2))
    assert taken.requests["input_rows"].to_list() == [2] * 40
    assert len(taken.warnings) == 6
    assert "35 more" in taken.warnings[-1]


def test_one_id_for_two_requests_rejects_both(tmp_path: Path) -> None:
    """The same id with different bodies rejects every one of them, naming all their lines."""
    taken = take(tmp_path, A, B, request_line("a", "Other"))
    assert [(r.line, r.code, r.custom_id) for r in taken.rejections] == [
        (1, "duplicate_custom_id", "a"),
        (3, "duplicate_custom_id", "a"),
    ]
    assert all("1, 3" in r.message for r in taken.rejections)
    assert lines_by_id(taken) == {"b": 2}


def test_one_id_in_two_files_names_both_files(tmp_path: Path) -> None:
    """Lines of different files are told apart where an id stands in both."""
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    first.write_text(request_line("a"))
    second.write_text(request_line("a", "Other"))
    taken = take_files([first, second], MODEL)
    assert len(taken.rejections) == 2
    for rejection in taken.rejections:
        assert first.name in rejection.message
        assert second.name in rejection.message


def test_a_twin_that_cannot_run_takes_no_other_along(tmp_path: Path) -> None:
    """An id is only repeated among the requests that could run."""
    taken = take(tmp_path, A, request_line("a", model="other"))
    assert lines_by_id(taken) == {"a": 1}
    assert the_rejection(taken).code == "model_mismatch"


@pytest.mark.parametrize(("declared", "wrong"), [(MODEL, "small"), ("small", MODEL), (None, MODEL)])
def test_a_request_for_another_model_is_rejected(
    tmp_path: Path, declared: str | None, wrong: str
) -> None:
    """Each request must name the declared model, or the first one's where none is declared."""
    lines = [request_line("s", model="small"), request_line("m", model=MODEL)]
    rejection = the_rejection(take(tmp_path, *lines, model=declared))
    assert (rejection.code, rejection.custom_id) == (
        "model_mismatch",
        "m" if wrong == MODEL else "s",
    )
    assert "small" in rejection.message
    assert MODEL in rejection.message


def test_one_endpoint_a_batch(tmp_path: Path) -> None:
    """A request for another endpoint than the first one's is rejected, naming both."""
    other = envelope(url=COMPLETIONS, body={"model": MODEL, "prompt": "Once"})
    rejection = the_rejection(take(tmp_path, request_line("chat"), other))
    assert (rejection.line, rejection.code) == (2, "url_mismatch")
    assert COMPLETIONS in rejection.message
    assert CHAT in rejection.message


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        request_line(5),
        request_line("a", model="other"),
        envelope(url=COMPLETIONS, body={"model": MODEL, "prompt": "Once"}),
        request_line("first", "Other"),
    ],
    ids=["JSON", "custom_id", "model", "endpoint", "duplicate"],
)
def test_a_rejected_line_is_kept_whole(tmp_path: Path, line: str) -> None:
    """Whatever the reason, `original` is the line as it stood in the file: it can be mended."""
    taken = take(tmp_path, request_line("first"), line)
    assert taken.rejections[-1].original == line.encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", []),
        ("chat_template", "{{ messages }}"),
        ("guided_json", {"type": "object"}),
        ("prompt_logprobs", 1),
        ("logprob_token_ids", [1]),
        ("truncate_prompt_tokens", 8),
        ("add_special_tokens", True),
        ("thinking_token_budget", 8),
        ("repetition_detection", {}),
        ("use_beam_search", True),
        ("vllm_xargs", {}),
        ("verbosity", "low"),
        ("best_of", 2),
        ("echo", False),
        ("prompt", "x"),
        ("include_reasoning", False),
        ("stream", True),
        ("no_such_field", None),
    ],
)
def test_an_unsupported_field_names_itself(tmp_path: Path, field: str, value: object) -> None:
    """A field that the engine would ignore rejects its row under its own name."""
    rejection = the_rejection(take(tmp_path, request_line("a", **{field: value})))
    assert rejection.code == "unsupported_parameter"
    assert field in rejection.message


@pytest.mark.parametrize(
    ("role", "field", "value"),
    [
        ("assistant", "refusal", "no"),
        ("assistant", "function_call", None),
        ("assistant", "tool_call_id", "c"),
        ("user", "tool_calls", []),
        ("user", "reasoning", "hm"),
        ("system", "reasoning_content", "hm"),
        ("system", "tool_call_id", "c"),
        ("user", "content", [{"type": "text", "text": "x", "cache_control": {}}]),
    ],
)
def test_an_unsupported_field_of_a_message_says_where(
    tmp_path: Path, role: str, field: str, value: object
) -> None:
    """Inside a message too, and with its place: also a field that belongs to another role."""
    message = {"role": role, "content": "x", field: value}
    rejection = the_rejection(take(tmp_path, request_line("a", messages=[message])))
    assert rejection.code == "unsupported_parameter"
    assert field in rejection.message
    assert "messages[0]" in rejection.message


@pytest.mark.parametrize("name", ["tools", "messages", "chat_template", "add_generation_prompt"])
def test_a_template_variable_that_is_none_names_itself(tmp_path: Path, name: str) -> None:
    """What the engine would overwrite or ignore among the template's variables is rejected."""
    rejection = the_rejection(take(tmp_path, request_line("a", chat_template_kwargs={name: 1})))
    assert rejection.code == "unsupported_parameter"
    assert f"chat_template_kwargs.{name}" in rejection.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 8.5),
        ("max_tokens", 2**63),
        ("max_completion_tokens", 10**30),
        ("n", 0),
        ("n", 129),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("logit_bias", {"word": 1}),
        ("logit_bias", {"5": 101}),
        ("stop_token_ids", [-1]),
        ("allowed_token_ids", []),
        ("bad_words", [""]),
        ("min_tokens", -1),
        ("reasoning_effort", "huge"),
        ("tool_choice", "some"),
        ("structured_outputs", {"choice": []}),
        ("top_k", 2**63),
        ("max_tokens", "8"),
        ("max_completion_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "0"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("seed", 1.5),
        ("seed", 2**63),  # kills the engine, and with it the requests beside it
        ("stop", 5),
        ("stop", [None]),
        ("stop", ""),  # the engine refuses it
        ("model", None),
        ("messages", "Hello"),
        ("messages", []),
        ("messages", [{"role": "function", "content": "x"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
        ("response_format", {"type": "xml"}),
        ("tools", []),
        ("tools", [{"type": "custom", "function": {"name": "f"}}]),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": "{}"}}]),
        ("add_generation_prompt", None),
        ("continue_final_message", True),  # while a new message is begun
        ("chat_template_kwargs", []),
        ("documents", ["text"]),
    ],
)
def test_a_wrong_value_names_its_field(tmp_path: Path, field: str, value: object) -> None:
    """What no engine could take is known at intake, with the name of the field."""
    taken = take(tmp_path, request_line("bad", **{field: value}), A)
    rejection = the_rejection(taken)
    assert (rejection.custom_id, rejection.code) == ("bad", "invalid_value")
    assert field in rejection.message
    assert lines_by_id(taken) == {"a": 2}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "model"),
        ({"model": MODEL}, "messages"),
        ({"model": MODEL, "messages": [{"content": "x"}]}, "role"),
        ({"model": MODEL, "messages": [{"role": "user"}]}, "messages[0].content"),
        ({"model": MODEL, "messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"model": MODEL, "messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"model": MODEL, "messages": [{"role": "tool", "content": "x"}]}, "tool_call_id"),
        (
            {
                "model": MODEL,
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}
                ],
            },
            "function",
        ),
        (
            {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tool_choice": "auto"},
            "tools",
        ),
        (
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": "x"}],
                "response_format": {"type": "json_schema"},
            },
            "json_schema",
        ),
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, body: dict[str, Any], field: str) -> None:
    """A field that the endpoint requires is missed by name."""
    rejection = the_rejection(take(tmp_path, envelope(body=body)))
    assert rejection.code == "missing_required_parameter"
    assert field in rejection.message


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0},
        {"temperature": 2, "presence_penalty": -2, "frequency_penalty": 2},
        {"n": 128, "stream": False, "user": "u", "metadata": {"k": "v"}, "store": False},
        {"safety_identifier": "s", "prompt_cache_key": "k", "priority": 3, "request_id": "r"},
        {"logprobs": True, "top_logprobs": 20, "logit_bias": {"0": -100, "7": 100}},
        {"logprobs": False, "top_logprobs": 0, "logit_bias": {}, "bad_words": [], "stop": []},
        {"min_tokens": 8, "ignore_eos": True, "stop_token_ids": [2], "allowed_token_ids": [1, 2]},
        {"skip_special_tokens": False, "include_stop_str_in_output": True, "bad_words": ["no"]},
        {"structured_outputs": {"regex": "[ab]"}, "response_format": {"type": "text"}},
        {"reasoning_effort": "low", "include_reasoning": True},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"max_tokens": None, "max_completion_tokens": 1, "stop": ["\n", "END"], "seed": -1},
        {"response_format": {"type": "json_object"}},
        {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True},
        {"tool_choice": "none", "chat_template_kwargs": {"enable_thinking": False}},
        {"add_generation_prompt": False, "continue_final_message": True, "documents": []},
    ],
)
def test_supported_fields_are_taken(tmp_path: Path, body: dict[str, Any]) -> None:
    """The ends of every range, and fields that change no answer, are valid."""
    assert lines_by_id(take(tmp_path, request_line("a", **body))) == {"a": 1}


CLASHES: list[tuple[dict[str, Any], str, str]] = [
    ({"top_logprobs": 2}, "invalid_value", "logprobs"),
    ({"min_tokens": 9}, "invalid_value", "min_tokens"),
    ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "invalid_value", "regex and choice"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "invalid_value",
        "response_format",
    ),
    ({"tool_choice": "required"}, "missing_required_parameter", "tools"),
    ({"tool_choice": "auto"}, "missing_required_parameter", "tools"),
    (
        {"tools": TOOLS, "parallel_tool_calls": False},
        "unsupported_parameter",
        "parallel_tool_calls",
    ),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_value",
        "'g'",
    ),
    (
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        "invalid_value",
        "response_format",
    ),
    (
        {
            "tools": [
                {"function": {"name": "f", "parameters": {"$defs": {"x": {"type": "string"}}}}},
                {"function": {"name": "g", "parameters": {"$defs": {"x": {"type": "number"}}}}},
            ],
            "tool_choice": "required",
        },
        "invalid_value",
        "$defs",
    ),
]


@pytest.mark.parametrize(("body", "code", "named"), CLASHES)
def test_what_does_not_fit_together_is_named(
    tmp_path: Path, body: dict[str, Any], code: str, named: str
) -> None:
    """Fields that are valid alone and not together reject their row and are named."""
    rejection = the_rejection(take(tmp_path, request_line("a", **body)))
    assert rejection.code == code
    assert named in rejection.message


DEEP: dict[str, Callable[[Any], dict[str, Any]]] = {
    "parameters of f": lambda schema: {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "tool_choice": "required",
    },
    "structured_outputs.json": lambda schema: {"structured_outputs": {"json": schema}},
    "response_format.json_schema.schema": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}
    },
}


@pytest.mark.parametrize("named", DEEP)
def test_a_schema_that_cannot_be_walked_is_named(tmp_path: Path, named: str) -> None:
    """A schema of 256 levels is taken; one of 257, or almost as deep as a parser goes, is not."""
    lines = [
        request_line(f"{levels}", **DEEP[named]({"items": "DEEP"})).replace(
            '"DEEP"', '{"items":' * (levels - 2) + '{"minItems":1}' + "}" * (levels - 2)
        )
        for levels in (256, 257, 900)
    ]
    taken = take(tmp_path, *lines)
    assert taken.requests["custom_id"].to_list() == ["256"]
    assert [(found.custom_id, found.code) for found in taken.rejections] == [
        ("257", "invalid_value"),
        ("900", "invalid_value"),
    ]
    assert all(f"body: {named} is nested too deeply" in found.message for found in taken.rejections)


VECTOR = {"model": MODEL, "input": "A plum"}


@pytest.mark.parametrize(
    "more", [{}, {"dimensions": 8, "encoding_format": "float"}, {"user": "u", "request_id": "r"}]
)
def test_a_text_can_be_asked_for_its_vector(tmp_path: Path, more: dict[str, Any]) -> None:
    """A body of /v1/embeddings, as one that generates text."""
    taken = take(tmp_path, envelope(url=EMBEDDINGS, body={**VECTOR, **more}))
    assert taken.requests["endpoint"].to_list() == [EMBEDDINGS]


@pytest.mark.parametrize(
    ("more", "code", "named"),
    [
        ({"input": ""}, "empty_prompt", "input"),
        ({"input": ["A plum", "A pear"]}, "unsupported_parameter", "input"),
        ({"input": [[1, 2], [3]]}, "unsupported_parameter", "input"),
        ({"input": [1, -2]}, "invalid_value", "input"),
        ({"input": []}, "empty_prompt", "input"),
        ({"input": None}, "invalid_value", "input"),
        ({"encoding_format": "base64"}, "unsupported_parameter", "encoding_format"),
        ({"dimensions": 0}, "invalid_value", "dimensions"),
        ({"temperature": 0}, "unsupported_parameter", "temperature"),
        ({"messages": []}, "unsupported_parameter", "messages"),
    ],
)
def test_what_no_vector_is_made_of_is_named(
    tmp_path: Path, more: dict[str, Any], code: str, named: str
) -> None:
    """One text a request, and a vector as numbers."""
    line = envelope(url=EMBEDDINGS, body={**VECTOR, **more})
    rejection = the_rejection(take(tmp_path, line))
    assert rejection.code == code
    assert named in rejection.message


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        (["Once", "Twice"], "unsupported_parameter"),
        (["Once"], "unsupported_parameter"),
        ([[1, 2]], "unsupported_parameter"),
        ([1.5], "invalid_value"),
        ([2**31], "invalid_value"),
        ([], "empty_prompt"),
        (7, "invalid_value"),
        ({"prompt_token_ids": [1]}, "invalid_value"),
    ],
)
def test_a_prompt_is_one_text_or_its_token_ids(tmp_path: Path, prompt: Any, code: str) -> None:
    """A list of prompts has no one answer; what else a prompt cannot be is named too."""
    good = [
        envelope(custom_id=f"{at}", url=COMPLETIONS, body={"model": MODEL, "prompt": one})
        for at, one in enumerate(["Once", [1, 2, 49151]])
    ]
    line = envelope(url=COMPLETIONS, body={"model": MODEL, "prompt": prompt})
    taken = take(tmp_path, good[0], line, good[1])
    rejection = the_rejection(taken)
    assert (rejection.line, rejection.code) == (2, code)
    assert "prompt" in rejection.message
    assert lines_by_id(taken) == {"0": 1, "1": 3}


def test_text_parts_become_one_text(tmp_path: Path) -> None:
    """A list of text parts is one text, joined by line ends as the engine does it."""
    parts = [{"type": "text", "text": text} for text in ("Name", "", "the colour")]
    body = parse_body(CHAT, take(tmp_path, request_line("p", parts)).requests["body"][0])
    assert isinstance(body, ChatBody)
    assert body.messages[0].text() == "Name\nthe colour"


@pytest.mark.parametrize("content", [b"", b"\n", BOM, b" \r\n\t\n"])
def test_an_empty_file_is_no_fault(tmp_path: Path, content: bytes) -> None:
    """A file without rows gives no rows: nothing is rejected, nothing fails."""
    file = tmp_path / "empty.jsonl"
    file.write_bytes(content)
    taken = take_files([file], MODEL)
    assert (taken.input_rows, taken.requests.height, taken.rejections) == (0, 0, [])


def test_a_gz_file_is_unpacked(tmp_path: Path) -> None:
    """A packed file gives the requests and lines of the plain one."""
    file = tmp_path / "requests.jsonl.gz"
    file.write_bytes(gzip.compress(A + b"\n\n" + B))
    assert lines_by_id(take_files([file], MODEL)) == {"a": 1, "b": 3}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf16_is_named_as_such(tmp_path: Path, encoding: str) -> None:
    """It is one fault of the file, with the remedy, and not one of each line."""
    with pytest.raises(SourceError, match="is in UTF-16"):
        take(tmp_path, f"\ufeff{request_line('a')}".encode(encoding))


def packed() -> bytes:
    """A gz file of some length."""
    lines = (request_line(f"id-{number}") for number in range(500))
    return gzip.compress("\n".join(lines).encode(), mtime=0)


def spoilt(at: slice) -> bytes:
    """The same with these bytes turned around."""
    content = bytearray(packed())
    content[at] = bytes(byte ^ 0xFF for byte in content[at])
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [packed()[:-30], b"plain text", spoilt(slice(200, 260)), spoilt(slice(-8, -4))],
    ids=["truncated", "not packed", "damaged", "wrong checksum"],
)
def test_a_broken_gz_file_is_a_fault_of_the_source(tmp_path: Path, content: bytes) -> None:
    """A file that cannot be unpacked is named with a remedy, however it is broken."""
    file = tmp_path / "requests.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        take_files([file], MODEL)
    assert str(file) in caught.value.problem
    assert caught.value.remedy


def over_files(declare: Declare, pattern: str, *keys: str) -> Job:
    """A job over request files, with these partitions if any."""
    partitions = {"partitions": {"cadence": "static", "keys": list(keys)}} if keys else {}
    return declare("files", {"source": {"requests": pattern}, "model": MODEL, **partitions})


def test_files_of_a_partition(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables]
) -> None:
    """All files that match are read in the order of their names, each with its own lines."""
    job = over_files(declare, "in/{partition}/*.jsonl", "mon*", "tue")
    for day, name, lines in [
        ("mon*", "2.jsonl", [request_line("c")]),
        ("mon*", "1.jsonl", ["", request_line("a"), request_line("b")]),
        ("monday", "1.jsonl", [request_line("only like the pattern")]),
        ("tue", "1.jsonl", [request_line("other day")]),
    ]:
        folder = deployment.root / "in" / day
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines))
    stats = take_in(job, deployment, tables(job), "mon*")
    rows = tables(job).read("raw_requests", "mon*").sort("source", "line")
    assert [
        (Path(source).name, line, custom_id)
        for source, line, custom_id in rows.select("source", "line", "custom_id").iter_rows()
    ] == [("1.jsonl", 2, "a"), ("1.jsonl", 3, "b"), ("2.jsonl", 1, "c")]
    assert stats.input_rows == 3
    assert tables(job).count("raw_requests") == 3


def test_no_file_is_a_fault_of_the_source(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables]
) -> None:
    """A missing file stops the stage, naming the place with its partition, and the remedy."""
    job = over_files(declare, "in/{partition}.jsonl", "mon")
    with pytest.raises(SourceError) as caught:
        take_in(job, deployment, tables(job), "mon")
    assert str(deployment.root / "in" / "mon.jsonl") in caught.value.problem
    assert "source.requests" in caught.value.remedy


@pytest.mark.parametrize(("folder", "alike"), [("old [1]", "old 1"), ("a*b", "a-b")])
def test_only_the_declared_pattern_is_one(
    deployment: Deployment,
    declare: Declare,
    tables: Callable[[Job], Tables],
    folder: str,
    alike: str,
) -> None:
    """The deployment's own path is taken literally, whatever characters it has."""
    job = over_files(declare, "in/*.jsonl")
    for name in (folder, alike):
        (deployment.root / name / "in").mkdir(parents=True)
        (deployment.root / name / "in" / "a.jsonl").write_text(request_line(name))
    moved = replace(deployment, root=deployment.root / folder)
    take_in(job, moved, tables(job), "all")
    assert tables(job).read("raw_requests")["custom_id"].to_list() == [folder]


def test_bodies_are_kept_byte_for_byte(
    deployment: Deployment, declare: Declare, tables: Callable[[Job], Tables]
) -> None:
    """Spaces, escapes, key order and number forms of a body reach the table as they were."""
    body = (
        '{ "messages":[{"content":"\\u00e9 é \\ud83d\\ude00 \\/ \\n","role":"user"}] , '
        f'"temperature":0.0,\t"max_tokens" : 8, "model":"{MODEL}", "top_p":1.00 }}'
    )
    (deployment.root / "r.jsonl").write_text(
        f'{{"url":"{CHAT}", "body": {body} , "method":"POST","custom_id":"a"}}'
    )
    job = over_files(declare, "r.jsonl")
    take_in(job, deployment, tables(job), "all")
    assert tables(job).read("raw_requests")["body"].to_list() == [body]


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A folder or a pipe, which might never give a line, is named with a remedy."""
    folder, pipe = tmp_path / "folder.jsonl", tmp_path / "pipe.jsonl"
    folder.mkdir()
    os.mkfifo(pipe)
    for place in (folder, pipe):
        with pytest.raises(SourceError, match="no regular file") as caught:
            take_files([place], MODEL)
        assert str(place) in caught.value.problem


def test_a_file_name_may_have_any_bytes(tmp_path: Path) -> None:
    """A name that is not UTF-8 is written with its bytes escaped."""
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl"))
    file.write_bytes(A + b"\nnull\n")
    taken = take_files([file], MODEL)
    assert taken.requests["source"].to_list() == [f"{tmp_path}/caf\\xe9.jsonl"]
    assert the_rejection(taken).source == f"{tmp_path}/caf\\xe9.jsonl"


@pytest.mark.parametrize("added", [B, A])
def test_a_file_that_changes_while_it_is_read_stops(tmp_path: Path, added: bytes) -> None:
    """Between two batches, and between the two readings that a repeated id takes."""
    file = tmp_path / "requests.jsonl"
    file.write_bytes(A + b"\n" + added + b"\n")
    source = RequestFiles([file], MODEL, batch_bytes=1)
    batches = source.batches()
    next(batches)
    with file.open("ab") as more:
        more.write(request_line("late").encode())
    with pytest.raises(SourceError, match="was changed while it was read"):
        list(batches)
    with pytest.raises(SourceError, match="was changed while it was read"):
        list(source.batches())


@pytest.mark.parametrize("then", ["changed", "gone", "come"])
def test_the_files_are_of_one_moment(deployment: Deployment, declare: Declare, then: str) -> None:
    """What happens to one file while a later one is read stops the run, and another is whole."""
    first, last, late = (deployment.root / f"in{n}.jsonl" for n in (1, 2, 3))
    first.write_text(request_line("a"))
    last.write_text(request_line("b"))
    job = over_files(declare, "in*.jsonl")
    batches = source_of(job, deployment, "all").batches()
    assert next(batches).requests["custom_id"].to_list() == ["a"]
    assert next(batches).requests["custom_id"].to_list() == ["b"]
    if then == "changed":
        first.write_text(request_line("another"))
    elif then == "gone":
        first.unlink()
    else:
        late.write_text(request_line("c"))
    named = late if then == "come" else first
    with pytest.raises(SourceError, match=re.escape(str(named))):
        list(batches)
    left = [file for file in (first, last, late) if file.exists()]
    again = take_source(source_of(job, deployment, "all"), MODEL)
    assert again.input_rows == len(left)


@pytest.mark.parametrize("named", ["field", "url", "custom_id"])
def test_a_message_is_short_whatever_it_names(tmp_path: Path, named: str) -> None:
    """A message repeats what the line says, but not megabytes of it; the line itself is kept."""
    long = "x" * 1_000_000
    line = {
        "field": request_line("a", **{long: 1}),
        "url": envelope(url=f"/v1/{long}"),
        "custom_id": envelope(custom_id=[long]),
    }[named]
    rejection = the_rejection(take(tmp_path, line))
    assert named in rejection.message
    assert len(rejection.message) == 500
    assert rejection.original == line.encode()
    (warning,) = take(tmp_path, request_line(long), request_line(long)).warnings
    assert len(warning) == 500


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (envelope(custom_id=-77), "invalid_json_line", "custom_id"),
        (request_line("a", seed=-77), "invalid_value", "seed"),
        (request_line("a", metadata={"k": -77}), "invalid_value", "metadata"),
    ],
)
@pytest.mark.parametrize("number", ["9" * 5000, "1e400"])
def test_a_number_that_nothing_can_hold_is_said_to_be(
    tmp_path: Path, line: str, code: str, said: str, number: str
) -> None:
    """Such a number rejects its line with its place, as whatever it is given."""
    rejection = the_rejection(take(tmp_path, line.replace("-77", number)))
    assert rejection.code == code
    assert "out of range" in rejection.message
    assert said in rejection.message


def nasty_line(dice: random.Random, number: int) -> bytes:
    """A line of a random kind: good, repeated, contradicting, broken, blank."""
    name = f"id-{dice.randrange(60)}"
    kinds: list[str | bytes] = [
        request_line(f"unique-{number}"),
        request_line(name),
        request_line(name, f"Question {dice.randrange(3)}"),
        request_line(name, model="other"),
        request_line(dice.choice([None, 7, "", " "])),
        request_line(name, top_p=dice.choice([0, "1", 2])),
        request_line(name)[: dice.randrange(1, 80)],
        request_line(name).encode().replace(b"Hello", b"\xff\xfe"),
        envelope(url=dice.choice([COMPLETIONS, "/v1/nope"])),
        dice.choice(["null", "[]", "5", '"x"', "{}"]),
        dice.choice(["", " ", "\t\r"]),
    ]
    return _bytes(dice.choice(kinds)) + dice.choice([b"\n", b"\r\n"])


@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_accounted_for(tmp_path: Path, seed: int) -> None:
    """Rows in = rows that requests stand for + rejections, and no line is lost or counted twice."""
    dice = random.Random(seed)
    lines = [request_line("first").encode() + b"\n", *(nasty_line(dice, n) for n in range(300))]
    file = tmp_path / "nasty.jsonl"
    file.write_bytes(b"".join(lines))
    taken = take_files([file], MODEL)
    seen = {number for number, line in enumerate(lines, start=1) if line.strip()}
    rejected = {rejection.line for rejection in taken.rejections}
    accepted = set(taken.requests["line"])
    assert taken.input_rows == len(seen)
    assert taken.input_rows == taken.requests["input_rows"].sum() + len(taken.rejections)
    assert len(rejected) == len(taken.rejections) > 0
    assert not rejected & accepted
    assert rejected | accepted <= seen
    assert accepted >= {n for n, line in enumerate(lines, start=1) if b'"unique-' in line}
    again = take_files([file], MODEL)
    assert again.requests.equals(taken.requests)
    assert again.rejections == taken.rejections


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """It is told as a file that is not there."""
    with pytest.raises(SourceError, match="No request file is at"):
        request_files(name, "", tmp_path, {})
