"""A vision-language model for tests: of the Idefics3 kind, tiny, with random weights."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = [
    *("<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>"),
    *("<global-img>", *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))),
]
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
CONTEXT = 512
SIDE = 32  # pixels of a tile


def make_vision_folder(folder: Path) -> Path:
    """Write what preparation reads: configuration, tokenizer, chat template and processor."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    untyped: Any = raw
    untyped.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    untyped.decoder = decoders.ByteLevel()
    raw.add_special_tokens(SPECIAL)
    raw.save(str(folder / "tokenizer.json"))
    files: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<end_of_utterance>",
            "pad_token": "<end_of_utterance>",
        },
        "preprocessor_config.json": {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": "Idefics3Processor",
            "do_convert_rgb": True,
            "do_image_splitting": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "max_image_size": {"longest_edge": SIDE},
            "size": {"longest_edge": 2 * SIDE},
            "resample": 1,
            "rescale_factor": 1 / 255,
        },
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": 4},
        "config.json": {
            "model_type": "idefics3",
            "architectures": ["Idefics3ForConditionalGeneration"],
            "image_token_id": raw.token_to_id("<image>"),
            "scale_factor": 2,
            "tie_word_embeddings": False,
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": SIDE,
                "patch_size": 8,
            },
            "text_config": {
                "model_type": "llama",
                "vocab_size": raw.get_vocab_size(),
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "max_position_embeddings": CONTEXT,
                "bos_token_id": 256,
                "eos_token_id": 257,
                "pad_token_id": 257,
            },
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def make_vision_model(folder: Path) -> Path:
    """Write the whole model, with random weights."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    make_vision_folder(folder)
    torch.manual_seed(0)
    config = Idefics3Config.from_pretrained(folder)
    Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def png(red: int, width: int = 40, height: int = 24) -> bytes:
    """A picture of one colour."""

    def chunk(name: bytes, content: bytes) -> bytes:
        checked = name + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    row = b"\0" + bytes([red, 80, 160]) * width
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(row * height))
        + chunk(b"IEND", b"")
    )


def data_url(image: bytes, media_type: str = "image/png") -> str:
    """The image as the OpenAI API takes it."""
    return f"data:{media_type};base64,{base64.b64encode(image).decode()}"


def image_part(image: bytes) -> dict[str, Any]:
    """A part of a message's content."""
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def text_part(text: str) -> dict[str, Any]:
    """Likewise."""
    return {"type": "text", "text": text}


def showing(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A chat body with one user message of these parts."""
    messages = [{"role": "user", "content": list(parts)}]
    return {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 4, **more}
