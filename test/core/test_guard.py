"""Device guards from Python: operators work on their tensors' device and restore the caller's."""

import torch
from common import (
    DEVICE_TYPE,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    requires_two_devices,
    run_tests,
)


@requires_two_devices
class TestGuard(OpenRegTestCase):
    def test_operator_runs_on_the_device_of_its_tensors(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1")
        y = x + x
        self.assertEqual(y.device, torch.device(f"{DEVICE_TYPE}:1"))
        self.assert_bit_equal(y, torch.full((3,), 2.0))

    def test_operator_leaves_the_current_device(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1")
        for operate in (
            lambda: x + 1,
            lambda: x.sum().item(),
            lambda: x.cpu(),
            lambda: x.clone(),
            lambda: torch.cumsum(x, 0),
            lambda: torch.linalg.norm(x),
            lambda: torch.empty(5, device=f"{DEVICE_TYPE}:1"),
        ):
            operate()
            self.assertEqual(torch.openreg.current_device(), 0)

    def test_operator_that_raises_leaves_the_current_device(self):
        x = torch.ones(2, 3, device=f"{DEVICE_TYPE}:1")
        with self.assertRaises(RuntimeError):
            x @ x
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_operator_uses_the_current_stream_of_its_device(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1")
        torch.openreg.synchronize(1)
        with StreamGate(torch.openreg.current_stream(1)) as gate:
            y = x + 1
            self.assertTrue(torch.openreg.current_stream(0).query())
            self.assertFalse(torch.openreg.current_stream(1).query())
            gate.open()
            self.assert_bit_equal(y, torch.full((3,), 2.0))

    def test_operators_refuse_tensors_on_different_devices(self):
        x, y = (torch.ones(3, device=f"{DEVICE_TYPE}:{i}") for i in range(2))
        for operate in (
            lambda: x + y,
            lambda: torch.cat([x, y]),
            lambda: torch.mm(x[None], y[:, None]),
            lambda: torch.where(x > 0, x, y),
        ):
            with self.assertRaisesRegex(RuntimeError, "same device"):
                operate()

    def test_operators_refuse_a_cpu_tensor_beside_an_openreg_tensor(self):
        with self.assertRaisesRegex(RuntimeError, "same device"):
            torch.ones(3, device=DEVICE_TYPE) + torch.ones(3)

    def test_operators_take_a_cpu_scalar_tensor(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1") * torch.tensor(4.0)
        self.assert_bit_equal(x, torch.full((3,), 4.0))

    def test_backward_runs_on_the_device_of_the_forward(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1", requires_grad=True)
        (x * x).sum().backward()
        self.assertEqual(x.grad.device, torch.device(f"{DEVICE_TYPE}:1"))
        self.assert_bit_equal(x.grad, torch.full((3,), 2.0))
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_backward_crosses_devices(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:0", requires_grad=True)
        y = (x * 2).to(f"{DEVICE_TYPE}:1")
        (y * 3).sum().backward()
        self.assertEqual(x.grad.device, torch.device(f"{DEVICE_TYPE}:0"))
        self.assert_bit_equal(x.grad, torch.full((3,), 6.0))

    def test_copy_between_devices_leaves_the_current_device(self):
        x = torch.arange(5, device=f"{DEVICE_TYPE}:0")
        y = x.to(f"{DEVICE_TYPE}:1")
        self.assertEqual(torch.openreg.current_device(), 0)
        self.assert_bit_equal(y, torch.arange(5))

    def test_free_on_another_device_leaves_the_current_device(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1")
        del x
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_accelerator_guard_and_module_guard_are_one(self):
        with torch.accelerator.device_index(1):
            self.assertEqual(torch.openreg.current_device(), 1)
            with torch.openreg.device(0):
                self.assertEqual(torch.accelerator.current_device_index(), 0)
            self.assertEqual(torch.accelerator.current_device_index(), 1)
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_accelerator_guard_refuses_an_index_that_is_out_of_range(self):
        with (
            self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT),
            torch.accelerator.device_index(99),
        ):
            self.fail("the context was entered")

    def test_guard_of_one_thread_leaves_the_others(self):
        with torch.openreg.device(1):
            self.assertEqual(call_in_thread(torch.openreg.current_device), 0)
            self.assertEqual(torch.openreg.current_device(), 1)


if __name__ == "__main__":
    run_tests()
