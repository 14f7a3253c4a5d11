# Step 2: the current device.
import multiprocessing
import subprocess
import sys

import torch
from common import MODULE, NAME, call_later
from torch.testing._internal.common_utils import TestCase, run_tests


def use_device_in_child() -> str:
    try:
        torch.ones(1, device=NAME)
    except RuntimeError as error:
        return str(error)
    return ""


class TestDevice(TestCase):
    def tearDown(self):
        MODULE.set_device(0)
        super().tearDown()

    def test_there_are_two_devices(self):
        self.assertEqual(torch.accelerator.device_count(), 2)
        self.assertEqual(MODULE.device_count(), 2)

    def test_set_device_changes_the_device_of_the_calling_thread(self):
        MODULE.set_device(1)
        seen = []
        call_later(lambda: seen.append(MODULE.current_device())).join()
        self.assertEqual((MODULE.current_device(), seen), (1, [0]))
        self.assertEqual(torch.empty(1, device=NAME).device.index, 1)

    def test_block_restores_the_device(self):
        for block in (MODULE.device, torch.accelerator.device_index):
            with block(1):
                self.assertEqual(torch.accelerator.current_device_index(), 1)
            self.assertEqual(torch.accelerator.current_device_index(), 0)

    def test_exchange_returns_the_device_before(self):
        self.assertEqual(torch._C._accelerator_exchangeDevice(1), 0)
        self.assertEqual(torch._C._accelerator_exchangeDevice(0), 1)

    def test_maybe_exchange_ignores_an_invalid_index(self):
        for index in (-1, 2):
            self.assertEqual(torch._C._accelerator_maybeExchangeDevice(index), 0)
            self.assertEqual(MODULE.current_device(), 0)

    def test_invalid_index_is_refused_with_the_drivers_text(self):
        with self.assertRaisesRegex(RuntimeError, "orErrorInvalidDevice"):
            MODULE.set_device(2)
        with self.assertRaisesRegex(RuntimeError, "orErrorInvalidDevice"):
            torch.empty(1, device=f"{NAME}:2")

    def test_module_says_when_it_is_initialized(self):
        program = f"""if True:
            import torch
            module = torch.get_device_module("{NAME}")
            print(module._initialized, module.is_initialized())
            torch.ones(1, device="{NAME}")
            print(module._initialized, module.is_initialized())
        """
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(run.stdout, "False False\nTrue True\n", run.stderr)

    def test_forked_process_says_that_it_cannot_use_the_device(self):
        torch.ones(1, device=NAME)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            self.assertIn("Cannot re-initialize", pool.apply(use_device_in_child))


if __name__ == "__main__":
    run_tests()
