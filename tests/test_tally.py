"""Tallies: merging in any split gives the same bits; groups and the right edge are kept."""

import numpy as np
import pytest

import sim
from sim.cpu import _nodes
from sim.plan import layout, plan
from sim.tally import MAXIMUM, MINIMUM, MOMENTS, PARTS, Layout, TreeNodes, leave_one_out, merge_into, merge_tree

LAYOUT = Layout(["scores", "weights"], {"scale": 2, "threshold": 3, "sigma": 3, "bin": 10})
SEGMENTS = LAYOUT.segments


def random_tallies(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    tallies = random.standard_normal((count, LAYOUT.fields))
    for name in ("trials", "rows"):
        LAYOUT.part(tallies, name)[...] = random.integers(1, 9, count)
    moments = LAYOUT.part(tallies, "score_moments")
    moments[..., 0] = random.integers(1, 100, moments.shape[:-1])
    moments[..., [2, 4]] = abs(moments[..., [2, 4]])
    return tallies


def whole_tree(tallies: np.ndarray) -> np.ndarray:
    """Return the merge of all, by the definition of the tree: a left child of 2^k rows, then the rest."""
    if len(tallies) == 1:
        return tallies[0].copy()
    half = 1 << (len(tallies) - 1).bit_length() - 1
    left, right = whole_tree(tallies[:half]), whole_tree(tallies[half:])
    merge_into(left, right, SEGMENTS)
    return left


def tree_of(tallies, group_blocks, cuts, is_short=False) -> TreeNodes:
    """Push the blocks in batches that end at `cuts`, as the engine does."""
    tree = TreeNodes(group_blocks, SEGMENTS)
    ends = sorted({*cuts, len(tallies)} - {0})
    for first, last in zip([0, *ends], ends, strict=False):
        for node in _nodes(tallies[first:last].copy(), first, group_blocks, is_short and last == len(tallies), LAYOUT):
            tree.push(*node)
    return tree


def same(one: TreeNodes, other: TreeNodes) -> bool:
    return len(one.nodes) == len(other.nodes) and all(
        a[:2] == b[:2] and np.array_equal(a[2], b[2]) for a, b in zip(one.nodes, other.nodes, strict=True)
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33, 100])
def test_a_tree_is_merged_in_aligned_pairs(count):
    tallies = random_tallies(count)
    expected = whole_tree(tallies)
    merge_tree(tallies, SEGMENTS)
    np.testing.assert_array_equal(tallies[0], expected)


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("group_blocks", [1, 2, 8, 32])
def test_any_split_into_batches_gives_the_same_bits(group_blocks, is_short):
    random = np.random.default_rng(group_blocks)
    for count in (1, 2, 5, 31, 64, 65, 200):
        tallies = random_tallies(count, seed=count)
        expected = tree_of(tallies, group_blocks, [], is_short)
        for size in (1, 2, 3, 16, 100):
            assert same(tree_of(tallies, group_blocks, range(0, count, size), is_short), expected)
        for _ in range(20):
            cuts = random.choice(count, size=random.integers(1, count + 1), replace=False)
            assert same(tree_of(tallies, group_blocks, cuts.tolist(), is_short), expected)


@pytest.mark.parametrize("group_blocks", [1, 2, 8, 32])
def test_groups_merge_to_the_whole_tree(group_blocks):
    for count in (1, 2, 5, 31, 64, 65, 200):
        for is_short in (False, True):
            tallies = random_tallies(count, seed=count)
            groups = tree_of(tallies, group_blocks, [3, 50], is_short).groups()
            assert len(groups) == -(-count // group_blocks)
            merge_tree(groups, SEGMENTS)
            np.testing.assert_array_equal(groups[0], whole_tree(tallies))


@pytest.mark.parametrize("short", [1, 5, 8, 47, 100, 129])
@pytest.mark.parametrize("is_short", [False, True])
def test_the_right_edge_of_a_run_is_extended_to_a_longer_one(short, is_short):
    """Complete nodes are those of the longer run, or are merged into its; a short block is redone."""
    tallies = random_tallies(200)
    longer, kept = tree_of(tallies, 8, [64]), tree_of(tallies[:short], 8, [17], is_short)
    if is_short:
        assert kept.nodes[-1][1] == 0
        kept.nodes.pop()
    for node in kept.nodes:
        if node[1] == 8:
            twin = longer.nodes[node[0] // 8]
            assert twin[:2] == node[:2]
            np.testing.assert_array_equal(twin[2], node[2])
    done = short - is_short
    for node in _nodes(tallies[done:].copy(), done, 8, False, LAYOUT):
        kept.push(*node)
    assert same(kept, longer)


def test_there_are_33_to_64_groups_from_33_blocks_on():
    fields = {"d_k": 4, "n_tokens": 8}
    for trials in [1, 8, 9, 32 * 8, 33 * 8, 64 * 8, 64 * 8 + 1, 65 * 8, 66 * 8 - 1, 100_003, 10**7 + 1, 2**32 - 1]:
        sweep = sim.Sweep(**fields, trials=trials)
        made = plan(sweep, sweep.cells[0], layout(sweep))
        groups = -(-made.blocks // made.group_blocks)
        assert made.block_trials == 8
        assert made.blocks == -(-trials // 8)
        assert made.group_blocks.bit_count() == made.batch_blocks.bit_count() == 1
        assert groups == made.blocks if made.blocks <= 33 else 33 <= groups <= 64


def test_the_empty_tally_is_the_identity():
    tallies = random_tallies(2)
    for a, b in ((LAYOUT.empty(1)[0], tallies[0].copy()), (tallies[0].copy(), LAYOUT.empty(1)[0])):
        merge_into(a, b, SEGMENTS)
        np.testing.assert_array_equal(a, tallies[0])


def test_each_kind_of_field_merges_by_its_own_rule():
    a, b = random_tallies(2)
    merged = a.copy()
    merge_into(merged, b, SEGMENTS)
    for part in PARTS:
        if part.name in LAYOUT and part.merge != MOMENTS:
            rule = {MINIMUM: np.minimum, MAXIMUM: np.maximum}.get(part.merge, np.add)
            x, y, found = (LAYOUT.part(tally, part.name) for tally in (a, b, merged))
            np.testing.assert_array_equal(found, rule(x, y), err_msg=part.name)


@pytest.mark.parametrize("count", [2, 3, 4, 33, 64])
def test_leave_one_out_is_the_merge_of_the_others(count):
    groups = random_tallies(count)
    untouched = groups.copy()
    found = leave_one_out(groups, SEGMENTS)
    np.testing.assert_array_equal(groups, untouched)
    for g in range(count):
        expected = whole_tree(np.delete(groups, g, axis=0))
        np.testing.assert_allclose(found[g], expected, rtol=1e-11, atol=1e-11)


def test_a_part_is_a_view_and_labels_name_every_field():
    tallies = LAYOUT.empty(2)
    LAYOUT.part(tallies, "saturated")[1, 0, 2] = 5
    (at,) = np.flatnonzero(tallies[1] == 5)
    assert LAYOUT.labels[at] == "saturated/0/2"
    assert len(LAYOUT.labels) == len(set(LAYOUT.labels)) == LAYOUT.fields
    assert "score_histogram" not in LAYOUT
    assert LAYOUT.offsets.score_histogram == -1
