"""An SFTP server and an S3 server on this machine, each a process of its own: OpenSSH's sshd, and moto."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3

from proto.backup import Access
from tests.system.running import wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
SFTP_SERVER = "/usr/lib/openssh/sftp-server"

BUCKET = "backups"

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/home/.ssh/id_ed25519.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp {server}
"""


def has_sshd() -> bool:
    return os.access(SSHD, os.X_OK) and os.access(SFTP_SERVER, os.X_OK)


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def started(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        wait_until(lambda: is_open(port) or process.poll() is not None, 60)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def sftp_server(folder: Path, *options: str, user: int | None = None) -> Iterator[tuple[str, Path]]:
    """Yield the beginning of its addresses, and a home folder whose `.ssh` has the key and the known host.

    Args:
        options: those of `sftp-server`.
        user: who it runs as, if not as the user of this process.
    """
    server = [SFTP_SERVER, *options]
    if user is not None:
        server = [shutil.which("setpriv") or "", f"--reuid={user}", f"--regid={user}", "--clear-groups", *server]
    port = free_port()
    (folder / "home/.ssh").mkdir(parents=True, exist_ok=True)
    for key in (folder / "host_key", folder / "home/.ssh/id_ed25519"):
        if not key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    host_key = (folder / "host_key.pub").read_text()
    (folder / "home/.ssh/known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    config = folder / f"sshd_config-{port}"
    config.write_text(CONFIG.format(port=port, folder=folder, server=" ".join(server)))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with started([SSHD, "-D", "-e", "-f", str(config)], port, folder / f"sshd-{port}.log"):
        yield f"sftp://127.0.0.1:{port}", folder / "home"


def sftp_client(address: str, home: Path) -> list[str]:
    """Return the command of OpenSSH's own client, which reads what to do from stdin."""
    options = {
        "Port": address.rpartition(":")[2],
        "IdentityFile": home / ".ssh/id_ed25519",
        "UserKnownHostsFile": home / ".ssh/known_hosts",
        "StrictHostKeyChecking": "yes",
    }
    words = (word for name, text in options.items() for word in ("-o", f"{name}={text}"))
    return ["sftp", "-q", "-b", "-", *words, "127.0.0.1"]


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Yield its address."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with started(command, port, folder / "moto.log"):
        yield f"http://127.0.0.1:{port}"


def client(endpoint: str, kind: str = "s3") -> Any:
    return boto3.client(
        kind, endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )


@contextlib.contextmanager
def limited(endpoint: str, policy: str) -> Iterator[dict[str, str]]:
    """Yield the environment with credentials that may do what the policy says; the server checks them meanwhile."""
    iam = client(endpoint, "iam")
    iam.create_user(UserName="writer")
    iam.put_user_policy(UserName="writer", PolicyName="writer", PolicyDocument=policy)
    key = iam.create_access_key(UserName="writer")["AccessKey"]
    _checks(endpoint, "0")
    try:
        yield {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    finally:
        _checks(endpoint, "inf")


def _checks(endpoint: str, after: str) -> None:
    address, plain = f"{endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    asked = urllib.request.Request(address, data=after.encode(), headers=plain, method="POST")
    with urllib.request.urlopen(asked, timeout=60):
        pass


class Place:
    """A place for backups, and the servers' own view of its objects."""

    def __init__(self, to: str, access: Access) -> None:
        self.to = to
        self.access = access

    def objects(self, below: str = "") -> list[str]:
        raise NotImplementedError

    def read(self, name: str) -> bytes:
        raise NotImplementedError

    def write(self, name: str, content: bytes) -> None:
        raise NotImplementedError

    def remove(self, name: str) -> None:
        raise NotImplementedError


class InFolder(Place):
    def __init__(self, to: str, access: Access, folder: Path) -> None:
        super().__init__(to, access)
        self.folder = folder

    def objects(self, below: str = "") -> list[str]:
        found = (each for each in (self.folder / below).rglob("*") if each.is_file())
        return sorted(str(each.relative_to(self.folder)) for each in found)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


class InBucket(Place):
    def __init__(self, prefix: str, endpoint: str) -> None:
        super().__init__(f"s3://{BUCKET}/{prefix}", Access(endpoint=endpoint))
        self._prefix = f"{prefix}/"
        self._client = client(endpoint)

    def objects(self, below: str = "") -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self._prefix + below)
        return sorted(each["Key"][len(self._prefix) :] for page in pages for each in page.get("Contents", ()))

    def read(self, name: str) -> bytes:
        content: bytes = self._client.get_object(Bucket=BUCKET, Key=self._prefix + name)["Body"].read()
        return content

    def write(self, name: str, content: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=self._prefix + name, Body=content)

    def remove(self, name: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=self._prefix + name)
