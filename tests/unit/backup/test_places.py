"""Addresses of remote places, and what their names and keys must be like."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proto.backup import Access, BackupFailed
from services.backup.connecting import connected
from services.backup.places import Damaged
from services.backup.sealing import Key, key_in, own_key, passphrase_of, unwrapped
from tests.unit.backup import writing


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("ftp://host/path", r"ftp:// is no place for backups; write sftp://"),
        ("sftp:///path", r"write sftp://\[user@\]host"),
        ("s3://bucket/x?y=1", r"write sftp://"),
        ("sftp://host:x/path", r"not the address of a place"),
    ],
)
def test_a_wrong_address_is_refused(to: str, why: str) -> None:
    with pytest.raises(BackupFailed, match=why):
        connected(to, "")


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(BackupFailed) as failure:
        connected("sftp://me:hidden@host/path", "")
    assert "contains no password" in str(failure.value)
    assert "hidden" not in str(failure.value)


@pytest.mark.parametrize(("to", "package"), [("sftp://host/path", "asyncssh"), ("s3://bucket", "obstore")])
def test_a_missing_package_says_how_to_install_it(to: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("services.backup.sftp", "services.backup.s3"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackupFailed, match=rf"need {package}; install it with: .*remote") as failure:
        connected(to, "")
    assert "\n" not in str(failure.value)


def test_a_sealed_object_has_one_name_and_one_key() -> None:
    key, other = Key(b"1" * 32), Key(b"2" * 32)
    sealed = key.seal("chunks/a", b"content")
    assert key.unseal("chunks/a", sealed) == b"content"
    for name, content, by in (
        ("chunks/b", sealed, key),
        ("chunks/a", sealed[:-1], key),
        ("chunks/a", b"", key),
        ("chunks/a", b"\2" + sealed[1:], key),
        ("chunks/a", sealed, other),
        *(("chunks/a", sealed[:n] + bytes((sealed[n] ^ 1,)) + sealed[n + 1 :], key) for n in range(len(sealed))),
    ):
        with pytest.raises(Damaged):
            by.unseal(name, content)
    assert key.seal("chunks/a", b"content") != sealed
    sha256 = "00" * 32
    assert key.name_of(sha256) == Key(b"1" * 32).name_of(sha256) != other.name_of(sha256)


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    key = own_key(tmp_path)
    assert own_key(tmp_path).text == key.text
    assert [each.name for each in tmp_path.iterdir()] == ["backup.key"]
    assert (tmp_path / "backup.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "copy").write_text(f"  {key.text}\n")
    assert key_in(tmp_path / "copy").id == key.id
    (tmp_path / "copy").write_text(key.text[:-1])
    with pytest.raises(BackupFailed) as failure:
        key_in(tmp_path / "copy")
    assert key.text[20:60] not in str(failure.value)
    assert key.text not in repr(key)


def test_a_passphrase_opens_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key(b"1" * 32)
    wrapped = key.wrapped("a long passphrase")
    opened = unwrapped(wrapped, key.id, "a long passphrase")
    assert opened is not None
    assert opened.text == key.text
    assert unwrapped(wrapped, key.id, "another passphrase") is None
    assert unwrapped(wrapped[:20], key.id, "a long passphrase") is None
    monkeypatch.setenv("LINCKIA_BACKUP_PASSPHRASE", "short")
    with pytest.raises(BackupFailed, match="shorter than 12 characters"):
        passphrase_of(Access())
    with pytest.raises(BackupFailed, match="cannot read the passphrase"):
        passphrase_of(Access(passphrase_file=tmp_path / "none"))


def test_only_encrypted_folders_are_append_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    writing.make(data)
    with pytest.raises(BackupFailed, match="only encrypted backups are append-only"):
        writing.backup(data, tmp_path / "to", access=Access(append_only=True))
    with pytest.raises(BackupFailed, match="an archive is neither"):
        writing.backup(data, tmp_path / "to.tar", access=Access(encrypt=True))
    writing.backup(data, tmp_path / "to")
    with pytest.raises(BackupFailed, match="contains backups that are not encrypted"):
        writing.backup(data, tmp_path / "to", access=Access(encrypt=True))
