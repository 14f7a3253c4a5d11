"""The lists of operators by their use of old contents agree with a comparison of contents."""

import itertools
import warnings

import common  # noqa: F401  (adds the folder of the next modules)
import extras.sanitizer.unwritten  # noqa: F401
import pytest
import torch
from common import OpenRegTestCase, run_tests
from extras.sanitizer.programs import device
from torch.testing._internal.common_methods_invocations import op_db

from torch_openreg import _C
from torch_openreg.extras.sanitizer import sanitizer as checker

_SEEDS = (1, 2, 3)

# Operators in place that launch nothing.
_WITHOUT_KERNEL = {"as_strided", "resize_", "resize_as_", "squeeze", "t", "unsqueeze"}

# What reads nothing in one of its modes and is taken to read nothing in any, so that no alarm is
# wrong.
_READING_IN_SOME_MODES = {
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "index_put",
    "index_reduce",
    "put",
    "scatter",
    "scatter_reduce",
}

# Not in the database: calls in place.
_CALLS = {
    "_foreach_copy_": lambda x, y: torch._foreach_copy_([x], [y]),
    "_foreach_zero_": lambda x, y: torch._foreach_zero_([x]),
    "_foreach_add_": lambda x, y: torch._foreach_add_([x], 1),
    "_index_put_impl_": lambda x, y: torch._index_put_impl_(x, [torch.arange(3)], y[:3]),
    "bernoulli_": lambda x, y: x.bernoulli_(0.5),
    "copy_": lambda x, y: x.copy_(y),
    "fill_diagonal_": lambda x, y: x.view(4, -1).fill_diagonal_(1),
    "index_put_": lambda x, y: x.index_put_((torch.arange(3),), y[:3]),
    "normal_": lambda x, y: x.normal_(),
    "put_": lambda x, y: x.put_(torch.arange(3), y[:3]),
    "random_": lambda x, y: x.random_(100),
    "scatter_": lambda x, y: x.scatter_(0, torch.arange(3), y),
    "set_": lambda x, y: x.set_(y),
}

_SIZES_ONLY = {
    "bernoulli.p": lambda x: torch.ops.aten.bernoulli.p(x, 0.5),
    "cauchy": torch.ops.aten.cauchy,
    "exponential": torch.ops.aten.exponential,
    "geometric": lambda x: torch.ops.aten.geometric(x, 0.5),
    "log_normal": torch.ops.aten.log_normal,
    "normal_functional": torch.ops.aten.normal_functional,
    "random": torch.ops.aten.random,
    "uniform": torch.ops.aten.uniform,
}


def _contents(like, seed):
    """Numbers of all kinds, among them those of which operators leave some as they are."""
    generator = torch.Generator().manual_seed(seed)
    contents = torch.randn(like.shape, generator=generator, dtype=like.dtype) * 3
    special = torch.tensor([0.0, 1.0, -1.0, float("nan"), float("inf")], dtype=like.dtype)
    chosen = special[torch.randint(5, like.shape, generator=generator)]
    return torch.where(torch.rand(like.shape, generator=generator) < 0.3, chosen, contents)


def _is_same(a, b):
    return (a == b) | (a.isnan() & b.isnan())


def _reads(call, like, equal_to=()):
    """Whether an element of the result depends on the old contents, but is not just one of them."""
    before = [*(_contents(like, seed) for seed in _SEEDS), *equal_to]
    after = []
    for contents in before:
        x = contents.clone()
        torch.manual_seed(0)
        call(x)
        if x.shape != like.shape or x.dtype != like.dtype:
            return False
        after.append(x)
    written = torch.ones(like.shape, dtype=torch.bool)
    for a, b in itertools.pairwise(after):
        written &= _is_same(a, b)
    kept = torch.ones(like.shape, dtype=torch.bool)
    for a, b in zip(before, after, strict=True):
        kept &= _is_same(a, b)
    return not bool((written | kept).all())


def _sample_reads(op, sample):
    """Of a sample of the database; None if it is none of an operator in place."""
    like = sample.input
    if not isinstance(like, torch.Tensor) or like.numel() == 0 or sample.broadcasts_input:
        return None
    equal = [
        one.clone()
        for one in sample.args
        if isinstance(one, torch.Tensor) and one.shape == like.shape and one.dtype == like.dtype
    ]
    # With zeros as well, which some operators take for False.
    other_args = tuple(
        torch.zeros_like(one) if isinstance(one, torch.Tensor) and one.dtype == like.dtype else one
        for one in sample.args
    )
    try:
        return any(
            _reads(lambda x, args=args: op.inplace_variant(x, *args, **sample.kwargs), like, equal)
            for args in (sample.args, other_args)
        )
    except RuntimeError:
        return None


class TestLists(OpenRegTestCase):
    @pytest.mark.slow
    def test_operators_that_only_write(self):
        verdicts = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for op in op_db:
                if op.inplace_variant is None or op.name in _WITHOUT_KERNEL:
                    continue
                for dtype in {torch.float32, torch.complex64} & op.supported_dtypes("cpu"):
                    for sample in op.sample_inputs("cpu", dtype):
                        reads = _sample_reads(op, sample)
                        if reads is not None:
                            verdicts[op.name] = verdicts.get(op.name, False) or reads
        self.assertGreater(len(verdicts), 100)
        listed = {
            name for name in verdicts if _C._sanitizer_only_writes(f"aten::{name.rstrip('_')}_")
        }
        derived = {name for name, reads in verdicts.items() if not reads}
        self.assertEqual(listed - derived, _READING_IN_SOME_MODES & set(verdicts))
        self.assertEqual(derived - listed, set())

    def test_operators_that_are_not_in_the_database(self):
        y = torch.randn(16)
        for name, call in _CALLS.items():
            reads = _reads(lambda x, call=call: call(x, y), y)
            self.assertEqual(_C._sanitizer_only_writes(f"aten::{name}"), not reads, name)

    def test_first_step_reads_no_momentum(self):
        grad, rate = torch.randn(16), {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1}
        rate |= {"dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": True}

        def step(momentum):
            torch._fused_sgd_([torch.zeros(16)], [grad.clone()], [momentum], **rate)

        self.assertFalse(_reads(step, grad))
        self.assertTrue(_C._sanitizer_only_writes("aten::_fused_sgd_"))

    def test_operators_of_others_count_as_only_writing(self):
        self.assertTrue(_C._sanitizer_only_writes("someone::scale_"))
        self.assertFalse(_C._sanitizer_only_writes("aten::add_.Tensor"))

    def test_operators_of_others_may_look_at_sizes_alone(self):
        checker.clear()
        with checker.check("collect", uninitialized=True):
            x, empty = (torch.empty(16, device=device) for _ in range(2))
            torch.ops.openreg_sanitizer.fill_like_(x, empty)
            x.sum()
            self.assertEqual(checker.findings(), [])
            torch.cummax(empty, 0)  # torch's own, through the fallback as well
        self.assertEqual([one.kind for one in checker.findings()], ["uninitialized"])
        checker.clear()

    def test_beta_of_0_and_a_reduction_without_self_read_nothing(self):
        a, b, index = torch.randn(4, 4), torch.randn(4, 4), torch.arange(4)
        calls = {
            "addbmm": lambda x: x.addbmm_(a[None], b[None], beta=0),
            "addmm": lambda x: x.addmm_(a, b, beta=0),
            "addmv": lambda x: x[0].addmv_(a, b[0], beta=0),
            "addr": lambda x: x.addr_(a[0], b[0], beta=0),
            "baddbmm": lambda x: x[None].baddbmm_(a[None], b[None], beta=0),
            "index_reduce": lambda x: x.index_reduce_(0, index, a, "amax", include_self=False),
            "scatter_reduce": lambda x: x.scatter_reduce_(
                0, index.expand(4, 4), a, "sum", include_self=False
            ),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # index_reduce_ is in beta
            for name, call in calls.items():
                self.assertFalse(_reads(call, a), name)
                self.assertTrue(_C._sanitizer_only_writes(f"aten::{name}_"), name)
                self.assertTrue(_C._sanitizer_reads_only_sizes(f"aten::{name}"), name)

    def test_operators_that_look_at_sizes(self):
        for name, call in _SIZES_ONLY.items():
            results = []
            for seed in _SEEDS:
                torch.manual_seed(0)
                results.append(call(_contents(torch.empty(16), seed)))
            self.assertEqual(results, [results[0]] * len(results))
            self.assertTrue(_C._sanitizer_reads_only_sizes(f"aten::{name}"), name)
        self.assertFalse(_C._sanitizer_reads_only_sizes("aten::bernoulli"))
        # Kernels of others with such a name.
        self.assertFalse(_C._sanitizer_reads_only_sizes("uniform"))
        self.assertFalse(_C._sanitizer_reads_only_sizes("someone::uniform"))


if __name__ == "__main__":
    run_tests()
