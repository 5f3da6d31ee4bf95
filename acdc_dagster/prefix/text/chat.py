"""A model's chat template: from the messages of a body to the prompt's text."""

from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from acdc_dagster.errors import ModelError
from acdc_dagster.prefix.text.conversation import conversation, tools
from acdc_dagster.prefix.text.template import Template
from acdc_dagster.prefix.text.vision import Vision
from acdc_dagster.prefix.tokens.tokenizer_config import TokenizerConfig
from acdc_dagster.requests.body import ChatBody, Refused

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """The chat template in a model's folder.

    Args:
        folder: Holds the template in chat_template.jinja or tokenizer_config.json.

    Attributes:
        vision: How the model takes images; None if it is not known to take any.

    Raises:
        ModelError: A file is no JSON, or the template no Jinja.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.vision = Vision.of(folder)
        config = TokenizerConfig(folder)
        self._special = config.special_tokens
        self._template = self._compile(config.chat_templates.get("default"))
        with_tools = config.chat_templates.get("tool_use")
        self._with_tools = self._compile(with_tools) if with_tools else self._template
        if self.vision is not None and self.vision.template is not None:
            self._template = self._compile(self.vision.template)

    @staticmethod
    def of(source: str) -> "ChatTemplate":
        """A chat template from its Jinja text, without special tokens of a model."""
        made = ChatTemplate(Path())
        made._template = made._with_tools = made._compile(source)
        return made

    @property
    def source(self) -> str | None:
        """The Jinja text that renders a body without tools; None if the model has no template."""
        return self._template.source if self._template else None

    def render(self, body: ChatBody) -> str:
        """The prompt's text as `vllm serve` renders it.

        Raises:
            Refused: There is no chat template, or it does not take these messages.
        """
        template = self._template if body.tools is None else self._with_tools
        if template is None:
            raise Refused(
                "chat_template_missing",
                f"The model in {self._folder} has no chat template; ask it at /v1/completions.",
            )
        messages = conversation(
            body,
            parts=template.takes_parts,
            developer=template.takes_developer,
            image=self.vision.inserted if self.vision else "",
        )
        # vLLM takes these two values for "not given".
        given = {
            name: value
            for name, value in (body.chat_template_kwargs or {}).items()
            if value not in (None, "auto")
        }
        variables: dict[str, Any] = {
            **self._special,
            **given,
            **_effort(body),
            "messages": messages,
            "tools": tools(body),
            "documents": body.documents,
            "add_generation_prompt": body.add_generation_prompt,
        }
        try:
            if body.continue_final_message:
                return _continued(template, variables)
            return template.render(variables)
        except Exception as error:  # a template can raise anything; it is this body's fault alone
            raise Refused(
                "chat_template_error", f"The model's chat template refuses the messages: {error}."
            ) from None

    def _compile(self, source: str | None) -> Template | None:
        if source is None:
            return None
        try:
            return Template(source)
        except TemplateError as error:
            raise ModelError(
                f"The chat template of {self._folder} is not valid: {error}", "Mend or replace it."
            ) from error


def _effort(body: ChatBody) -> dict[str, Any]:
    """What reasoning_effort tells a template; one that knows thinking only as a switch too."""
    if body.reasoning_effort is None:
        return {}
    told: dict[str, Any] = {"reasoning_effort": body.reasoning_effort}
    if "enable_thinking" not in (body.chat_template_kwargs or {}):
        told["enable_thinking"] = body.reasoning_effort != "none"
    return told


def _continued(template: Template, variables: dict[str, Any]) -> str:
    """The text up to the end of the last message's content, which the model then continues."""
    if "content" not in template.source:
        raise ValueError("it writes no content that could be continued")
    last = variables["messages"][-1]
    holder, key = (last, "content") if isinstance(last["content"], str) else (_last(last), "text")
    content = holder[key]
    holder[key] = content + _TAG
    text = template.render(variables)
    # A template that trims the content trims the tag's blank too.
    if content.strip() not in text or _TAG.strip() not in text:
        raise ValueError("it does not write out the final message, which cannot be continued")
    end = text.rindex(_TAG.strip())
    kept = text[:end]
    return kept if text.startswith(_TAG, end) else kept.rstrip()


def _last(message: dict[str, Any]) -> dict[str, str]:
    if not message["content"]:
        raise ValueError("the final message has no text that could be continued")
    return message["content"][-1]
