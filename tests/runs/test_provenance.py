"""A run says which commit of the package trained it, if that can be known."""

from __future__ import annotations

import subprocess

import pytest

from taac.runs import provenance
from taac.runs.provenance import changed_versions
from taac.runs.run_folder import RunFolder


def git(folder, *arguments):
    told = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return told.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    root.mkdir()
    git(tmp_path, "init", "-q", "checkout")
    (root / "code.py").write_text("1\n")
    git(root, "add", "code.py")
    git(root, "commit", "-q", "-m", "first")
    git(root, "tag", "v1")
    monkeypatch.setattr(provenance, "ROOT", root)
    return root


def test_the_commit_is_whole_and_says_what_was_changed(checkout):
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD")  # not the tag, which can move
    (checkout / "notes.txt").write_text("not tracked\n")
    assert not provenance.commit().endswith("-dirty")
    (checkout / "code.py").write_text("2\n")
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_a_repository_around_the_package_or_of_a_hook_is_not_the_packages(checkout, monkeypatch, tmp_path):
    expected = provenance.commit()
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert provenance.commit() == expected
    inside = checkout / "site-packages"
    inside.mkdir()
    monkeypatch.setattr(provenance, "ROOT", inside)
    assert provenance.commit() is None


def test_without_git_or_with_a_damaged_checkout_nothing_is_said(checkout, monkeypatch):
    (checkout / ".git" / "HEAD").write_text("nonsense")
    assert provenance.commit() is None
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() is None


def test_a_run_has_its_commit_and_a_resumed_one_another(checkout, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin("", {"seed": 0})
    run = folder.read_run()
    assert run["commit"] == provenance.commit() and "commit" not in changed_versions(run)
    (checkout / "code.py").write_text("2\n")
    assert changed_versions(run) == {"commit": run["commit"] + "-dirty"}
    assert changed_versions({"versions": run["versions"]}) == {}  # of a run of earlier code
