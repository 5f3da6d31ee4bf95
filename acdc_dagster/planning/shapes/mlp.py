"""The layers between attention: dense, or routed experts with or without shared ones."""

from dataclasses import dataclass

from acdc_dagster.planning.shapes.config import Config

# Two matrices, up and down; every other family has a gate beside them.
_UNGATED = ("gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2", "nemotron")


@dataclass(frozen=True)
class Mlp:
    """The MLPs of all layers, in parameters.

    Attributes:
        dense_params: Of dense layers and of shared experts, which each token passes.
        router_params: Of the routers.
        expert_params: Of all routed experts.
        layers: Layers with routed experts.
        experts: Routed experts of such a layer; 0 in a dense model.
        experts_per_token: Of them, those that a token passes.
    """

    dense_params: int
    router_params: int
    expert_params: int
    layers: int
    experts: int
    experts_per_token: int


def mlp(config: Config, layers: int, hidden: int) -> Mlp:
    """The MLPs that a configuration describes.

    Raises:
        ModelError: A field is missing or wrong.
    """
    matrices = 2 if config.text("model_type") in _UNGATED else 3
    experts = config.optional("num_experts", "num_local_experts", "n_routed_experts")
    if experts <= 1:
        return Mlp(layers * matrices * hidden * _width(config, hidden), 0, 0, 0, 0, 0)
    chosen = config.number("num_experts_per_tok", "experts_per_token", "top_k")
    if chosen > experts:
        raise config.refuse(f"a token passes {chosen} of {experts} experts.")
    routed = _routed_layers(config, layers)
    inner = config.optional("moe_intermediate_size") or config.number("intermediate_size")
    dense = 0
    if routed < layers:
        width = config.optional("intermediate_size_mlp") or _width(config, hidden)
        dense = (layers - routed) * 3 * hidden * width
    return Mlp(
        dense_params=dense + routed * 3 * hidden * _shared_width(config, inner),
        router_params=routed * hidden * experts,
        expert_params=routed * experts * 3 * hidden * inner,
        layers=routed,
        experts=experts,
        experts_per_token=chosen,
    )


def _width(config: Config, hidden: int) -> int:
    inner = config.optional("intermediate_size", "n_inner", "ffn_dim")
    if not inner and config.text("model_type") in ("gpt2", "bloom", "falcon", "gptj"):
        return 4 * hidden  # what these families mean by leaving it out
    return inner or config.number("intermediate_size")


def _shared_width(config: Config, inner: int) -> int:
    shared = config.optional("shared_expert_intermediate_size")
    if config.text("model_type").startswith("llama4"):  # one, of a routed expert's size
        return inner
    return shared or config.optional("n_shared_experts") * inner


def _routed_layers(config: Config, layers: int) -> int:
    step = (
        config.optional("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    )
    first = config.optional("first_k_dense_replace")
    dense = config.items("mlp_only_layers")
    # DeepSeek counts from the first layer, Qwen and Llama from the step-th.
    offset = 0 if "moe_layer_freq" in config.fields else 1
    return sum(
        layer >= first and (layer + offset) % step == 0 and layer not in dense
        for layer in range(layers)
    )
