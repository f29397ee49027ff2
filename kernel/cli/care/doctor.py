"""`linckia doctor`: what this machine provides and what it lacks, with a remedy for each problem.

It changes nothing without `--repair`. Checks that need a heavy import run in a separate process, which may crash.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kernel import VERSION
from kernel.cli.care.findings import Finding, Verdict
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.cli.status import backup
from kernel.configure import tokens, users
from kernel.configure.config import STANDS_BY, ConfigError
from proto.control.address import socket_path
from proto.control.client import Client, ControlError, NoKernel
from proto.control.terminal import show_answer
from proto.host import extras, models
from proto.names import module
from proto.ops.documents.reading import DocumentsVerify
from proto.ops.kernel import AuditStatus, BackupStatus, ClusterStatus, KernelStatus, KernelStatusParams, ServiceStatus
from proto.wire.frames import DAMAGE
from proto.wire.front import OFF

LOW_SPACE_BYTES = 1 * 2**30
"""Below this, rebuilding an index next to the old one may fill the disk."""

LATE = 2.5
"""Multiple of the interval between backups after which something must be preventing them."""

FEW_DESCRIPTORS = 1024
"""A service uses about ten descriptors, a client two. A machine with many clients runs out below this."""

PROBE_TIMEOUT_S = 60.0
"""Importing torch from a cold disk takes 2 to 8 seconds."""

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_WITH_SIGNALS = 6


def _either(what: str, good: bool, found: str, otherwise: str, remedy: str = "") -> Finding:
    """Return an OK finding, or a note of what is wrong."""
    return Finding(what, Verdict.OK, found) if good else Finding(what, Verdict.NOTE, otherwise, remedy)


MAX_SHOWN = 20

_STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.BAD: "bold red"}


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; exit code 1 if one is bad."""
    data_dir: Path = arguments.data_dir
    given = msgspec.json.decode(sys.stdin.read(), type=KernelStatus) if arguments.status == "-" else None
    findings = list(examine(data_dir, given))
    if arguments.verify:
        findings += verified(data_dir)
    if arguments.repair:
        from kernel.cli.care.repair import repaired  # imports SQLite, which no other check needs

        findings += repaired(data_dir)
    rows = [
        ((verdict.value, _STYLES[verdict]), what, f"{found} -> {remedy}" if remedy else found)
        for what, verdict, found, remedy in findings
    ]
    show_answer(arguments.json, [finding._asdict() for finding in findings], ("", "WHAT", "FOUND"), rows)
    return 1 if any(finding.verdict is Verdict.BAD for finding in findings) else 0


def verified(data_dir: Path) -> Iterator[Finding]:
    """Check, through the running service, that the hash of every stored document is right."""
    try:
        with Client(data_dir) as client:
            answer = client.call(DocumentsVerify())
    except ControlError as error:
        yield Finding("documents", Verdict.BAD, f"could not be verified: {error}", "linckia serve, then again")
        return
    wrong = [*answer.damaged, *answer.problems]
    for reason in wrong[:MAX_SHOWN]:
        yield Finding("documents", Verdict.BAD, reason, "add it again from its source: linckia add PATH")
    if len(wrong) > MAX_SHOWN:
        yield Finding("documents", Verdict.BAD, f"and {len(wrong) - MAX_SHOWN} more")
    if not wrong:
        size = f"{answer.bytes / 2**20:.0f} MiB"
        yield Finding("documents", Verdict.OK, f"{answer.objects} contents ({size}) match their hashes")


def examine(data_dir: Path, given: KernelStatus | None = None) -> Iterator[Finding]:
    """Yield all findings, the quick ones first. `given` is the kernel's status, if it is known."""
    yield Finding("linckia", Verdict.OK, VERSION)
    yield Finding("python", Verdict.OK, f"{platform.python_version()}, {sys.executable}")
    old = not hasattr(os, "pidfd_open")
    system = f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs, {platform.machine()}"
    needed = "Linux 5.3 or newer is required (pidfd_open)" if old else ""
    yield Finding("system", Verdict.BAD if old else Verdict.OK, system, needed)
    yield _data_dir(data_dir)
    status: KernelStatus | ControlError
    try:
        if given is not None:
            status = given
        else:
            with Client(data_dir) as client:
                status = client.call(KernelStatusParams(), timeout_s=5)
    except ControlError as error:
        status = error
    yield from _kernel(data_dir, status)
    yield _token(data_dir, status)
    yield from _tokens(data_dir)
    for look in (_memory, _descriptors, _landlock, _seccomp, _read_only_mounts, _cgroup):
        yield look()
    yield _user(data_dir)
    yield _model()
    yield _reranker()
    yield from _torch()
    yield _openvino()
    yield _ray(None if isinstance(status, ControlError) else status.cluster)
    yield _video()


def _data_dir(data_dir: Path) -> Finding:
    there = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{data_dir}, {free / 2**30:.1f} GiB free" + ("" if there == data_dir else ", does not exist yet")
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("data directory", Verdict.BAD, found, f"{there} is not writable; name another one with --data")
    if free < LOW_SPACE_BYTES:
        return Finding("data directory", Verdict.NOTE, found, "free some space, or name another one with --data")
    return Finding("data directory", Verdict.OK, found)


def _kernel(data_dir: Path, status: KernelStatus | ControlError) -> Iterator[Finding]:
    if isinstance(status, NoKernel):
        yield Finding("kernel", Verdict.NOTE, "none is running for this data directory", "linckia serve PATH…")
        return
    if isinstance(status, ControlError):
        yield Finding("kernel", Verdict.BAD, f"{socket_path(data_dir)}: {status}", "linckia logs")
        return
    bad = [service.name for service in status.services if service.state in ("failed", "backoff")]
    found = f"process {status.pid}, {len(status.services)} services"
    if bad:
        yield Finding("kernel", Verdict.BAD, f"{found}, unhealthy: {', '.join(bad)}", f"linckia logs {bad[0]}")
    else:
        yield Finding("kernel", Verdict.OK, found)
    yield from damages(status.services, status.backup)
    yield from sources(status.services)
    yield audit_finding(status.audit)
    yield backup_finding(status.backup)


def backup_finding(state: BackupStatus | None) -> Finding:
    """Return a finding about the `backup` in the kernel's status."""
    if state is None:
        return Finding("backup", Verdict.NOTE, "there is none", "[backup] in the settings, or linckia backup DIR")
    late = state.every_s is not None and (state.age_s is None or state.age_s > LATE * state.every_s)
    remedy = f"linckia backup {state.to}"
    if state.error or (late and state.age_s is not None):
        return Finding("backup", Verdict.BAD, backup(state), remedy)
    return _either("backup", state.age_s is not None and not state.problems, backup(state), backup(state), remedy)


def damages(services: Sequence[ServiceStatus], state: BackupStatus | None = None) -> Iterator[Finding]:
    """Yield what services report as damaged, with the backup to restore from, according to the kernel's status."""
    made = state is not None and state.snapshot
    whence = f"{state.to}, which has {state.snapshot}" if state and made else "a backup, if there is one"
    for service in services:
        if said := service.info.get(DAMAGE):
            yield Finding(service.name, Verdict.BAD, said, f"or restore --replace from {whence}")


def sources(services: Sequence[ServiceStatus]) -> Iterator[Finding]:
    """Yield where source data are that are on a server, and who holds them."""
    for service in services:
        waits, held = service.info.get(STANDS_BY, ""), service.info.get("sources", "")
        if waits.startswith("waits"):
            yield Finding(service.name, Verdict.BAD, waits, "start the PostgreSQL server, and check [sources]")
        elif waits or held:
            yield Finding(service.name, Verdict.OK, waits or held)


def audit_finding(state: AuditStatus | None) -> Finding:
    """Return a finding about the `audit` in the kernel's status."""
    if state is None:
        return Finding("audit log", Verdict.NOTE, "off: changes are not recorded", "audit.enabled in the settings")
    lost = f"{state.lost} lines were lost" if state.lost else ""
    if state.problem:
        found = f"{state.problem}; {state.waiting} lines wait; {lost}".removesuffix("; ")
        return Finding("audit log", Verdict.BAD, found, "free some disk space")
    return _either("audit log", not lost, state.path, f"{state.path}, {lost}")


def _token(data_dir: Path, status: KernelStatus | ControlError) -> Finding:
    """Check whether HTTP requires a token, in the running kernel or else in the settings."""
    if isinstance(status, ControlError):
        try:
            http = load(Flags(data_dir=str(data_dir)), os.environ).http
        except ConfigError as error:
            return Finding("settings", Verdict.BAD, str(error))
        is_open = http is not None and http.token == OFF
    else:
        is_open = status.open
    every = "off: every user, program and service with a network on this machine has a client's access"
    return _either("token", not is_open, "HTTP requires one", every, "remove http.token, or LINCKIA_TOKEN")


def _tokens(data_dir: Path) -> Iterator[Finding]:
    try:
        there = tokens.listed(data_dir)
    except tokens.CannotRead as error:
        yield Finding("tokens", Verdict.BAD, str(error))
        return
    now = time.time()
    for why, named in (
        ("never expire", [each.name for each in there if each.expires is None]),
        ("have expired", [each.name for each in there if each.expires is not None and each.expires <= now]),
    ):
        if named:
            yield Finding("tokens", Verdict.NOTE, f"{why}: {', '.join(named)}", f"linckia token revoke {named[0]}")


def _memory() -> Finding:
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    found = f"{available / 2**30:.1f} GiB available"
    return _either("memory", available >= 2 * 2**30, found, found, "search by meaning needs about 1 GiB")


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"at most {soft}"
    return _either("open files", soft >= FEW_DESCRIPTORS, found, found, f"ulimit -n {min(hard, 65536)}")


def _landlock() -> Finding:
    """Check the version of the kernel's interface, as in landlock_create_ruleset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    if version <= 0:
        missing = f"unavailable ({os.strerror(ctypes.get_errno())}): services are less confined"
        return Finding("landlock", Verdict.NOTE, missing, "boot Linux 5.13 or newer with lsm=…,landlock")
    return landlock_of(version)


def landlock_of(version: int) -> Finding:
    """Describe a version of the interface."""
    unscoped = f"ABI {version}, without a scope for signals: a server with `confine` can end processes of its user"
    return _either(
        "landlock", version >= _LANDLOCK_WITH_SIGNALS, f"ABI {version}", unscoped, "boot Linux 6.12 or newer"
    )


def _read_only_mounts() -> Finding:
    """Try what confined servers are started with, in a process of its own."""
    command = [sys.executable, "-P", "-m", module("services.runtime.read_only")]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    why = tried.stderr.strip().rpartition("\n")[2]
    good = "servers with `confine` see everything outside their roots read-only"
    otherwise = f"{why}: servers with `confine` cannot change modes, owners and times of files, even below their roots"
    settings = "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns"
    remedy = f"run Linckia as an ordinary user, and allow user namespaces ({settings})"
    return _either("mounts", tried.returncode == 0, good, otherwise, remedy)


def _seccomp() -> Finding:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    there = actions.exists() and "errno" in actions.read_text().split()
    return _either("seccomp", there, "filters are available", "unavailable", "a Linux with CONFIG_SECCOMP_FILTER")


def _cgroup() -> Finding:
    own = Path("/proc/self/cgroup").read_text().strip().splitlines()
    groups = [Path("/sys/fs/cgroup") / line[3:].lstrip("/") for line in own if line.startswith("0::")]
    counted = any((group / "memory.events").exists() for group in groups)
    missing = "no memory.events: an out-of-memory kill shows as SIGKILL"
    return _either("cgroup", counted, "out-of-memory kills are distinguished from others", missing)


def _user(data_dir: Path) -> Finding:
    if os.geteuid() != 0:
        return Finding("user", Verdict.OK, f"uid {os.geteuid()}")
    why = users.obstacle()
    closed = users.enclosed(data_dir)
    reading = f", with the privilege to read: {closed}" if closed else ""
    good = f"root; services that write only to their own folder have their own users{reading}"
    otherwise = f"root, and so are its services, without privileges except for files: {why}"
    return _either("user", why is None, good, otherwise, "run Linckia as an ordinary user")


def _model() -> Finding:
    found = next((name for name in models.AUTOMATIC if models.installed(name)), "")
    if found:
        return Finding("embedding model", Verdict.OK, found)
    missing = "none found: search works by words only"
    return Finding("embedding model", Verdict.BAD, missing, "linckia models get all-MiniLM-L6-v2")


def _reranker() -> Finding:
    found = models.cross_encoder()
    remedy = "linckia models get ms-marco-MiniLM-L6-v2 (or set `rerank` of [services.retrieve] to maxsim)"
    return _either("reranking model", bool(found), found, "none found: results keep their fused order", remedy)


def _video() -> Finding:
    if extras.is_installed(extras.VIDEO):
        return Finding("video", Verdict.OK, "metadata and frames of video and audio files are read")
    found = "not installed: needed for metadata and frames of video and audio files"
    return Finding("video", Verdict.OK, found, extras.command_for(extras.VIDEO))


def _openvino() -> Finding:
    if extras.is_installed(extras.OPENVINO):
        return Finding("OpenVINO", Verdict.OK, "embeds on processors with AMX")
    if extras.amx_present():
        found = "not installed: texts would be embedded nearly twice as fast on this processor"
        return Finding("OpenVINO", Verdict.NOTE, found, extras.command_for(extras.OPENVINO))
    return Finding("OpenVINO", Verdict.OK, "not installed, and no faster on this processor")


def _ray(cluster: ClusterStatus | None) -> Finding:
    if cluster is not None:
        nodes = f"{cluster.address}, {len(cluster.nodes)} nodes"
        broken = f"{cluster.address} is not connected, and this machine does all work: {cluster.problem}"
        remedy = "check the head of the cluster with `ray status`, and [cluster] in the settings"
        return _either("cluster", not cluster.problem, nodes, broken, remedy)
    if extras.is_installed(extras.RAY):
        return Finding("Ray", Verdict.OK, "can run stateless services on other machines; none are set ([cluster])")
    found = "not installed: needed for stateless services on other machines ([cluster])"
    return Finding("Ray", Verdict.OK, found, extras.command_for(extras.RAY))


_TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cuda": cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
}))
"""


def _torch() -> Iterator[Finding]:
    if not extras.is_installed(extras.TORCH):
        found = "not installed: needed for GPUs, cross-encoders and models other than BERT"
        verdict = Verdict.NOTE if extras.gpu_present() or models.cross_encoder() else Verdict.OK
        yield Finding("torch", verdict, found, extras.command_for(extras.TORCH))
        return
    try:
        command = [sys.executable, "-P", "-W", "ignore", "-c", _TORCH_PROBE]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("torch", Verdict.BAD, f"did not import within {PROBE_TIMEOUT_S:.0f} s", "is the disk very busy?")
        return
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("torch", Verdict.BAD, f"cannot be imported: {last}", extras.command_for(extras.TORCH))
        return
    found = json.loads(probe.stdout)
    yield Finding("torch", Verdict.OK, found["version"])
    if found["cuda"]:
        yield Finding("gpu", Verdict.OK, ", ".join(found["devices"]))
        return
    unused = "this machine has an NVIDIA GPU, but torch cannot use it; the CPU is used"
    remedy = "LINCKIA_TORCH=cuda with a new .venv, and a matching driver"
    yield _either("gpu", not extras.gpu_present(), "none; the CPU is used", unused, remedy)
