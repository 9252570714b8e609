"""Locks of files, which end with their holder."""

from __future__ import annotations

import errno
import fcntl
from typing import TextIO

from ftis.errors import UserError

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""How file systems say that they know no locks."""


def locked(file: TextIO, kind: int = fcntl.LOCK_EX) -> bool:
    """flock an open file if nobody else holds it, alone or with LOCK_SH beside others; whether that went.

    Raises UserError on a file system that knows no locks.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise UserError(
            f"{file.name}: this file system has no locks ({error.strerror}), which keep two processes from "
            "writing the "
            "same files; have Lustre mounted with -o flock and NFS with its lock service, or take another "
            "folder"
        ) from None
    return True
