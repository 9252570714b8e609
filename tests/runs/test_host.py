"""Which address a process gives to those on other machines."""

import socket

import pytest

from ftis.errors import UserError
from ftis.runs.processes.host import reachable_host


@pytest.fixture
def network(monkeypatch):
    """A machine named `node7` with an address to the outside, in no job; names lead where the test says."""
    names = {"127.0.0.1": "127.0.0.1", "::1": "::1", "10.0.0.7": "10.0.0.7"}

    def resolve(host, *_, **__):
        if host not in names:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (names[host], 0))]

    for name in (
        "SLURMD_NODENAME",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_NODES",
        "SLURM_NNODES",
        "GROUP_WORLD_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("ftis.runs.processes.host._route", lambda: "10.0.0.7")
    return names


def test_the_machine_s_name_where_others_can_use_it(network, monkeypatch):
    network["node7"] = "10.1.0.7"
    assert reachable_host() == "node7"
    monkeypatch.setenv(
        "SLURMD_NODENAME", "gpu-7"
    )  # Slurm's name for it, where it is one of the network's, too
    assert reachable_host() == "node7"
    network["gpu-7"] = "10.2.0.7"
    assert reachable_host() == "gpu-7"
    assert reachable_host("127.0.0.1") == "127.0.0.1", "what was given, on one machine"


def test_the_default_route_where_the_name_leads_to_the_machine_itself(network, monkeypatch):
    network["node7"] = "127.0.1.1"  # Debian's /etc/hosts
    assert reachable_host() == "10.0.0.7"
    monkeypatch.setattr("ftis.runs.processes.host._route", lambda: None)
    assert reachable_host() == "node7", "no network: the nodes may still be on this machine"


@pytest.mark.parametrize(
    "job", [{"SLURM_PROCID": "1", "SLURM_STEP_NUM_NODES": "2"}, {"GROUP_WORLD_SIZE": "2"}]
)
@pytest.mark.parametrize("given", [None, "127.0.0.1", "::1"])
def test_loopback_is_refused_early_where_a_job_has_several_machines(network, monkeypatch, job, given):
    network["node7"] = "127.0.1.1"
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert reachable_host() == "10.0.0.7"
    monkeypatch.setattr("ftis.runs.processes.host._route", lambda: None)
    with pytest.raises(
        UserError, match="^--host: .* is the loopback address, .* the job has 2 of them; give this"
    ):
        reachable_host(given)


def test_this_machine_s_route_is_an_address_of_its_own():
    from ftis.runs.processes.host import _route

    if (address := _route()) is not None:
        socket.create_server(
            (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
        ).close()
