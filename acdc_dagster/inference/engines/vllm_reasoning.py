"""Telling the reasoning of an answer from the answer, with vLLM's own parsers."""

from collections.abc import Sequence
from typing import Any


class Reasoning:
    """Splits the answers of one model.

    Args:
        name: The parser's, as `vllm serve --reasoning-parser` takes it.
        tokenizer: The engine's.
        model_config: The engine's; some parsers ask it for the model's kind.

    Raises:
        Exception: vLLM has no parser of this name, or the tokenizer lacks the tokens it looks for.
    """

    def __init__(self, name: str, tokenizer: Any, model_config: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.reasoning import ReasoningParserManager

        self._make: Any = ReasoningParserManager.get_reasoning_parser(name)
        self._tokenizer = tokenizer
        self._model_config = model_config
        # The parsers ask for one, and look at nothing in it but how it is to be written.
        request = ChatCompletionRequest.model_validate({"messages": []})
        self._request: Any = self._parser().adjust_request(request)

    def adjust(self, parameters: Any) -> None:
        """Keep in the text of an answer the special tokens that the parser looks for."""
        if not self._request.skip_special_tokens:
            parameters.skip_special_tokens = False

    def split(self, prompt: Sequence[int], text: str, tokens: Sequence[int]) -> dict[str, Any]:
        """`reasoning`, `reasoning_tokens` and `text` of one choice, as `Answer` names them.

        Where the prompt ends the reasoning, as that of a model that is told not to think does, all
        of the text is the answer. An answer that was cut while it reasoned has an empty text.
        """
        parser = self._parser()
        start = parser.reasoning_start_str
        if parser.is_reasoning_end(list(prompt)) and (start is None or start not in text):
            return {"text": text}
        reasoning, content = parser.extract_reasoning(text, self._request)
        if not reasoning:
            return {"text": content or ""}
        count = parser.count_reasoning_tokens(tokens)
        start_token = getattr(parser, "start_token_id", None)
        if not count and start_token is not None:  # it stands at the end of the prompt
            count = parser.count_reasoning_tokens([start_token, *tokens])
        return {"reasoning": reasoning, "reasoning_tokens": count, "text": content or ""}

    def _parser(self) -> Any:
        return self._make(self._tokenizer, model_config=self._model_config)
