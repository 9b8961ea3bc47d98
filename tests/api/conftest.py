"""Runs that the tests of this folder share."""

import pytest

import taac
from tests.api.small import SMALL


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run of TAAC."""
    root_dir = tmp_path_factory.mktemp("api") / "run"
    return taac.train("Pendulum-v1", "taac", root_dir=root_dir, seed=3, **SMALL)
