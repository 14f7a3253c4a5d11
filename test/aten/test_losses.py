"""Losses: their reductions, and their warnings."""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_tests,
)

LOSSES = parametrize("name", ["mse_loss", "smooth_l1_loss"])
REDUCTIONS = parametrize("reduction", ["none", "mean", "sum"])


class TestLosses(OpenRegTestCase):
    @LOSSES
    @REDUCTIONS
    def test_value_and_gradient_are_the_cpu_s(self, name, reduction):
        loss = getattr(torch.nn.functional, name)
        x, y = torch.randn(5, 7), torch.randn(5, 7)
        values, gradients = [], []
        for device in ("cpu", DEVICE_TYPE):
            one = x.to(device, copy=True).requires_grad_()
            value = loss(one, y.to(device), reduction=reduction)
            value.backward(torch.ones_like(value))
            values.append(value)
            gradients.append(one.grad)
        self.assert_bit_equal(values[1], values[0])
        self.assert_bit_equal(gradients[1], gradients[0])

    @LOSSES
    @parametrize("reduction", [0, 1, 2])
    def test_out_keeps_its_layout(self, name, reduction):
        x, y = torch.randn(4, 6), torch.randn(4, 6)
        shape = (6, 4) if reduction == 0 else ()
        outs = []
        for device in ("cpu", DEVICE_TYPE):
            out = torch.empty(shape, device=device).t()
            if reduction != 0:
                out.resize_(0)
            returned = getattr(torch.ops.aten, name).out(
                x.to(device), y.to(device), reduction, out=out
            )
            self.assertIs(returned, out)
            outs.append(out)
        self.assertEqual(outs[1].stride(), outs[0].stride())
        self.assert_bit_equal(outs[1], outs[0])

    @LOSSES
    @REDUCTIONS
    def test_nothing_is_printed(self, name, reduction):
        output = run_child(
            f"""
            import torch
            x = torch.ones(8, device="openreg", requires_grad=True)
            loss = torch.nn.functional.{name}(x, x * 2, reduction="{reduction}")
            loss.sum().backward()
            print(x.grad.isfinite().all().item())
            """
        )
        self.assertEqual(output, "True\n")


instantiate_parametrized_tests(TestLosses)

if __name__ == "__main__":
    run_tests()
