"""Preallocated rollouts: aligned, shared by views, and walked in jax's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.data import arrays
from rookery.trees import ArraySpec, tree_leaves, tree_map
from rookery.types import BATCH_MAJOR, Rollout


class Pair(NamedTuple):
    left: Any
    right: Any


def spec(*shape: int, dtype: Any = np.float32) -> ArraySpec:
    return ArraySpec(shape, np.dtype(dtype))


def rollout_specs(T: int = 3, B: int = 2) -> Rollout:
    """With every kind of container, and sizes that are no multiple of the alignment."""
    return Rollout(
        observation={"image": spec(T + 1, B, 3, 5, dtype=np.uint8), "vector": (spec(T + 1, B, 7), spec(T + 1, B))},
        action=spec(T, B, dtype=np.int32),
        reward=spec(T, B),
        discount=spec(T, B),
        valid=spec(T, B),
        extras={"value": spec(T, B), "behaviour_logp": spec(T, B, 2)},
        memory=Pair(spec(B, 5), [spec(B, dtype=np.int32)]),
        version=spec(T, B, dtype=np.int32),
        stream=spec(B, dtype=np.int64),
        step=spec(B, dtype=np.int64),
    )


def by_field(rollout: Rollout) -> Iterator[tuple[str, Any]]:
    for name, field in rollout._asdict().items():
        for leaf in tree_leaves(field):
            yield name, leaf


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int8, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (65,)])
def test_every_array_starts_on_a_boundary_of_64_bytes_and_is_zero(shape: tuple[int, ...], dtype: Any) -> None:
    for _ in range(8):  # an allocator hits a boundary by luck now and then
        array = arrays.aligned_zeros(shape, dtype)
        assert array.ctypes.data % 64 == 0 and array.shape == shape and array.dtype == dtype
        assert array.flags.c_contiguous and array.flags.writeable and not array.any()


def test_jax_reads_an_allocated_rollout_without_a_copy() -> None:
    """That is what the alignment is for; should it stop being true, the alignment has become pointless."""
    array = arrays.aligned_zeros((64, 64), np.dtype(np.float32))
    assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data


def test_no_two_arrays_of_a_rollout_share_memory() -> None:
    leaves = [leaf for _, leaf in by_field(arrays.allocate(rollout_specs()))]
    for i, leaf in enumerate(leaves):
        leaf[:] = i + 1 if leaf.dtype != bool else True
    assert [int(leaf.reshape(-1)[0]) for leaf in leaves] == list(range(1, len(leaves) + 1))


def test_writing_into_columns_writes_into_those_of_the_whole_and_no_others() -> None:
    whole = arrays.allocate(arrays.widen(rollout_specs(), 6))
    for i in range(3):
        for _, leaf in by_field(arrays.columns(whole, slice(2 * i, 2 * i + 2))):
            assert 2 in leaf.shape[:2]
            leaf[:] = i + 1
    for name, leaf in by_field(whole):
        columns = leaf if name in BATCH_MAJOR else np.moveaxis(leaf, 1, 0)
        for column in range(6):
            assert (columns[column] == column // 2 + 1).all(), name


def test_columns_keep_the_types_of_the_containers() -> None:
    part = arrays.columns(arrays.allocate(rollout_specs()), slice(0, 1))
    assert isinstance(part, Rollout) and isinstance(part.memory, Pair) and isinstance(part.memory.right, list)
    assert isinstance(part.observation["vector"], tuple)


def test_widening_changes_the_axis_of_the_environments_alone() -> None:
    wide = arrays.widen(rollout_specs(T=3, B=2), 10)
    assert wide.observation["image"].shape == (4, 10, 3, 5) and wide.observation["vector"][0].shape == (4, 10, 7)
    assert wide.memory.left.shape == (10, 5) and wide.memory.right[0].shape == (10,)
    assert wide.stream.shape == wide.step.shape == (10,) and wide.version.shape == (3, 10)
    assert [leaf.dtype for _, leaf in by_field(wide)] == [leaf.dtype for _, leaf in by_field(rollout_specs())]


def test_bytes_are_those_of_the_arrays() -> None:
    specs = rollout_specs()
    assert arrays.nbytes(specs) == sum(leaf.nbytes for _, leaf in by_field(arrays.allocate(specs)))
    assert arrays.nbytes(specs) == arrays.nbytes(arrays.allocate(specs))


leaf = st.integers(0, 99).map(float)
trees = st.recursive(
    leaf | st.none(),
    lambda inner: st.one_of(
        st.dictionaries(st.text("zyxba", min_size=1, max_size=2), inner, max_size=4),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(trees)
def test_trees_are_walked_in_the_order_of_jax(tree: Any) -> None:
    assert tree_leaves(tree) == jax.tree.leaves(tree)
    doubled = tree_map(lambda x, y: x + y, tree, tree)
    assert jax.tree.structure(doubled) == jax.tree.structure(tree)
    assert jax.tree.leaves(doubled) == [2 * x for x in jax.tree.leaves(tree)]
