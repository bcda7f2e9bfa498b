"""Tallies: merging in any split gives the same bits; groups and the right edge are kept."""

import numpy as np
import pytest

import sim
from sim.cpu import _nodes
from sim.plan import layout, plan
from sim.tally import (
    BINS,
    FAMILIES,
    MAXIMUM,
    MINIMUM,
    MOMENTS,
    PARTNERS,
    PARTS,
    ROUNDED,
    Layout,
    Node,
    TreeNodes,
    aligned_runs,
    leave_one_out,
    merge_into,
    merge_tree,
)

SIZES = {"scale": 2, "threshold": 3, "gradient_threshold": 2, "sigma": 3, "bin": 10, "size": 6, "dtype": 2}
LAYOUT = Layout(["scores", "weights", "jacobian"], SIZES)
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


def bins_of(tallies: np.ndarray) -> np.ndarray:
    """Return counts in bins, of each block its own."""
    whole = (abs(tallies[:, : LAYOUT.bin_fields]) * 1e6).astype(np.int64)
    return whole[:, np.arange(LAYOUT.bin_fields) % whole.shape[1]]


def whole_tree(tallies: np.ndarray) -> np.ndarray:
    """Return the merge of all, by the definition of the tree: a left child of 2^k rows, then the rest."""
    if len(tallies) == 1:
        return tallies[0].copy()
    half = 1 << (len(tallies) - 1).bit_length() - 1
    left, right = whole_tree(tallies[:half]), whole_tree(tallies[half:])
    merge_into(left, right, SEGMENTS)
    return left


def batch_of(tallies, first, group_blocks, is_short) -> list[Node]:
    """Return the nodes of a batch of blocks, as the engine makes them: a row of bins for each node."""
    runs = list(aligned_runs(first, len(tallies), group_blocks, is_short))
    counts = bins_of(tallies)
    bins = np.array([counts[at : at + size].sum(axis=0) for at, size in runs])
    return list(_nodes(first, runs, is_short, tallies.copy(), bins, LAYOUT))


def tree_of(tallies, group_blocks, cuts, is_short=False) -> TreeNodes:
    """Push the blocks in batches that end at `cuts`, as the engine does."""
    tree = TreeNodes(group_blocks, SEGMENTS)
    ends = sorted({*cuts, len(tallies)} - {0})
    for first, last in zip([0, *ends], ends, strict=False):
        for node in batch_of(tallies[first:last], first, group_blocks, is_short and last == len(tallies)):
            tree.push(node)
    return tree


def alike(a: Node, b: Node) -> bool:
    return a[:2] == b[:2] and np.array_equal(a.tally, b.tally) and np.array_equal(a.bins, b.bins)


def same(one: TreeNodes, other: TreeNodes) -> bool:
    return len(one.nodes) == len(other.nodes) and all(map(alike, one.nodes, other.nodes))


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("first", [0, 1, 5, 8, 24])
def test_aligned_runs_are_the_largest_nodes_that_fit(first, is_short):
    for count in range(1, 70):
        runs = list(aligned_runs(first, count, 8, is_short))
        assert [at for at, _ in runs] == list(np.cumsum([0, *(size for _, size in runs[:-1])]))
        assert sum(size for _, size in runs) == count
        for at, size in runs[: len(runs) - is_short]:
            assert size.bit_count() == 1
            assert size <= 8
            assert (first + at) % size == 0
            # twice as large would be unaligned, beyond a group, or beyond the full blocks
            assert (first + at) % (2 * size) or 2 * size > 8 or at + 2 * size > count - is_short
        assert runs[-1][1] == 1 or not is_short


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
            groups, bins = tree_of(tallies, group_blocks, [3, 50], is_short).groups()
            assert len(groups) == len(bins) == -(-count // group_blocks)
            merge_tree(groups, SEGMENTS)
            np.testing.assert_array_equal(groups[0], whole_tree(tallies))
            np.testing.assert_array_equal(bins.sum(axis=0), bins_of(tallies).sum(axis=0))


@pytest.mark.parametrize("short", [1, 5, 8, 47, 100, 129])
@pytest.mark.parametrize("is_short", [False, True])
def test_the_right_edge_of_a_run_is_extended_to_a_longer_one(short, is_short):
    """Complete nodes are those of the longer run, or are merged into its; a short block is redone."""
    tallies = random_tallies(200)
    longer, kept = tree_of(tallies, 8, [64]), tree_of(tallies[:short], 8, [17], is_short)
    if is_short:
        assert kept.nodes[-1].blocks == 0
        kept.nodes.pop()
    for node in kept.nodes:
        if node.blocks == 8:
            assert alike(node, longer.nodes[node.first // 8])
    done = short - is_short
    for node in batch_of(tallies[done:], done, 8, False):
        kept.push(node)
    assert same(kept, longer)


def test_reading_the_groups_leaves_the_nodes_as_they_are():
    tree = tree_of(random_tallies(21), 8, [], is_short=True)
    before = [node._replace(tally=node.tally.copy(), bins=node.bins.copy()) for node in tree.nodes]
    first, second = tree.groups(), tree.groups()
    assert all(map(alike, tree.nodes, before))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


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
        if part.name in LAYOUT and part.merge not in (MOMENTS, BINS):
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


def test_bins_stand_in_a_row_of_their_own():
    everything = Layout(FAMILIES, SIZES)
    assert everything.bin_parts == {
        "score_histogram": [0, 10],
        "frobenius_sizes": [10, 2, 6],
        "gradient_query_sizes": [22, 2, 6],
    }
    assert everything.bin_fields == 34
    assert everything.offsets.gradient_query_sizes == 22
    assert LAYOUT.bin_parts == {"frobenius_sizes": [0, 2, 6]}
    bins = everything.empty_bins(3)
    assert bins.dtype == np.int64
    everything.part(bins, "frobenius_sizes")[1, 1, 0] = 7
    assert bins[1, 16] == 7
    assert not any(label.startswith(("score_histogram", "frobenius_sizes")) for label in everything.labels)
    assert len(everything.labels) == everything.fields


def test_every_part_belongs_to_a_family_that_there_is():
    assert {part.family for part in PARTS} == {None, *FAMILIES, PARTNERS, ROUNDED}
