"""Encrypted backups in places off this machine, with the real servers: OpenSSH's, and one that speaks S3."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from kernel.cli.care.data_format import program
from proto.backup import Access, BackupFailed, Manifest
from proto.manifest import Keep
from services import backup as service
from tests.system.cli.clients import command as in_this_process
from tests.system.running import REPOSITORY, running
from tests.system.support import remote_places
from tests.system.support.remote_places import BUCKET, InBucket, InFolder, Place
from tests.unit.backup import writing
from tests.unit.backup.writing import backup, restore, restore_of

SECRET = b"a sentence that no server may read"
PASSPHRASE = "correct horse battery staple"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with remote_places.s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        remote_places.client(endpoint).create_bucket(Bucket=BUCKET)
        yield endpoint


@pytest.fixture(scope="module")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    if not remote_places.has_sshd():
        pytest.skip("OpenSSH's sshd and sftp-server are not installed")
    with remote_places.sftp_server(tmp_path_factory.mktemp("sftp")) as found:
        yield found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


def in_bucket(request: pytest.FixtureRequest, name: str = "place") -> Place:
    digest = hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    return InBucket(f"{name}-{digest}", request.getfixturevalue("s3"))


def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    address, home = request.getfixturevalue("sftp")
    request.getfixturevalue("monkeypatch").setenv("HOME", str(home))
    return InFolder(f"{address}{tmp_path}/server", Access(), tmp_path / "server")


def in_folder(tmp_path: Path) -> Place:
    return InFolder(str(tmp_path / "folder"), Access(encrypt=True), tmp_path / "folder")


@pytest.fixture(params=["folder", "sftp", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        return in_bucket(request)
    return on_server(request, tmp_path) if request.param == "sftp" else in_folder(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    writing.make(data)
    add(data, SECRET * 1000)
    return data


def add(data: Path, content: bytes) -> None:
    with contextlib.closing(apsw.Connection(str(data / writing.DATABASES[0]))) as db:
        db.execute("INSERT INTO row(filling) VALUES(?)", (content,))


def contents(folder: Path) -> dict[str, bytes]:
    """The files that a backup has."""
    keep = program().stores.keep_of
    named = {str(each.relative_to(folder)): each for each in folder.rglob("*") if each.is_file()}
    kept = (Keep.SOURCE, Keep.ITEMS)
    return {name: file.read_bytes() for name, file in named.items() if keep(name) in kept}


def rows(folder: Path) -> list[Any]:
    with contextlib.closing(apsw.Connection(str(folder / writing.DATABASES[0]))) as db:
        return db.execute("SELECT * FROM row ORDER BY n").fetchall()


def kept_key(data: Path, tmp_path: Path) -> Access:
    """The key as a user keeps it, and no other."""
    file = tmp_path / "key.txt"
    file.write_text(service.key(data) + "\n")
    return Access(key_file=file)


def with_key(place: Place, data: Path, tmp_path: Path) -> Access:
    return place.access._replace(key_file=kept_key(data, tmp_path).key_file)


def test_a_backup_is_restored_byte_by_byte_and_the_place_reveals_nothing(
    place: Place, data: Path, tmp_path: Path
) -> None:
    add(data, os.urandom(2_000_000))
    first = backup(data, place.to, access=place.access)
    assert first.problems == []
    assert (data / "backup.key").stat().st_mode & 0o777 == 0o600
    manifest, _ = restore(place.to, tmp_path / "again", access=with_key(place, data, tmp_path))
    assert manifest.id == first.snapshot
    assert contents(tmp_path / "again") == contents(data)
    assert rows(tmp_path / "again") == rows(data)

    everything = b"".join(map(place.read, place.objects()))
    for secret in (SECRET, (data / "token").read_bytes().strip(), (data / "backup.key").read_bytes()[:40], b"packs.db"):
        assert secret not in everything
    blocks = {hashlib.sha256((data / "token").read_bytes()).hexdigest()}
    assert not any(block in name for block in blocks for name in place.objects())
    for name in place.objects("snapshots"):
        content = place.read(name)
        place.remove(name)
        (problem,) = backup(data, place.to, access=place.access).problems
        assert f"{first.snapshot} is no longer in" in problem
        place.write(name, content)

    add(data, os.urandom(1000))
    second = backup(data, place.to, access=place.access)
    assert second.new < first.new / 2
    assert service.verify(place.to, data, place.access)[::2] == (3, [])
    assert [each.id for each in listed(place, data)][::2] == [first.snapshot, second.snapshot]
    backup(data, place.to, 1, place.access)
    assert len(listed(place, data)) == 1
    assert service.verify(place.to, data, place.access)[2] == []


def listed(place: Place, data: Path) -> list[Manifest]:
    found = service.snapshots(place.to, data, place.access)
    assert all(isinstance(each, Manifest) for each in found), found
    return [each for each in found if isinstance(each, Manifest)]


def test_keys_and_passphrases(place: Place, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "passphrase"
    file.write_text(f"{PASSPHRASE}\n")
    backup(data, place.to, access=place.access._replace(passphrase_file=file))
    other = tmp_path / "other"
    writing.make(other)
    with pytest.raises(BackupFailed, match="is encrypted with another key; name the right one with --key-file"):
        restore(place.to, tmp_path / "again", access=with_key(place, other, tmp_path))
    with pytest.raises(BackupFailed, match="its key is not in"):
        restore(place.to, tmp_path / "again", access=place.access)
    with pytest.raises(BackupFailed, match="another key"):
        backup(other, place.to, access=place.access)
    monkeypatch.setenv("LINCKIA_BACKUP_PASSPHRASE", f"{PASSPHRASE}r")
    with pytest.raises(BackupFailed, match="the passphrase is not one of") as failure:
        restore(place.to, tmp_path / "again", access=place.access)
    assert PASSPHRASE not in str(failure.value)
    monkeypatch.setenv("LINCKIA_BACKUP_PASSPHRASE", PASSPHRASE)
    restore(place.to, tmp_path / "again", access=place.access)
    assert rows(tmp_path / "again") == rows(data)
    (tmp_path / "key.txt").write_text(service.key(data).replace("0", "1").replace("2", "3"))
    with pytest.raises(BackupFailed, match="does not contain a key"):
        restore(place.to, tmp_path / "more", access=place.access._replace(key_file=tmp_path / "key.txt"))


def largest(place: Place) -> str:
    return max(place.objects("chunks"), key=lambda name: int(name.rpartition(".")[2]))


def flip(place: Place) -> None:
    content = bytearray(place.read(name := largest(place)))
    content[len(content) // 2] ^= 1
    place.write(name, bytes(content))


def exchange(place: Place) -> None:
    one = largest(place)
    other = next(name for name in place.objects("chunks") if name != one)
    taken = place.read(other)
    place.remove(one)
    place.write(one.rpartition(".")[0] + f".{len(taken)}", taken)


def truncate(place: Place) -> None:
    place.write(name := largest(place), place.read(name)[:-1])


def remove(place: Place) -> None:
    place.remove(largest(place))


@pytest.mark.parametrize("damage", [flip, exchange, truncate, remove])
def test_damage_is_named_and_mended_by_another_place_and_by_the_next_backup(
    place: Place, data: Path, tmp_path: Path, damage: Any
) -> None:
    add(data, os.urandom(300_000))
    made = backup(data, place.to, access=place.access)
    damage(place)
    count, _, problems = service.verify(place.to, data, place.access)
    assert count == 1
    assert problems
    assert all("packs.db" in each and ("is damaged" in each or "is missing" in each) for each in problems)
    with pytest.raises(BackupFailed, match=r"is damaged|is missing"):
        restore(place.to, tmp_path / "again", access=with_key(place, data, tmp_path))
    assert not (tmp_path / "again").exists()

    # A folder that is not encrypted has the same chunks.
    backup(data, tmp_path / "plain")
    both: list[Path | str] = [place.to, tmp_path / "plain"]
    manifest, _, _ = restore_of(both, tmp_path / "mended", access=with_key(place, data, tmp_path))
    assert rows(tmp_path / "mended") == rows(data)
    only, _, remarks = restore_of(both, tmp_path / "old", at=made.snapshot, access=with_key(place, data, tmp_path))
    if only.id != manifest.id:
        assert any("it was taken from" in each for each in remarks)
    assert rows(tmp_path / "old") == rows(data)

    backup(data, place.to, access=place.access)
    assert service.verify(place.to, data, place.access)[2] == []
    restore(place.to, tmp_path / "again", at=made.snapshot, access=with_key(place, data, tmp_path))
    assert rows(tmp_path / "again") == rows(data)


def test_an_older_snapshot_under_a_newer_name_is_refused(place: Place, data: Path, tmp_path: Path) -> None:
    made = backup(data, place.to, access=place.access)
    (name,) = place.objects("snapshots")
    place.write(name.replace(made.snapshot, "29990101T000000Z"), place.read(name))
    (problem,) = service.verify(place.to, data, place.access)[2]
    assert "29990101T000000Z is damaged" in problem
    key = with_key(place, data, tmp_path)
    with pytest.raises(BackupFailed, match="29990101T000000Z is damaged"):
        restore(place.to, tmp_path / "again", access=key)
    restore(place.to, tmp_path / "again", at=made.snapshot, access=key)
    made = backup(data, place.to, 1, place.access)
    assert "old snapshots were not removed" in made.problems[0]


HELD = """
import os, signal, sys
from services.backup.sealed import Sealed
from kernel.cli.__main__ import main

keep, left = Sealed._upload, [8]

def upload(self, name, block):
    keep(self, name, block)
    left.pop() if not left[0] else left.__setitem__(0, left[0] - 1)
    if not left:
        os.kill(os.getpid(), signal.SIGSTOP)

Sealed._upload = upload
sys.exit(main(sys.argv[1:]))
"""


def options(place: Place) -> list[str]:
    endpoint = ["--endpoint", place.access.endpoint] if place.access.endpoint else []
    return endpoint + (["--encrypt"] if place.access.encrypt else [])


def test_a_killed_upload_leaves_earlier_snapshots_and_the_next_one_goes_on(
    place: Place, data: Path, tmp_path: Path
) -> None:
    first = backup(data, place.to, access=place.access)
    before = rows(data)
    for _ in range(20):
        add(data, os.urandom(262_144))
    command = [sys.executable, "-c", HELD, "backup", place.to, "--data", str(data), *options(place)]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        seen = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert [each.id for each in listed(place, data)] == [first.snapshot]
    key = with_key(place, data, tmp_path)
    restore(place.to, tmp_path / "of the first", access=key)
    assert rows(tmp_path / "of the first") == before

    arrived = place.objects("chunks")
    torn = largest(place)
    place.write(torn, place.read(torn)[: int(torn.rpartition(".")[2]) // 2])
    second = backup(data, place.to, access=place.access)
    assert second.new < 20 * 262_144
    assert set(arrived) <= set(place.objects("chunks")), "nothing that arrived is removed"
    restore(place.to, tmp_path / "of the second", access=key)
    assert rows(tmp_path / "of the second") == rows(data)
    assert service.verify(place.to, data, place.access)[2] == []
    backup(data, place.to, 10, place.access)
    assert torn not in place.objects("chunks"), "what was interrupted is removed"


POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["s3:PutObject", "s3:GetObject", "s3:ListBucket"], "Resource": "*"},
    ],
}
DENIED = "remove,rename,posix-rename,rmdir,setstat,fsetstat,lsetstat,symlink,hardlink"


@pytest.fixture(params=["sftp", "s3"])
def unforgetting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place with credentials that may not delete."""
    with contextlib.ExitStack() as stack:
        if request.param == "s3":
            place = in_bucket(request)
            for name, text in stack.enter_context(
                remote_places.limited(place.access.endpoint, json.dumps(POLICY))
            ).items():
                monkeypatch.setenv(name, text)
        else:
            if not remote_places.has_sshd():
                pytest.skip("OpenSSH's sshd and sftp-server are not installed")
            (tmp_path / "sshd").mkdir()
            server = remote_places.sftp_server(tmp_path / "sshd", "-P", DENIED)
            address, home = stack.enter_context(server)
            monkeypatch.setenv("HOME", str(home))
            place = InFolder(f"{address}{tmp_path}/server", Access(), tmp_path / "server")
        yield place


def test_append_only_needs_no_permission_to_delete(unforgetting: Place, data: Path, tmp_path: Path) -> None:
    place, access = unforgetting, unforgetting.access._replace(append_only=True)
    for _ in range(3):
        add(data, os.urandom(1000))
        assert backup(data, place.to, 1, access).problems == []
    assert len(listed(place, data)) == 3
    (problem,) = backup(data, place.to, 1, place.access).problems
    assert "old snapshots were not removed" in problem
    assert len(listed(place, data)) == 4, "the credentials may not delete"
    assert service.verify(place.to, data, access)[2] == []
    restore(place.to, tmp_path / "again", access=access._replace(key_file=kept_key(data, tmp_path).key_file))
    assert rows(tmp_path / "again") == rows(data)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server for another user")
@pytest.mark.skipif(not remote_places.has_sshd(), reason="OpenSSH's sshd and sftp-server are not installed")
def test_a_stolen_key_changes_nothing_on_a_server_that_is_set_up_as_documented(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sshd").mkdir()
    with tempfile.TemporaryDirectory() as made:
        os.chown(made, 65534, 65534)
        server = Path(made, "backup")
        access = Access(append_only=True)
        with remote_places.sftp_server(tmp_path / "sshd", user=65534) as (address, home):
            monkeypatch.setenv("HOME", str(home))
            backup(data, f"{address}{server}", access=access)
        add(data, os.urandom(1000))
        with remote_places.sftp_server(tmp_path / "sshd", "-u", "0222", "-P", DENIED, user=65534) as (address, home):
            assert backup(data, f"{address}{server}", access=access).problems == []
            newest = max(
                (each for each in server.rglob("*") if each.is_file()), key=lambda each: each.stat().st_mtime_ns
            )
            before = newest.read_bytes()
            attacks = ("rm {}", "rename {} {}x", "chmod 600 {}", "put /dev/null {}", "reput /etc/passwd {}", "ls {}")
            for line in (each.replace("{}", str(newest)) for each in attacks):
                said = subprocess.run(
                    [*remote_places.sftp_client(address, home)], input=line, capture_output=True, text=True, check=False
                )
                assert (said.returncode == 0) is line.startswith("ls"), (line, said)
            assert newest.read_bytes() == before
            assert service.verify(f"{address}{server}", data, access)[::2] == (2, [])


def test_the_newest_whole_snapshot_of_several_places_is_restored(
    sftp: tuple[str, Path], request: pytest.FixtureRequest, data: Path, tmp_path: Path
) -> None:
    one, two = on_server(request, tmp_path), in_bucket(request)
    backup(data, one.to, access=one.access)
    add(data, os.urandom(400_000))
    both = backup(data, two.to, access=two.access)
    whole = rows(data)
    add(data, os.urandom(400_000))
    newest = backup(data, one.to, access=one.access)
    (last,) = {name for name in one.objects("snapshots") if newest.snapshot in name}
    flip_of = bytearray(one.read(last))
    flip_of[-1] ^= 1
    one.write(last, bytes(flip_of))
    access = with_key(two, data, tmp_path)
    gone, silent = f"{tmp_path}/was never there", "sftp://127.0.0.1:9/path"
    manifest, _, remarks = restore_of([gone, silent, one.to, two.to], tmp_path / "again", access=access)
    assert manifest.id == both.snapshot
    assert rows(tmp_path / "again") == whole
    assert any(newest.snapshot in each and "passed over" in each for each in remarks)
    assert any("does not exist" in each for each in remarks)
    assert any("127.0.0.1" in each and "9" in each for each in remarks)


def test_an_unknown_host_is_refused(
    sftp: tuple[str, Path], request: pytest.FixtureRequest, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = on_server(request, tmp_path)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(BackupFailed, match=r"the host key of 127\.0\.0\.1 is not the one in"):
        backup(data, place.to, access=place.access)
    (home / ".ssh/known_hosts").write_text((sftp[1] / ".ssh/known_hosts").read_text())
    with pytest.raises(BackupFailed, match="accepts none of the SSH keys"):
        backup(data, place.to, access=place.access)
    assert not (tmp_path / "server").exists()


def test_errors_of_a_bucket_are_a_line_without_credentials(
    s3: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-aws")
    for to, endpoint in (("s3://no-such-bucket/x", s3), (f"s3://{BUCKET}/x", "http://127.0.0.1:9")):
        monkeypatch.setattr("services.backup.s3.RETRY_S", 1)
        with pytest.raises(BackupFailed) as failure:
            backup(data, to, access=Access(endpoint=endpoint))
        assert "\n" not in str(failure.value)
        assert "a-secret-of-aws" not in str(failure.value)
        assert to in str(failure.value)


def test_a_schedule_of_remote_backups(sftp: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, home = sftp
    monkeypatch.setenv("HOME", str(home))
    data, to = tmp_path / "data", f"{address}{tmp_path}/server"
    data.mkdir()
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    (data / "linckia.toml").write_text(
        f'[backup]\nto = "{to}"\nappend_only = true\npassphrase_file = "{tmp_path}/passphrase"\n'
    )
    with running(data, services=["documents"]) as kernel:
        kernel.call("documents_add", {"name": "one", "content": "one"})
        kernel.call("kernel_backup")
        state = kernel.status()["backup"]
        assert (state["to"], state["error"], state["problems"]) == (to, "", [])
        findings = json.loads(in_this_process(data, "doctor", "--json").stdout)
        assert [each["verdict"] for each in findings if each["what"] == "backup"] == ["ok"]
        said = in_this_process(data, "status", "--json").stdout
        key = in_this_process(data, "backup", "--key", "--data", str(data))
        assert key.returncode == 0
        text = key.stdout.strip()
        logs = "".join(each.read_text() for each in (data / "logs").rglob("*") if each.is_file())
        for secret in (PASSPHRASE, text):
            assert secret not in said + logs + json.dumps(findings) + (data / "backup.json").read_text()
    (tmp_path / "key").write_text(text)
    ended = in_this_process(data, "restore", to, "--data", str(tmp_path / "again"), "--key-file", str(tmp_path / "key"))
    assert ended.returncode == 0, ended.stderr
    with running(tmp_path / "again", services=["documents"]) as kernel:
        assert kernel.call("documents_list")["total"] == 1
