"""The attention of a model: its parameters, and what it keeps and multiplies for each token."""

from dataclasses import dataclass

from acdc_dagster.planning.shapes.config import Config

_LAYER_KINDS = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}
# Said only by models in which some layers keep a state of fixed size instead of keys and values.
_STATES = (
    "full_attention_interval",  # Qwen3-Next
    "attn_layer_period",  # Jamba
    "attn_layer_indices",  # Bamba
    "attn_type_list",  # MiniMax-Text-01
    "hybrid_override_pattern",  # Nemotron-H
    "mamba_d_state",
    "mamba_d_ssm",
    "ssm_cfg",
)


@dataclass(frozen=True)
class Attention:
    """Attention of all layers.

    Attributes:
        params: Of all layers.
        heads: Of queries.
        kv_heads: Heads that keys and values are kept for; with MLA one, which all GPUs keep.
        latent: MLA (multi-head latent attention): one vector a token instead of keys and values.
        kv_values: Numbers kept a token and layer, over all heads.
        prefill_values: Multiply-adds a pair of tokens and layer, over all heads, in a prompt.
        decode_values: The same for a generated token; MLA multiplies in its latent space then.
        full_layers: Layers that attend to the whole context.
        window_layers: Layers that attend to the last `window` tokens.
        window: Tokens; 0 if no layer has a window.
    """

    params: int
    heads: int
    kv_heads: int
    latent: bool
    kv_values: int
    prefill_values: int
    decode_values: int
    full_layers: int
    window_layers: int
    window: int


def attention(config: Config, layers: int, hidden: int) -> Attention:
    """The attention that a configuration describes.

    Raises:
        ModelError: A field is missing, or a layer keeps no keys and values.
    """
    heads = config.number("num_attention_heads", "n_head")
    windowed, window = _windows(config, layers)
    if config.optional("kv_lora_rank"):
        return _latent(config, layers, hidden, heads)
    kv_heads = _kv_heads(config) or heads
    head_dim = config.optional("head_dim") or hidden // heads
    if not head_dim:
        raise config.refuse(f"{heads} attention heads do not fit a hidden size of {hidden}.")
    if heads % kv_heads:
        raise config.refuse(f"{heads} attention heads do not share {kv_heads} KV heads evenly.")
    return Attention(
        params=layers * hidden * head_dim * (2 * heads + 2 * kv_heads),
        heads=heads,
        kv_heads=kv_heads,
        latent=False,
        kv_values=2 * kv_heads * head_dim,
        prefill_values=2 * heads * head_dim,
        decode_values=2 * heads * head_dim,
        full_layers=layers - windowed,
        window_layers=windowed,
        window=window,
    )


def _kv_heads(config: Config) -> int:
    """KV heads as vLLM reads them (ModelConfig.get_total_num_kv_heads); 0: one a query head.

    Falcon's older architecture keeps one whatever number it states beside multi_query.
    """
    one = config.flag("multi_query", default=False)
    if one and not config.flag("new_decoder_architecture", default=False):
        return 1
    return config.optional("n_head_kv", "num_kv_heads", "num_key_value_heads")


def _latent(config: Config, layers: int, hidden: int, heads: int) -> Attention:
    """MLA, DeepSeek-V2 (arXiv 2405.04434), section 2.1: a latent and a rotary key a token."""
    latent, rotary = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    key, value = config.number("qk_nope_head_dim") + rotary, config.number("v_head_dim")
    low_rank = config.optional("q_lora_rank")
    query = low_rank * (hidden + heads * key) if low_rank else hidden * heads * key
    up = latent * heads * (key - rotary + value)
    return Attention(
        params=layers * (query + hidden * (latent + rotary) + up + heads * value * hidden),
        heads=heads,
        kv_heads=1,
        latent=True,
        kv_values=latent + rotary,
        prefill_values=heads * (key + value),
        decode_values=heads * (2 * latent + rotary),
        full_layers=layers,
        window_layers=0,
        window=0,
    )


def _windows(config: Config, layers: int) -> tuple[int, int]:
    """Layers with a sliding window, and its tokens."""
    states = [name for name in _STATES if config.fields.get(name) is not None]
    if states:
        raise config.refuse(f"{states[0]}: layers that keep a state are not known.")
    window = config.optional("sliding_window", "attention_chunk_size")
    kinds = config.items("layer_types")
    unknown = sorted({str(kind) for kind in kinds} - set(_LAYER_KINDS))
    if unknown:
        raise config.refuse(f"layers of the kind {', '.join(unknown)} are not known.")
    if kinds and len(kinds) != layers:
        raise config.refuse(f"layer_types names {len(kinds)} of {layers} layers.")
    if not window or not config.flag("use_sliding_window", default=True):
        return 0, 0
    if kinds:
        windowed = sum(_LAYER_KINDS[str(kind)] for kind in kinds)
    elif every := _full_every(config):
        windowed = layers - layers // every
    else:  # Qwen2: from max_window_layers on; else all, as in Mistral 7B v0.1
        windowed = max(layers - config.optional("max_window_layers"), 0)
    return windowed, window if windowed else 0


def _full_every(config: Config) -> int:
    """One layer in so many attends to everything; 0 if the configuration does not say."""
    stated = config.optional("sliding_window_pattern")
    # Before layer_types was written. Llama 4: every fourth layer, that without rotary positions.
    known = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "llama4": 4, "llama4_text": 4}
    return stated or known.get(config.text("model_type"), 0)
