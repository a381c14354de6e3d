"""Properties of ranks and ranking metrics that hold for any scores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from models.metrics import METRICS, ranks

# Few distinct values, so that ties are common.
SCORES = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
    elements=st.integers(-4, 4).map(float),
)
RANKS = st.lists(st.integers(1, 200), min_size=1, max_size=20).map(torch.tensor)
Array = npt.NDArray[np.float64]


def ranked(scores: Array) -> torch.Tensor:
    """Ranks of the first column among the others."""
    return ranks(torch.from_numpy(scores[:, 0]), torch.from_numpy(scores[:, 1:]))


@given(SCORES)
def test_rank_is_the_place_in_a_sorted_list_with_the_positive_last_among_equals(
    scores: Array,
) -> None:
    for row, rank in zip(scores, ranked(scores).tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c == 0))
        assert rank == order.index(0) + 1


@given(SCORES, st.randoms(use_true_random=False))
def test_order_of_candidates_does_not_matter(scores: Array, random: object) -> None:
    columns = list(range(1, scores.shape[1]))
    random.shuffle(columns)  # type: ignore[attr-defined]
    assert torch.equal(ranked(scores[:, [0, *columns]]), ranked(scores))


@given(SCORES, st.integers(1, 5), st.integers(-5, 5))
def test_increasing_maps_of_scores_change_nothing(scores: Array, scale: int, shift: int) -> None:
    assert torch.equal(ranked(scores * scale + shift), ranked(scores))


@given(SCORES)
def test_constant_scores_rank_last(scores: Array) -> None:
    flat = np.zeros_like(scores)
    assert ranked(flat).tolist() == [scores.shape[1]] * len(scores)


@given(SCORES, st.data())
def test_masking_equals_leaving_out(scores: Array, data: st.DataObject) -> None:
    counted = data.draw(arrays(np.bool_, (scores.shape[1] - 1,)))
    counted_UC = torch.from_numpy(np.tile(counted, (len(scores), 1)))
    masked = ranks(torch.from_numpy(scores[:, 0]), torch.from_numpy(scores[:, 1:]), counted_UC)
    assert torch.equal(masked, ranked(scores[:, np.concatenate([[True], counted])]))


@given(RANKS, st.integers(1, 200))
def test_metrics_lie_between_zero_and_the_hit(ranks_U: torch.Tensor, cutoff: int) -> None:
    hits_U = METRICS["hr"](ranks_U, cutoff)
    for metric in METRICS.values():
        values_U = metric(ranks_U, cutoff)
        assert bool((values_U >= 0).all())
        assert bool((values_U <= hits_U).all())
        assert torch.equal(values_U > 0, ranks_U <= cutoff)


@given(RANKS, st.integers(1, 199))
def test_metrics_grow_with_the_cutoff_and_fall_with_the_rank(
    ranks_U: torch.Tensor, cutoff: int
) -> None:
    for metric in METRICS.values():
        assert bool((metric(ranks_U, cutoff + 1) >= metric(ranks_U, cutoff)).all())
        assert bool((metric(ranks_U + 1, cutoff) <= metric(ranks_U, cutoff)).all())
