"""Interface tests that fail with OPENREG_DEVICE_TYPE=cuda, with the reasons.

A test that no longer fails is a failure, too. The sweeps have a list of their own:
generic/known_gaps.py.
"""

__all__ = ["DIFFERENCES"]

DIFFERENCES: dict[str, str] = {
    "test_operators.py::TestGroupNorm::"
    "test_gradient_of_a_channels_last_input_is_torch_s_formula_for_accelerators": (
        "torch makes the input of group_norm contiguous on CUDA, and the result has its strides"
    ),
}
