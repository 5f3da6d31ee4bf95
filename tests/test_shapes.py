"""The shape of a model from its config.json alone, against what its publisher says of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from model_configs import CONFIGS

from acdc_dagster.errors import ModelError
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import ModelShape, model_shape, read_shape


def shape(name: str, dtype: str = "auto", kv_cache_dtype: str = "auto", **own: Any) -> ModelShape:
    """The shape of a published model, or of one that differs in `own`."""
    return model_shape(Config.of({**CONFIGS[name], **own}, name), dtype, kv_cache_dtype)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("SmolLM2-135M", 134_515_008),
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3-70B", 70_553_706_496),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen3-32B", 32_762_123_264),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen1.5-MoE-A2.7B", 14_315_784_192),
        ("Mixtral-8x7B", 46_702_792_704),
        ("Mistral-7B-v0.1", 7_241_732_096),
        ("DeepSeek-V3", 671_026_419_200),
        ("DeepSeek-V2-Lite", 15_706_484_224),
        ("gpt-oss-20b", 20_914_757_184),
        ("Gemma-3-4B", 4_300_079_472),
    ],
)
def test_parameters_are_those_of_the_published_weights(name: str, params: int) -> None:
    """To 0.5 %: norms, biases and a projection from pictures are left out."""
    assert shape(name).params == pytest.approx(params, rel=0.005)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen3-30B-A3B", 3.3), ("Mixtral-8x7B", 12.9), ("DeepSeek-V3", 37.0), ("gpt-oss-20b", 3.6)],
)
def test_active_parameters_are_those_published(name: str, billions: float) -> None:
    """Publishers count the input table or not; ours is between 0.9 and 1 of what they say."""
    assert 0.9 * billions < shape(name).active_params / 1e9 < 1.01 * billions


@pytest.mark.parametrize(
    ("name", "bytes_a_token"),
    [
        ("Qwen3-30B-A3B", 98_304),
        ("Qwen3-32B", 262_144),
        ("Llama-3.1-8B", 131_072),
        ("Llama-3-70B", 327_680),
        ("Qwen2.5-7B", 57_344),
        ("DeepSeek-V3", 70_272),
    ],
)
def test_a_token_keeps_so_many_bytes(name: str, bytes_a_token: int) -> None:
    """GQA: 2 x layers x KV heads x head size x bytes; MLA: latent and rotary key, once."""
    assert shape(name).kv_bytes_per_token == bytes_a_token
    assert shape(name, kv_cache_dtype="fp8").kv_bytes_per_token == bytes_a_token / 2


def test_weights_weigh_what_their_quantisation_says() -> None:
    """16 bits, 8 bits, 4 bits with scales; tables and routers stay as they are."""
    plain = shape("Llama-3.1-8B")
    assert plain.weight_bytes == 2 * plain.params
    assert shape("Llama-3.1-8B", dtype="float32").weight_bytes == 4 * plain.params
    tables = 2 * 2 * plain.table_params
    linear = plain.params - 2 * plain.table_params
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    awq = shape("Llama-3.1-8B", quantization_config=gptq)
    assert awq.weight_bytes == pytest.approx(tables + linear * (4 + 16 / 128) / 8)
    assert not awq.precision.fp8
    fp8 = shape("Llama-3.1-8B", quantization_config={"quant_method": "fp8"})
    assert (fp8.weight_bytes, fp8.precision.fp8) == (tables + linear, True)
    packed = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": None}}},
    }
    assert shape("Llama-3.1-8B", quantization_config=packed).weight_bytes == tables + linear
    assert shape("gpt-oss-20b").weight_bytes / 1e9 == pytest.approx(13.8, rel=0.02)


def test_layers_with_a_sliding_window_are_told_apart() -> None:
    """Named layer by layer, by a pattern, for all layers, or switched off."""
    layers = {
        name: (found.full_layers, found.window_layers, found.window)
        for name in ("gpt-oss-20b", "Gemma-3-4B", "Mistral-7B-v0.1", "Qwen2.5-7B")
        if (found := shape(name).attention)
    }
    assert layers == {
        "gpt-oss-20b": (12, 12, 128),
        "Gemma-3-4B": (5, 29, 1024),
        "Mistral-7B-v0.1": (0, 32, 4096),
        "Qwen2.5-7B": (28, 0, 0),
    }


def test_attention_weighs_more_in_a_small_model() -> None:
    """A pair of tokens over a token: 2 x layers x heads x head size over the parameters passed."""
    assert shape("Llama-3.1-8B").attention_weight == pytest.approx(3.3e-5, rel=0.2)
    small = shape("SmolLM2-135M")
    assert small.attention_weight == 2 * 30 * 576 / (small.params - small.table_params)
    assert shape("Qwen3-30B-A3B").attention_weight == pytest.approx(1.4e-4, rel=0.1)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
def test_a_missing_field_is_named(name: str, field: str) -> None:
    """The message names the file and the field; nothing is guessed."""
    config = json.loads(json.dumps(CONFIGS[name]))
    del config.get("text_config", config)[field]
    with pytest.raises(ModelError, match=f"{name}: {field}"):
        model_shape(Config.of(config, name))


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"num_key_value_heads": 5}, "5 KV heads"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"layer_types": ["full_attention"] * 16}, "names 16 of 32 layers"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "four"}}, "'gptq' is written"),
        ({"quantization_config": {"quant_method": "gptq", "bits": [4]}}, "'gptq' is written"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"num_attention_heads": 8192, "num_key_value_heads": 8}, "8192 attention heads"),
    ],
)
def test_what_is_not_known_is_refused(own: dict[str, Any], told: str) -> None:
    """A wrong plan is worse than none."""
    with pytest.raises(ModelError, match=told):
        shape("Llama-3.1-8B", **own)


@pytest.mark.parametrize(
    "own",
    [
        {"full_attention_interval": 4},  # Qwen3-Next: 12 of 48 layers keep keys and values
        {"attn_layer_period": 8, "attn_layer_offset": 4},  # Jamba
        {"hybrid_override_pattern": "M-M*"},  # Nemotron-H
        {"mamba_d_ssm": 3072},  # Falcon-H1
        {"attn_type_list": [0] * 28 + [1] * 4},  # MiniMax-Text-01
    ],
)
def test_layers_that_keep_a_state_are_refused(own: dict[str, Any]) -> None:
    """Their configurations have all fields of a transformer, which would be several times off."""
    with pytest.raises(ModelError, match=next(iter(own))):
        shape("Llama-3.1-8B", **own)


@pytest.mark.parametrize(
    ("own", "kv_heads"),
    [
        ({"multi_query": True, "num_kv_heads": 32}, 1),  # Falcon 7B
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}, 8),  # 40B
        ({"multi_query": False}, 32),
        ({"n_head_kv": 4}, 4),
    ],
)
def test_kv_heads_have_several_names(own: dict[str, Any], kv_heads: int) -> None:
    """One for all queries, or the number that the family's own field gives; else one each."""
    found = shape("Llama-3.1-8B", num_key_value_heads=None, **own)
    assert found.attention.kv_heads == kv_heads
    assert found.kv_bytes_per_token == 2 * 32 * kv_heads * 128 * 2


def test_llama_4_attends_to_everything_in_each_fourth_layer() -> None:
    """Its published configuration gives the chunk and not the layers."""
    own = {"model_type": "llama4_text", "attention_chunk_size": 8192}
    found = shape("Llama-3.1-8B", **own).attention
    assert (found.full_layers, found.window_layers, found.window) == (8, 24, 8192)


def test_a_folder_without_a_configuration_is_told(tmp_path: Path) -> None:
    """Missing, no JSON, or no object."""
    with pytest.raises(ModelError, match="cannot be read"):
        read_shape(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=r"no JSON object|cannot be read"):
            read_shape(tmp_path)
