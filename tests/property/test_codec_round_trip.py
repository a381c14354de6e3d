"""Any update survives the wire bit for bit, whatever its shape and however sparse."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.types import Tensors
from strategies.codec import from_sparse_arrays, to_sparse_arrays

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def updates(draw: st.DrawFn) -> tuple[Tensors, set[str]]:
    result, tables = {}, set()
    for index in range(draw(st.integers(1, 4))):
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12))
        dtype = draw(st.sampled_from([np.float32, np.float64]))
        array = draw(hnp.arrays(dtype, shape, elements=finite, fill=st.just(0.0)))
        name = f"t{index}"
        result[name] = torch.from_numpy(np.array(array))
        if array.ndim and draw(st.booleans()):
            tables.add(name)
    return result, tables


@given(updates())
@settings(max_examples=200)
def test_round_trip_is_exact(case: tuple[Tensors, set[str]]) -> None:
    given_tensors, tables = case
    record = to_sparse_arrays(given_tensors, tables)
    template = {n: torch.ones_like(t) for n, t in given_tensors.items()}
    back = from_sparse_arrays(record, template)
    for name, tensor in given_tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name
    sent = sum(array.numpy().nbytes for array in record.values())
    assert sent <= sum(t.numel() * t.element_size() for t in given_tensors.values())
