"""The model that is trained: a transformers decoder, PEFT's adapter on it or none, and a critic or none."""

from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from .channel import Failure
from .head import ChunkedHead
from .message import Tensors


class Batch(NamedTuple):
    """One padded batch; the pulls are absent where it is only scored."""

    tokens_BT: Tensor
    """Right-padded with token 0: what stands after a row's last target cannot matter."""
    rows_M: Tensor
    """Flat index b·T + t − 1 of the position that predicts each target."""
    targets_M: Tensor
    d_logprobs_M: Tensor | None = None
    d_entropy_M: Tensor | None = None
    d_values_M: Tensor | None = None


class Scores(NamedTuple):
    surrogate: Tensor
    """Its gradient is what a backward pass adds."""
    logprobs_M: Tensor
    entropy_M: Tensor
    values_M: Tensor | None


class Policy(nn.Module):
    """
    Trained weights bear files' names: Hugging Face's, PEFT's for an adapter, value_head.weight and value_head.bias.
    """

    def __init__(self, options: dict[str, Any], tensors: Tensors) -> None:
        super().__init__()
        self.options = options
        self.dtype = torch.bfloat16 if options["precision"] == "bf16" else torch.float32
        self.adapted = options["method"]["type"] == "lora"
        self.causal = load_decoder(options["modelDir"], self.dtype if self.adapted else torch.float32)
        self.causal.requires_grad_(not self.adapted)
        if self.adapted:
            add_adapter(self.causal, options["method"])
        self.value_head = nn.Linear(self.causal.config.hidden_size, 1) if options["valueHead"] else None
        if options["gradientCheckpointing"]:
            self.causal.gradient_checkpointing_enable({"use_reentrant": False})
        self.fill(tensors)
        self.normal_input: Tensor | None = None
        self.trunk.norm.register_forward_pre_hook(self._keep_normal_input)

    @property
    def trunk(self) -> nn.Module:
        return self.causal.model

    def trained(self) -> dict[str, nn.Parameter]:
        """What is trained, by its name in files."""
        return {self.file_name(name): each for name, each in self.named_parameters() if each.requires_grad}

    def file_name(self, name: str) -> str:
        if not name.startswith("causal."):
            return name
        name = name.removeprefix("causal.")
        return f"base_model.model.{name.replace('.default.', '.')}" if ".lora_" in name else name

    def fill(self, tensors: Tensors) -> None:
        """Copies weights that the trainer has made; before the model is sharded."""
        trained = self.trained()
        with torch.no_grad():
            for name, tensor in tensors.items():
                trained[name].copy_(tensor)

    def forward(self, batch: Batch) -> Scores:
        with torch.autocast(batch.tokens_BT.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            # Without a mask attention is causal and nothing else: padding is only ever on the right.
            hidden_BTD = self.trunk(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state
        hidden_MD = hidden_BTD.flatten(0, 1).index_select(0, batch.rows_M)
        pulls = None if batch.d_logprobs_M is None else (batch.d_logprobs_M, batch.d_entropy_M)
        surrogate, logprobs, entropy = ChunkedHead.apply(
            hidden_MD, self.causal.lm_head.weight, batch.targets_M, pulls, self.options["temperature"], self.dtype
        )
        values = None
        if self.value_head is not None:
            values = self._values(batch.rows_M)
            if batch.d_values_M is not None:
                surrogate = surrogate + values @ batch.d_values_M
        return Scores(surrogate, logprobs, entropy, values)

    def _values(self, rows_M: Tensor) -> Tensor:
        """The critic reads the final hidden state, normalised and before the norm's gain (../../value-head.ts)."""
        assert self.normal_input is not None and self.value_head is not None
        hidden_MD = self.normal_input.flatten(0, 1).index_select(0, rows_M).float()
        self.normal_input = None
        normal = hidden_MD * torch.rsqrt(hidden_MD.square().mean(-1, keepdim=True) + self.causal.config.rms_norm_eps)
        return self.value_head(normal)[:, 0]

    def _keep_normal_input(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.normal_input = inputs[0] if self.value_head is not None else None


def load_decoder(folder: str, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, local_files_only=True
        )
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise Failure("ERR_MODEL", f"transformers cannot open {folder} ({reason}).") from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise Failure("ERR_MODEL", f"{folder} lacks {len(missing)} weights, the first is {missing[0]}.")
    model.config.use_cache = False
    # Samples hold this token like any other, and its embedding is trained with them.
    model.get_input_embeddings().padding_idx = None
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    return model


def add_adapter(model: nn.Module, method: dict[str, Any]) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=method["rank"],
        lora_alpha=method["alpha"],
        lora_dropout=method["dropout"],
        target_modules=method["targets"],
        task_type="CAUSAL_LM",
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            # Steps of an adapter are smaller than bf16 can tell apart.
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
