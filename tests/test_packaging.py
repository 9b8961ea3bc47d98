"""The wheel has all files, is the one that the source distribution builds, and works away from the repository."""

from __future__ import annotations

import email
import email.message
import email.policy
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import taac
from experiments import distributions

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, and the wheel that was built from it alone."""
    return distributions.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The source distribution."""
    return distributions.sdist_of(ROOT, tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def metadata(source) -> email.message.EmailMessage:
    with tarfile.open(source) as archive:
        (name,) = (name for name in archive.getnames() if re.fullmatch(r"[^/]*/PKG-INFO", name))
        about = archive.extractfile(name).read()
    return email.message_from_bytes(about, policy=email.policy.default)


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_every_gin_file(built):
    found, expected = distributions.contents(built[1]), distributions.expected()
    assert sorted(name for name in expected if name not in found) == []
    assert [name for name in expected if found[name] != expected[name]] == []
    more = {name for name in found if name not in expected}
    assert all(re.fullmatch(r"taac-[^/]*\.dist-info/.*", name) for name in more), more
    modules = {name.removesuffix(".py").replace("/", ".") for name in found}
    for name in (name for name in found if name.endswith(".gin")):
        needed = re.findall(r"^(?:import|from) (\S+)", found[name].decode(), re.MULTILINE)
        assert modules.issuperset(needed), f"{name} imports what the wheel lacks"
    kinds = {Path(name).suffix for name in expected}
    assert {".py", ".gin", ".typed", ".cpp", ".json", ".html", ".css", ".js"} <= kinds | {f".{Path(n).name}" for n in expected}


@pytest.mark.slow
def test_the_source_distribution_has_what_the_repository_has(source):
    with tarfile.open(source) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    if not (ROOT / ".git").exists():
        pytest.skip("not a repository, so it is not known which files belong to it")
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n")
    left_out = {name for name in tracked if name and name not in found and (ROOT / name).exists()}
    assert {name for name in left_out if not name.startswith((".git", ".ci"))} == set()


@pytest.mark.slow
def test_the_metadata_says_what_is_supported(metadata):
    assert metadata["Name"] == "taac" and metadata["Version"] == taac.__version__
    assert metadata["License-Expression"] == "MIT" and metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown" and metadata.get_content().startswith("# taac")
    classified = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier")]
    versions = [version for version in classified if re.fullmatch(r"3\.\d+", version)]
    assert metadata["Requires-Python"] == f">={versions[0]}" and "Typed" in classified
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert re.findall(r"3\.\d+", re.search(r"python: \[(.*)\]", workflow)[1]) == versions, "they are what is tested"
    assert f"target-version = \"py{versions[0].replace('.', '')}\"" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_trains_and_plays_away_from_the_repository(built, tmp_path):
    """The wheel, unpacked, in place of the repository; `experiments.distributions --try` does more, in an environment."""
    site, cwd = tmp_path / "site", tmp_path / "cwd"
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(site)
    cwd.mkdir()
    (cwd / "mine.gin").write_text(distributions.OWN)
    calls = [
        f"train --root_dir run --gin_file mine.gin {distributions.SMALL}",
        "list",
        "play --root_dir run --num_episodes 1",
    ]
    # All in one Python, which costs seconds to start.
    code = (
        "import sys, taac\nfrom pathlib import Path\nfrom absl import flags\nfrom taac.commands.main import main\n"
        f"assert Path(taac.__file__).is_relative_to({str(site)!r}), taac.__file__\n"
        "for call in sys.argv[1:]:\n"
        "    before = set(flags.FLAGS)\n"
        "    try:\n        main(['taac', *call.split()])\n"
        "    except SystemExit as end:\n        assert not end.code, call\n"
        "    [delattr(flags.FLAGS, name) for name in set(flags.FLAGS) - before]\n"
        "    flags.FLAGS.unparse_flags()\n"
        f"assert not [name for name in sys.modules if {str(ROOT)!r} in str(getattr(sys.modules[name], '__file__', ''))\n"
        "            and 'site-packages' not in sys.modules[name].__file__]\n"
    )
    words = [sys.executable, "-c", code, *calls]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (cwd / "run" / "config.gin").exists() and "1 episodes of Pendulum-v1" in done.stdout
    assert "LinearTrajectory" in (cwd / "run" / "config.gin").read_text()


def test_the_citation_is_of_this_version_and_of_the_paper():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {taac.__version__}\n" in text and "2104.06521" in text
