"""The sum tree against cumulative sums in numpy."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from taac.replay import sum_tree
from taac.replay.sum_tree import SumTree

SIZES = st.sampled_from([1, 2, 127, 128, 129, 300, 128 * 128, 128 * 128 + 1, 40_000])


class SlowTree:
    """The same, an item at a time."""

    def __init__(self, size):
        self.masses = np.zeros(size)

    def set(self, items, masses):
        for item in set(items):
            self.masses[item] = max(m for i, m in zip(items, masses) if i == item)

    def find(self, targets):
        found = []
        for target in targets:
            left = target
            for item, mass in enumerate(self.masses):
                if left < mass:
                    found.append(item)
                    break
                left -= mass
        return found


def full(masses):
    tree = SumTree(len(masses))
    tree.set(torch.arange(len(masses)), torch.as_tensor(masses, dtype=torch.float64))
    return tree


def test_a_table_by_hand():
    """Masses 1, 0, 2, 0.5: the items' shares of [0, 3.5) are [0, 1), nothing, [1, 3), [3, 3.5)."""
    tree = full([1.0, 0.0, 2.0, 0.5])
    assert tree.total == 3.5
    targets = [0.0, 0.5, 0.999, 1.0, 2.5, 2.999, 3.0, 3.499]
    assert tree.find(torch.tensor(targets, dtype=torch.float64)).tolist() == [0, 0, 0, 2, 2, 2, 3, 3]
    tree.set(torch.tensor([0, 3]), torch.tensor([0.0, 4.0], dtype=torch.float64))
    assert tree.masses.tolist() == [0.0, 0.0, 2.0, 4.0] and tree.total == 6.0
    assert tree.find(torch.tensor([0.0, 1.5, 2.0, 5.5], dtype=torch.float64)).tolist() == [2, 2, 3, 3]


@pytest.mark.parametrize("width", [2, 3, 128])
def test_as_the_slow_tree_through_many_changes(monkeypatch, width):
    """Masses are multiples of 1/8, so that all sums are exact and so is every comparison."""
    monkeypatch.setattr(sum_tree, "WIDTH", width)
    random = np.random.default_rng(0)
    for size in (1, 2, 5, 27, 33):
        tree, slow = SumTree(size), SlowTree(size)
        for _ in range(40):
            items, masses = random.integers(size, size=6), random.integers(0, 20, size=6) / 8
            tree.set(torch.from_numpy(items), torch.from_numpy(masses))
            slow.set(items.tolist(), masses.tolist())
            assert tree.masses.tolist() == slow.masses.tolist()
            assert tree.total == slow.masses.sum()
            if tree.total > 0:
                targets = random.integers(0, int(8 * tree.total), size=50) / 8
                assert tree.find(torch.from_numpy(targets)).tolist() == slow.find(targets.tolist())


@settings(max_examples=40)
@given(SIZES, st.integers(0, 2**31), st.integers(1, 400))
def test_an_updated_tree_has_the_bits_of_a_rebuilt_one(size, seed, changes):
    """For any masses, because resuming from a checkpoint rebuilds the tree."""
    random = np.random.default_rng(seed)
    tree = SumTree(size)
    for _ in range(4):
        items = torch.from_numpy(random.integers(size, size=changes))
        tree.set(items, torch.from_numpy(10.0 ** random.uniform(-8, 8, size=changes)))
    for changed, anew in zip(tree._levels, full(tree.masses)._levels, strict=True):
        assert torch.equal(changed, anew)


@settings(max_examples=40)
@given(SIZES, st.integers(0, 2**31))
def test_found_items_have_mass_and_match_the_cumulative_sums(size, seed):
    """To rounding, for masses over 16 orders of magnitude, most of them 0; at the very ends too."""
    random = np.random.default_rng(seed)
    masses = 10.0 ** random.uniform(-8, 8, size=size) * (random.random(size) < 0.2)
    masses[random.integers(size)] = 1.0
    tree = full(masses)
    total = tree.total.item()
    assert total == pytest.approx(masses.sum(), rel=1e-12)
    targets = np.concatenate([random.random(200) * total, [0.0, np.nextafter(total, 0), total]])
    found = tree.find(torch.from_numpy(targets)).numpy()
    assert (masses[found] > 0).all()
    above = np.cumsum(masses)[found]
    assert (above >= targets - 1e-9 * total).all() and (above - masses[found] <= targets + 1e-9 * total).all()


def test_three_levels_for_a_million_items():
    tree = SumTree(1_000_000)
    assert [level.shape[0] for level in tree._levels] == [7813, 62, 1]
    assert 8.0 < tree.num_bytes / 1_000_000 < 8.1
