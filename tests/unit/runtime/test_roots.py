"""What a service may reach: below a root, not denied, and written only where the innermost root allows it."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto import grants
from proto.errors import Kind
from proto.grants import Grant
from services.runtime.roots import Denied, OutsideRoots, Roots


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "data" / "deep").mkdir(parents=True)
    (home / "data" / "deep" / "secret").write_text("secret")
    (home / "note").write_text("note")
    return home


def denying(home: Path) -> Roots:
    return Roots([home], denied=[str(home / "data")])


def test_denied_folder_is_not_opened_by_any_way(home: Path) -> None:
    roots = denying(home)
    (home / "link").symlink_to(home / "data")
    (home / "file-link").symlink_to(home / "data" / "deep" / "secret")
    (home / "folder").mkdir()
    ways = ("data/deep/secret", "link/deep/secret", "file-link", "folder/../data/deep/secret", "./data//deep/secret")
    for way in ways:
        with pytest.raises(Denied, match="data/deep/secret may not be reached") as refused:
            roots.open(f"{home}/{way}")
        assert refused.value.failure.kind is Kind.FORBIDDEN
    descriptor, _ = roots.open(str(home / "note"))
    os.close(descriptor)
    with pytest.raises(OutsideRoots):
        roots.open("/etc/passwd")


def test_denied_folder_is_recognised_after_a_rename_above_it_and_under_another_spelling(home: Path) -> None:
    (home / "above").mkdir()
    (home / "data").rename(home / "above" / "data")
    roots = Roots([home], denied=[str(home / "above" / "data")])
    (home / "above").rename(home / "elsewhere")
    with pytest.raises(Denied):
        roots.open(str(home / "elsewhere" / "data" / "deep" / "secret"))
    with pytest.raises(Denied):
        roots.check(str(home / "elsewhere" / "data"))
    assert roots.hides(str(home / "ABOVE" / "Data" / "x"))


def test_hard_link_of_a_denied_file_is_recognised_and_its_inode_is_never_given_away(home: Path) -> None:
    keys = home / "keys"
    keys.write_text("keys")
    os.link(keys, home / "twin")
    roots = Roots([home], denied=[str(keys)])
    with pytest.raises(Denied):
        roots.open(str(home / "twin"))
    (home / "twin").unlink()
    keys.unlink()
    # A file system gives the inode of a file that is gone to the next one, which is not denied.
    for number in range(50):
        (home / f"new-{number}").write_text("new")
        os.close(roots.open(str(home / f"new-{number}"))[0])


def test_patterns_deny_at_any_depth_whatever_the_case(home: Path) -> None:
    roots = Roots([home], patterns=["**/*.pem", "**/private/keys", f"{home}/vault-*"])
    for name in ("a.pem", "x/y/B.PEM", "x/private/keys/deep", "vault-1/x"):
        assert roots.hides(str(home / name)), name
    for name in ("a.pe", "private", "other/vault-1"):
        assert not roots.hides(str(home / name)), name
    # A name need not be UTF-8.
    assert roots.hides(os.fsdecode(os.fsencode(home) + b"/\xff.pem"))
    hidden = roots.hidden_in(str(home))
    assert hidden is not None
    assert [name for name in ("a.pem", "note") if hidden(name)] == ["a.pem"]


def test_folder_without_anything_denied_costs_a_walk_nothing(home: Path) -> None:
    roots = denying(home)
    assert roots.hidden_in(str(home / "folder")) is None
    hidden = roots.hidden_in(str(home))
    assert hidden is not None
    assert [name for name in ("data", "note") if hidden(name)] == ["data"]
    # Outside the roots nothing need be hidden.
    assert not Roots([home / "folder"], denied=[str(home / "data")]).hides_some


def test_a_folder_that_contains_denied_paths_is_not_moved_or_removed(home: Path) -> None:
    assert f"contains {home / 'data'}" in Roots([home.parent], denied=[str(home / "data")]).refusal_of_all(str(home))
    by_pattern = Roots([home], patterns=["**/secret"])
    assert "deep/secret" in by_pattern.refusal_of_all(str(home / "data"))
    assert by_pattern.refusal_of_all(str(home / "note")) == ""


def test_innermost_root_says_whether_it_may_be_written(home: Path) -> None:
    inner = home / "data"
    roots = Roots([home, inner], read_only=[str(inner)])
    roots.check(str(home / "note"), write=True)
    roots.check(str(inner / "x"))
    with pytest.raises(Denied, match=f"the root {inner} is read-only"):
        roots.check(str(inner / "x"), write=True)
    assert "read-only" in roots.refusal_of_all(str(home / "data"))
    with pytest.raises(Denied, match="read-only"):
        roots.open_folder(str(inner / "deep"), write=True)
    reverse = Roots([home, inner], read_only=[str(home)])
    reverse.check(str(inner / "x"), write=True)


def test_descriptors_are_given_back(home: Path) -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    roots = denying(home)
    assert set(os.listdir("/proc/self/fd")) > before
    del roots
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


PARTS = ["data", "DATA", "link", "up", "folder", "deep", "secret", "note", "..", ".", ""]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=8))
def test_no_path_opens_something_denied(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    home = tmp_path_factory.getbasetemp() / "any"
    if not home.exists():
        (home / "data" / "deep").mkdir(parents=True)
        (home / "folder").mkdir()
        for file in ("data/deep/secret", "data/note", "folder/secret", "note"):
            (home / file).write_text(file)
        (home / "link").symlink_to("data")
        (home / "folder" / "deep").symlink_to("../data/deep")
        (home / "data" / "up").symlink_to("..")
        (home / "folder" / "up").symlink_to("../folder")
    try:
        descriptor, _ = denying(home).open(os.path.join(home, *parts))
    except (OSError, OutsideRoots):
        return
    with os.fdopen(descriptor) as opened:
        assert opened.read() in ("folder/secret", "note")


def test_a_missing_file_comes_with_similar_names_but_none_that_is_denied(home: Path) -> None:
    for name in ("config.yaml", "config.yml", "secret.yaml", "other"):
        (home / name).touch()
    (home / "secret.lnk").symlink_to(home / "data" / "deep" / "secret")
    (home / "secret.out").symlink_to("/etc/passwd")
    missing = str(home / "confg.yaml")
    assert Roots([home]).similar(missing) == f"; did you mean {home}/config.yaml, {home}/config.yml?"
    assert Roots([home]).similar(missing, "confg.yaml") == "; did you mean config.yaml, config.yml?"
    assert Roots([home], patterns=["*.yml"]).similar(missing) == f"; did you mean {home}/config.yaml?"
    denied = Roots([home], denied=[str(home / "config.yaml"), str(home / "data")])
    assert denied.similar(missing) == f"; did you mean {home}/config.yml?"
    # Neither a link to a denied file, nor one out of the roots, nor what a denied folder holds.
    assert denied.similar(str(home / "secret.lnkk")) == f"; did you mean {home}/secret.yaml?"
    assert denied.similar(str(home / "secret.outt"), "x/secret.outt") == "; did you mean x/secret.yaml?"
    assert denied.similar(str(home / "data" / "deep" / "secre")) == ""
    assert Roots([home]).similar("/etc/passw") == ""
    assert Roots([home]).similar(str(home / "nowhere" / "x")) == ""
    assert Roots([home]).similar(str(home / "zzzzzz")) == ""
    assert Roots([home]).similar(f"{home}/a\0b") == ""


def test_a_token_that_is_limited_to_a_root_is_told_no_name_beyond_it(home: Path) -> None:
    (home / "inside").mkdir()
    (home / "inside" / "note").touch()
    roots = Roots([home])
    token = grants.current.set(Grant("ci", roots=(str(home / "inside"),)))
    try:
        assert roots.similar(str(home / "noet")) == ""
        assert roots.similar(str(home / "inside" / "noet")) == f"; did you mean {home}/inside/note?"
    finally:
        grants.current.reset(token)
