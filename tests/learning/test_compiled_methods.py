"""Every method's update and acting as the C++ compiler makes them, whose own faults no trace shows."""

from __future__ import annotations

import pytest

from tests.learning.test_compiled_update import COMPILE, assert_close, updated
from tests.machine.test_compiled import needs_compiler
from tests.methods import METHODS


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("method", METHODS)
def test_with_the_compiler(method):
    # Wide enough for vector instructions, which batches and layers of the other tests are not.
    wide = ["hidden_layers = (32,)", "batch_size = 64", "initial_collect_steps = 100"]
    assert_close(updated(method, COMPILE, *wide, updates=2), updated(method, *wide, updates=2), rtol=1e-3, atol=1e-3)
