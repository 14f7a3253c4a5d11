# Step 6: the operators that every backend needs, and the one with a kernel of its own.
import itertools

import torch
from common import NAME, held
from torch.testing._internal.common_utils import TestCase, run_tests

REQUIRED = (
    "empty.memory_format",
    "empty_strided",
    "as_strided",
    "view",
    "_reshape_alias",
    "resize_",
    "_copy_from",
    "_copy_from_and_resize",
    "_local_scalar_dense",
    "set_.source_Tensor",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
)


class TestOperators(TestCase):
    def test_required_operators_have_a_kernel(self):
        for name in (*REQUIRED, "add.Tensor"):
            has = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1")
            self.assertTrue(has, name)

    def test_copies_keep_numbers_whatever_the_layout_and_dtype(self):
        layouts = (
            lambda x: x,
            lambda x: x.t().contiguous().t(),
            lambda x: torch.stack([x, x], -1)[..., 1],
            lambda x: x[:1].expand(4, 6),
        )
        places = ("cpu", f"{NAME}:0", f"{NAME}:1")
        dtypes = (torch.float32, torch.int64, torch.complex64)
        numbers = torch.arange(24.0).view(4, 6)
        for (first, second), source, target, dtype in itertools.product(
            itertools.product(places, places), layouts, layouts[:3], dtypes
        ):
            x = source(numbers.to(first))
            y = target(torch.zeros(4, 6, dtype=dtype, device=second))
            self.assertEqual(y.copy_(x).cpu(), source(numbers).to(dtype))

    def test_copies_turn_marks_into_numbers(self):
        x = torch.tensor([1 + 2j, 3 - 4j])
        self.assertEqual(x.to(NAME).conj().cpu(), x.conj())
        self.assertEqual(x.to(NAME).conj().imag.cpu(), x.conj().imag)
        self.assertEqual(torch.zeros(2, dtype=x.dtype, device=NAME).copy_(x.conj()).cpu(), x.conj())

    def test_strided_copy_on_a_device_does_not_wait(self):
        x = torch.arange(6.0, device=NAME).view(2, 3)
        with held() as gate:
            y = x.t().contiguous()
            self.assertFalse(gate.is_set())
        self.assertEqual(y.cpu(), torch.arange(6.0).view(2, 3).t())

    def test_elements_with_one_place_in_memory_are_no_target(self):
        with self.assertRaisesRegex(RuntimeError, "single memory location"):
            torch.zeros(1, device=NAME).expand(3).copy_(torch.ones(3))

    def test_views_share_memory(self):
        x = torch.zeros(2, 8, dtype=torch.complex64, device=NAME)
        for view in (
            x.view(16),
            x.reshape(16),
            x.as_strided((2,), (1,)),
            torch.view_as_real(x),
            torch.view_as_complex(torch.view_as_real(x)),
            x.unfold(1, 2, 2),
            x.new_empty(0).set_(x),
            x.new_empty(0).set_(x.untyped_storage()),
            x.new_empty(0).set_(x.untyped_storage(), 1, (3,)),
        ):
            self.assertEqual(view.untyped_storage().data_ptr(), x.untyped_storage().data_ptr())

    def test_resize_keeps_what_was_there(self):
        x = torch.arange(3.0, device=NAME)
        self.assertEqual(x.resize_(2, 50)[0, :3].cpu(), torch.arange(3.0))
        x.resize_(1, 2, 3, 4, memory_format=torch.channels_last)
        self.assertTrue(x.is_contiguous(memory_format=torch.channels_last))

    def test_set_grows_a_storage_that_is_too_small(self):
        x = torch.arange(3.0, device=NAME)
        y = x.new_empty(0).set_(x.untyped_storage(), 1, (5, 2))
        self.assertEqual(y.untyped_storage().nbytes(), 44)
        self.assertEqual(y[0].cpu(), torch.tensor([1.0, 2.0]))
        with self.assertRaisesRegex(RuntimeError, "Tensor: invalid storage offset -1"):
            x.new_empty(0).set_(x.untyped_storage(), -1, (3,))
        for size, stride in (((3, 2), (1,)), ((-3,), (1,)), ((3,), (-1,))):
            with self.assertRaises(RuntimeError):
                x.new_empty(0).set_(x.untyped_storage(), 0, size, stride)

    def test_item_waits_for_the_stream(self):
        self.assertEqual((torch.ones(3, device=NAME) + torch.ones(3, device=NAME))[1].item(), 2.0)

    def test_add_is_the_cpus(self):
        x, y = torch.randn(4, 5), torch.randn(4, 5)
        others = (
            (y, 1),
            (y, 2.5),
            (y[0], 1),
            (y.int(), 3),
            (torch.tensor(2.0), 1),
            (3, 2),
            (2j, 1),
        )
        for other, alpha in (*others, (1e300, 1), (torch.tensor(2.5, dtype=torch.float64), 1)):
            is_tensor = torch.is_tensor(other) and other.dim() > 0
            for this in (x, x.int(), x[0, 0]):
                actual = torch.add(
                    this.to(NAME), other.to(NAME) if is_tensor else other, alpha=alpha
                )
                self.assertEqual(actual.cpu(), torch.add(this, other, alpha=alpha))

    def test_add_does_not_wait(self):
        x = torch.ones(4, device=NAME)
        with held() as gate:
            results = [x + x, x + 1]
            self.assertFalse(gate.is_set())
        self.assertEqual([result.sum().item() for result in results], [8, 8])

    def test_gradients_of_two_devices(self):
        x = torch.ones(3, device=f"{NAME}:0", requires_grad=True)
        y = torch.ones(3, device=f"{NAME}:1", requires_grad=True)
        ((x + x).to(y.device) + y).sum().backward()
        self.assertEqual(x.grad.cpu(), torch.full((3,), 2.0))
        self.assertEqual(y.grad.cpu(), torch.ones(3))


if __name__ == "__main__":
    run_tests()
