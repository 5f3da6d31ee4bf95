"""The prompt file: how it is cut into messages, what it may do, and how its faults are told."""

from pathlib import Path
from typing import Any

import pytest
from support import MODEL, Declare

from acdc_dagster.errors import DeclarationError
from acdc_dagster.requests.prompts.prompt import Fields, Prompt, RowError

PATH = Path("assets/job/prompt.md")


def messages(text: str, **row: Any) -> list[tuple[str, str]]:
    """Role and content of each message for one row."""
    prompt = Prompt.compile(text, PATH)
    return [(message["role"], message["content"]) for message in prompt.messages(row)]


FEW_SHOT = """
<!-- system -->
You tag products.

<!-- user -->
Iron pan

<!-- assistant -->
{"category": "kitchen"}

<!--user-->
{{ title }}
"""


def test_roles_in_their_order() -> None:
    """Each role line begins a message; examples are just more messages."""
    assert messages(FEW_SHOT, title="Train set") == [
        ("system", "You tag products."),
        ("user", "Iron pan"),
        ("assistant", '{"category": "kitchen"}'),
        ("user", "Train set"),
    ]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Tag {{ title }}.\n", "Tag pan."),
        ("\n\n  Tag {{ title }}.\n\nShortly.\n", "Tag pan.\n\nShortly."),
        ("Tag <!-- user --> {{ title }}", "Tag <!-- user --> pan"),
        ("<!-- a note for us -->\n{{ title }}", "<!-- a note for us -->\npan"),
        ("{% raw %}{{ title }}{% endraw %} {{ title }}", "{{ title }} pan"),
        ("{# not sent #}{{ title }}", "pan"),
    ],
)
def test_without_role_lines_the_file_is_one_user_message(text: str, content: str) -> None:
    """Only a line that is nothing but a one-word comment is a role line."""
    assert messages(text, title="pan") == [("user", content)]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (FEW_SHOT, {"title"}),
        ("No columns at all", set[str]()),
        ("{{ a }} {% if b is defined %}{{ c.d }}{% endif %}", {"a", "b", "c"}),
        ("<!-- system -->\n{{ a }}\n<!-- user -->\n{{ b }}", {"a", "b"}),
        ("{% for x in a %}{{ loop.index }}{{ x }}{% endfor %}{% set y = b %}{{ y }}", {"a", "b"}),
        ("{% for n in range(3) %}{{ n }}{% endfor %}{{ a }}", {"a"}),
    ],
)
def test_columns_are_what_the_templates_read(text: str, columns: set[str]) -> None:
    """Over all messages, without what the template makes itself."""
    assert Prompt.compile(text, PATH).columns == columns


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_any_editor_may_save_the_file(declare: Declare, mark: bytes, line_end: str) -> None:
    """Line ends and a byte order mark change no message."""
    job = declare(
        "job", {"source": {"table": "t", "id_column": "id"}, "model": MODEL}, prompt_dot_md="x"
    )
    job.prompt_path.write_bytes(mark + FEW_SHOT.lstrip().replace("\n", line_end).encode())
    read = type(job).load(job.folder)
    assert messages(read.prompt or "", title="Train set") == messages(FEW_SHOT, title="Train set")


@pytest.mark.parametrize(
    ("text", "line", "said", "remedy"),
    [
        ("Hello\n<!-- user -->\nx", 1, "before the first", "<!-- system -->"),
        ("<!-- system -->\nx\n\n<!-- tool -->\ny", 4, "'tool'", "system, user, assistant"),
        ("<!-- User -->\nx", 1, "'User'", "system, user, assistant"),
        ("{{ x", 1, "end of", "raw"),
        ("fine\n{{ x", 2, "end of", "raw"),
        ("\n\nfine\n{{ x", 4, "end of", "raw"),
        ("<!-- user -->\n{{ x", 2, "end of", "raw"),
        ("<!-- system -->\nA\n\n<!-- user -->\nfine\n{{ x | nope }}", 6, "nope", "raw"),
        ("<!-- system -->\nA\n\n<!-- user -->\n{% if x %}\nno end", 5, "endif", "raw"),
        ("<!-- user -->\n{% endif %}", 2, "endif", "raw"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(text: str, line: int, said: str, remedy: str) -> None:
    """A fault of the prompt file names the file, the line in it, what is wrong and a remedy."""
    with pytest.raises(DeclarationError) as caught:
        Prompt.compile(text, PATH)
    assert caught.value.problem.startswith(f"{PATH}:{line}:")
    assert said in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "expression",
    ["''.__class__", "1 / 0", "[] | first | upper", "{}.nothing.at_all"],
)
def test_a_message_that_can_never_be_rendered_is_a_fault_of_the_file(expression: str) -> None:
    """A template that fails without any column is told before a run, as every fault of the file."""
    with pytest.raises(DeclarationError) as caught:
        Prompt.compile(f"<!-- system -->\n{{{{ {expression} }}}}\n<!-- user -->\n{{{{ x }}}}", PATH)
    assert str(PATH) in caught.value.problem


@pytest.mark.parametrize(
    "template",
    [
        "{{ x.__class__ }}",
        "{{ x.__class__.__mro__[1].__subclasses__() }}",
        "{{ x | attr('__class__') }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ xs.append(1) }}",
        "{{ xs.__init__.__globals__ }}",
        "{% for n in range(10000000) %}{{ x }}{% endfor %}",
        "{% include '/etc/passwd' %}{{ x }}",
    ],
)
def test_a_template_stays_in_its_sandbox(template: str) -> None:
    """A template reaches no attribute of Python's own, changes nothing, and reads no file."""
    row = {"x": "text", "xs": [1]}
    prompt = Prompt.compile(template, PATH)
    with pytest.raises(RowError):
        prompt.messages(row)
    assert row == {"x": "text", "xs": [1]}


@pytest.mark.parametrize(
    ("row", "named"),
    [({"a": None, "b": "y"}, "a"), ({"a": None, "b": None}, "a, b")],
)
def test_nulls_are_undefined_and_named(row: dict[str, Any], named: str) -> None:
    """A null is never written as None: the row fails, naming the columns that are null."""
    with pytest.raises(RowError, match=f"null in this row: {named}"):
        Prompt.compile("{{ a }}{{ b }}", PATH).messages(row)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), ("", ""), (False, "False"), ([], "[]")])
def test_only_null_is_null(value: object, text: str) -> None:
    """Values that are false in Python are values."""
    assert messages("[{{ a }}]", a=value) == [("user", f"[{text}]")]


@pytest.mark.parametrize("name", ["range", "self", "dict", "namespace", "loop", "caller", "super"])
def test_a_column_may_have_any_name(name: str) -> None:
    """Jinja's own names are columns where a template has them."""
    text = f"<!-- system -->\nBe brief.\n<!-- user -->\n{{{{ {name} }}}} {{{{ x }}}}"
    assert Prompt.compile(text, PATH).columns == {name, "x"}
    assert messages(text, **{name: "pan", "x": 1})[1] == ("user", "pan 1")
    with pytest.raises(RowError, match=rf"'{name}' is undefined \(null in this row: {name}\)"):
        Prompt.compile(text, PATH).messages({name: None, "x": 1})


@pytest.mark.parametrize(
    ("text", "columns", "defaults", "literals"),
    [
        ("{{ a }}", "a", [None], ["", ""]),
        ("\n\nTag:\n{{ a }} by {{ b }}.\n\n", "ab", [None, None], ["Tag:\n", " by ", "."]),
        ('{{ a | default("none") }}{{ b|d("") }}', "ab", ["none", ""], ["", "", ""]),
        ("{% raw %}{{ x }}{% endraw %} {{ a }}{# not sent #}!", "a", [None], ["{{ x }} ", "!"]),
        (FEW_SHOT, ["title"], [None], ["", ""]),
        ("<!-- user -->\n1 {{ a }}\n<!-- assistant -->\n{", "a", [None], ["1 ", ""]),
    ],
)
def test_the_fields_of_a_simple_message(
    text: str, columns: list[str], defaults: list[str | None], literals: list[str]
) -> None:
    """Columns in order, and the text around them, which put together are the message again."""
    prompt = Prompt.compile(text, PATH)
    fields = prompt.fields()
    assert fields == Fields(tuple(columns), tuple(defaults), tuple(literals))
    row = {column: f"<{column}>" for column in columns}
    values = [*row.values(), ""]
    together = "".join(part for pair in zip(literals, values, strict=True) for part in pair)
    assert together in [message["content"] for message in prompt.messages(row)]


@pytest.mark.parametrize(
    "text",
    [
        "No columns at all",
        "<!-- system -->\n{{ a }}\n<!-- user -->\n{{ b }}",
        "{{ a }} {{ a }}",
        "{{ a.b }}",
        "{{ a | upper }}",
        "{{ a }} {{ 1 + 1 }}",
        "{{ a | default(b) }}",
        "{{ a | default('none', true) }}",
        "{{ a | default(default_value='none') }}",
        "{{ a | default(0) }}",
        "{{ a | default('none') | upper }}",
        "{% if a is defined %}{{ a }}{% endif %}",
        "{% for x in a %}{{ x }}{% endfor %}",
        "{% set b = a %}{{ b }}",
    ],
)
def test_no_fields_where_more_than_columns_varies(text: str) -> None:
    """What is not literal text and plain columns, each once and in one message, is not taken."""
    assert Prompt.compile(text, PATH).fields() is None


@pytest.mark.parametrize(
    "template",
    ["(" * 300 + "a" + ")" * 300, "(" * 3000 + "a" + ")" * 3000, None],
    ids=["300 parentheses", "3000 parentheses", "150 blocks"],
)
def test_what_is_nested_too_deeply_is_told(template: str | None) -> None:
    """Jinja and Python give up on it with errors of their own."""
    deep = "{% if a %}" * 150 + "x" + "{% endif %}" * 150 if template is None else template
    text = f"<!-- system -->\nhi\n<!-- user -->\n{deep if template is None else '{{' + deep + '}}'}"
    with pytest.raises(DeclarationError, match=r"prompt\.md:3: the user message is nested too"):
        Prompt.compile(text, Path("prompt.md"))
