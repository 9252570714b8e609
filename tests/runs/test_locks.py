"""What is said where locks are missing or stay held."""

import errno
import fcntl
import os
import time

import pytest

from ftis.errors import Interrupted, UserError
from ftis.locks import locked
from ftis.runs import state


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    refused = pytest.raises(
        UserError, match=r"run/state/lock: this file system has no locks .*-o flock.*another folder"
    )
    with refused, state.run_lock(tmp_path / "run/state"):
        pass
    assert not state.is_training(tmp_path / "run/state")


def test_a_job_does_not_wait_for_ever(tmp_path, monkeypatch, capsys):
    """It would hold its GPU; tried again later, it may find the run finished."""
    monkeypatch.setattr(state, "LONGEST_WAIT_S", 0.5)
    with state.run_lock(tmp_path / "run/state"):
        began = time.monotonic()
        given_up = pytest.raises(Interrupted, match="hasn't ended within 0 minutes.*hold its GPU")
        with given_up as said, state.run_lock(tmp_path / "run/state", wait=True):
            pass
        assert 0.5 <= time.monotonic() - began < 5
    assert said.value.exit_code == 1, "not the user's to mend: the workflow tries again"
    assert "waiting for its end" in capsys.readouterr().err
    with state.run_lock(tmp_path / "run/state", wait=True):
        pass


def test_locks_are_alone_or_shared(tmp_path):
    with open(tmp_path / "lock", "a") as one, open(tmp_path / "lock") as other:
        assert locked(one, fcntl.LOCK_SH) and locked(other, fcntl.LOCK_SH) and not locked(one)
        other.close()
        assert locked(one)
