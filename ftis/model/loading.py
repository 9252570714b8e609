"""From a folder or a hub name to a policy: its device, its tokenizer, its stop ids, its weights and its
adapter.

What this trainer can't do is refused here by name (`docs/models.md` lists it), and what no name gives away is
found by running the model (`ftis.model.check`).
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from ftis.errors import UserError
from ftis.hub import no_copy, require_hub
from ftis.model.adapter import ADAPTER_FILE, adapter_base, add_lora, load_adapter
from ftis.model.check import check_policy
from ftis.model.lora import Lora
from ftis.model.policy import Policy, vocabulary

logging.disable_progress_bar()

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies change with the length of the text: a token's log-prob then depends on
how much has been written after the keys that it reads, and cached keys are of other frequencies than fresh
ones."""


def pick_device(name: str = "auto", turn: int = 0) -> torch.device:
    """auto: the GPUs that torch sees, dealt out in turn (a node's index is its `turn`), else cpu."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = f"cuda:{turn % gpus}" if gpus else "cpu"
    if name.startswith("cuda") and not gpus:
        raise UserError(f"device: {name!r} was asked for, but torch sees no GPU; use 'auto' or 'cpu'")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"device: torch knows none by the name {name!r}; use 'auto', 'cpu' or 'cuda:0'"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(
            f"device: {name!r} was asked for, but torch sees {gpus} GPU{'s' * (gpus > 1)}, cuda:0 "
            f"{f'to cuda:{gpus - 1} ' * (gpus > 1)}(CUDA_VISIBLE_DEVICES may hide some); use 'auto' or ask "
            f"for more"
        )
    return device


def model_source(model: str, revision: str | None) -> tuple[str, dict]:
    """What from_pretrained takes for a folder or a hub name."""
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path), {}
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise UserError(f"model: no folder {model}; give a model folder or a hub name (owner/name)")
    require_hub(model, "model", "config.json", revision)
    return model, {"revision": revision}


def load_tokenizer(model: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer and check that it survives a round trip.

    A folder with a tokenizer.json is read as it stands: AutoTokenizer would put a qwen2 folder's
    word-level tokenizer into Qwen2's own class, which silently mangles it.
    """
    source, extra = model_source(model, revision)
    try:
        if (Path(source) / "tokenizer.json").is_file():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, **extra)
    except (OSError, ValueError, ImportError) as error:
        raise _unavailable("tokenizer", model, error) from None
    probe = "Tom has 12 pens."
    if tokenizer.decode(tokenizer(probe, add_special_tokens=False).input_ids).strip() != probe:
        raise UserError(f"tokenizer of {model}: encoding and decoding {probe!r} doesn't give it back")
    return tokenizer


def load_policy(
    model: str,
    revision: str | None = None,
    lora: Lora | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    gradient_checkpointing: bool = False,
    lora_seed: int = 0,
    turn: int = 0,
    trained: bool = True,
) -> Policy:
    """Load a model in float32 with its tokenizer, without dropout, and check that it computes what
    transformers does.

    `lora` adds a fresh adapter drawn from `lora_seed`. A folder with an adapter is loaded on the base model
    that it names; trained, it is the adapter that learns on, and a `lora` must then describe it. `turn` deals
    out the GPUs (see `pick_device`). trained False: no weight takes a gradient, and none is tried out, which
    saves their memory.

    Stop ids are the union of the config's, the generation config's and the tokenizer's eos. Raises UserError
    where the model isn't there, is of a kind that this trainer can't do, or computes other log-probs or
    gradients here than by itself.

    >>> policy = ftis.load_policy("examples/made/base", device="cpu")
    >>> isinstance(policy, ftis.Policy), policy.compute_dtype
    (True, torch.float32)
    """
    source, _ = model_source(model, revision)
    where = pick_device(device, turn)
    tokenizer = load_tokenizer(model, revision)
    is_adapter = (Path(source) / ADAPTER_FILE).is_file()
    if is_adapter:
        base, base_revision = adapter_base(Path(source))
        try:
            lm = _load_model(base, base_revision)
        except UserError as error:
            raise UserError(f"{Path(source) / ADAPTER_FILE}: base_model_name_or_path: {error}") from None
    else:
        lm = _load_model(model, revision)
    _refuse_by_name(model, lm, tokenizer)
    stop = stop_ids(model, tokenizer, lm.config, lm.generation_config)
    if is_adapter:
        lm = load_adapter(lm, Path(source), lora, trained)
    elif lora is not None:
        # The adapter records which commit of a hub model it belongs to; a folder has none.
        lm = add_lora(lm, lora, lora_seed, None if Path(source).is_dir() else revision)
    if not trained:
        lm.requires_grad_(False)
    lm.to(where).eval()
    if gradient_checkpointing:
        # transformers recomputes activations in train mode only; without dropout that changes nothing else.
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        lm.train()
    policy = Policy(lm, tokenizer, stop, where, getattr(torch, compute_dtype))
    check_policy(policy)
    return policy


def _load_model(model: str, revision: str | None) -> PreTrainedModel:
    source, extra = model_source(model, revision)
    if (Path(source) / ADAPTER_FILE).is_file():
        raise UserError(f"model {model}: an adapter, where a model is needed; merge it into its model first")
    try:
        config = AutoConfig.from_pretrained(source, **extra)
        _without_dropout(config)
        lm = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=torch.float32, **extra)
    except (OSError, ValueError, ImportError) as error:
        raise _unavailable("model", model, error) from None
    if getattr(lm, "_hf_peft_config_loaded", False):
        raise UserError(f"model {model}: an adapter on the hub; download it, and give its folder")
    return lm


def _without_dropout(config: PretrainedConfig) -> None:
    """A policy's log-probs must be those that were sampled, whatever mode its modules are in."""
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def _refuse_by_name(model: str, lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError for what a short text wouldn't show, or where there is more to say than that numbers
    differ."""
    config = lm.config.get_text_config()
    kind = f"model {model} (type {config.model_type})"
    if getattr(config, "quantization_config", None):
        raise UserError(f"{kind}: its weights are quantised; take the model that they were made from")
    rows = lm.get_input_embeddings().weight.shape[0]
    if (ids := vocabulary(tokenizer)) > rows:
        raise UserError(
            f"model {model}: its tokenizer has ids up to {ids - 1}, its embedding {rows} rows; take the "
            "tokenizer that the model was trained with"
        )
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    if layers != {"full_attention"} or (any(windows) and getattr(config, "use_sliding_window", True)):
        raise UserError(
            f"{kind}: only full attention is supported, not sliding windows or linear layers; take a model "
            f"with full "
            "attention (layer_types, sliding_window in its config.json)"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if parameters.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            raise UserError(
                f"{kind}: its rotary embeddings ({parameters['rope_type']}) change with the length of the "
                f"text, so that the "
                "log-probs sampled and those trained on would differ; set rope_parameters in its "
                "config.json to "
                "default, linear, yarn or llama3"
            )
    head = lm.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise UserError(
            f"{kind}: its output layer has {'a bias' if head is not None else 'no matrix'}, and log-probs "
            f"are computed from "
            "hidden states times one matrix; not supported"
        )


def stop_ids(model: str, tokenizer: PreTrainedTokenizerBase, *configs) -> frozenset[int]:
    """Union of the eos ids of a model's configs and its tokenizer: base models' often differ.

    Raises UserError where there is none, or one that is no id of the tokenizer: it would never be sampled.
    """
    found: set[int | None] = {tokenizer.eos_token_id}
    for config in configs:
        eos = config.eos_token_id
        found |= set(eos) if isinstance(eos, list) else {eos}
    stop = frozenset(i for i in found if i is not None)
    if not stop:
        raise UserError(f"model {model}: neither config nor tokenizer names an eos token; set eos_token_id")
    if beyond := [i for i in sorted(stop) if not 0 <= i < vocabulary(tokenizer)]:
        raise UserError(
            f"model {model}: eos_token_id {beyond[0]} is beyond the tokenizer's ids (up to "
            f"{vocabulary(tokenizer) - 1}), so "
            "that no completion would end with it; correct it in config.json and generation_config.json, or "
            "take the "
            "tokenizer that the model was trained with"
        )
    return stop


def require_context(model: str, config: PretrainedConfig, longest: int) -> None:
    """Raise UserError where a prompt with its completion, `longest` tokens, is more than the model reads."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise UserError(
            f"model {model}: reads {limit} tokens, prompt and completion may need {longest}; lower the "
            f"number of new tokens "
            "(max_new_tokens, max_total_tokens), or take a shorter prompt"
        )


def _unavailable(what: str, model: str, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    return UserError(no_copy(what, model, reason))


def tokenizer_difference(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """A token that two tokenizers give different ids, in words; None where they agree on all."""
    first, second = one.get_vocab(), other.get_vocab()
    if first == second:
        return None
    token = min(t for t in first.keys() | second.keys() if first.get(t) != second.get(t))
    return f"token {token!r} is {first.get(token)} there and {second.get(token)} here"
