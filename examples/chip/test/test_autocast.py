# Step 9: mixed precision.
import torch
from common import MODULE, NAME
from torch.testing._internal.common_utils import TestCase, run_tests


class TestAutocast(TestCase):
    def test_policies_choose_dtypes(self):
        x = torch.randn(4, 4, device=NAME)
        for dtype in MODULE.get_amp_supported_dtype():
            with torch.autocast(NAME, dtype=dtype):
                y = x @ x
                self.assertEqual(y.dtype, dtype)
                self.assertEqual(y.exp().dtype, torch.float32)
                self.assertEqual(y.sum().dtype, torch.float32)
                self.assertEqual(torch.addcmul(y, x, x).dtype, torch.float32)
                self.assertEqual((y + y).dtype, dtype)
        self.assertEqual((x @ x).dtype, torch.float32)

    def test_scaled_training_step(self):
        model = torch.nn.Linear(4, 1).to(NAME)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(NAME, init_scale=4.0)
        before = model.weight.detach().clone()
        with torch.autocast(NAME, dtype=torch.float16):
            loss = model(torch.ones(2, 4, device=NAME)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        self.assertEqual(model.weight.cpu(), (before - 0.2).cpu(), atol=1e-3, rtol=0)

    def test_checkpointed_region_runs(self):
        x = torch.ones(3, device=NAME, requires_grad=True)
        torch.utils.checkpoint.checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
        self.assertEqual(x.grad.cpu(), torch.ones(3).exp())

    def test_checkpointed_region_draws_the_same_numbers_again(self):
        for use_reentrant in (True, False):
            x = torch.ones(1000, device=NAME, requires_grad=True)
            y = torch.utils.checkpoint.checkpoint(
                torch.nn.functional.dropout, x, use_reentrant=use_reentrant
            )
            y.sum().backward()
            self.assertEqual(x.grad.cpu(), y.detach().cpu())  # each number is 0 or 2 in both


if __name__ == "__main__":
    run_tests()
