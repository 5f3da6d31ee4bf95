"""Small models' folders in the manner of well-known families: a chat template and a tokenizer.

The templates are written for these tests. Each has what its family is known for: its special
tokens, where it trims, whether it writes the first token itself, what it refuses.
"""
# ruff: noqa: RUF001  # DeepSeek's special tokens have wide bars

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The committee met on Monday and agreed to publish the report by 12 March 2026.",
    "Sort these tickets: refund, delivery, login. Answer with one word and nothing else.",
    "user assistant system tool model function name arguments weather city Paris London",
    "naïve café — 漢字かな 한국어 русский ελληνικά 😀 e\u0301 2 + 2 = 4; 3,141,592",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
] * 3

LLAMA = """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set instructions = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set instructions = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {{- "You may call these functions:\n\n" }}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ "\n\n" }}{% endfor %}
{%- endif %}
{{- instructions + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("One call at a time.") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' + (call.arguments | tojson) + "}<|eot_id|>" }}
    {%- elif message.role in ["tool", "ipython"] %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" + message.content + "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
    {{- "# Tools\n\nFunctions, one a line:\n<tools>" }}
    {%- for tool in tools %}{{ "\n" }}{{ tool | tojson }}{% endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.open and message.role == "user" %}
        {%- set ns.open = false %}
        {%- set ns.last = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- set said = message.content %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in said %}
            {%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- said }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n' if (loop.first and said) or not loop.first else '' }}
            {{- '<tool_call>\n' }}{{ call.function | tojson }}{{ '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """
{%- if messages[0]["role"] == "system" %}
    {%- set instructions = messages[0]["content"] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- set ns = namespace(at=0) %}
{%- for message in turns %}
    {%- if message.role in ("user", "assistant") and not message.tool_calls %}
        {%- if (message.role == "user") != (ns.at % 2 == 0) %}
            {{- raise_exception("After the system message, user and assistant take turns.") }}
        {%- endif %}
        {%- set ns.at = ns.at + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in turns %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and tools is not none %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + (value | tojson) + (", " if not loop.last else "}}") }}
                {%- endfor %}
                {{- ", " if not loop.last else "]" }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and instructions is defined %}
            {{- "[INST] " + instructions + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception("An id has 9 letters.") }}{% endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {{- ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] in ["tool", "tool_results"] %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' }}
        {{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Roles: user, assistant, tool, and system at the head.") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set before = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set before = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set before = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (before if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a small assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}"
    "{% endgeneration %}{% else %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}\n"
)

DEEPSEEK = """
{%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(first=true, outputs=false, system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- set ns.system = ns.system + ('' if ns.first else '\n\n') + message['content'] %}
        {%- set ns.first = false %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}{{ ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set ns.outputs = false %}
        {{- '<｜User｜>' + message['content'] }}
    {%- elif message['role'] == 'assistant' and message['tool_calls'] is defined %}
        {{- '<｜Assistant｜>' + (message['content'] or '') + '<｜tool▁calls▁begin｜>' }}
        {%- for call in message['tool_calls'] %}
            {{- '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' }}
            {{- call['function']['name'] }}
            {{- '\n```json\n' + call['function']['arguments'] | tojson + '\n```' }}
            {{- '<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- elif message['role'] == 'assistant' %}
        {%- set said = message['content'] %}
        {%- if '</think>' in said %}{% set said = said.split('</think>')[-1] %}{% endif %}
        {{- '' if ns.outputs else '<｜Assistant｜>' }}{{ said + '<｜end▁of▁sentence｜>' }}
        {%- set ns.outputs = false %}
    {%- elif message['role'] == 'tool' %}
        {{- '' if ns.outputs else '<｜tool▁outputs▁begin｜>' }}
        {{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}
        {%- set ns.outputs = true %}
    {%- endif %}
{%- endfor %}
{%- if ns.outputs %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- if add_generation_prompt and not ns.outputs %}{{ '<｜Assistant｜><think>\n' }}{% endif %}
"""

PHI = """
{%- macro written(content) %}
    {%- for part in content %}{{ part.text }}{% endfor %}
{%- endmacro %}
{%- for message in messages %}
    {%- if message.role == "developer" %}
        {{- "<|system|>\nFor developers: " ~ written(message.content) ~ "<|end|>\n" }}
    {%- else %}
        {{- "<|" ~ message.role ~ "|>\n" ~ written(message.content) ~ "<|end|>\n" }}
    {%- endif %}
{%- endfor %}
{{- "<|assistant|>\n" if add_generation_prompt else eos_token }}
{{- pad_token }}{{ sep_token }}{{ image_token }}
"""


@dataclass(frozen=True)
class Family:
    """A way to write chats.

    Attributes:
        template: Jinja text.
        special: The tokens that tokenizer.json marks as special.
        tokenizer: An untrained tokenizer and its trainer's class.
        first: The token that the tokenizer puts before a prompt by itself.
        config: tokenizer_config.json but for the template.
        model: What config.json says of the model's kind.
    """

    template: str
    special: tuple[str, ...]
    tokenizer: Callable[[], Tokenizer]
    first: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    model: tuple[str, str] = ("llama", "LlamaForCausalLM")

    def write(self, folder: Path) -> Path:
        """Make a model's folder without weights; its tokenizer is trained on a few lines."""
        tokenizer: Any = self.tokenizer()
        special = [AddedToken(token, special=True, normalized=False) for token in self.special]
        if isinstance(tokenizer.model, models.Unigram):
            trainer: Any = trainers.UnigramTrainer(
                vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False
            )
        else:
            pieces = [f"<0x{byte:02X}>" for byte in range(256)]
            falls_back = tokenizer.model.byte_fallback
            trainer = trainers.BpeTrainer(
                vocab_size=900,
                special_tokens=[*special, *(pieces if falls_back else [])],
                initial_alphabet=[] if falls_back else pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )
        tokenizer.train_from_iterator(CORPUS, trainer)
        if self.first is not None:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{self.first} $A",
                special_tokens=[(self.first, tokenizer.token_to_id(self.first))],
            )
        folder.mkdir(parents=True, exist_ok=True)
        written = json.loads(tokenizer.to_str())
        # The bytes are pieces of the vocabulary, not tokens to look for in a text.
        written["added_tokens"] = [
            token for token in written["added_tokens"] if not token["content"].startswith("<0x")
        ]
        (folder / "tokenizer.json").write_text(json.dumps(written))
        (folder / "chat_template.jinja").write_text(self.template)
        (folder / "tokenizer_config.json").write_text(json.dumps(self.config))
        kind, architecture = self.model
        shape = {
            "model_type": kind,
            "architectures": [architecture],
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": 1,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "vocab_size": 1024,
            "torch_dtype": "float32",
        }
        (folder / "config.json").write_text(json.dumps(shape))
        return folder


_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS_AND_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _bytes_of_words() -> Tokenizer:
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _split(_WORDS)
    return tokenizer


def _composed_bytes() -> Tokenizer:
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _split(_WORDS_AND_DIGITS)
    return tokenizer


def _digits_and_bytes() -> Tokenizer:
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def _pieces_with_bytes() -> Tokenizer:
    tokenizer: Any = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first", split=False
    )
    return tokenizer


def _replaced_blanks() -> Tokenizer:
    tokenizer: Any = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def _likely_pieces() -> Tokenizer:
    tokenizer: Any = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


FAMILIES = {
    "llama": Family(
        template=LLAMA,
        special=(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        tokenizer=_bytes_of_words,
        first="<|begin_of_text|>",
        config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
        },
    ),
    "qwen": Family(
        template=QWEN,
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        tokenizer=_composed_bytes,
        config={
            "tokenizer_class": "Qwen2Tokenizer",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "add_bos_token": False,
        },
        model=("qwen3", "Qwen3ForCausalLM"),
    ),
    "mistral": Family(
        template=MISTRAL,
        special=(
            "<unk>",
            "<s>",
            "</s>",
            "[INST]",
            "[/INST]",
            "[TOOL_CALLS]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
        tokenizer=_pieces_with_bytes,
        first="<s>",
        config={
            "tokenizer_class": "LlamaTokenizer",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "add_bos_token": True,
            "legacy": False,
        },
    ),
    "gemma": Family(
        template=GEMMA,
        special=("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        tokenizer=_replaced_blanks,
        first="<bos>",
        config={
            "tokenizer_class": "GemmaTokenizer",
            "bos_token": {"__type": "AddedToken", "content": "<bos>", "special": True},
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        },
    ),
    "smollm": Family(
        template=SMOLLM,
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        tokenizer=_digits_and_bytes,
        config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        },
    ),
    "deepseek": Family(
        template=DEEPSEEK,
        special=(
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁outputs▁begin｜>",
        ),
        tokenizer=_bytes_of_words,
        first="<｜begin▁of▁sentence｜>",
        config={
            "tokenizer_class": "LlamaTokenizerFast",
            "add_bos_token": True,
            "bos_token": {"__type": "AddedToken", "content": "<｜begin▁of▁sentence｜>"},
            "eos_token": {"__type": "AddedToken", "content": "<｜end▁of▁sentence｜>"},
        },
        model=("deepseek_v3", "DeepseekV3ForCausalLM"),
    ),
    "phi": Family(
        template=PHI,
        special=("<unk>", "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
        tokenizer=_likely_pieces,
        config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
            "sep_token": "<|sep|>",  # not in tokenizer.json
            "image_token": "<|image|>",
            "extra_special_tokens": ["<|extra|>"],
            # Other flags than in tokenizer.json: blanks after the token belong to it.
            "added_tokens_decoder": {
                "2": {"content": "<|end|>", "rstrip": True, "special": True},
                "3": {"content": "<|user|>", "rstrip": True, "special": True},
                "4": {"content": "<|assistant|>", "rstrip": True, "special": True},
            },
        },
    ),
}
