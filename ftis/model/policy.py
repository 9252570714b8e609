"""A node's policy: the model, its trainable weights, and log-probs without the logits tensor."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from ftis.config import NodeConfig
from ftis.errors import UserError
from ftis.hub import no_copy, require_hub
from ftis.model.attention import IMPLEMENTATION, Packing
from ftis.model.logprobs import TokenLogprob, accumulate
from ftis.model.lora import Lora

logging.disable_progress_bar()


@dataclass
class Policy:
    """A causal language model on a device, whose distribution is over the tokenizer's ids only.

    Embeddings are often padded beyond the tokenizer; `vocab_size` cuts the padding off in the sampler
    and in the trainer alike, so that no padded id is sampled and both softmaxes agree.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    device: torch.device
    compute_dtype: torch.dtype

    def __post_init__(self) -> None:
        self.causal_lm.set_attn_implementation(IMPLEMENTATION)

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @property
    def causal_lm(self) -> nn.Module:
        """The transformers model, below PEFT if there is an adapter."""
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

    def head(self) -> Tensor:
        """Output embedding of the tokenizer's ids (V, H)."""
        return self.causal_lm.get_output_embeddings().weight[: self.vocab_size]

    def hidden(self, **inputs) -> Tensor:
        """Last hidden states (N, L, H) of the backbone; keyword arguments are the model's own."""
        return self.causal_lm.base_model(**inputs).last_hidden_state

    def autocast(self) -> AbstractContextManager:
        """Forward and backward in `compute_dtype`."""
        return torch.autocast(
            self.device.type, self.compute_dtype, enabled=self.compute_dtype != torch.float32
        )

    def trainable(self) -> dict[str, Tensor]:
        """Trainable parameters by name, in the model's order."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def token_logprobs(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs and entropies (N, T) in nats of completion tokens, and their mask (N, T) bool.

        A prompt object that stands in several rows, as a group's does, goes through the model once.
        """
        with self.autocast():
            hidden, target, where = self._predicting(prompts, completions)
            logp, entropy = TokenLogprob.apply(hidden, self.head().to(hidden.dtype), target, temperature)
        return _unpacked(logp, where), _unpacked(entropy, where), where

    def accumulate_gradient(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        loss_of: Callable[[slice, Tensor, Tensor, Tensor], Tensor],
        temperature: float = 1.0,
    ) -> None:
        """Add the gradient of a loss of the completions' log-probs to the parameters' `.grad`.

        loss_of(rows, logp, entropy, mask) is called with a few whole completions at a time, (n, T) each, the first
        with gradient, and returns their scalar loss; losses add up. Same gradient as `token_logprobs` and a
        backward, with a matrix product less (see `ftis.model.logprobs.accumulate`).
        """
        with self.autocast():
            hidden, target, mask = self._predicting(prompts, completions)
            weight = self.head().detach().to(hidden.dtype)

            def packed(rows: slice, logp: Tensor, entropy: Tensor) -> Tensor:
                where = mask[rows]
                where = where[:, : int(where.sum(1).max())]
                return loss_of(rows, _unpacked(logp, where), _unpacked(entropy, where), where)

            with torch.no_grad():
                lengths = [len(c) for c in completions]
                gradient = accumulate(
                    hidden, weight, self._head_gradient(), target, lengths, temperature, packed
                )
        hidden.backward(gradient)

    def _embedded(self, ids: Tensor) -> Tensor:
        """Embeddings (1, M, H) of ids (1, M). Their gradient goes into the rows that were read; torch's own is as
        large as the embedding."""
        table = self.causal_lm.get_input_embeddings()
        if not torch.is_grad_enabled() or type(table) is not nn.Embedding or not table.weight.requires_grad:
            return table(ids)
        weight = table.weight
        found = weight.detach()[ids].requires_grad_()

        def add(gradient: Tensor) -> None:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradient = gradient.to(weight.dtype)
            # Each is the one that repeats its bits: on a CPU, threads of index_put_ add to a row in whichever order they
            # come, on a GPU those of index_add_ do.
            if gradient.device.type == "cpu":
                weight.grad.index_add_(0, ids.flatten(), gradient.flatten(0, 1))
            else:
                weight.grad.index_put_((ids,), gradient, accumulate=True)

        found.register_hook(add)
        return found

    def _head_gradient(self) -> Tensor | None:
        """Where the gradient of `head()` adds up (V, H); None where it isn't trained."""
        whole = self.causal_lm.get_output_embeddings().weight
        if not whole.requires_grad:
            return None
        if whole.grad is None:
            whole.grad = torch.zeros_like(whole)
        return whole.grad[: self.vocab_size]

    def _predicting(self, prompts, completions) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states (M, H) that predict the M completion tokens (M,), and where those stand (N, T) bool."""
        packing = Packing.of(prompts, completions, self.device)
        # A mask of four dimensions goes through the model as it is.
        hidden = self.hidden(
            inputs_embeds=self._embedded(packing.ids),
            position_ids=packing.positions,
            attention_mask=packing.visible,
            packing=packing,
            use_cache=False,
        )[0, packing.prompt_tokens :]
        target = torch.from_numpy(np.concatenate([np.asarray(c, np.int64) for c in completions]))
        lengths = torch.tensor([len(c) for c in completions], device=self.device)
        mask = torch.arange(int(lengths.max()), device=self.device) < lengths[:, None]
        # The last norm leaves float32 under autocast; the head's products are in the compute type, as the sampler's.
        return hidden.to(self.compute_dtype), target.to(self.device), mask

    def save(self, folder: Path) -> None:
        """Write the model (or the adapter) and the tokenizer, loadable by transformers and PEFT."""
        self.model.save_pretrained(folder)
        # Whether the hub could be reached is no part of a tokenizer; with it, equal runs have other checksums.
        self.tokenizer.init_kwargs.pop("local_files_only", None)
        self.tokenizer.save_pretrained(folder)


def _unpacked(values: Tensor, where: Tensor) -> Tensor:
    """(M,) values in their places (N, T), 0 elsewhere."""
    return values.new_zeros(where.shape).masked_scatter(where, values)


def merged_weight(module: nn.Module) -> Tensor:
    """A linear layer's weight (out, in), with the active adapters of PEFT added where it has any."""
    if not hasattr(module, "base_layer"):
        return module.weight
    return module.base_layer.weight + sum(module.get_delta_weight(name) for name in module.active_adapters)


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
            f"{f'to cuda:{gpus - 1} ' * (gpus > 1)}(CUDA_VISIBLE_DEVICES may hide some); use 'auto' or ask for more"
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
) -> Policy:
    """Load a model in float32 with its tokenizer; `lora` adds a fresh adapter drawn from `lora_seed`, and
    a folder with a trained adapter is loaded on the base model that it names.

    Stop ids are the union of the config's, the generation config's and the tokenizer's eos. Raises
    UserError where the model isn't there, has dropout, or has a head that isn't one matrix.
    """
    source, _ = model_source(model, revision)
    where = pick_device(device)
    tokenizer = load_tokenizer(model, revision)
    adapter = Path(source) / "adapter_config.json"
    if adapter.is_file():
        base = json.loads(adapter.read_text())
        try:
            lm = _load_model(base["base_model_name_or_path"], base.get("revision"))
        except UserError as error:
            raise UserError(f"{adapter}: base_model_name_or_path: {error}") from None
    else:
        lm = _load_model(model, revision)
    stop = stop_ids(model, tokenizer, lm.config, lm.generation_config)
    rows = lm.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise UserError(
            f"model {model}: its tokenizer has ids up to {len(tokenizer) - 1}, its embedding {rows} rows; take the "
            "tokenizer that the model was trained with"
        )
    if getattr(lm.config, "attention_dropout", 0):
        raise UserError(f"model {model}: attention_dropout must be 0, else log-probs aren't those sampled")
    layers = set(getattr(lm.config, "layer_types", None) or ["full_attention"])
    sliding = getattr(lm.config, "sliding_window", None) and getattr(lm.config, "use_sliding_window", True)
    if layers != {"full_attention"} or sliding:
        raise UserError(
            f"model {model}: only full attention is supported, not sliding windows or linear layers"
        )
    if adapter.is_file():
        from peft import PeftModel

        lm = PeftModel.from_pretrained(lm, source)
    elif lora is not None:
        # The adapter records which commit of a hub model it belongs to; a folder has none.
        lm = add_lora(lm, lora, lora_seed, None if Path(source).is_dir() else revision)
    lm.to(where).eval()
    if gradient_checkpointing:
        # transformers recomputes activations in train mode only; without dropout that changes nothing else.
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        lm.train()
    policy = Policy(lm, tokenizer, stop, where, getattr(torch, compute_dtype))
    _check_head(policy, model)
    return policy


def stop_ids(model: str, tokenizer: PreTrainedTokenizerBase, *configs) -> frozenset[int]:
    """Union of the eos ids of a model's configs and its tokenizer: base models' often differ."""
    found: set[int | None] = {tokenizer.eos_token_id}
    for config in configs:
        eos = config.eos_token_id
        found |= set(eos) if isinstance(eos, list) else {eos}
    stop = frozenset(i for i in found if i is not None and i < len(tokenizer))
    if not stop:
        raise UserError(f"model {model}: neither config nor tokenizer names an eos token; set eos_token_id")
    return stop


def _load_model(model: str, revision: str | None) -> nn.Module:
    source, extra = model_source(model, revision)
    try:
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **extra)
    except (OSError, ValueError, ImportError) as error:
        raise _unavailable("model", model, error) from None


def load_node(node: NodeConfig, seed: int, index: int = 0) -> Policy:
    """The policy of one of a run's nodes; `seed` draws its adapter, `index` is its place among the nodes."""
    return load_policy(
        node.model,
        node.revision,
        node.lora,
        str(pick_device(node.device, index)),
        node.compute_dtype,
        node.gradient_checkpointing,
        seed,
    )


def add_lora(lm: nn.Module, lora: Lora, seed: int, revision: str | None) -> nn.Module:
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
    # A set, whose order differs from process to process: the same adapter must be saved as the same files.
    config.target_modules = sorted(config.target_modules)
    return model


@torch.no_grad()
def _check_head(policy: Policy, name: str) -> None:
    """Log-probs come from hidden states times one matrix: refuse models whose logits are anything else."""
    ids = torch.tensor([[min(policy.stop_ids)]], device=policy.device)
    logits = policy.causal_lm(input_ids=ids).logits[0, -1, : policy.vocab_size].float()
    ours = (policy.hidden(input_ids=ids)[0, -1] @ policy.head().T).float()
    if not torch.allclose(logits, ours, rtol=1e-3, atol=1e-3):
        raise UserError(
            f"model {name}: its logits aren't hidden states times the output embedding; not supported"
        )


def _unavailable(what: str, model: str, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    return UserError(no_copy(what, model, reason))
