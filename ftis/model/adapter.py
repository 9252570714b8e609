"""LoRA adapters through PEFT: a fresh one, or a saved one whose every tensor finds its place.

The sampler and vLLM know an adapter as B A added to a matrix of an inner layer. Whatever else PEFT can do to
a model is refused by its name.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ftis.errors import UserError
from ftis.model.lora import Lora

ADAPTER_FILE = "adapter_config.json"

UNDERSTOOD = frozenset(
    (
        "peft_type",
        "task_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "fan_in_fan_out",
        "init_lora_weights",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "lora_dropout",  # off, since log-probs must be those that were sampled
    )
)
"""Fields of an adapter's config that may have any value; the others must have PEFT's default."""

MERGE = "merge the adapter into its model (PEFT's merge_and_unload) and give that folder"


def add_lora(lm: PreTrainedModel, lora: Lora, seed: int, revision: str | None) -> PreTrainedModel:
    """`lm` with a fresh adapter, which is drawn from `seed`; `revision` is the hub commit of `lm` that it
    records."""
    from peft import LoraConfig, get_peft_model

    targets = list(lora.target_modules) if isinstance(lora.target_modules, tuple) else lora.target_modules
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = get_peft_model(lm, config, revision=revision)
        except ValueError as error:
            raise UserError(f"lora.target_modules: {error}") from None
    _refuse_embeddings(model, "lora.target_modules")
    # A set, whose order differs from process to process: the same adapter must be saved as the same files.
    config.target_modules = sorted(config.target_modules)
    return model


def adapter_base(folder: Path) -> tuple[str, str | None]:
    """The model that the adapter in `folder` was made for, and its hub revision. Raises UserError for an
    adapter that is more than matrices beside matrices."""
    from peft import LoraConfig

    file = folder / ADAPTER_FILE
    try:
        saved = json.loads(file.read_text())
        base, kind = saved["base_model_name_or_path"], saved["peft_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not an adapter's settings ({error}); save the adapter again") from None
    if not base:
        raise UserError(f"{file}: base_model_name_or_path: names no model; write in which it belongs to")
    if kind != "LORA":
        raise UserError(f"{file}: peft_type: {kind} adapters aren't supported, only LORA; {MERGE}")
    default = LoraConfig()
    for name, value in saved.items():
        if name not in UNDERSTOOD and value and value != getattr(default, name, None):
            raise UserError(f"{file}: {name}: {json.dumps(value)} isn't supported; {MERGE}")
    return base, saved.get("revision")


def load_adapter(lm: PreTrainedModel, folder: Path, lora: Lora | None, trained: bool) -> PreTrainedModel:
    """`lm` with the adapter that is saved in `folder`; trained: its tensors take gradients.

    A `lora` must describe the adapter. Raises UserError where it doesn't, or where a tensor of the file has
    no place in the model, or one of the model none in the file.
    """
    from peft import LoraConfig, PeftModel
    from peft.utils import get_peft_model_state_dict, load_peft_weights

    file = folder / ADAPTER_FILE
    config = LoraConfig.from_pretrained(folder)
    config.lora_dropout = 0.0
    try:
        weights = load_peft_weights(str(folder), device="cpu")
        with warnings.catch_warnings():  # about keys, which are compared below
            warnings.simplefilter("ignore")
            # PEFT draws the tensors before it reads them.
            with torch.random.fork_rng(devices=[]):
                model = PeftModel.from_pretrained(lm, str(folder), is_trainable=trained, config=config)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{file}: the adapter doesn't fit its model {lm.name_or_path} ({_first_line(error)}); give the "
            f"model that it was "
            "trained on as base_model_name_or_path"
        ) from None
    _refuse_embeddings(model, f"{file}: target_modules")
    places = get_peft_model_state_dict(model, save_embedding_layers=False)
    if odd := sorted(weights.keys() ^ places.keys()):
        where = "the adapter's file, but not in" if odd[0] in weights else "no file of the adapter, but in"
        raise UserError(
            f"{file}: tensor {odd[0]} is in {where} what its settings make of {lm.name_or_path} ({len(odd)} "
            f"such of "
            f"{len(weights)}); give the model that it was trained on as base_model_name_or_path"
        )
    if isinstance(config.target_modules, set):
        config.target_modules = sorted(config.target_modules)  # as in add_lora
    if lora is not None:
        _require_described(model, lora, file)
    return model


def _require_described(model: PreTrainedModel, lora: Lora, file: Path) -> None:
    """Raise UserError where `lora` asks for another adapter than the one that `model` has."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    config, base = model.peft_config["default"], model.get_base_model()
    there = {"r": config.r, "alpha": config.lora_alpha, "target_modules": config.target_modules}
    here: dict[str, Any] = {"r": lora.r, "alpha": lora.alpha}
    if lora.target_modules == "all-linear":
        head = base.get_output_embeddings()
        bare = [
            name
            for name, module in base.named_modules()
            if isinstance(module, nn.Linear)
            and module is not head
            and not re.search(r"\.(base_layer|lora_)", name)
        ]
        here["target_modules"] = "all-linear" if bare else config.target_modules
    else:
        here["target_modules"] = sorted(lora.target_modules or DEFAULTS.get(base.config.model_type, ()))
    for name, wanted in here.items():
        if wanted != there[name]:
            raise UserError(
                f"lora.{name}: {wanted}, but the adapter that is trained on has {there[name]} ({file}); "
                f"leave lora out "
                "to go on with it as it is, or merge it into its model for a new one"
            )


def _refuse_embeddings(model: PreTrainedModel, what: str) -> None:
    """The log-probs come from the bare embedding and output matrices, which an adapter beside them would not
    change."""
    base = model.get_base_model()
    ends = {base.get_input_embeddings(): "input embedding", base.get_output_embeddings(): "output layer"}
    for name, module in base.named_modules():
        if module in ends and hasattr(module, "base_layer"):
            raise UserError(
                f"{what}: an adapter on {name} (the {ends[module]}) isn't supported; leave it out, or for a "
                f"trained adapter "
                f"{MERGE}"
            )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
