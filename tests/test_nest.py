"""Nests: what is built from a random plan must be mapped, flattened and packed as the plan says."""

import itertools
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taac import nest
from taac.errors import TaacError

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


class Empty(NamedTuple):
    pass


class One(NamedTuple):
    only: object


class Three(NamedTuple):
    head: object
    body: object
    tail: object


# A plan is "leaf", or (kind, [plan, ...]); `build` makes the nest of it, with leaves from an iterator.
KEYS = ["b", "a", "camera", "0", "z"]
NAMED = {Empty: (), One: ("only",), Three: ("head", "body", "tail")}


def containers(children):
    some = st.lists(children, max_size=4)
    return st.one_of(
        st.tuples(st.sampled_from(["dict", "tuple", "list"]), some),
        st.tuples(st.just(Empty), st.just([])),
        st.tuples(st.just(One), st.lists(children, min_size=1, max_size=1)),
        st.tuples(st.just(Three), st.lists(children, min_size=3, max_size=3)),
    )


PLANS = st.recursive(st.just("leaf"), containers, max_leaves=12)


def build(plan, leaves):
    if plan == "leaf":
        return next(leaves)
    kind, children = plan
    values = [build(child, leaves) for child in children]
    if kind == "dict":
        return dict(zip(KEYS, values))
    if kind in ("tuple", "list"):
        return tuple(values) if kind == "tuple" else values
    return kind(*values)


def paths(plan, prefix=()):
    """Paths of the leaves, as tuples of names."""
    if plan == "leaf":
        return [prefix]
    kind, children = plan
    names = {"dict": KEYS, "tuple": "0123", "list": "0123"}.get(kind) or NAMED[kind]
    return [path for name, child in zip(names, children) for path in paths(child, (*prefix, name))]


def same(one, other):
    """Equality that distinguishes a NamedTuple from a tuple, and orders of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@PROPERTY
@given(PLANS)
def test_map_structure(plan):
    nests = [build(plan, itertools.count(start, step)) for start, step in [(0, 1), (100, 2), (1000, 3)]]
    assert same(nest.map_structure(lambda x: 10 * x + 1, nests[0]), build(plan, itertools.count(1, 10)))
    result = nest.map_structure(lambda *leaves: leaves[2] - 7 * leaves[1] + leaves[0], *nests)
    assert same(result, build(plan, (1000 + 3 * i - 7 * (100 + 2 * i) + i for i in itertools.count())))
    assert same(nests[0], build(plan, itertools.count())), "what was given is as it was"


@PROPERTY
@given(PLANS)
def test_flatten_and_its_paths(plan):
    expected = [("/".join(path), leaf) for leaf, path in enumerate(paths(plan))]
    structure = build(plan, itertools.count())
    assert list(nest.flatten_with_path(structure)) == expected
    assert nest.flatten(structure) == [leaf for _, leaf in expected]


@PROPERTY
@given(PLANS)
def test_pack_like_undoes_flatten(plan):
    structure = build(plan, itertools.count())
    assert same(nest.pack_like(structure, nest.flatten(structure)), structure)
    leaves = [f"leaf {i}" for i in range(len(paths(plan)))]
    assert same(nest.pack_like(structure, leaves), build(plan, iter(leaves)))


@PROPERTY
@given(PLANS)
def test_a_packer_packs_again_and_again(plan):
    pack = nest.packer(build(plan, itertools.count()))
    for start in (5, 50):
        assert same(pack(itertools.count(start)), build(plan, itertools.count(start)))


@PROPERTY
@given(PLANS)
def test_pack_like_refuses_another_number_of_leaves(plan):
    structure = build(plan, itertools.count())
    count = len(paths(plan))
    for leaves in ([0] * (count + 1), [0] * (count - 1)):
        if len(leaves) != count:
            with pytest.raises(TaacError, match=f"^got {len(leaves)} leaves .* {count}$"):
                nest.pack_like(structure, leaves)


def test_dicts_are_matched_by_key_and_visited_in_the_order_of_the_first():
    visited = []

    def visit(x, y):
        visited.append((x, y))
        return x + y

    result = nest.map_structure(visit, {"b": 1, "a": {"y": 2, "x": 3}}, {"a": {"x": 30, "y": 20}, "b": 10})
    assert visited == [(1, 10), (2, 20), (3, 30)]
    assert same(result, {"b": 11, "a": {"y": 22, "x": 33}})


def test_flatten_like_follows_the_structure_it_is_given():
    structure = {"a": 0, "b": (0, {"c": 0})}
    assert nest.flatten_like(structure, {"b": (2, {"c": 3}), "a": 1}) == [1, 2, 3]
    assert nest.flatten_like((0, 0), [1, 2]) == [1, 2]  # a tuple and a list of one length are one structure
    with pytest.raises(TaacError, match="'/b/1'"):
        nest.flatten_like(structure, {"a": 1, "b": (2, 3)})


@pytest.mark.parametrize("leaf", [None, 1.5, "text", torch.zeros(3, 2), torch.zeros(())])
def test_anything_but_a_container_is_a_leaf(leaf):
    """A tensor has a length and a string has items; neither is taken apart."""
    assert not nest.is_container(leaf) and nest.is_container(()) and nest.is_container(Empty())
    assert nest.flatten({"x": leaf})[0] is leaf
    assert nest.map_structure(lambda x: x, (leaf,))[0] is leaf
    assert nest.map_structure(lambda x, y: y, (0,), (leaf,))[0] is leaf


@pytest.mark.parametrize(
    "one, other, path",
    [
        ({"camera": (1, 2)}, {"camera": (1, 2, 3)}, "camera"),  # number of items
        ({"camera": (1, 2)}, {"camera": (1, (2,))}, "camera/1"),  # a leaf and a container
        ({"camera": (1, ())}, {"camera": (1, 2)}, "camera/1"),  # nothing and a leaf
        ({"camera": (1, ())}, {"camera": (1, (2,))}, "camera/1"),  # nothing and something
        ({"camera": {"x": 1}}, {"camera": {"y": 1}}, "camera"),  # keys
        ({"camera": {"x": 1}}, {"camera": {"x": 1, "y": 1}}, "camera"),
        ({"camera": {"x": 1}}, {"camera": (1,)}, "camera"),  # a dict and a tuple
        (Three(1, [1, {"x": 1}], 1), Three(1, [1, {"x": ()}], 1), "body/1/x"),  # names of fields
        ([1, [2, [3]]], [1, [2, 3]], "1/1"),
        (Three(1, [], 1), (1, [], 1), "/"),  # a record and a tuple of its length
        (1, (1,), "/"),
        ((1,), 1, "/"),
        ({}, (), "/"),
    ],
)
def test_structures_that_differ_are_refused_with_the_path(one, other, path):
    for nests in ((one, other), (other, one), (one, one, other), (one, other, one)):
        with pytest.raises(TaacError, match=f"differ at '/?{path}'"):
            nest.map_structure(lambda *leaves: leaves, *nests)


def test_the_first_difference_is_named_with_both_sides():
    with pytest.raises(TaacError, match=r"/b'.*\['y', 'x'\].*\['x'\]|/b'.*\['x', 'y'\].*\['x'\]"):
        nest.map_structure(max, {"b": {"y": 1, "x": 2}, "a": 1}, {"b": {"x": 1}, "a": ()})
    with pytest.raises(TaacError, match=r"a leaf.*a Three of 3"):
        nest.map_structure(max, [3], [Three(1, 2, 3)])


@pytest.mark.parametrize(
    "key, x, y",
    [
        (1, [2, 3], 8),
        (-1, [4, 5], 9),
        (slice(1, None), [[2, 3], [4, 5]], [8, 9]),
        (torch.tensor([2, 0]), [[4, 5], [0, 1]], [9, 7]),
    ],
)
def test_index_applies_one_key_to_every_leaf(key, x, y):
    structure = {"x": torch.tensor([[0, 1], [2, 3], [4, 5]]), "rest": One((torch.tensor([7, 8, 9]), ()))}
    indexed = nest.index(structure, key)
    assert same(nest.map_structure(torch.Tensor.tolist, indexed), {"x": x, "rest": One((y, ()))})
