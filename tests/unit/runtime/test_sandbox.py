"""What a confined process can touch; each check runs in a process of its own, since the walls never come down."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from services.runtime import sandbox

needs_landlock = pytest.mark.skipif(not sandbox.landlock_version(), reason="this kernel has no landlock")
needs_seccomp = pytest.mark.skipif(not sandbox.has_seccomp(), reason="no seccomp for this processor")


def confined(
    tmp_path: Path,
    body: str,
    *,
    before: str = "",
    network: bool = False,
    connections: bool = False,
    gpu: bool = False,
) -> str:
    """Run `body` in a confined process; `folder` is readable, `root` writable, `outside` neither."""
    for name in ("data", "folder", "root", "outside"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "file").write_text(name)
    code = f"""
import apsw, os, socket, sqlite3, subprocess, tempfile
from pathlib import Path
from proto.wire.launch import Confinement
from services.runtime.sandbox import confine
base = Path({str(tmp_path)!r})
data, folder, root, outside = (base / n for n in ("data", "folder", "root", "outside"))
{textwrap.dedent(before)}
purposes = dict(network={network}, connections={connections}, gpu={gpu})
confine(Confinement(read=(str(folder),), write=(str(root),), **purposes), data)

def refused(action):
    try:
        action()
    except PermissionError:
        return True
    return False

{textwrap.dedent(body)}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_landlock
def test_only_the_folders_given_can_be_read_or_written(tmp_path: Path) -> None:
    out = confined(
        tmp_path,
        """
        assert (folder / "file").read_text() == "folder"
        assert refused(lambda: (folder / "file").write_text("x"))
        assert refused(lambda: (folder / "new").write_text("x"))
        assert (root / "file").read_text() == "root"
        (root / "new").write_text("x")
        os.rename(root / "new", root / "newer")
        os.unlink(root / "newer")
        assert refused(lambda: (outside / "file").read_text())
        assert refused(lambda: (outside / "new").write_text("x"))
        for shared in ("/dev/shm", "/tmp", "/var/tmp"):
            assert refused(lambda: (Path(shared) / f"linckia-{os.getpid()}").write_text("x"))
        os.symlink(outside / "file", root / "link")
        assert refused(lambda: (root / "link").read_text())
        assert refused(lambda: Path("/etc/shadow").read_text())
        print("held")
        """,
    )
    assert out == "held"


@needs_landlock
@pytest.mark.parametrize("gpu", [False, True])
def test_threads_can_be_named_through_proc_if_there_is_a_gpu(tmp_path: Path, gpu: bool) -> None:
    """CUDA does so, and does not start otherwise."""
    out = confined(
        tmp_path,
        """
        import threading

        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()

        def name(process="self"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            fd = os.open(f"/proc/{process}/task/{thread.native_id}/comm", flags, 0o666)
            os.write(fd, b"cuda")
            os.close(fd)

        print("refused" if refused(name) else Path(f"/proc/self/task/{thread.native_id}/comm").read_text().strip())
        over.set()
        parent = f"/proc/{os.getppid()}/task/{os.getppid()}/comm"
        assert refused(lambda: Path(parent).write_text("x"))
        assert refused(lambda: Path("/proc/self/oom_score_adj").write_text("1000"))
        """,
        gpu=gpu,
    )
    assert out == ("cuda" if gpu else "refused")


@needs_landlock
@pytest.mark.parametrize(("entry", "readable"), [("outside", True), ("outside/missing", False), ("..", False)])
def test_packages_outside_the_environment_can_be_read_and_not_written(
    tmp_path: Path, entry: str, readable: bool
) -> None:
    out = confined(
        tmp_path,
        """
        print(not refused(lambda: (outside / "file").read_text()))
        assert refused(lambda: (outside / "file").write_text("x"))
        assert refused(lambda: (data.parent / "file").write_text("x"))
        """,
        # Add the paths as a `.pth` file does; a relative path depends on the process's start directory and belongs to
        # no package.
        before=f"""
        import sys
        os.chdir(outside)
        sys.path.append({entry!r} if {entry!r} == ".." else str(base / {entry!r}))
        """,
    )
    assert out == str(readable)


@needs_landlock
def test_folders_that_pythonpath_names_stay_closed(tmp_path: Path) -> None:
    out = confined(
        tmp_path,
        """
        assert refused(lambda: (outside / "file").read_text())
        print("held")
        """,
        before="""
        import sys
        sys.path.append(str(outside))
        os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(outside)])
        """,
    )
    assert out == "held"


@needs_landlock
def test_own_folder_serves_databases_and_temporary_files(tmp_path: Path) -> None:
    out = confined(
        tmp_path,
        """
        db = sqlite3.connect(data / "x.db")
        db.execute("pragma journal_mode = wal")
        db.execute("create table t (a)")
        db.execute("insert into t values (1)")
        db.commit()
        with tempfile.NamedTemporaryFile() as file:
            assert file.name.startswith(str(data))
        print(db.execute("select a from t").fetchone()[0])
        """,
    )
    assert out == "1"


@pytest.mark.slow
@needs_landlock
def test_sqlite_spills_into_the_service_s_folder_even_if_it_was_loaded_before_the_sandbox(tmp_path: Path) -> None:
    out = confined(
        tmp_path,
        """
        for db in (sqlite3.connect(data / "x.db", isolation_level=None), apsw.Connection(str(data / "y.db"))):
            db.execute("pragma cache_size = 10")
            db.execute("create table t (id integer primary key, a text not null)")
            db.execute("with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000) "
                       "insert into t select i, hex(randomblob(20)) from n")
            db.execute("update t set a = 'x' || a")  # its statement journal
            db.execute("create index t_a on t (a)")  # a sort beyond memory
            print(db.execute("select count(*) from t").fetchone()[0])
        """,
    )
    assert out == "50000\n50000"


@needs_seccomp
def test_no_program_can_be_started_and_no_socket_leaves_the_machine(tmp_path: Path) -> None:
    out = confined(
        tmp_path,
        """
        assert refused(lambda: subprocess.run(["/bin/true"]))
        assert refused(lambda: os.execv("/bin/true", ["true"]))
        assert refused(lambda: socket.socket(socket.AF_INET))
        assert refused(lambda: socket.socket(socket.AF_INET6))
        a, b = socket.socketpair()
        a.send(b"local")
        print(b.recv(10).decode())
        """,
    )
    assert out == "local"


@needs_seccomp
def test_service_that_was_given_the_network_resolves_names_and_connects_and_no_more(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        out = confined(
            tmp_path,
            f"""
            assert socket.getaddrinfo("localhost", 80)
            try:
                socket.getaddrinfo("name.invalid", 80)
            except socket.gaierror:
                pass
            with socket.create_connection(("127.0.0.1", {server.getsockname()[1]})) as connection:
                connection.sendall(b"x")
            assert refused(lambda: socket.socket(socket.AF_UNIX))
            assert refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW))
            assert refused(lambda: socket.create_server(("127.0.0.1", 0)))
            assert refused(lambda: subprocess.run(["/bin/true"]))
            print("held")
            """,
            network=True,
        )
    assert out == "held"


@needs_seccomp
def test_service_that_was_handed_a_listening_socket_serves_its_clients_and_makes_no_connection(tmp_path: Path) -> None:
    out = confined(
        tmp_path,
        """
        with server, server.accept()[0] as accepted:
            assert accepted.recv(1) == b"x"
            accepted.sendall(b"y")
        assert refused(lambda: socket.socket(socket.AF_INET))
        print(client.recv(1).decode())
        """,
        before="""
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        client.sendall(b"x")
        """,
        connections=True,
    )
    assert out == "y"


@needs_landlock
def test_threads_started_later_are_confined_too(tmp_path: Path) -> None:
    out = confined(
        tmp_path,
        """
        import threading
        results = []
        thread = threading.Thread(target=lambda: results.append(refused(lambda: (outside / "file").read_text())))
        thread.start()
        thread.join()
        print(results)
        """,
    )
    assert out == "[True]"
