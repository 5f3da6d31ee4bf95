"""Bodies that are read by what is around their last message: only the cost may change."""

import json
import random
from typing import Any

import pytest

from acdc_dagster.requests.body import Refused, parse_line
from acdc_dagster.requests.plain import plain_body, plain_message
from acdc_dagster.requests.repeated import Repeated, last_message

PLAIN: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}],
    "max_tokens": 5,
}


def known_after(bodies: list[str]) -> Repeated[str]:
    """What is learnt of bodies that come one after the other."""
    known = Repeated[str]()
    for body in bodies:
        place = last_message(body)
        assert place is not None
        known.learn(body, place, "known")
    return known


def like(content: str, **changes: Any) -> str:
    """A body with this last message."""
    messages = [*PLAIN["messages"][:-1], {"role": "user", "content": content}]
    return json.dumps({**PLAIN, "messages": messages, **changes})


def is_known(known: Repeated[str], body: str) -> bool:
    place = last_message(body)
    return place is not None and known.get(place) is not None


def test_the_second_body_of_a_kind_makes_it_known() -> None:
    """Then it is known for every last message, and for no other text around it."""
    assert not is_known(known_after([like("a")]), like("b"))
    known = known_after([like("a"), like("b")])
    assert is_known(known, like("c"))
    assert not is_known(known, like("c", max_tokens=6))
    assert not is_known(known, like("c", model="n"))
    assert not is_known(known, json.dumps({**PLAIN, "messages": PLAIN["messages"][1:]}))


def test_the_last_message_lies_where_it_is_said_to_lie() -> None:
    """Its text is the message's JSON; a content may hold what looks like a message."""
    for content in ("a", "", '{"role":"user"}', "ünï 🙂"):
        body = like(content)
        place = last_message(body)
        assert place is not None
        message = plain_message(body[place.start : place.stop])
        assert message is not None
        assert message.content == content


@pytest.mark.parametrize(
    "body",
    [
        # what looks like the last message is in the metadata
        like("a", metadata={"x": [{"role": "user", "content": "b"}]}),
        # the messages are given twice: the later ones count
        like("a")[:-1] + ',"messages":[{"content":"c","role":"user"}]}',
        # an unknown field
        like("a", unknown=1),
        # a content that ends like the messages do
        like("a }] b"),
    ],
)
def test_what_is_not_the_last_message_is_never_known(body: str) -> None:
    """However often such a body comes."""
    assert not is_known(known_after([body] * 3), body)


def test_lines_are_read_as_if_each_were_the_first() -> None:
    """What was learnt of the lines before changes neither a row nor what is wrong with one."""
    models = Repeated[str]()
    kinds = set[str]()
    for line in lines():
        found, wanted = read(line, models), read(line, Repeated[str]())
        assert found == wanted, line
        kinds.add(found[0])
    assert {"row", "invalid_value", "unsupported_parameter", "invalid_json_line"} <= kinds


def test_a_plain_body_is_known_for_what_it_says() -> None:
    """What is around the last message decides all else that a plain body says."""
    seen: dict[tuple[int, str], Any] = {}
    known = Repeated[str]()
    shared = 0
    for line in lines():
        raw = line.partition(b'"body":')[2][:-1].decode()
        body, place = plain_body(raw), last_message(raw)
        if place is None:
            continue
        if known.get(place) is not None and plain_message(raw[place.start : place.stop]):
            assert body is not None
            assert (body.model, body.settings(), body.messages[:-1]) == seen[place.around]
            assert body.messages[-1] == plain_message(raw[place.start : place.stop])
            shared += 1
        if body is not None and plain_message(raw[place.start : place.stop]):
            seen[place.around] = (body.model, body.settings(), body.messages[:-1])
            known.learn(raw, place, "known")
    assert shared > 100


def read(line: bytes, models: Repeated[str]) -> tuple[str, ...]:
    try:
        return ("row", *parse_line(line, models))
    except Refused as refused:
        return (refused.code, refused.message)


def lines() -> list[bytes]:
    """Lines that share what is around their last message, most of them wrong in some way."""
    chosen = random.Random(4)
    contents = ["x", "", "ünï ²", "a }] b", '{"role":"user"}', "\n\n1", "back\\slash \\u0041"]
    beginnings = [[], [("system", "S }]")], [("user", 'q "x" {"role"'), ("assistant", "b")]]
    settings: list[dict[str, Any]] = [
        *({}, {"temperature": 0}, {"temperature": 3}, {"stop": ["a", "}]"]}, {"unknown": 1}),
        *({"metadata": {"role": "user"}}, {"response_format": {"type": "json_schema"}}),
    ]
    found: list[bytes] = []
    for at in range(2000):
        role = chosen.choice(["user"] * 4 + ["system", "assistant", "tool", "nobody"])
        message: dict[str, Any] = {"role": role, "content": chosen.choice(contents)}
        odd = chosen.random()
        if odd < 0.05:
            message = dict(reversed(message.items()))
        elif odd < 0.1:
            message["name"] = "n"
        elif odd < 0.15:
            message["content"] = chosen.choice([None, 5, [{"type": "text", "text": "t"}]])
        first = [{"role": r, "content": text} for r, text in chosen.choice(beginnings)]
        body = {"model": "m", "messages": [*first, message], **chosen.choice(settings)}
        text = json.dumps(body, ensure_ascii=chosen.random() < 0.5)
        broken = chosen.random()
        if broken < 0.04:
            text = text[:-1] + ',"messages":[{"role":"user","content":"again"}]}'
        elif broken < 0.08:
            text = text[:-1]
        elif broken < 0.12:
            text = text.replace("}]", "} ,]", 1)
        head = f'{{"custom_id":"r{at}","method":"POST","url":"/v1/chat/completions","body":'
        found.append(f"{head}{text}}}".encode())
    return found
