"""A node's policy: the model, its trainable weights, and log-probs without the logits tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftis.model.attention import IMPLEMENTATION, Packing
from ftis.model.logprobs import TokenLogprob, accumulate


@dataclass
class Policy:
    """A causal language model on a device, whose distribution is over the tokenizer's ids only.

    Embeddings are often padded beyond the tokenizer; `vocab_size` cuts the padding off in the sampler
    and in the trainer alike, so that no padded id is sampled and both softmaxes agree.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    device: torch.device
    compute_dtype: torch.dtype
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.causal_lm.set_attn_implementation(IMPLEMENTATION)
        self.vocab_size = vocabulary(self.tokenizer)

    @property
    def name(self) -> str:
        """What messages call it: the folder or hub name of its model."""
        return self.causal_lm.name_or_path + " with its adapter" * hasattr(self.model, "peft_config")

    @property
    def causal_lm(self) -> PreTrainedModel:
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

        A prompt that stands in several rows, as a group's does, goes through the model once.
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

        loss_of(rows, logp, entropy, mask) is called with a few whole completions at a time, (n, T) each, the
        first with gradient, and returns their scalar loss; losses add up. Same gradient as `token_logprobs`
        and a backward, with a matrix product less (see `ftis.model.logprobs.accumulate`).
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
        """Embeddings (1, M, H) of ids (1, M). Their gradient goes into the rows that were read; torch's own
        is as large as the embedding."""
        table = self.causal_lm.get_input_embeddings()
        if not torch.is_grad_enabled() or type(table) is not nn.Embedding or not table.weight.requires_grad:
            return table(ids)
        weight = table.weight
        found = weight.detach()[ids].requires_grad_()

        def add(gradient: Tensor) -> None:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradient = gradient.to(weight.dtype)
            # Each is the one that repeats its bits: on a CPU, threads of index_put_ add to a row in whichever
            # order they come, on a GPU those of index_add_ do.
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
        """Hidden states (M, H) that predict the M completion tokens (M,), and where those stand (N, T)
        bool."""
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
        # The last norm leaves float32 under autocast; the head's products are in the compute type, as the
        # sampler's.
        return hidden.to(self.compute_dtype), target.to(self.device), mask

    def save(self, folder: Path) -> None:
        """Write the model (or the adapter) and the tokenizer, loadable by transformers and PEFT."""
        self.model.save_pretrained(folder)
        # Whether the hub could be reached is no part of a tokenizer; with it, equal runs have other
        # checksums.
        self.tokenizer.init_kwargs.pop("local_files_only", None)
        self.tokenizer.save_pretrained(folder)


def vocabulary(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than a tokenizer's largest id. `len(tokenizer)` is smaller where ids are left out, and would
    cut the last ones off."""
    return max(tokenizer.get_vocab().values()) + 1


def _unpacked(values: Tensor, where: Tensor) -> Tensor:
    """(M,) values in their places (N, T), 0 elsewhere."""
    return values.new_zeros(where.shape).masked_scatter(where, values)


def merged_weight(module: Any) -> Tensor:
    """A linear layer's weight (out, in), with the active adapters of PEFT added where it has any."""
    if not hasattr(module, "base_layer"):
        return module.weight
    return module.base_layer.weight + sum(module.get_delta_weight(name) for name in module.active_adapters)
