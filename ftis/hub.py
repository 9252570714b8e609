"""The Hugging Face hub: what is cached of it, and telling early and clearly that it can't be reached."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from urllib.parse import urlparse

from ftis.errors import UserError


def require_hub(
    repo: str, what: str, filename: str, revision: str | None = None, repo_type: str = "model"
) -> None:
    """Raise UserError unless `filename` of a repository is cached or the hub's host can be looked up.

    Without this, a machine that has no network spends a minute on retries before it says so.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(repo, filename, revision=revision, repo_type=repo_type), str):
        return
    proxied = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    try:
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        if not proxied:
            socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, 443)
    except OSError as error:
        raise UserError(no_copy(what, repo, str(error))) from None


FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
"""What is loaded of a model's repository: settings, weights, tokenizer and chat template."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files of which a tokenizer has one at least."""


def has_model(model: str, revision: str | None) -> bool:
    """Whether a model's settings, all its weights and its tokenizer are in the cache: a download may have
    ended early."""
    from huggingface_hub import try_to_load_from_cache

    def cached(file: str) -> Path | None:
        found = try_to_load_from_cache(model, file, revision=revision)
        return Path(found) if isinstance(found, str) else None

    index = cached("model.safetensors.index.json")
    shards = set(json.loads(index.read_text())["weight_map"].values()) if index else {"model.safetensors"}
    needed = ("config.json", "tokenizer_config.json", *shards)
    return all(map(cached, needed)) and any(map(cached, TOKENIZERS))


def load_model(model: str, revision: str | None) -> str:
    """Download a model into the cache unless it's there; returns its folder."""
    from huggingface_hub import snapshot_download

    if not has_model(model, revision):
        require_hub(model, "model", "config.json", revision)
    try:
        folder = snapshot_download(model, revision=revision, allow_patterns=list(FILES))
    except Exception as error:  # noqa: BLE001  the library raises a different type for each way the hub can fail
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise UserError(no_copy("model", model, reason)) from None
    if not has_model(model, revision):  # offline, a part of a model is taken for all of it
        raise UserError(
            no_copy("model", model, "settings, weights in safetensors or the tokenizer are missing")
        )
    return folder


def commit_of(model: str, revision: str | None) -> str:
    """The commit that a model is loaded at: `revision` may be a branch, and None is the newest."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json", revision=revision)).parent.name
    except Exception as error:  # noqa: BLE001  as in load_model
        raise UserError(no_copy("model", model, f"{type(error).__name__}: {str(error)[:200]}")) from None


def no_copy(what: str, name: str, reason: str) -> str:
    """The message for a model or dataset that is neither here nor to be had; it names both ways out."""
    return (
        f"{what} {name}: no local copy, and the hub can't be used ({reason}). Either run where there is a "
        "network "
        f"(or with HF_HOME at a filled cache), or give a local path instead of {name}"
    )
