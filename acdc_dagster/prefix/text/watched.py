"""Texts that a chat template looks for in what messages say, read from the template itself."""

from jinja2 import TemplateError, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What messages and their parts are asked for by name; a template that tests for one of these tests
# the message, not its text.
_KEYS = {
    *("role", "content", "name", "text", "type", "tool_calls", "tool_call_id", "function"),
    *("arguments", "parameters", "properties", "description", "required"),
    *("reasoning", "reasoning_content", "thinking", "image", "image_url", "video", "audio"),
}


def watched(source: str) -> tuple[str, ...]:
    """Texts that a template tests contents for with `in`, replaces, or gives to a method.

    A content with one of them in it may be rendered in a way of its own.
    """
    environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols])
    try:
        tree = environment.parse(source)
    except TemplateError:
        return ()
    found: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            found.update(_texts(compare.expr))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr):
            for argument in call.args:
                found.update(_texts(argument))
    for changed in tree.find_all(nodes.Filter):
        if changed.name == "replace":
            for argument in changed.args:
                found.update(_texts(argument))
    return tuple(sorted(found - _KEYS))


def _texts(node: nodes.Node) -> set[str]:
    constants = [node] if isinstance(node, nodes.Const) else list(node.find_all(nodes.Const))
    return {one.value for one in constants if isinstance(one.value, str) and one.value.strip()}
