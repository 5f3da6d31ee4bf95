"""The shape of a model: parameters by the way they are shared out, bytes a token keeps."""

from dataclasses import dataclass
from pathlib import Path

from acdc_dagster.planning.shapes.attention import Attention, attention
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.mlp import Mlp, mlp
from acdc_dagster.planning.shapes.precision import Precision, precision


@dataclass(frozen=True)
class ModelShape:
    """What the planner knows of a model, all from its `config.json`.

    Parameters are counts over all layers. Norms and biases are left out: under 0.1 % of a model.

    Attributes:
        table_params: One vocabulary table, vocabulary times hidden size.
        tied: The output layer is the input table.
        vision_params: Of a vision tower, which takes memory; pictures are not planned for.
    """

    layers: int
    hidden: int
    table_params: int
    tied: bool
    attention: Attention
    mlp: Mlp
    vision_params: int
    precision: Precision

    @property
    def params(self) -> int:
        """All parameters, those of a vision tower included."""
        tables = self.table_params * (1 if self.tied else 2)
        mlps = self.mlp.dense_params + self.mlp.router_params + self.mlp.expert_params
        return tables + self.attention.params + mlps + self.vision_params

    @property
    def token_params(self) -> int:
        """Parameters that each prompt token is multiplied with: no tables, only its experts."""
        mlp = self.mlp
        active = mlp.expert_params * mlp.experts_per_token // max(mlp.experts, 1)
        return self.attention.params + mlp.dense_params + mlp.router_params + active

    @property
    def active_params(self) -> int:
        """Parameters that a generated token is multiplied with: the output layer too."""
        return self.token_params + self.table_params

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        sizes, mlp = self.precision, self.mlp
        plain = self.table_params * (1 if self.tied else 2) + mlp.router_params + self.vision_params
        linear = self.attention.params + mlp.dense_params
        return sizes.plain * plain + sizes.linear * linear + sizes.expert * mlp.expert_params

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token of context takes, below the sliding window if there is one."""
        values = self.attention.full_layers + self.attention.window_layers
        return values * self.attention.kv_values * self.precision.kv

    @property
    def attention_weight(self) -> float:
        """FLOP of a pair of tokens that attend to one another over those of a prompt token.

        2 per pair and multiply-add over 2 per parameter; layers with a sliding window do not grow
        with the context and are left out.
        """
        pair = self.attention.full_layers * self.attention.prefill_values
        return pair / self.token_params


def model_shape(config: Config, dtype: str = "auto", kv_cache_dtype: str = "auto") -> ModelShape:
    """The shape that a configuration describes, in the precisions of an engine.

    Raises:
        ModelError: A field is missing or wrong, or the model is of a kind that is not known.
    """
    layers, hidden = (
        config.number("num_hidden_layers", "n_layer"),
        config.number("hidden_size", "n_embd"),
    )
    return ModelShape(
        layers=layers,
        hidden=hidden,
        table_params=config.number("vocab_size") * hidden,
        tied=_tied(config),
        attention=attention(config, layers, hidden),
        mlp=mlp(config, layers, hidden),
        vision_params=_vision(config),
        precision=precision(config, dtype, kv_cache_dtype),
    )


def read_shape(folder: Path, dtype: str = "auto", kv_cache_dtype: str = "auto") -> ModelShape:
    """The shape of the model in `folder`. Raises as `model_shape` does."""
    return model_shape(Config.read(folder), dtype, kv_cache_dtype)


def _tied(config: Config) -> bool:
    stated = config.whole.get("tie_word_embeddings", config.fields.get("tie_word_embeddings"))
    # Gemma ties without saying so; the default of the other families' configurations is False.
    return bool(stated) if stated is not None else config.text("model_type").startswith("gemma")


def _vision(config: Config) -> int:
    """Of a transformer tower whose sizes are given: four square matrices and an MLP a layer."""
    tower = Config(config.group("vision_config"), {}, config.source)
    width = tower.optional("embed_dim", "hidden_size")
    depth = tower.optional("depth", "num_hidden_layers")
    inner = tower.optional("intermediate_size") or 4 * width
    return depth * (4 * width * width + 2 * width * inner)
