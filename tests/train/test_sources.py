import os
from pathlib import Path

import pytest

from statewell.errors import DataError
from statewell.train.sources import find_sources, read_again


def test_folders_are_searched_to_any_depth_in_sorted_order(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("z.txt", "b/c/y.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    names = [file.path.relative_to(tmp_path).as_posix() for file in find_sources([tmp_path]).files]
    assert names == ["a.txt", "z.txt", "b/c/y.txt"]


def test_what_is_not_text_in_a_folder_is_passed_over_and_counted(tmp_path):
    (tmp_path / "good.txt").write_text("text")
    (tmp_path / "same.txt").write_text("text")
    (tmp_path / "picture").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "nothing").touch()
    (tmp_path / ".hidden").write_text("secret")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("secret")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    sources = find_sources([tmp_path])
    assert [file.path.name for file in sources.files] == ["good.txt"]
    assert dict(sources.skipped) == {"a repetition": 1, "not UTF-8 text": 2, "empty": 1}


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff\xfe", "not UTF-8 text"), (b"a\0b", "not UTF-8 text"), (b"", "empty")]
)
def test_a_named_file_that_is_not_text_is_refused_by_name(tmp_path, content, reason):
    (tmp_path / "named").write_bytes(content)
    with pytest.raises(DataError, match=f"named is {reason}"):
        find_sources([tmp_path / "named"])


def test_a_missing_or_strange_path_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="nowhere cannot be read: No such file"):
        find_sources([tmp_path / "nowhere"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe is neither a file nor a folder"):
        find_sources([tmp_path / "pipe"])


def test_an_unreadable_file_is_refused_by_name_and_passed_over_in_a_folder(tmp_path, monkeypatch):
    (tmp_path / "named").write_text("text")
    (tmp_path / "other").write_text("other text")
    read = Path.read_bytes

    def deny(path):  # whoever runs the tests may be root, whom no mode stops
        if path.name == "named":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", deny)
    with pytest.raises(DataError, match=r"named is not readable \(Permission denied\)"):
        find_sources([tmp_path / "named"])
    assert find_sources([tmp_path]).skipped == (("not readable (Permission denied)", 1),)


def test_a_folder_without_text_is_refused_with_the_reasons(tmp_path):
    (tmp_path / "nothing").touch()
    with pytest.raises(DataError, match=r"No usable text .*1 empty"):
        find_sources([tmp_path])


def test_a_path_given_twice_counts_once(tmp_path):
    (tmp_path / "one.txt").write_text("text")
    sources = find_sources([tmp_path, tmp_path / "one.txt", tmp_path])
    assert len(sources.files) == 1
    assert sources.skipped == ()


def test_a_file_that_changes_meanwhile_is_refused_by_name(tmp_path):
    (tmp_path / "one.txt").write_text("text")
    (file,) = find_sources([tmp_path]).files
    assert read_again(file) == b"text"
    (tmp_path / "one.txt").write_text("other")
    with pytest.raises(DataError, match=r"one\.txt changed"):
        read_again(file)


def test_without_paths_the_text_is_the_standard_library_without_its_tests():
    sources = find_sources([])
    assert sources.size > 5_000_000
    assert {file.path.suffix for file in sources.files} == {".py"}
    assert not any({"test", "site-packages"} & set(file.path.parts) for file in sources.files)
