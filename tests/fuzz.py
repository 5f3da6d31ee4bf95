"""OpenAI-batch files as no one should write them: seeded, and read again by Python's own JSON."""

import json
import random
from collections.abc import Callable
from json.decoder import scanstring
from typing import Any

from support import MODEL

BOM = b"\xef\xbb\xbf"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Pairs = list[tuple[str, Any]]

_WORDS = [
    *("Hello", "Straße", "漢字", "😀", '"body"', '"custom_id":"x"', "{", "}}", "\\", "/", "\x00"),
    *("\n", "\r\n", "\u2028", "\x7f", "<|im_start|>", "<|im_end|>\n", " ", "", "a" * 300, "\x85"),
]
_BYTES = [
    *(b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", BOM, b"\r", b"\n", b"\r\n", b'"', b"\\", b"{"),
    *(b"}", b"[", b"]", b",", b":", b"\\u0062", b"\\ud800", b"NaN", b"1e400", b"-0", b"null"),
    *(b'"body":{}', b',"body":null', b'"custom_id":"twice",', b"//", b"9" * 30, b"\x0b", b" "),
]
_ATOMS: list[Any] = [
    *(None, True, False, 0, -1, 7, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5, 1e308, -0.0),
    *("", " ", "text", "../../x", "'; drop table x; --", [], {}, [[]], [None], {"a": {"b": []}}),
]
_FIELDS = [
    *("model", "messages", "temperature", "max_tokens", "top_p", "top_k", "seed", "stop", "n"),
    *("stream", "user", "metadata", "tools", "tool_choice", "response_format", "documents"),
    *("chat_template_kwargs", "add_generation_prompt", "logit_bias", "prompt", "store", "body"),
]


class Fuzzer:
    """Makes lines; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._number = 0
        self.good: set[str] = set()  # ids of requests that must be taken

    def file(self, lines: int) -> bytes:
        """A file of about so many lines; the first is a valid chat request."""
        parts = [self._dice.choice([b"", BOM]), self._valid()]
        for _ in range(lines):
            parts.append(self._dice.choices([b"\n", b"\r\n", b"\r\r\n", b"\n\n"], [9, 3, 1, 1])[0])
            parts.append(self._dice.choice([self._valid, self._odd, self._odd, self._broken])())
        return b"".join([*parts, self._dice.choice([b"", b"\n"])])

    def _valid(self) -> bytes:
        self._number += 1
        odd = self._dice.choice(_WORDS) if self._dice.random() < 0.2 else ""
        name = f"good {self._number}{odd}"
        self.good.add(name)
        return self._written(self._envelope(name, self._body()))

    def _odd(self) -> bytes:
        """A request with something about it that may or may not be allowed."""
        dice = self._dice
        name: Any = f"id-{dice.randrange(40)}"
        body = self._body()
        pairs = self._envelope(name, body)
        for _ in range(dice.randrange(1, 3)):
            dice.choice(
                [
                    lambda: self._set(body, dice.choice(_FIELDS), dice.choice(_ATOMS)),
                    lambda: self._set(pairs, dice.choice(pairs)[0], dice.choice(_ATOMS)),
                    lambda: pairs.append(dice.choice(pairs)),
                    lambda: pairs.append((dice.choice(_WORDS), dice.choice(_ATOMS))),
                    lambda: pairs.append(("body", self._body())),
                    lambda: pairs.remove(dice.choice(pairs)) if len(pairs) > 1 else None,
                    lambda: self._set(pairs, "custom_id", dice.choice(["body", "url", "method"])),
                    lambda: self._set(pairs, "custom_id", "x" * dice.randrange(10_000)),
                    lambda: self._set(pairs, "custom_id", f"same {dice.randrange(9)}"),
                    lambda: self._set(pairs, "url", dice.choice([COMPLETIONS, "/v1/embeddings"])),
                    lambda: self._set(body, "model", dice.choice(["other", MODEL.upper()])),
                    lambda: body.append(dice.choice(body)),
                    lambda: dice.shuffle(body),
                ]
            )()
        dice.shuffle(pairs)
        return self._written(pairs)

    def _broken(self) -> bytes:
        """A line whose bytes were damaged."""
        dice = self._dice
        line = bytearray(dice.choice([self._plain, self._odd])())
        for _ in range(dice.randrange(1, 4)):
            at, to = sorted(dice.randrange(len(line) + 1) for _ in range(2))
            match dice.randrange(7):
                case 0 if at < len(line):
                    line[at] ^= 1 << dice.randrange(8)
                case 1:
                    del line[at : min(to, at + 9)]
                case 2:
                    line[at:at] = dice.choice(_BYTES)
                case 3:
                    line[at:at] = line[at:to]
                case 4:
                    line[at:to] = line[at:to][::-1] if to - at < 20 else line[at:to]
                case 5:
                    del line[dice.randrange(len(line) + 1) :]
                case _:
                    line += dice.choice(_BYTES)
        return bytes(line)

    def _plain(self) -> bytes:
        pairs = [
            (key, dict(value) if key == "body" else value)
            for key, value in self._envelope(f"id-{self._dice.randrange(40)}", self._body())
        ]
        return json.dumps(dict(pairs)).encode()

    def _envelope(self, custom_id: Any, body: Pairs) -> Pairs:
        return [("custom_id", custom_id), ("method", "POST"), ("url", CHAT), ("body", body)]

    def _body(self) -> Pairs:
        dice = self._dice
        content: Any = "".join(dice.choices(_WORDS, k=dice.randrange(5)))
        if dice.random() < 0.1:
            content = [{"type": "text", "text": dice.choice(_WORDS)} for _ in range(2)]
        message = {"role": dice.choice(["user", "system"]), "content": content}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"url": {}}}}
        extra: list[tuple[str, Any]] = [
            *(("max_tokens", 8), ("temperature", 0), ("seed", 1), ("stop", ["\n"]), ("n", 1)),
            *(("tools", [tool]), ("metadata", {"body": {"x": "y"}}), ("user", "{}"), ("top_p", 1)),
        ]
        return [("model", MODEL), ("messages", [message]), *dice.sample(extra, dice.randrange(4))]

    def _set(self, pairs: Pairs, name: str, value: Any) -> None:
        pairs[:] = [*((key, old) for key, old in pairs if key != name), (name, value)]

    def _written(self, pairs: Pairs) -> bytes:
        """As JSON in one of its many spellings."""
        wild = self._dice.random() < 0.3
        text = self._text(pairs, self._dice.choice([0, 0, 0.02]), wild)
        return text.encode()

    def _text(self, value: Any, escaped: float, spaced: bool) -> str:
        space = self._space if spaced else str
        if isinstance(value, str):
            written = json.dumps(value, ensure_ascii=self._dice.random() < 0.5)
            if not escaped or "\\" in written:
                return written
            return "".join(
                f"\\u{ord(c):04x}"
                if c.isalpha() and self._dice.random() < escaped and ord(c) < 2**16
                else c
                for c in written
            )
        if isinstance(value, dict):
            value = list(value.items())
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            items = [
                f"{space()}{self._text(key, escaped, spaced)}{space()}:{space()}"
                f"{self._text(item, escaped, spaced)}{space()}"
                for key, item in value
            ]
            return "{" + ",".join(items) + "}"
        if isinstance(value, list):
            return "[" + ",".join(self._text(item, escaped, spaced) for item in value) + "]"
        return json.dumps(value)

    def _space(self) -> str:
        return self._dice.choice(["", "", " ", "\t", "  ", "\r"])


def members(line: str) -> dict[str, str]:
    """The members of the object on a line, each value as the text that stands there.

    Of a name that comes twice the last one counts, as for Python's JSON.

    Raises:
        ValueError: The line is no JSON object.
    """
    if not isinstance(json.loads(line, parse_constant=_no_constant, parse_int=str), dict):
        raise ValueError("not an object")
    found: dict[str, str] = {}
    read: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(parse_int=str).raw_decode
    at = _after_space(line, line.index("{") + 1)
    while line[at] != "}":
        name, at = scanstring(line, at + 1, True)
        start = _after_space(line, _after_space(line, at) + 1)
        _, at = read(line, start)
        found[name] = line[start:at]
        at = _after_space(line, at)
        if line[at] == ",":
            at = _after_space(line, at + 1)
    return found


def _after_space(line: str, at: int) -> int:
    while line[at] in " \t\r\n":
        at += 1
    return at


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
