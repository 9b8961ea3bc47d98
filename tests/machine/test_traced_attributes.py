"""Which changes of attributes make a traced program another one."""

from __future__ import annotations

import torch

from taac.machine.traced_attributes import TracedAttributes, parts


class Part(torch.nn.Module):
    def __init__(self, number=None):
        super().__init__()
        self.number, self.scheme = number, "a"


def test_numbers_and_texts_that_change_are_named():
    part = Part(2.0)
    attributes = TracedAttributes(torch.nn.Sequential(part))
    assert attributes.changed() is None
    for name, value in (("number", 3.0), ("number", None), ("scheme", "b")):
        before = getattr(part, name)
        setattr(part, name, value)
        assert attributes.changed() == f"Part.{name}"
        setattr(part, name, before)
    part.training = False
    assert attributes.changed() == "Part.training"


def test_of_what_was_nothing_a_number_is_a_change_and_what_is_made_when_needed_is_none():
    part = Part()
    attributes = TracedAttributes(part)
    part.number = torch.Generator()
    assert attributes.changed() is None
    part.number = 2.0
    assert attributes.changed() == "Part.number"


def test_the_objects_of_a_tuple_are_parts_too():
    """As regularizers of an actor are."""

    class Regularizer:
        weight = 0.0

        def __init__(self):
            self.weight = 1.0

    part = Part()
    part.regularizers = (Regularizer(),)
    attributes = TracedAttributes(part)
    assert part.regularizers[0] in [*parts(part)] and attributes.changed() is None
    part.regularizers[0].weight = 2.0
    assert attributes.changed() == "Regularizer.weight"
