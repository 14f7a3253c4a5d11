# Step 6: an operator with all its variants.
import torch
from common import NAME, held
from torch.testing._internal.common_utils import TestCase, run_tests

VARIANTS = (
    lambda x, y: x * y,
    lambda x, y: x.clone().mul_(y),
    lambda x, y: torch.mul(x, y, out=torch.empty_like(x)),
)


class TestMul(TestCase):
    def test_one_kernel_is_registered(self):
        for name in ("mul.Tensor", "mul_.Tensor", "mul.out"):
            has = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1")
            self.assertEqual(has, name == "mul.out", name)

    def test_results_are_the_cpus(self):
        x, y = torch.randn(4, 5), torch.randn(4, 5)
        for variant in VARIANTS:
            for other in (y, y[0], y.t().contiguous().t(), torch.tensor(2.5), 3):
                there = other.to(NAME) if torch.is_tensor(other) and other.dim() else other
                self.assertEqual(variant(x.to(NAME), there).cpu(), variant(x, other))
        self.assertEqual((x.int().to(NAME) * 2.5).cpu(), x.int() * 2.5)

    def test_result_that_overlaps_an_argument_is_refused(self):
        for device in ("cpu", NAME):
            x, y = torch.ones(6, device=device), torch.ones(5, device=device)
            for other in (y, y.double(), torch.ones(1, device=device), 2):
                with self.assertRaisesRegex(RuntimeError, "single memory location"):
                    torch.mul(x[:5], other, out=x[1:])
                with self.assertRaisesRegex(RuntimeError, "single memory location"):
                    torch.mul(y, other, out=y[:1].expand(5))
            with self.assertRaisesRegex(RuntimeError, "single memory location"):
                torch.mul(y, x[:5], out=x[1:])
            self.assertEqual(torch.mul(y, 2, out=y).cpu(), torch.full((5,), 2.0))

    def test_no_variant_waits(self):
        x, y = torch.ones(4, device=NAME), torch.ones(4, device=NAME)
        with held() as gate:
            results = [x * y, x * 2, x.mul_(y), torch.mul(x, y, out=torch.empty(4, device=NAME))]
            results.append(torch.ops.aten.mul_.Scalar(y, 3))  # as optimizers call it
            self.assertFalse(gate.is_set())
        self.assertEqual([r.sum().item() for r in results], [4, 8, 4, 4, 12])

    def test_gradients_are_torchs(self):
        x = torch.randn(3, device=NAME, requires_grad=True)
        (x * x * 2).sum().backward()
        self.assertEqual(x.grad.cpu(), 4 * x.detach().cpu())


if __name__ == "__main__":
    run_tests()
