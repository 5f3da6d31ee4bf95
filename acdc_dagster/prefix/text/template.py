"""A chat template as Jinja: compiled as transformers compiles it, and read as vLLM reads it.

vLLM looks at a template's text to decide what it hands to it: a message's content as one text or
as a list of parts, and whether it knows the role `developer`.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Template:
    """One compiled chat template.

    Args:
        source: The Jinja text.

    Attributes:
        source: The same.
        takes_parts: It walks over the parts of a content, so a content is given as a list of them.
        takes_developer: It knows the role `developer`.

    Raises:
        TemplateError: The text is no valid Jinja.
    """

    def __init__(self, source: str) -> None:
        jinja = _environment()
        self._template = jinja.from_string(source)
        self.source = source
        self.takes_parts = _walks_over_content(jinja.parse(source))
        self.takes_developer = '"developer"' in source or "'developer'" in source

    def render(self, variables: dict[str, Any]) -> str:
        """The text for these variables; a template may raise anything."""
        return self._template.render(variables)


class _Generation(Extension):
    """`{% generation %}`, which marks an answer for training and changes no text."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment() -> ImmutableSandboxedEnvironment:
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    untyped: Any = jinja
    untyped.filters["tojson"] = _tojson
    untyped.globals["raise_exception"] = _raise_exception
    untyped.globals["strftime_now"] = _strftime_now
    return jinja


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _NoName(Exception):
    """A loop or an assignment to something else than a plain name."""


def _walks_over_content(tree: nodes.Template) -> bool:
    """Whether a loop runs over a message's content, as far as vLLM's reading of the tree goes.

    It follows `messages` through assignments to the loops over it, and a message's content into
    the macros that it is given to. Where that reading gives up, content is one text.
    """
    try:
        messages = set(_aliases(tree, "messages"))
        message = {
            _name(loop.target)
            for loop in tree.find_all(nodes.For)
            if any(_reads(loop.iter, alias) for alias in messages)
        }
        in_macros: set[int] = set()
        given: dict[int, set[str]] = {}
        for macro in tree.find_all(nodes.Macro):
            loops = {id(loop) for loop in macro.find_all(nodes.For)}
            in_macros |= loops
            if parameters := _parameters_with_content(tree, macro, message):
                given |= dict.fromkeys(loops, parameters)
        for loop in tree.find_all(nodes.For):
            over = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
            if (
                any(_reads(loop.iter, name, "content") for name in message)
                or over in given.get(id(loop), ())
                or (over == "content" and id(loop) not in in_macros)
            ):
                _name(loop.target)
                return True
    except _NoName:
        pass
    return False


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """A variable's name, and those that it, or a slice or filter of it, is assigned to."""
    found = [name]
    for alias in found:  # grows while it is read
        yield alias
        for assignment in tree.find_all(nodes.Assign):
            if _reads(assignment.node, alias) and (to := _name(assignment.target)) not in found:
                found.append(to)


def _parameters_with_content(
    tree: nodes.Template, macro: nodes.Macro, message: set[str]
) -> set[str]:
    parameters = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(parameters, call.args, strict=False)]
        given += [(kw.key, kw.value) for kw in call.kwargs if kw.key in parameters]
        found |= {
            parameter
            for parameter, value in given
            if any(_reads(value, name, "content") for name in message)
        }
    return found


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is a variable, or its `key`, as it is or filtered or sliced."""
    while isinstance(node, (nodes.Filter, nodes.Test)) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is not None:
        if isinstance(node, nodes.Getattr):
            read = node.attr
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            read = node.arg.value
        else:
            return False
        if read != key:
            return False
        node = node.node
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NoName
    return target.name
