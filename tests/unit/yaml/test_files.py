"""Files: where they may lie, how they are replaced, what a crash leaves, and how several writers take turns."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

from services.runtime import replace as replace_module
from services.runtime.replace import CannotReplace, hold, replace_file
from services.runtime.roots import Roots
from services.yaml.errors import Code, YamlError
from services.yaml.operations import SetEdit
from services.yaml.yaml_files import YamlFiles

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def yaml(tmp_path: Path) -> YamlFiles:
    return YamlFiles(Roots((tmp_path,)))


def test_a_file_outside_the_roots_is_refused_also_through_a_link(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "secret.yaml").write_text("a: 1\n")
    (inside / "link.yaml").symlink_to("../secret.yaml")
    (inside / "dir").symlink_to("..")
    yaml = YamlFiles(Roots((inside,)))
    for name in ("link.yaml", "../secret.yaml", "dir/secret.yaml", str(tmp_path / "secret.yaml")):
        with pytest.raises(YamlError, match="outside the roots") as caught:
            yaml.get(name, "a")
        assert caught.value.code == Code.IO
        with pytest.raises(YamlError, match="outside the roots"):
            yaml.edit(name, SetEdit("a", "2"))
    assert (tmp_path / "secret.yaml").read_text() == "a: 1\n"


def test_a_root_is_no_prefix_of_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "f.yaml").write_text("a: 1\n")
    with pytest.raises(YamlError, match="outside the roots"):
        YamlFiles(Roots((tmp_path / "root",))).get(str(tmp_path / "root-2" / "f.yaml"), "a")


def test_only_regular_files_are_read(tmp_path: Path, yaml: YamlFiles) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "dir.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for name in ("fifo.yaml", "dir.yaml", "loop.yaml", "none.yaml", "", "x\0y"):
        with pytest.raises(YamlError) as caught:
            yaml.get(name, "a")
        assert caught.value.code == Code.IO


def test_an_edit_goes_through_a_link_to_its_target_and_keeps_the_link(tmp_path: Path, yaml: YamlFiles) -> None:
    (tmp_path / "real.yaml").write_text("a: 1\n")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    yaml.edit("link.yaml", SetEdit("a", "2"))
    assert (tmp_path / "link.yaml").is_symlink()
    assert (tmp_path / "real.yaml").read_text() == "a: 2\n"


def test_an_edit_keeps_mode_and_owner(tmp_path: Path, yaml: YamlFiles) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1\n")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    before = path.stat()
    yaml.edit("f.yaml", SetEdit("a", "2"))
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_an_edit_that_changes_nothing_writes_nothing(tmp_path: Path, yaml: YamlFiles) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1\n")
    before = path.stat()
    assert yaml.edit("f.yaml", SetEdit("a", "1")).changed is False
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-16"])
def test_a_file_is_edited_in_its_own_encoding(tmp_path: Path, yaml: YamlFiles, encoding: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes("k: é\U0001f980  # ж\r\nb: 1\r\n".encode(encoding))
    assert yaml.get("f.yaml", "k").text == "é\U0001f980"
    yaml.edit("f.yaml", SetEdit("b", "ü"))
    assert path.read_bytes() == "k: é\U0001f980  # ж\r\nb: ü\r\n".encode(encoding)


def test_a_file_changed_during_an_edit_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    for other in (b"a: 1\nb: 2\n", b"a: 9\n"):
        path.write_bytes(other)
        with pytest.raises(CannotReplace, match="changed by another program"):
            replace_file(path, b"a: 1\n", b"a: 2\n")
        assert path.read_bytes() == other
    assert os.listdir(tmp_path) == ["f.yaml"]


def test_a_folder_that_became_a_link_meanwhile_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "f.yaml").write_text("a: 1\n")
    (tmp_path / "folder").symlink_to(tmp_path / "other")
    with pytest.raises(CannotReplace, match="another folder"):
        replace_file(tmp_path / "folder" / "f.yaml", b"a: 1\n", b"a: 2\n")
    assert (tmp_path / "other" / "f.yaml").read_text() == "a: 1\n"


def test_without_unnamed_files_the_write_is_as_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(directory: int) -> None:
        return None

    monkeypatch.setattr(replace_module, "_unnamed", none)
    path = tmp_path / "f.yaml"
    path.write_bytes(b"a: 1\n")
    replace_file(path, b"a: 1\n", b"a: 2\n")
    assert path.read_bytes() == b"a: 2\n"
    with pytest.raises(CannotReplace, match="changed by another program"):
        replace_file(path, b"a: 1\n", b"a: 3\n")
    assert os.listdir(tmp_path) == ["f.yaml"]


def test_a_name_left_by_a_crash_is_removed_by_the_next_edit(tmp_path: Path, yaml: YamlFiles) -> None:
    (tmp_path / "f.yaml").write_text("a: 1\n")
    (tmp_path / ".linckia-new-0123").write_text("half")
    yaml.edit("f.yaml", SetEdit("a", "2"))
    assert os.listdir(tmp_path) == ["f.yaml"]


def test_a_file_locked_by_another_holder_is_waited_for_and_then_reported(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1\n")
    with path.open() as holder:
        flock(holder, LOCK_EX)
        with pytest.raises(CannotReplace, match="locked by another process"), hold(path, 0.05):
            pass
    with hold(path, 0.05):
        pass


def test_edits_from_many_threads_are_all_kept(tmp_path: Path, yaml: YamlFiles) -> None:
    (tmp_path / "f.yaml").write_text("start: 1\n")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: yaml.edit("f.yaml", SetEdit(f"k{n}", str(n))), range(40)))
    assert all(yaml.get("f.yaml", f"k{n}").text == str(n) for n in range(40))


WRITER = """
import sys
from services.yaml.operations import SetEdit
from services.runtime.roots import Roots
from services.yaml.yaml_files import YamlFiles
yaml = YamlFiles(Roots((sys.argv[1],)))
print("ready", flush=True)
for n in range(int(sys.argv[3])):
    yaml.edit("f.yaml", SetEdit(sys.argv[2], f"{n:06d}"))
    if n == 0:
        print("written", flush=True)
print("done", flush=True)
"""


def start(directory: Path, key: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), key, str(count)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_two_processes_lose_no_edit_of_each_other(tmp_path: Path, yaml: YamlFiles) -> None:
    (tmp_path / "f.yaml").write_text("x: 0\ny: 0\n")
    writers = [start(tmp_path, key, 30) for key in ("x", "y")]
    for writer in writers:
        out, _ = writer.communicate(timeout=60)
        assert out.endswith("done\n")
    assert [yaml.get("f.yaml", key).text for key in ("x", "y")] == ["000029", "000029"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("delay_us", [0, 300, 700, 1500, 3100])
def test_a_kill_during_writes_leaves_a_whole_file(tmp_path: Path, yaml: YamlFiles, delay_us: int) -> None:
    path = tmp_path / "f.yaml"
    filler = "".join(f"k{n}: value {n}\n" for n in range(2000))
    path.write_text("x: 0\n" + filler)
    writer = start(tmp_path, "x", 100_000)
    assert writer.stdout is not None
    assert [writer.stdout.readline(), writer.stdout.readline()] == ["ready\n", "written\n"]
    if delay_us:
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(delay_us / 1e6)
    writer.kill()
    writer.wait()
    writer.stdout.close()
    first, _, rest = path.read_text().partition("\n")
    assert first.startswith("x: ")
    assert first[3:].isdigit()
    assert rest == filler
    yaml.edit("f.yaml", SetEdit("x", "1"))
    assert os.listdir(tmp_path) == ["f.yaml"]
