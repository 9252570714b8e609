"""Files are written wholly or not at all."""

import pytest

from ftis.errors import UserError
from ftis.files import write_files


def test_nothing_is_left_half_written(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError):
        write_files({tmp_path / "a": b"1", tmp_path / "b" / "c": b"2", tmp_path / "a" / "d": b"3"})
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
