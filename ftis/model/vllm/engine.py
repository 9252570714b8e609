"""A vLLM engine in a process of its own, and the pipe over which it is asked.

vLLM initialises torch.distributed, reseeds torch, freezes the number of threads of its process, and has one
engine with sleep mode a process. In a child of its own it leaves the trainer alone, each node of a run can
have one under any transport, and nothing but this file imports vLLM.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
import weakref
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ftis.errors import UserError
from ftis.model.vllm.push import Reader, Writer
from ftis.orphans import die_with

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no process below this one
    # The runner that runs on a CPU too, and whose draw `_keep_full_softmax` knows.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
CPU_ENGINE = {
    # The default, a share of all memory, asks for too much.
    "kv_cache_memory_bytes": 2 << 30,
    # Compiling takes longer than it saves.
    "enforce_eager": True,
    # A prompt read in parts has its draw taken back, which a CPU's random generator can't do: vLLM would
    # crash.
    "enable_chunked_prefill": False,
}
"""Of vLLM on a CPU."""

Job = tuple[list[int], int | None, int, float]
"""Prompt, seed, the most new tokens, and the temperature (0 is greedy)."""
Answer = tuple[np.ndarray, np.ndarray, bool]
"""tokens (T,) int32, log-probs (T,) float32, whether it ended by itself."""


NEIGHBOUR = ("Memory usage increased after sleeping", "Error in memory profiling")
"""What vLLM says where the card's free memory changes while it looks: another process took or gave back
some."""


class EngineError(UserError):
    """What went wrong in the engine's process, and where to look: mostly memory, or a model that vLLM can't
    run."""

    def __init__(self, what: str):
        remedy = (
            "Exit code -9 mostly means that the machine's memory ran out; where the GPU's did, change "
            "rollout.gpu_memory_utilization; where vLLM can't run the model, take the backend transformers"
        )
        if any(said in what for said in NEIGHBOUR):
            remedy = (
                "Another process uses the same card: give each engine a card of its own (`gpus`), with "
                "nodes of a run "
                "that share one under transport local"
            )
        super().__init__(f"vLLM: {what.rstrip('.')}. What it printed stands above. {remedy}")


class Engine:
    """The trainer's end: starts the process, which ends with this object and with this process."""

    def __init__(
        self,
        options: dict[str, Any],
        vocab_size: int,
        threads: int,
        gpu: str | None,
        gpu_share: float | None,
    ):
        """options: of `vllm.LLM`; vocab_size: ids below it are sampled and share the softmax; threads: on a
        CPU; gpu: CUDA_VISIBLE_DEVICES, None as it is; gpu_share: of a GPU's memory, where a trainer has the
        rest. Raises EngineError where vLLM can't run the model.
        """
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, options, vocab_size, threads, gpu, gpu_share), daemon=True
        )
        self.process.start()
        theirs.close()
        self.writer = Writer(self.pipe, self.process.pid)
        weakref.finalize(self, _stop, self.process, self.pipe)
        self._answer()

    def sample(self, jobs: list[Job], top_k: int | None, stop_ids: list[int]) -> list[Answer]:
        """Completions of the jobs, in order."""
        return self._call("sample", jobs, top_k, stop_ids)

    def sleep(self) -> None:
        """Free the card's memory for the trainer; nothing to do where the engine has no share of a card."""
        self._call("sleep")

    def wake(self) -> None:
        """Take the memory back."""
        self._call("wake")

    def load(self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
        """Take up tensors under their checkpoint names, as `dtype`: whole layers of vLLM, which fuses
        matrices."""
        try:
            self.pipe.send(("load", ()))
            self.writer.write(weights, dtype, self._answer)
        except ConnectionError:
            pass  # it failed or died half-way, which the answer says
        self._answer()

    def _call(self, name: str, *args: Any) -> Any:
        with contextlib.suppress(OSError):
            self.pipe.send((name, args))
        return self._answer()

    def _answer(self) -> Any:
        try:
            done, value = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise EngineError(f"its process died (exit code {self.process.exitcode})") from None
        if not done:
            raise EngineError(value)
        return value


def _stop(process: multiprocessing.Process, pipe: Connection) -> None:
    pipe.close()
    process.terminate()
    process.join()


def _serve(
    pipe: Connection,
    options: dict,
    vocab_size: int,
    threads: int,
    gpu: str | None,
    gpu_share: float | None,
) -> None:
    """The process: starts an engine and answers until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer is interrupted, and ends this
    die_with(
        multiprocessing.parent_process().pid
    )  # a killed trainer leaves no engine that holds a GPU's memory
    # vLLM's lock is then one that nobody needs to clean up after this process has been ended.
    multiprocessing.set_start_method("fork", force=True)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        served = _Served(pipe, options, vocab_size, threads, gpu_share)
        pipe.send((True, None))
        while True:
            name, args = pipe.recv()
            pipe.send((True, getattr(served, name)(*args)))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # noqa: BLE001  whatever it is, the trainer must hear of it
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [type(error).__name__]
        pipe.send((False, lines[-1][:300]))


class _Served:
    """vLLM, in its own process."""

    def __init__(
        self, pipe: Connection, options: dict, vocab_size: int, threads: int, gpu_share: float | None
    ):
        import vllm
        from vllm.platforms import current_platform

        torch.set_num_threads(threads)
        cpu = current_platform.is_cpu()
        self.reader = Reader(pipe)
        self.sleeps = gpu_share is not None and not cpu
        if cpu:
            options = {**options, **CPU_ENGINE}
        elif self.sleeps:
            options = {**options, "gpu_memory_utilization": gpu_share, "enable_sleep_mode": True}
        self.llm = vllm.LLM(**options)
        self.llm.collective_rpc(_cut_vocabulary, args=(vocab_size,))
        self.llm.collective_rpc(_keep_full_softmax)

    def sample(self, jobs, top_k, stop_ids) -> list[Answer]:
        from vllm import SamplingParams

        # What an earlier call left would decide which prompts are read again, and so the last bits of a
        # log-prob: a run that goes on from a checkpoint has no earlier call.
        self.llm.reset_prefix_cache()
        params = [
            SamplingParams(
                temperature=temperature,
                top_k=top_k or 0,
                max_tokens=budget,
                seed=seed,
                logprobs=0,
                stop_token_ids=stop_ids,
                detokenize=False,
            )
            for _, seed, budget, temperature in jobs
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt, *_ in jobs]
        return [_answer(a.outputs[0]) for a in self.llm.generate(prompts, params, use_tqdm=False)]

    def load(self) -> None:
        self.llm.collective_rpc(_reload, args=(self.reader.read(),))

    def sleep(self) -> None:
        if self.sleeps:
            # Level 2 would spare the copy of the weights that level 1 keeps in the machine's memory, of which
            # a full push needs none. But it is reported to leave wrong weights (vllm-project/vllm#29341),
            # which only a GPU could show.
            self.llm.sleep(level=1)

    def wake(self) -> None:
        if self.sleeps:
            self.llm.wake_up()


def _answer(output) -> Answer:
    tokens = np.array(output.token_ids, dtype=np.int32)
    # Each position's entries are looked up by the sampled id: the first one is the likeliest token.
    logprobs = [entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True)]
    return tokens, np.array(logprobs, dtype=np.float32), output.finish_reason == "stop"


def _reload(worker, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Load weights in place. A tied output embedding is passed over, but on a CPU it has a packed copy."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    worker.reload_weights(weights_iterator=weights)
    for module in worker.model_runner.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _cut_vocabulary(worker, size: int) -> None:
    """Leave the logits of ids below `size` alone: embeddings are often padded beyond the tokenizer."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    modules = worker.model_runner.get_model().modules()
    found = [module for module in modules if isinstance(module, LogitsProcessor)]
    if not found:
        raise ValueError("its model has no LogitsProcessor, which would keep ids beyond the tokenizer out")
    for module in found:
        module.org_vocab_size = min(module.org_vocab_size, size)


def _keep_full_softmax(worker) -> None:
    """Have log-probs taken before top-k cuts the logits: they are those of the full softmax."""
    draw = worker.model_runner.sampler.topk_topp_sampler
    draw.logprobs_mode = "raw_logprobs"  # it takes none itself
    choose = draw.forward

    def forward(logits, generators, k, p):
        logprobs = logits.log_softmax(-1, dtype=torch.float32)  # first: the cut is made in place
        if k is not None:  # of a greedy row it is all of the embedding, more than there are logits
            k = k.clamp(max=logits.shape[-1])
        return choose(logits, generators, k, p)[0], logprobs

    draw.forward = forward
