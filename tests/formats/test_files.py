"""Files are whole or absent."""

from __future__ import annotations

import pytest

from statewell.formats.files import write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "kept"
    write_atomically(path, b"old")

    def fail(temporary):
        temporary.write_bytes(b"half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
