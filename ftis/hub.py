"""Telling early and clearly that something on the Hugging Face hub can't be reached."""

from __future__ import annotations

import os
import socket
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


def no_copy(what: str, name: str, reason: str) -> str:
    """The message for a model or dataset that is neither here nor to be had; it names both ways out."""
    return (
        f"{what} {name}: no local copy, and the hub can't be used ({reason}). Either run where there is a network "
        f"(or with HF_HOME at a filled cache), or give a local path instead of {name}"
    )
