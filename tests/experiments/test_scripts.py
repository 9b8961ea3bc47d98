"""Scripts that run by their path, which puts their folder before all others that modules are imported from."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("folder", ["experiments", "experiments/examples"])
def test_no_script_hides_a_module_that_others_import(folder):
    """Gymnasium's MuJoCo tasks import `packaging`: beside a packaging.py, a policy of theirs could not be played."""
    taken = sys.stdlib_module_names | importlib.metadata.packages_distributions().keys()
    scripts = {path.stem for path in (ROOT / folder).glob("*.py")}
    assert scripts and not scripts & taken
