"""The system calls that a service may make, and the seccomp filter that admits no others.

This is an allowlist: the calls that every service needs, and those that each purpose adds. It is generous with calls
that only affect the process itself and what landlock allows, including calls that only another libc or a newer kernel
would make: a refusal in the middle of a library would be our defect. Calls that can reach another process, its memory
or the system are left out or admitted only with harmless arguments; seccomp sees numbers, never the data behind a
pointer.

Services cannot create processes: programs cannot be started, and `clone` makes threads only. clone3, whose flags are
behind a pointer, returns ENOSYS, so that libc falls back to clone. The same holds for calls newer than `_NEWEST`, for
which programs have a fallback. All other calls return EPERM. `process_calls` has the calls that take a process's id.

Sources: seccomp(2), syscalls(2), linux/filter.h, asm/unistd_64.h, asm-generic/unistd.h, the default profile of moby.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from services.runtime import process_calls

_BASE = """
    files and folders, which landlock bounds:
    read/0/63 write/1/64 readv/19/65 writev/20/66 pread64/17/67 pwrite64/18/68 preadv/295/69 pwritev/296/70
    preadv2/327/286 pwritev2/328/287 open/2/- openat/257/56 openat2/437/437 creat/85/- close/3/57 close_range/436/436
    dup/32/23 dup2/33/- dup3/292/24 lseek/8/62 access/21/- faccessat/269/48 faccessat2/439/439 stat/4/- lstat/6/-
    fstat/5/80 newfstatat/262/79 statx/332/291 statfs/137/43 fstatfs/138/44 readlink/89/- readlinkat/267/78
    getcwd/79/17 chdir/80/49 fchdir/81/50 getdents/78/- getdents64/217/61 fcntl/72/25 ioctl/16/29 flock/73/32
    fsync/74/82 fdatasync/75/83 sync/162/81 syncfs/306/267 sync_file_range/277/84 truncate/76/45 ftruncate/77/46
    fallocate/285/47 fadvise64/221/223 readahead/187/213 sendfile/40/71 copy_file_range/326/285 rename/82/-
    renameat/264/38 renameat2/316/276 link/86/- linkat/265/37 symlink/88/- symlinkat/266/36 unlink/87/- unlinkat/263/35
    mkdir/83/- mkdirat/258/34 rmdir/84/- umask/95/166
    getxattr/191/8 lgetxattr/192/9 fgetxattr/193/10 listxattr/194/11
    llistxattr/195/12 flistxattr/196/13 getxattrat/464/464 listxattrat/465/465 cachestat/451/451 file_getattr/468/468

    its own memory, with the placement that torch and CUDA ask for:
    mmap/9/222 munmap/11/215 mremap/25/216 mprotect/10/226 madvise/28/233 msync/26/227 mincore/27/232 brk/12/214
    mlock/149/228 mlock2/325/284 munlock/150/229 mlockall/151/230 munlockall/152/231 membarrier/324/283
    pkey_alloc/330/289 pkey_free/331/290 pkey_mprotect/329/288 get_mempolicy/239/236 set_mempolicy/238/237
    mbind/237/235 set_mempolicy_home_node/450/450 map_shadow_stack/453/453 mseal/462/462

    its threads, what it is, its limits and its shares of the processor:
    clone/56/220 exit/60/93 exit_group/231/94 futex/202/98 futex_waitv/449/449 futex_wake/454/454 futex_wait/455/455
    futex_requeue/456/456 set_robust_list/273/99 rseq/334/293 set_tid_address/218/96
    gettid/186/178 getpid/39/172 getppid/110/173 getpgid/121/155 getpgrp/111/- getsid/124/156 getuid/102/174
    geteuid/107/175 getgid/104/176 getegid/108/177 getresuid/118/148 getresgid/120/150 getgroups/115/158 capget/125/90
    sched_yield/24/124 sched_get_priority_max/146/125 sched_get_priority_min/147/126 getcpu/309/168 getrlimit/97/163
    setrlimit/160/164 getrusage/98/165 times/100/153 sysinfo/99/179 uname/63/160 getrandom/318/278 prctl/157/167
    arch_prctl/158/- wait4/61/260 waitid/247/95 landlock_create_ruleset/444/444 landlock_add_rule/445/445
    landlock_restrict_self/446/446

    its signals, and time:
    restart_syscall/219/128 rt_sigaction/13/134 rt_sigprocmask/14/135 rt_sigreturn/15/139 rt_sigpending/127/136
    rt_sigtimedwait/128/137 rt_sigsuspend/130/133 sigaltstack/131/132 pause/34/-
    signalfd/282/- signalfd4/289/74 time/201/- gettimeofday/96/169
    clock_gettime/228/113 clock_getres/229/114 clock_nanosleep/230/115 nanosleep/35/101 alarm/37/- getitimer/36/102
    setitimer/38/103 timer_create/222/107 timer_settime/223/110 timer_gettime/224/108 timer_getoverrun/225/109
    timer_delete/226/111 timerfd_create/283/85 timerfd_settime/286/86 timerfd_gettime/287/87

    waiting, and what wakes a loop:
    poll/7/- ppoll/271/73 select/23/- pselect6/270/72 epoll_create/213/- epoll_create1/291/20 epoll_ctl/233/21
    epoll_wait/232/- epoll_pwait/281/22 epoll_pwait2/441/441 eventfd/284/- eventfd2/290/19 pipe/22/- pipe2/293/59

    sockets that it was given, and pairs of its own:
    socketpair/53/199 sendto/44/206 sendmsg/46/211 recvfrom/45/207 recvmsg/47/212 recvmmsg/299/243 shutdown/48/210
    getsockname/51/204 getpeername/52/205 getsockopt/55/209 setsockopt/54/208
"""

_NETWORK = "socket/41/198 connect/42/203 sendmmsg/307/269"
"""Outgoing connections to Internet addresses; resolvers send several messages at once."""

_CONNECTIONS = "accept/43/202 accept4/288/242 listen/50/201"
"""Accepting clients on inherited listening sockets; asyncio calls `listen` on them again."""

_GPU = "memfd_create/319/279 socket/41/198 bind/49/200 listen/50/201 accept4/288/242"
"""CUDA shares memory with other processes through memory files and a listening socket. Without `connect`, it reaches no
other process. Only SOCK_SEQPACKET is allowed, so that nothing can be sent to an address either."""

_ATTRIBUTES = """
    fchmod/91/52 fchown/93/55 fchownat/260/54 utimensat/280/88 fsetxattr/190/7 fremovexattr/199/16 mknodat/259/33
"""
"""Modes, owners, times and attributes, which landlock does not guard, for services that write files below the roots.
Calls that take an open descriptor are preferred."""

_WATCHES = "inotify_init/253/- inotify_init1/294/26 inotify_add_watch/254/27 inotify_rm_watch/255/28"
"""inotify instances and watches are limited per user, across all programs."""

_PROGRAMS = """
    execve/59/221 execveat/322/281 fork/57/- vfork/58/- wait4/61/260 waitid/247/95
    setpgid/109/154 getpgid/121/155 getpgrp/111/- setsid/112/157 getsid/124/156
    setrlimit/160/164 getrlimit/97/163
    mknod/133/- mknodat/259/33 memfd_create/319/279
    socket/41/198 connect/42/203 bind/49/200 listen/50/201 accept/43/202 accept4/288/242 sendmmsg/307/269
    getresuid/118/148 getresgid/120/150 getgroups/115/158 setuid/105/146 setgid/106/144 setreuid/113/145
    setregid/114/143 setresuid/117/147 setresgid/119/149 setgroups/116/159 setfsuid/122/151 setfsgid/123/152
    inotify_init/253/- inotify_init1/294/26 inotify_add_watch/254/27 inotify_rm_watch/255/28
    sysinfo/99/179 times/100/153 getrusage/98/165 uname/63/160 getcpu/309/168 rseq/334/293 arch_prctl/158/-
    personality/135/92 seccomp/317/277
"""
"""Programs and their processes, in addition to `process_calls`. They share the sandbox, which landlock bounds: files,
signals and TCP. Sockets of the file system are out of reach, since what listens there (a session bus, containers) acts
outside the sandbox."""

_PROGRAMS_ATTRIBUTES = """
    chmod/90/- fchmod/91/52 fchmodat/268/53 fchmodat2/452/452 chown/92/- lchown/94/- fchown/93/55 fchownat/260/54
    utime/132/- utimes/235/- futimesat/261/- utimensat/280/88
    setxattr/188/5 lsetxattr/189/6 fsetxattr/190/7 removexattr/197/14 lremovexattr/198/15 fremovexattr/199/16
"""
"""The same for programs, by path. Only for those to which everything outside their roots is read-only."""

_ADDED = {
    "programs": _PROGRAMS, "watches": _WATCHES, "network": _NETWORK, "connections": _CONNECTIONS, "gpu": _GPU,
    "attributes": _ATTRIBUTES, "programs_attributes": _PROGRAMS_ATTRIBUTES,
}  # fmt: skip

_CLONE3 = 435
_NEWEST = 471
"""The newest call number that was reviewed; newer calls have the same number on every processor."""

_THREAD, _NAMESPACES = 0x00010000, 0x7E020080
_AF_NETLINK, _SOCK_RAW = 16, 3
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET = 1, 2, 10, 1, 2, 5
_ANY_FLAGS = 0xFFFFFFFF ^ 0o2004000
"""All bits of a socket's type except SOCK_CLOEXEC and SOCK_NONBLOCK."""
_FASTOPEN = 0x20000000
_SETOWN, _SETOWN_EX = 8, 15
_FIOSETOWN, _SIOCSPGRP, _TIOCSTI, _TIOCLINUX = 0x8901, 0x8902, 0x5412, 0x541C
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Terminal check and size (TCGETS, TIOCGWINSZ), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_FILE_FLAGS = (0x40086602, 0x401C5820)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR."""
_PDEATHSIG, _DUMPABLE, _SCHED_CORE = 1, 4, 62
_SHARED_ANONYMOUS = 0x21
_FORMAT, _FIFO = 0o170000, 0o010000

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _MISSING = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


class _Check(NamedTuple):
    """Requires that an argument, or its upper half, is one of these values, or none of them if not `wanted`."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    wanted: bool = True
    upper: bool = False


def is_known(machine: str) -> bool:
    """Return True if the call numbers of this processor are known."""
    return machine in _ARCH


def numbers(machine: str, **purposes: bool) -> dict[str, int]:
    """Return the numbers of the calls that a service may make, by name.

    `purposes` are the keys of `_ADDED`; `programs` with `attributes` has `programs_attributes`.
    """
    column = list(_ARCH).index(machine) + 1
    programs = purposes.get("programs", False)
    if programs and purposes.get("attributes", False):
        purposes = {**purposes, "attributes": False, "programs_attributes": True}
    added = (_ADDED[purpose] for purpose, on in purposes.items() if on)
    entries = (word.split("/") for text in (_BASE, *added) for word in text.split())
    found = {entry[0]: int(entry[column]) for entry in entries if len(entry) == 3 and entry[column] != "-"}
    return found | process_calls.admitted(column - 1, programs=programs)


def _checks(own_pid: int, *, network: bool, gpu: bool) -> dict[str, tuple[_Check, ...]]:
    """Return the required arguments of calls; all other calls are admitted with any arguments."""
    families = (_AF_INET, _AF_INET6) if network else (_AF_UNIX,)
    types = (_SOCK_STREAM, _SOCK_DGRAM) if network else (_SOCK_SEQPACKET,)
    checks = {
        **_checks_of_processes(own_pid, programs=False),
        "clone": (_Check(0, (_THREAD,), _THREAD | _NAMESPACES),),
        # They keep the parent-death signal and the access to the process's own /proc entries, and name no process.
        "prctl": (_Check(0, (_PDEATHSIG, _DUMPABLE, _SCHED_CORE), wanted=False),),
        # The owner of a descriptor is sent a signal, and may be any process.
        "fcntl": (_Check(1, (_SETOWN, _SETOWN_EX), wanted=False),),
        # The same for ioctl; also typing into a terminal, and file flags, which a file's owner may change by any
        # descriptor.
        "ioctl": (_Check(1, _IOCTLS),),
        # A pair of datagram sockets could send to any socket's path.
        "socketpair": (_Check(0, (_AF_UNIX,)), _Check(1, (_SOCK_STREAM,), _ANY_FLAGS)),
        "socket": (_Check(0, families), _Check(1, types, _ANY_FLAGS)),
        "mknodat": (_Check(2, (_FIFO,), _FORMAT),),
    }
    if gpu:
        # The GPU driver is controlled only by ioctl.
        checks["ioctl"] = (_Check(1, (_FIOSETOWN, _SIOCSPGRP, _TIOCSTI, _TIOCLINUX), wanted=False),)
    else:
        # Memory that no limit counts: it persists while it is in no process's address space.
        checks["mmap"] = (_Check(3, (_SHARED_ANONYMOUS,), _SHARED_ANONYMOUS, wanted=False),)
    if not network:
        checks |= {
            "sendto": (_Check(4, (0,)), _Check(4, (0,), upper=True), _Check(3, (0,), _FASTOPEN)),
            "sendmsg": (_Check(2, (0,), _FASTOPEN),),
        }
    return checks


def _checks_of_processes(own_pid: int, *, programs: bool) -> dict[str, tuple[_Check, ...]]:
    """Return the required arguments of calls that take the id of a process."""
    required = process_calls.required(own_pid, programs=programs)
    return {name: tuple(_Check(argument, values) for argument, values in each) for name, each in required.items()}


def _checks_of_programs(own_pid: int, *, network: bool, attributes: bool) -> dict[str, tuple[_Check, ...]]:
    """Return the required arguments for programs: any process of the sandbox, but no namespaces and terminals of
    others."""
    families = (_AF_INET, _AF_INET6, _AF_NETLINK) if network else (_AF_NETLINK,)
    owners = (_FIOSETOWN, _SIOCSPGRP)
    flags = () if attributes else _FILE_FLAGS
    return {
        **_checks_of_processes(own_pid, programs=True),
        "clone": (_Check(0, (0,), _NAMESPACES),),
        "prctl": (_Check(0, (_SCHED_CORE,), wanted=False),),
        # As for services: the owner of a descriptor is sent a signal.
        "fcntl": (_Check(1, (_SETOWN, _SETOWN_EX), wanted=False),),
        "ioctl": (_Check(1, (_TIOCSTI, _TIOCLINUX, *owners, *flags), wanted=False),),
        "socket": (_Check(0, families), _Check(1, (_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW), _ANY_FLAGS)),
        "socketpair": (_Check(0, (_AF_UNIX,)),),
    }


def program(machine: str, own_pid: int, **purposes: bool) -> tuple[int, bytes]:
    """Return the filter for a process: the number of its instructions, and the instructions. `purposes` as in
    `numbers`.

    Calls with argument checks come first. The rest are spans of numbers with one verdict each, which Linux evaluates
    once, when the filter is installed (5.11 and newer), so they cost nothing afterwards.
    """
    allowed = numbers(machine, **purposes)
    network = purposes.get("network", False)
    programs = purposes.get("programs", False)
    if programs:
        checks = _checks_of_programs(own_pid, network=network, attributes=purposes.get("attributes", False))
    else:
        checks = _checks(own_pid, network=network, gpu=purposes.get("gpu", False))
    code = [_instruction(_LOAD, 4), _instruction(_EQUAL, _ARCH[machine], 1, 0), _instruction(_RETURN, _REFUSE)]
    code.append(_instruction(_LOAD, 0))
    for name in sorted(checks.keys() & allowed.keys()):
        block = [part for check in checks[name] for part in _looking(check)] + [_instruction(_RETURN, _ALLOW)]
        code += [_instruction(_EQUAL, allowed[name], 0, len(block)), *block]
    absent = process_calls.absent(list(_ARCH).index(machine), programs=programs)
    for first, answer in _spans(allowed, absent):
        code += [_instruction(_AT_LEAST, first, 0, 1), _instruction(_RETURN, answer)]
    code.append(_instruction(_RETURN, _ALLOW if 0 in allowed.values() else _REFUSE))
    return len(code), b"".join(code)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode a struct sock_filter."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _looking(check: _Check) -> Iterator[bytes]:
    """Continue if the check holds; refuse otherwise."""
    # struct seccomp_data: the arguments, eight bytes each, from offset 16.
    yield _instruction(_LOAD, 16 + 8 * check.argument + 4 * check.upper)
    if check.mask != 0xFFFFFFFF:
        yield _instruction(_AND, check.mask)
    left = len(check.values)
    for value in check.values:
        left -= 1
        # Jump past the remaining values, and past the refusal or onto it.
        yield _instruction(_EQUAL, value, left + check.wanted, 0 if check.wanted or left else 1)
    yield _instruction(_RETURN, _REFUSE)


def _spans(allowed: Mapping[str, int], absent: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield spans from the highest number down to 1: each is the number where the verdict changes."""
    answers = dict.fromkeys(allowed.values(), _ALLOW) | dict.fromkeys((_CLONE3, _NEWEST + 1, *absent), _MISSING)
    for number in range(_NEWEST + 1, 0, -1):
        if (answer := answers.get(number, _REFUSE)) != answers.get(number - 1, _REFUSE):
            yield number, answer
