"""The sandbox of a service process, fixed at launch and never widened: landlock, seccomp, user, resource limits.

Landlock (Linux 5.13) limits the process to the folders that it was given. Seccomp limits it to the system calls that
its purpose needs (`services.runtime.syscalls`): no programs, no processes, no access to other processes' memory, limits
or signals, and no sockets except inherited ones, unless networking is its purpose. Both apply before the first thread
starts. Anything that the operating system does not support is reported, never skipped silently. Landlock does not
restrict stat, chmod or utime, so the services' own checks of real paths remain necessary. Programs, which have no such
checks, see everything outside their folders read-only (`services.runtime.read_only`) or may not make such calls at all.

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
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

from proto.host.scratch import provide
from proto.wire.launch import (
    EXIT_OUT_OF_MEMORY,
    FREE_ATTRIBUTES,
    NO_ATTRIBUTES,
    NO_SIGNAL_SCOPE,
    Confinement,
    LaunchConfig,
)
from services.runtime import privileges, read_only, syscalls
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
"""Number of access rights in each version of the interface; later versions use the newest."""

_BIND_TCP, _CONNECT_TCP = 0b01, 0b10
"""Available from version 4."""
_ABI_WITH_SCOPES = 6
_SCOPE_BITS = 0b11
"""Abstract Unix sockets and signals to processes outside the sandbox, from version 6."""

_SYSTEM_FOLDERS = (
    "/usr", "/lib", "/lib64", "/bin", "/opt", "/sys",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/ssl", "/etc/ca-certificates", "/etc/pki",
    "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/mime.types",
    "/etc/passwd", "/etc/group", "/etc/fonts", "/etc/OpenCL", "/etc/vulkan",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/filesystems", "/proc/version",
    "/proc/driver", "/proc/devices", "/proc/modules",
)  # fmt: skip
"""Read-only: shared libraries, time zones, certificates, and processor details for torch. The rest of /etc is left out
because it holds secrets when the kernel runs as root, and so are other processes in /proc."""
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
"""Without /dev/shm and /tmp, where leftover files fill memory or disk that others need, and without /dev/zero, whose
shared memory is not counted anywhere."""
_GPU_DEVICES = "nvidia*"
_THREADS = "/proc/self/task"
"""CUDA names its threads by writing to their `comm`, and does not start if that is refused."""
_SHARED_MEMORY = "/dev/shm"
_DEVICES_OF_PROGRAMS = ("/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts", _SHARED_MEMORY)
"""What programs may write in addition: memory and files that they leave there are theirs."""

RESERVE_BYTES = 512 * 1024**2
RESERVE_A_CORE_BYTES = 32 * 1024**2
"""Memory that counts but is not used: stacks of worker threads, and heaps with room to grow."""

STANDBY_THREADS = 64

_log = logging.getLogger("linckia.service")


def landlock_version() -> int:
    """Return the version of the landlock interface; 0 if the operating system has none."""
    version = libc().syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(0, int(version))


def has_seccomp() -> bool:
    """Return True if a seccomp filter for this processor can be installed."""
    return (
        sys.platform == "linux" and syscalls.is_known(platform.machine()) and Path("/proc/sys/kernel/seccomp").exists()
    )


def confine(limits: Confinement, data_dir: Path) -> str:
    """Give up everything except what `limits` names and the service's own folder.

    Returns the limits in force, for `status`. Raises OSError if the operating system supports a barrier but fails to
    apply it: a service that cannot be confined as configured does not start.
    """
    private = provide(data_dir)
    # Everybody can write to /tmp, so temporary files of SQLite and libraries go to the service's own folder.
    os.environ["TMPDIR"] = os.environ["SQLITE_TMPDIR"] = tempfile.tempdir = str(private)
    _move_temporary_files_of_sqlite(private)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = limits.open_files if hard == resource.RLIM_INFINITY else min(limits.open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    in_force: list[str] = []
    as_root = os.geteuid() == 0
    # Done before the privileges are dropped: only root can give the folders away and open them.
    owned = not as_root or privileges.own(data_dir, limits.user)
    attributes = bool(limits.write)
    if limits.programs:
        # Before landlock, which forbids mounting.
        why = read_only.make_others_read_only((*limits.write, os.path.realpath(data_dir), _SHARED_MEMORY))
        attributes = not why
        otherwise = NO_ATTRIBUTES if has_seccomp() else FREE_ATTRIBUTES
        in_force.append(f"{otherwise} ({why})" if why else "read-only mounts")
    version = landlock_version()
    if version:
        _restrict_files(version, limits, data_dir)
        in_force.append(f"landlock {version}")
    if limits.programs and version < _ABI_WITH_SCOPES:
        in_force.append(NO_SIGNAL_SCOPE)
    if as_root:
        # A folder that does not keep owners may belong to another user.
        user, files = (limits.user, limits.files_of_others) if owned else (None, "write")
        in_force.append(privileges.give_up(user, files))
    if has_seccomp():
        _install_filter(limits, attributes=attributes)
        in_force.append("seccomp")
    return ", ".join(in_force) or "none: this operating system has neither landlock nor seccomp"


def _move_temporary_files_of_sqlite(folder: Path) -> None:
    """Make SQLite use `folder` for temporary files.

    An SQLite loaded by the zygote read the environment there. It picks a writable folder with access(2), which does not
    know about landlock, so large sorts and updates would fail permanently.

    Raises OSError if an SQLite does not accept the setting.
    """
    quoted = str(folder).replace("'", "''")
    for module in filter(None, map(sys.modules.get, ("sqlite3", "apsw"))):
        connect = module.connect if module.__name__ == "sqlite3" else module.Connection
        db = connect(":memory:")
        try:
            # Deprecated, but the only way; it applies to the whole process, not to this connection.
            db.execute(f"PRAGMA temp_store_directory = '{quoted}'")
            current = db.execute("PRAGMA temp_store_directory").fetchone()
        finally:
            db.close()
        if current is None or current[0] != str(folder):
            raise OSError(errno.ENOTSUP, f"{module.__name__} does not accept a folder for temporary files")


def _restrict_files(version: int, limits: Confinement, data_dir: Path) -> None:
    handled = (1 << _ACCESS_BITS_BY_ABI.get(version, max(_ACCESS_BITS_BY_ABI.values()))) - 1
    network = (_BIND_TCP if limits.network else _BIND_TCP | _CONNECT_TCP) if version >= 4 else 0
    if limits.programs and limits.network:
        # They may listen, for example for the reply of a login page in a browser.
        network = 0
    scoped = _SCOPE_BITS if version >= _ABI_WITH_SCOPES else 0
    attributes = struct.pack("=QQQ", handled, network, scoped)[: 8 if version < 4 else 24 if scoped else 16]
    devices = (*_DEVICES, *map(str, Path("/dev").glob(_GPU_DEVICES)))
    if limits.programs:
        devices += _DEVICES_OF_PROGRAMS
    ruleset = checked(
        libc().syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)),
        "landlock_create_ruleset",
    )
    visible = around(limits.hidden) if limits.programs else ()
    written = handled if limits.programs else handled & ~_EXECUTE
    try:
        for path in (*_shared_folders(), *limits.read, *visible):
            _allow(ruleset, path, _READ & handled)
        for path in (str(data_dir), *devices, *limits.write):
            _allow(ruleset, path, written)
        if limits.gpu:
            _allow(ruleset, _THREADS, (_WRITE_FILE | _TRUNCATE) & handled)
        checked(libc().syscall(_LANDLOCK_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def around(hidden: Collection[str]) -> Iterator[str]:
    """Yield files and folders, as few as possible, that hold the whole file system except `hidden` (real paths).

    Landlock can only add: beside each folder on the way to a hidden one, everything is named. New files in these
    folders, and the lists of their names, stay hidden.
    """
    on_the_way = {str(parent) for path in hidden for parent in Path(path).parents}
    left = ["/"]
    while left:
        folder = left.pop()
        if folder not in on_the_way:
            yield folder
            continue
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        # A link leads to something that is visible or hidden in its own place.
        left += (entry.path for entry in entries if entry.path not in hidden and not entry.is_symlink())


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # A path that does not exist, or that this user cannot reach, needs no permission.
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _FILE_ONLY
        rule = struct.pack("=Qi", access, fd)
        checked(libc().syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, ctypes.c_uint32(0)), path)
    finally:
        os.close(fd)


def _shared_folders() -> tuple[str, ...]:
    """Return the folders that every service may read: interpreter, packages, these services, and system libraries.

    Packages may be outside the environment: a user's own (`pip install --user`), or named by a `.pth` file. Folders
    from PYTHONPATH stay closed, since they may contain anything.
    """
    paths = sysconfig.get_paths()
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    packages = [folder for folder in sys.path if os.path.isabs(folder) and folder not in named]
    code = str(Path(__file__).resolve().parents[2])
    own = (sys.prefix, sys.base_prefix, paths["purelib"], paths["stdlib"], code, *packages)
    return (*(os.path.realpath(folder) for folder in own), *_SYSTEM_FOLDERS)


def _install_filter(limits: Confinement, *, attributes: bool) -> None:
    count, code = syscalls.program(
        platform.machine(),
        os.getpid(),
        network=limits.network,
        connections=limits.connections,
        gpu=limits.gpu,
        attributes=attributes,
        watches=limits.watches,
        programs=limits.programs,
    )
    instructions = ctypes.create_string_buffer(code)
    # struct sock_fprog: the number of instructions and their address.
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, struct.pack("@HP", count, ctypes.addressof(instructions)))


def bound_memory(launch: LaunchConfig) -> None:
    """Limit the memory of this process and its children permanently; allocations beyond the limit fail.

    A burst is faster than the supervisor, which checks once a second. Private writable memory counts (RLIMIT_DATA of
    setrlimit(2)): heaps and stacks, used or not. Mapped files do not count, nor do addresses that are only reserved, as
    torch, FAISS and allocators do. With a GPU there is no limit, because its driver maps large regions.
    """
    if launch.memory_limit_bytes is None or launch.mode == "cuda":
        return
    reserve = RESERVE_BYTES + RESERVE_A_CORE_BYTES * (os.cpu_count() or 1)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = launch.memory_limit_bytes * 5 // 4 + reserve
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def bound_files(launch: LaunchConfig) -> None:
    """Limit the size of a file to the service's disk quota; services that write to roots have no limit."""
    if launch.disk_limit_bytes is not None and len(launch.read_only) == len(launch.roots):
        resource.setrlimit(resource.RLIMIT_FSIZE, (launch.disk_limit_bytes, launch.disk_limit_bytes))


def bound_threads(launch: LaunchConfig) -> None:
    """Limit the threads of a service with a user of its own (RLIMIT_NPROC, which counts a user's threads).

    The limit lies above the one at which the supervisor, which checks once a second, ends the service, and leaves room
    for its standby.
    """
    if launch.thread_limit is not None and launch.confinement is not None and launch.confinement.user is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        most = launch.thread_limit * 5 // 4 + STANDBY_THREADS
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def end_out_of_memory(doing: str) -> NoReturn:
    """End immediately: every other in-flight task would also fail for lack of memory."""
    _log.error("%s needed more memory than the system allows this process", doing)
    os._exit(EXIT_OUT_OF_MEMORY)
