"""What a service process may touch, decided at its launch and never widened: landlock, seccomp, user, resource limits.

Landlock (Linux 5.13) leaves it the folders it was given; seccomp the system calls that its purpose needs
(`services.runtime.syscalls`): no program, no process, no other process's memory, limits or signals, and no socket but
what it is handed, unless the network is its purpose.  Both are applied before the first thread starts, and what the
operating system cannot do is said in the answer, never passed over.  Landlock does not stop stat, chmod or utime, so
the checks on real paths in the services stay.

Sources: landlock(7), seccomp(2), linux/landlock.h, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import resource
import stat
import struct
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NoReturn

from linckia.proto.launch import EXIT_OUT_OF_MEMORY, SCRATCH_FOLDER, Confinement, LaunchConfig
from linckia.services.runtime import privileges, syscalls
from linckia.services.runtime.privileges import checked, libc, prctl

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

_BIND_TCP, _CONNECT_TCP = 0b01, 0b10
"""From version 4."""
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
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
"""Not /dev/shm nor /tmp, where what a process leaves fills memory or a disk that others need; nor /dev/zero, whose
memory is shared and counted nowhere."""
_GPU_DEVICES = "nvidia*"

RESERVE_BYTES = 512 * 1024**2
RESERVE_A_CORE_BYTES = 32 * 1024**2
"""What is counted and not used: stacks of worker threads, and heaps that were given room to grow."""

STANDBY_THREADS = 64

_log = logging.getLogger("linckia.service")


def landlock_version() -> int:
    """Version of the landlock interface; 0 where the operating system has none."""
    version = libc().syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(0, int(version))


def has_seccomp() -> bool:
    """Whether a seccomp filter for this processor can be installed."""
    return (
        sys.platform == "linux" and syscalls.is_known(platform.machine()) and Path("/proc/sys/kernel/seccomp").exists()
    )


def confine(limits: Confinement, data_dir: Path) -> str:
    """Give up all but what `limits` names and the service's own folder; answers the limits in force, for `status`.

    Raises OSError where the operating system has a wall but refuses to build it: a service that cannot be confined as
    it should be does not start.
    """
    private = data_dir / SCRATCH_FOLDER
    if private.is_symlink() or (private.exists() and not private.is_dir()):
        # A process that was taken over has left that, and no other would start.
        private.unlink()
    private.mkdir(parents=True, exist_ok=True, mode=0o700)
    # /tmp belongs to everybody; temporary files of SQLite and libraries go to the service's own folder.
    os.environ["TMPDIR"] = os.environ["SQLITE_TMPDIR"] = tempfile.tempdir = str(private)
    _move_temporary_files_of_sqlite(private)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = limits.open_files if hard == resource.RLIM_INFINITY else min(limits.open_files, hard)
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
        # A folder that has no owners may be another user's.
        user, files = (limits.user, limits.files_of_others) if owned else (None, "write")
        in_force.append(privileges.give_up(user, files))
    if has_seccomp():
        _install_filter(limits)
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
    network = (_BIND_TCP if limits.network else _BIND_TCP | _CONNECT_TCP) if version >= 4 else 0
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
    """What every service may read: this interpreter, its packages, these services, and the system's libraries.

    Packages may be outside the environment: a user's own (`pip install --user`), or named by a `.pth` file. Folders
    that PYTHONPATH names stay closed, since they may hold anything.
    """
    paths = sysconfig.get_paths()
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    packages = [folder for folder in sys.path if os.path.isabs(folder) and folder not in named]
    code = str(Path(__file__).resolve().parents[2])
    own = (sys.prefix, sys.base_prefix, paths["purelib"], paths["stdlib"], code, *packages)
    return (*(os.path.realpath(folder) for folder in own), *_SYSTEM_FOLDERS)


def _install_filter(limits: Confinement) -> None:
    count, code = syscalls.program(
        platform.machine(),
        os.getpid(),
        network=limits.network,
        connections=limits.connections,
        gpu=limits.gpu,
        attributes=bool(limits.write),
        watches=limits.watches,
    )
    instructions = ctypes.create_string_buffer(code)
    # struct sock_fprog: the number of instructions, and where they are.
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, struct.pack("@HP", count, ctypes.addressof(instructions)))


def bound_memory(launch: LaunchConfig) -> None:
    """Have an allocation fail that would pass the bound; for this process and all that it starts, for good.

    A burst outruns the supervisor, which looks once a second. What is private and can be written to counts (RLIMIT_DATA
    of setrlimit(2)): heaps and stacks, used or not; not files that are mapped, nor addresses that are only reserved, as
    torch, FAISS and allocators do. Where a GPU's driver maps what it likes, there is no bound.
    """
    if launch.memory_limit_bytes is None or launch.mode == "cuda":
        return
    reserve = RESERVE_BYTES + RESERVE_A_CORE_BYTES * (os.cpu_count() or 1)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = launch.memory_limit_bytes * 5 // 4 + reserve
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def bound_files(launch: LaunchConfig) -> None:
    """No file is to be larger than the disk that the service may hold; those of roots are not its own."""
    if launch.disk_limit_bytes is not None and len(launch.read_only) == len(launch.roots):
        resource.setrlimit(resource.RLIMIT_FSIZE, (launch.disk_limit_bytes, launch.disk_limit_bytes))


def bound_threads(launch: LaunchConfig) -> None:
    """Have the system refuse threads to a service with a user of its own (RLIMIT_NPROC, which counts a user's threads).

    It is past the limit at which the supervisor, which looks once a second, ends it, and leaves room for its standby.
    """
    if launch.thread_limit is not None and launch.confinement is not None and launch.confinement.user is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        most = launch.thread_limit * 5 // 4 + STANDBY_THREADS
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def end_out_of_memory(doing: str) -> NoReturn:
    """End at once: what else is in hand would fail of it as well, here and there."""
    _log.error("%s needed more memory than the system allows this process", doing)
    os._exit(EXIT_OUT_OF_MEMORY)
