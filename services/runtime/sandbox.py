"""What a service process may touch, decided at its birth and never widened: landlock, seccomp, user, resource limits.

Landlock (Linux 5.13) leaves it the folders it was given; seccomp takes away exec, ptrace, other processes' memory,
mounts, modules and, unless it was given the network, every socket but Unix ones.  Both are applied before the first
thread starts, and what the operating system cannot do is said in the answer, never passed over.  Landlock does not
stop stat, chmod or utime, so the checks on real paths in the services stay.

Sources: landlock(7), seccomp(2), linux/landlock.h, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import stat
import struct
import sys
import sysconfig
import tempfile
from pathlib import Path

from proto.birth import Confinement
from services.runtime import privileges
from services.runtime.privileges import checked, libc, prctl

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_VERSION_FLAG = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_ACCESS_BITS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many of the access rights each version of the interface knows, the newest for all later ones."""

_NETWORK_BITS = 0b11
"""Bind and connect of TCP, from version 4."""
_SCOPE_BITS = 0b11
"""Abstract Unix sockets and signals to processes outside, from version 6."""

_SYSTEM_FOLDERS = (
    "/usr", "/lib", "/lib64", "/bin", "/opt", "/sys",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/ssl", "/etc/ca-certificates", "/etc/pki",
    "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/mime.types",
    "/etc/passwd", "/etc/group", "/etc/fonts", "/etc/OpenCL", "/etc/vulkan",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/filesystems", "/proc/version",
    "/proc/driver", "/proc/devices", "/proc/modules",
)  # fmt: skip
"""Read only: shared libraries, time zones, certificates, what torch reads of the processor.  Not the rest of /etc,
which holds secrets where the kernel runs as root, nor other processes under /proc."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
"""Not /dev/shm nor /tmp, where what a process leaves fills memory or a disk that others need."""
_GPU_DEVICES = "nvidia*"

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_DENIED = {
    "x86_64": {
        "execve": 59, "execveat": 322, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165,
        "umount2": 166, "pivot_root": 155, "chroot": 161, "kexec_load": 246, "init_module": 175, "finit_module": 313,
        "delete_module": 176, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248,
        "request_key": 249, "reboot": 169, "swapon": 167, "swapoff": 168, "setns": 308, "unshare": 272,
        "open_by_handle_at": 304,
    },
    "aarch64": {
        "execve": 221, "execveat": 281, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "mount": 40,
        "umount2": 39, "pivot_root": 41, "chroot": 51, "kexec_load": 104, "init_module": 105, "finit_module": 273,
        "delete_module": 106, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "keyctl": 219, "add_key": 217,
        "request_key": 218, "reboot": 142, "swapon": 224, "swapoff": 225, "setns": 268, "unshare": 97,
        "open_by_handle_at": 265,
    },
}  # fmt: skip
_SOCKET = {"x86_64": 41, "aarch64": 198}
_AF_UNIX = 1
_X32_BIT = 0x40000000
_RETURN_ALLOW = 0x7FFF0000
_RETURN_EPERM = 0x00050000 | errno.EPERM
_BPF_LOAD, _BPF_EQUAL, _BPF_AT_LEAST, _BPF_RETURN = 0x20, 0x15, 0x35, 0x06

MAX_FILES = 65_536
"""Open files: FAISS segments, SQLite and thousands of watched folders fit; a leak is stopped before the machine is."""


def landlock_version() -> int:
    """Version of the landlock interface; 0 where the operating system has none."""
    version = libc().syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(0, int(version))


def has_seccomp() -> bool:
    """Whether a seccomp filter for this processor can be installed."""
    return sys.platform == "linux" and platform.machine() in _ARCH and Path("/proc/sys/kernel/seccomp").exists()


def confine(limits: Confinement, data_dir: Path) -> str:
    """Give up all but what `limits` names and the service's own folder; answers the limits in force, for `status`.

    Raises OSError where the operating system has a wall but refuses to build it: a service that cannot be confined as
    it should be does not start.
    """
    private = data_dir / "tmp"
    private.mkdir(parents=True, exist_ok=True, mode=0o700)
    # /tmp belongs to everybody; temporary files of SQLite and libraries go to the service's own folder.
    os.environ["TMPDIR"] = os.environ["SQLITE_TMPDIR"] = tempfile.tempdir = str(private)
    _move_temporary_files_of_sqlite(private)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    in_force = []
    as_root = os.geteuid() == 0
    # While they can still be: the folders are root's to give away and to open.
    owned = not as_root or privileges.own(data_dir, limits.user)
    version = landlock_version()
    if version:
        _restrict_files(version, limits, data_dir)
        in_force.append(f"landlock {version}")
    if as_root:
        files = limits.files_of_others or not owned
        in_force.append(privileges.give_up(limits.user if owned else None, files=files))
    if has_seccomp():
        _install_filter(platform.machine(), network=limits.network)
        in_force.append("seccomp")
    return ", ".join(in_force) or "none: this operating system has neither landlock nor seccomp"


def _move_temporary_files_of_sqlite(folder: Path) -> None:
    """An SQLite that a zygote has loaded read the environment then, and looks for a folder that it may write to by
    access(2), which knows nothing of landlock: large sorts and updates would fail for ever.

    Raises OSError where an SQLite cannot be told.
    """
    quoted = str(folder).replace("'", "''")
    for module in filter(None, map(sys.modules.get, ("sqlite3", "apsw"))):
        connect = module.connect if module.__name__ == "sqlite3" else module.Connection
        db = connect(":memory:")
        try:
            # Said to be deprecated, and the one way there is: for the whole process, not for this connection.
            db.execute(f"PRAGMA temp_store_directory = '{quoted}'")
            told = db.execute("PRAGMA temp_store_directory").fetchone()
        finally:
            db.close()
        if told is None or told[0] != str(folder):
            raise OSError(errno.ENOTSUP, f"{module.__name__} cannot be told where to keep temporary files")


def _restrict_files(version: int, limits: Confinement, data_dir: Path) -> None:
    handled = (1 << _ACCESS_BITS_BY_ABI.get(version, max(_ACCESS_BITS_BY_ABI.values()))) - 1
    network = _NETWORK_BITS if version >= 4 and not limits.network else 0
    scoped = _SCOPE_BITS if version >= 6 else 0
    attributes = struct.pack("=QQQ", handled, network, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    devices = (*_DEVICES, *map(str, Path("/dev").glob(_GPU_DEVICES)))
    ruleset = checked(
        libc().syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)),
        "landlock_create_ruleset",
    )
    try:
        for path in (*_shared_folders(), *limits.read):
            _allow(ruleset, path, _READ & handled)
        for path in (str(data_dir), *devices, *limits.write):
            _allow(ruleset, path, handled & ~_EXECUTE)
        checked(libc().syscall(_LANDLOCK_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # A path that does not exist needs no permission.
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _FILE_ONLY
        rule = struct.pack("=Qi", access, fd)
        checked(libc().syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, ctypes.c_uint32(0)), path)
    finally:
        os.close(fd)


def _shared_folders() -> tuple[str, ...]:
    """What every service may read: this interpreter, its packages, these services, and the system's libraries."""
    paths = sysconfig.get_paths()
    own = (sys.prefix, sys.base_prefix, paths["purelib"], paths["stdlib"], Path(__file__).resolve().parents[2])
    return (*(os.path.realpath(folder) for folder in own), *_SYSTEM_FOLDERS)


def _install_filter(machine: str, *, network: bool) -> None:
    program: list[bytes] = []

    def add(code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        program.append(struct.pack("=HBBI", code, if_true, if_false, value))

    add(_BPF_LOAD, 4)  # seccomp_data.arch
    add(_BPF_EQUAL, _ARCH[machine], 1, 0)
    add(_BPF_RETURN, _RETURN_EPERM)
    add(_BPF_LOAD, 0)  # seccomp_data.nr
    if machine == "x86_64":
        # The same calls under other numbers.
        add(_BPF_AT_LEAST, _X32_BIT, 0, 1)
        add(_BPF_RETURN, _RETURN_EPERM)
    for number in sorted(_DENIED[machine].values()):
        add(_BPF_EQUAL, number, 0, 1)
        add(_BPF_RETURN, _RETURN_EPERM)
    if not network:
        add(_BPF_EQUAL, _SOCKET[machine], 0, 3)
        add(_BPF_LOAD, 16)  # seccomp_data.args[0], the address family
        add(_BPF_EQUAL, _AF_UNIX, 1, 0)
        add(_BPF_RETURN, _RETURN_EPERM)
    add(_BPF_RETURN, _RETURN_ALLOW)
    instructions = ctypes.create_string_buffer(b"".join(program))
    # struct sock_fprog: the number of instructions, and where they are.
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, struct.pack("@HP", len(program), ctypes.addressof(instructions)))
