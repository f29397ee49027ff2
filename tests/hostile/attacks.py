"""The attacks of a compromised service. Each is a function that returns the data it obtained, or raises OSError.

They call the operating system directly, as injected code would, without our wrappers.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import io
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct

_libc = ctypes.CDLL(None, use_errno=True)

_X86_64 = os.uname().machine == "x86_64"
_CLONE, _PTRACE, _PROCESS_VM_READV = (56, 101, 310) if _X86_64 else (220, 117, 270)
_IO_URING_SETUP, _PIDFD_OPEN, _CLONE3, _PROCESS_MADVISE, _PIDFD_GETFD = 425, 434, 435, 440, 438
_CLONE_NEWUSER, _CLONE_THREAD = 0x10000000, 0x00010000
_F_SETSIG, _F_SETOWN_EX, _F_OWNER_PID = 10, 15, 1


def _syscall(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), "syscall")
    return result


def _kernel() -> int:
    return os.getppid()


# ---- becoming the operator ------------------------------------------------------------------------------------------


def call_as_operator(control: str, operation: str, params: dict[str, object]) -> object:
    """Call an operation over the control socket, as the command line does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(control)
        connection.sendall(json.dumps({"call": operation, "params": params}).encode() + b"\n")
        return json.loads(connection.makefile().readline() or '"closed"')


def send_by_a_pair(control: str) -> object:
    """Use a connected pair of datagram sockets to send to another address."""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with a, b:
        try:
            return a.sendto(b"x", control)
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:
                return "the socket was found, and only accepts streams"
            raise


def open_socket(family: int, kind: int) -> object:
    """Open a new socket: D-Bus, ssh-agent and container engines listen on such sockets."""
    with socket.socket(family, kind) as made:
        return made.fileno()


# ---- the kernel's and other processes -------------------------------------------------------------------------------


def limit_kernel() -> object:
    """Set an exhausted limit of processor time, which kills the kernel."""
    return resource.prlimit(_kernel(), resource.RLIMIT_CPU, (1, 1))


def read_limit_of_kernel() -> object:
    """Read a limit, which is harmless but uses the same call."""
    return resource.prlimit(_kernel(), resource.RLIMIT_NOFILE)


def slow_kernel() -> object:
    """Give the kernel the lowest scheduling priority."""
    os.setpriority(os.PRIO_PROCESS, _kernel(), 19)
    return os.getpriority(os.PRIO_PROCESS, _kernel())


def slow_all_of_its_user() -> object:
    """Give all processes of this user the lowest scheduling priority."""
    os.setpriority(os.PRIO_USER, os.getuid(), os.getpriority(os.PRIO_USER, os.getuid()))
    return "set"


def move_kernel() -> object:
    """Pin the kernel to one processor, together with everything else pinned there."""
    os.sched_setaffinity(_kernel(), {0})
    return len(os.sched_getaffinity(_kernel()))


def schedule_kernel() -> object:
    """Run the kernel only when nothing else wants the processor."""
    os.sched_setscheduler(_kernel(), os.SCHED_IDLE, os.sched_param(0))
    return os.sched_getscheduler(_kernel())


def signal_kernel(number: int = 0) -> object:
    """Send a signal to the kernel; 0 only checks whether that is possible."""
    os.kill(_kernel(), number)
    return "sent"


def signal_kernels_thread() -> object:
    """Signal the kernel's main thread, whose id is the process id."""
    tgkill = 234 if _X86_64 else 131
    return _syscall(tgkill, _kernel(), _kernel(), 0)


def own_descriptor_for_kernel() -> object:
    """Have Linux send a chosen signal to the kernel when this descriptor becomes readable."""
    fd, _ = os.pipe()
    fcntl.fcntl(fd, _F_SETSIG, int(signal.SIGURG))
    return fcntl.fcntl(fd, fcntl.F_SETOWN, _kernel())


def own_descriptor_for_kernel_ex() -> object:
    """Do the same with the owner behind a pointer."""
    fd, _ = os.pipe()
    fcntl.fcntl(fd, _F_SETOWN_EX, struct.pack("ii", _F_OWNER_PID, _kernel()))
    return "set"


def own_socket_for_kernel() -> object:
    """Do the same by ioctl."""
    a, _ = socket.socketpair()
    fcntl.ioctl(a, 0x8901, struct.pack("i", _kernel()))
    return "set"


def hold_kernel() -> object:
    """Open a descriptor of the kernel's process."""
    return _syscall(_PIDFD_OPEN, _kernel(), 0)


def trace_kernel() -> object:
    """Attach with PTRACE_SEIZE."""
    return _syscall(_PTRACE, 0x4206, _kernel(), 0, 0)


def read_kernels_memory() -> object:
    """Read zero bytes of the kernel's memory, which only succeeds with permission."""
    return _syscall(_PROCESS_VM_READV, _kernel(), 0, 0, 0, 0, 0)


def outlive_kernel() -> object:
    """Clear the signal by which Linux kills this process when the kernel dies."""
    if _libc.prctl(1, 0, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
    return "cut"


# ---- ways past a filter ---------------------------------------------------------------------------------------------


def open_ring() -> object:
    """Set up io_uring, whose requests, including sockets, bypass the filter."""
    return _syscall(_IO_URING_SETUP, 1, ctypes.create_string_buffer(120))


def become_root_of_a_namespace() -> object:
    """Create a user namespace, which grants every capability over its contents."""
    pid = _syscall(_CLONE, _CLONE_NEWUSER | int(signal.SIGCHLD), 0, 0, 0, 0)
    return _reaped(pid)


def become_root_of_a_namespace_by_clone3() -> object:
    """Do the same with the flags behind a pointer, invisible to filters."""
    pid = _syscall(_CLONE3, struct.pack("11Q", _CLONE_NEWUSER, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, 0, 0, 0), 88)
    return _reaped(pid)


def fork() -> object:
    """Create another process, unknown to the supervisor."""
    return _reaped(os.fork())


def _reaped(pid: int) -> str:
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "forked"


def run_program() -> object:
    """Execute a program."""
    return os.posix_spawn("/bin/true", ["true"], {})


# ---- memory and disk that count nowhere ----------------------------------------------------------------------------


def memory_without_a_name() -> object:
    """Create a file in memory, which counts for no process until it is mapped."""
    return os.memfd_create("x")


def shared_memory() -> object:
    """Allocate shared memory, which persists after it is detached."""
    with mmap.mmap(-1, 4096) as memory:
        return len(memory)


def shared_memory_of_a_device() -> object:
    """Map shared memory from /dev/zero."""
    with open("/dev/zero", "r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
        return len(memory)


def file_in_memory_of_all(folder: str) -> object:
    """Leave a file in /dev/shm or /tmp."""
    fd = os.open(f"{folder}/linckia-hostile", os.O_CREAT | os.O_WRONLY)
    os.close(fd)
    return "made"


def watch_files() -> object:
    """Use up the user's inotify instances, which other programs then lack."""
    if (fd := _libc.inotify_init1(0)) < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    return fd


def hide_from_kernel() -> object:
    """Make root own /proc/self, so that the kernel cannot see what is open here."""
    if _libc.prctl(4, 0, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
    return "hidden"


def fill(how: str, megabytes: int) -> object:
    """Fill the only writable folder."""
    at = os.environ["TMPDIR"]
    match how:
        case "one file":
            with open(f"{at}/one", "wb", buffering=0) as file:
                os.unlink(f"{at}/one")
                # Most of it is a hole: it is refused for its length, before it holds enough to end its writer.
                file.seek((megabytes - 1) << 20)
                file.write(bytes(1 << 20))
        case "a hole":
            with open(f"{at}/hole", "wb") as file:
                os.truncate(file.fileno(), 1 << 40)
        case "several files":
            for number in range(megabytes):
                _write(f"{at}/several-{number}", 1 << 20)
        case "deleted files":
            for number in range(megabytes):
                _kept.append(open(f"{at}/deleted-{number}", "wb", buffering=0))  # noqa: SIM115
                os.unlink(f"{at}/deleted-{number}")
                _kept[-1].write(bytes(1 << 20))
        case "empty files":
            for number in range(megabytes * 160):
                os.close(os.open(f"{at}/empty-{number}", os.O_CREAT | os.O_WRONLY))
        case "a closed folder":
            os.mkdir(f"{at}/closed", 0o300)
            for number in range(megabytes):
                _write(f"{at}/closed/{number}", 1 << 20)
        case "a deep folder":
            os.chdir(at)
            for _ in range(40):
                os.mkdir("x" * 200)
                os.chdir("x" * 200)
            _write("one", megabytes << 20)
    return "taken"


_kept: list[io.FileIO] = []


def _write(path: str, size: int) -> None:
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


def start_threads(count: int) -> object:
    """Start sleeping threads with small stacks until the system refuses one."""
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.stack_size(65536)
    for started in range(count):
        try:
            _thread.start_new_thread(lock.acquire, ())
        except RuntimeError:
            return started
    return count


def leave(file: str, megabytes: int) -> object:
    """Fill the disk outside the folder for temporary files."""
    _write(f"{os.path.dirname(os.environ['TMPDIR'])}/{file}", megabytes << 20)
    return "taken"


def replace_temporary_folder(to: str) -> object:
    """Replace the folder for temporary files by a link, which misleads the process that cleans it."""
    os.rename(os.environ["TMPDIR"], os.environ["TMPDIR"] + ".old")
    os.symlink(to, os.environ["TMPDIR"])
    return "replaced"


# ---- files ----------------------------------------------------------------------------------------------------------


def change_mode(path: str) -> object:
    """Change a mode by name, which landlock does not guard."""
    os.chmod(path, 0o777)
    return oct(os.stat(path).st_mode)


def change_mode_of_what_it_may_read(path: str) -> object:
    """Change a mode by a descriptor opened for reading."""
    with open(path, "rb") as file:
        os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o7777)
    return "changed"


def open_file(path: str, flags: int) -> object:
    """Open a file by name."""
    fd = os.open(path, flags)
    os.close(fd)
    return "opened"


def remove(path: str) -> object:
    """Remove a file by name."""
    os.unlink(path)
    return "removed"


def change_times(path: str) -> object:
    """Change a file's times by name."""
    os.utime(path)
    return "changed"


def change_flags(path: str) -> object:
    """Change file flags like chattr, by a descriptor opened for reading; landlock does not guard this either."""
    with open(path, "rb") as file:
        flags = bytearray(8)
        fcntl.ioctl(file.fileno(), 0x80086601, flags)
        # The no-dump flag.
        fcntl.ioctl(file.fileno(), 0x40086602, bytes([flags[0] ^ 0x40, *flags[1:]]))
    return "changed"


def mark(path: str) -> object:
    """Set an extended attribute."""
    os.setxattr(path, "user.linckia", b"x")
    return "marked"


# ---- other services of the same user ---------------------------------------------------------------------------------


def read_file(path: str) -> object:
    """Read a file by its name or another name for it."""
    with open(path, "rb") as file:
        return file.read(100).decode(errors="replace")


def make_file(path: str) -> object:
    """Create a file in a folder that another service reads from."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    return "made"


def link_to(path: str, how: str) -> object:
    """Give another service's file a name in an own folder, and read it there."""
    own = f"{os.environ['TMPDIR']}/linked"
    if os.path.lexists(own):
        os.unlink(own)
    (os.link if how == "hard" else os.symlink)(path, own)
    return read_file(own)


def plant(path: str) -> object:
    """Plant another service's database, log and index for a backup to copy."""
    folder = os.path.dirname(os.environ["TMPDIR"])
    for end in ("", "-wal", "-shm"):
        os.symlink(path, f"{folder}/planted.db{end}")
    return "planted"


def move_to(path: str) -> object:
    """Move an own file over that of another service."""
    own = f"{os.environ['TMPDIR']}/moved"
    _write(own, 0)
    os.rename(own, path)
    return "moved"


def look_into(pid: int, what: str) -> object:
    """Read /proc of a process of the same user."""
    for way in (f"/proc/{pid}", f"/proc/self/../{pid}", f"/proc/self/root/proc/{pid}", f"/proc/self/task/../../{pid}"):
        try:
            return read_file(f"{way}/{what}")
        except OSError as error:
            refused = error
    raise refused


def touch_process(pid: int, how: str) -> object:
    """Act on a process of the same user by its pid."""
    match how:
        case "signal":
            os.kill(pid, 0)
            return "sent"
        case "trace":
            return _syscall(_PTRACE, 0x4206, pid, 0, 0)
        case "read":
            return _syscall(_PROCESS_VM_READV, pid, 0, 0, 0, 0, 0)
        case "hold":
            return _syscall(_PIDFD_OPEN, pid, 0)
        case "limit":
            return resource.prlimit(pid, resource.RLIMIT_NOFILE)
        case "compare":
            return _syscall(312 if _X86_64 else 272, pid, os.getpid(), 0, 0, 0)
    raise ValueError(how)


def watch_much() -> object:
    """Use up the user's limit of epoll watches. Returns how many there were."""
    folders, files = [], []
    try:
        while True:
            folders.append(select.epoll())
            files.append(os.eventfd(0))
    except OSError:
        count = 0
    try:
        for folder in folders:
            for file in files:
                folder.register(file, 0)
                count += 1
    finally:
        for file in files:
            os.close(file)
        for folder in folders:
            folder.close()
    return count


def share(how: str) -> object:
    """Use memory, messages, semaphores and keys that belong to the user, whichever process created them."""
    numbers = {
        "memory": (29, 194), "semaphores": (64, 190), "messages": (68, 186), "queue": (240, 180), "key": (248, 217),
        "keys": (250, 219),
    }  # fmt: skip
    return _syscall(numbers[how][0 if _X86_64 else 1], 0, 4096, 0o1600, 0, 0)


# ---- inherited state ------------------------------------------------------------------------------------------------


def environment() -> object:
    """Return the parts of the kernel's environment visible here."""
    with open("/proc/self/environ", "rb") as file:
        born = file.read().decode(errors="replace")
    return {"born": born, "now": dict(os.environ)}


def descriptors() -> object:
    """Return the open descriptors by number."""
    return {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(int(fd))}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
