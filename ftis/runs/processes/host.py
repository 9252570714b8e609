"""Where the processes of a run that are on several machines reach each other."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

from ftis.errors import UserError

_OUTSIDE = ("203.0.113.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849): no packet is sent, only the route there is asked for."""


def reachable_host(given: str | None = None) -> str:
    """The address under which other machines reach this process: the one given, else the Slurm node's or the
    machine's name where it leads to more than this machine itself (Debian has it lead to 127.0.1.1), else the
    address of the default route, else the machine's name.

    Raises UserError where the result is this machine's loopback address, and Slurm or torchrun say that the
    job has several machines: the other processes would wait for this one in vain.
    """
    name = socket.gethostname()
    names = [os.environ.get("SLURMD_NODENAME"), name]
    host = given or next((n for n in names if n and _leads_here(n)), None) or _route() or name
    machines = _machines()
    if machines > 1 and _is_loopback(host):
        raise UserError(
            f"--host: {host!r} is the loopback address, which no other machine reaches, and the job has "
            f"{machines} of "
            "them; give this machine's address in the network that they share"
        )
    return host


def _machines() -> int:
    """Machines of the step that srun started, or of torchrun's job; 1 where neither says."""
    env = os.environ
    if "SLURM_PROCID" in env:
        return int(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or 1)
    return int(env.get("GROUP_WORLD_SIZE") or 1)


def _addresses(host: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def _is_loopback(host: str) -> bool:
    found = _addresses(host)
    return bool(found) and all(ipaddress.ip_address(a.split("%")[0]).is_loopback for a in found)


def _leads_here(host: str) -> bool:
    """Whether it is an address of this machine that others may reach."""
    return bool(_addresses(host)) and not _is_loopback(host)


def _route() -> str | None:
    """This machine's address on the way to the outside."""
    for family, outside in zip((socket.AF_INET, socket.AF_INET6), _OUTSIDE):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((outside, 9))
            return asked.getsockname()[0]
    return None
