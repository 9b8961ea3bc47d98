"""Environments of packages that need not be installed."""

from __future__ import annotations

import importlib.util

import pytest

from taac.environments.single import OPTIONAL_PACKAGES

NOTEBOOK = all(importlib.util.find_spec(name) is not None for name in ("nbclient", "ipykernel"))  # a kernel can run notebooks


def skip_without_package(env_name: str) -> None:
    """Skips a test whose environment is of an optional package that is not installed."""
    for package in OPTIONAL_PACKAGES:
        if env_name.startswith(package.prefixes) and importlib.util.find_spec(package.module) is None:
            pytest.skip(f"{package.module} is not installed: {package.install}")
