# Step 8: an operator of one's own.
import torch
from common import NAME, held
from torch.testing._internal.common_utils import TestCase, run_tests

squares = torch.ops.chip.squares


class TestCustom(TestCase):
    def test_result_and_gradient(self):
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=NAME, requires_grad=True)
        squares(x.t()).sum().backward()
        self.assertEqual(squares(x.t()).cpu(), torch.tensor([[1.0, 9.0], [4.0, 16.0]]))
        self.assertEqual(x.grad.cpu(), torch.tensor([[2.0, 4.0], [6.0, 8.0]]))

    def test_call_returns_before_its_kernel_runs(self):
        x = torch.ones(4, device=NAME)
        with held() as gate:
            y = squares(x)
            self.assertFalse(gate.is_set())
        self.assertEqual(y.cpu(), torch.ones(4))

    def test_registrations_agree(self):
        x = torch.randn(3, 4, device=NAME, requires_grad=True)
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(squares, (x,), test_utils=tests)

    def test_other_dtypes_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "expected float32, got"):
            squares(torch.ones(2, dtype=torch.float64, device=NAME))


if __name__ == "__main__":
    run_tests()
