"""The sanitizer receives each tensor that an operator reads or writes."""

import os

import pytest
import torch
from common import OpenRegTestCase, run_tests
from extras.sanitizer.programs import Stream, _module, device, stream
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from torch_openreg.extras.sanitizer import sanitizer as checker

# Operators that use the sizes of an argument and not its contents.
_SIZES_ONLY = {
    "empty_like",
    "expand_as",
    "fill",
    "full_like",
    "isreal",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "reshape_as",
    "resize_as_",
    "to",
    "view_as",
    "zeros_like",
}

# Arguments that a call may leave unread: by diff() with n=0.
_MAY_BE_UNREAD = {("diff", 1), ("diff", 2)}

# Operators that do not write their result.
_UNWRITTEN = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}

_IS_FULL = os.environ.get("OPENREG_TEST_FULL") == "1"
_OPERATORS = [info for info in op_db if not info.name.startswith("jiterator")]
_OPERATORS = _OPERATORS if _IS_FULL else _OPERATORS[::3]

_DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)


def _name(info):
    return ".".join(filter(None, (info.name, info.variant_test_name)))


def _tensors(tree):
    """The tensors of the device that have elements."""
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor)
        and leaf.device.type == device.type
        and leaf.layout == torch.strided
        and leaf.numel() > 0
    ]


def _on_device(tree):
    return tree_map(
        lambda leaf: leaf.detach().to(device) if isinstance(leaf, torch.Tensor) else leaf, tree
    )


def _samples(info):
    """Calls of an operator: the arguments with the most tensors, and in a full run others."""
    dtype = next((dtype for dtype in _DTYPES if dtype in info.dtypes), None)
    if dtype is None:
        return
    samples = [(one.input, one.args, one.kwargs) for one in info.sample_inputs("cpu", dtype)]
    samples = [
        one
        for one in samples
        if all(leaf.numel() > 0 for leaf in tree_leaves(one) if isinstance(leaf, torch.Tensor))
    ]
    samples.sort(key=lambda one: -len([x for x in tree_leaves(one) if torch.is_tensor(x)]))
    yield from samples[:1]
    if _IS_FULL:
        yield from samples[1 : 1 + 5 * len(samples) // 4 : max(1, len(samples) // 4)]


class TestOperands(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(checker.check(action="collect"))
        self.side = Stream()

    def _call(self, info, sample):
        """The operator with arguments on the device; None if it rejects them."""
        first, args, kwargs = arguments = _on_device(sample)
        try:
            info.op(first, *args, **kwargs)  # an operator of the fallback may wait
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return None, arguments
        first, args, kwargs = arguments = _on_device(sample)
        _module.synchronize()
        checker.clear()
        return lambda: info.op(first, *args, **kwargs), arguments

    def _is_view(self, result, tensor):
        """Whether something of the result is a view of the tensor, perhaps without elements."""
        return any(
            leaf.untyped_storage()._cdata == tensor.untyped_storage()._cdata
            for leaf in tree_leaves(result)
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
        )

    def _waits(self, call):
        """Whether the host waits for the results, which orders them before all that follows."""
        _module.set_sync_debug_mode("error")
        try:
            call()
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            return True
        finally:
            _module.set_sync_debug_mode("default")
        return False

    def _has_race(self):
        found = any(finding.kind == "race" for finding in checker.findings())
        _module.synchronize()
        checker.clear()
        return found

    @pytest.mark.slow
    def test_each_argument_that_is_read_is_known(self):
        unseen, count = [], 0
        for info in _OPERATORS:
            if _name(info) in _SIZES_ONLY:
                continue
            for sample in _samples(info):
                call, arguments = self._call(info, sample)
                if call is None:
                    continue
                for index, tensor in enumerate(_tensors(arguments)):
                    with stream(self.side):
                        tensor.copy_(tensor.clone())
                    known = self._is_view(call(), tensor) or (_name(info), index) in _MAY_BE_UNREAD
                    count += 1
                    if not self._has_race() and not known:
                        unseen.append((_name(info), index))
        self.assertEqual(str(unseen), "[]")
        self.assertGreater(count, 300)

    @pytest.mark.slow
    def test_each_result_that_is_written_is_known(self):
        unseen, count = [], 0
        for info in _OPERATORS:
            if _name(info) in _UNWRITTEN:
                continue
            for sample in _samples(info):
                call, arguments = self._call(info, sample)
                if call is None:
                    continue
                if self._waits(call):
                    continue
                known = {one.untyped_storage().data_ptr() for one in _tensors(arguments)}
                for index in range(len(_tensors(call()))):
                    _module.synchronize()
                    result = _tensors(call())[index]
                    if result.untyped_storage().data_ptr() in known:
                        continue
                    with stream(self.side):
                        result.clone()
                    count += 1
                    if not self._has_race():
                        unseen.append((_name(info), index))
        self.assertEqual(str(unseen), "[]")
        self.assertGreater(count, 150)


if __name__ == "__main__":
    run_tests()
