# Step 5: random numbers.
import subprocess
import sys

import torch
from common import MODULE, NAME
from torch.testing._internal.common_utils import TestCase, run_tests


class TestRandom(TestCase):
    def test_seed_determines_the_numbers(self):
        for manual_seed in (MODULE.manual_seed, MODULE.manual_seed_all, torch.manual_seed):
            manual_seed(5)
            x = torch.rand(10, device=NAME)
            manual_seed(5)
            self.assertEqual(torch.rand(10, device=NAME), x)
            self.assertNotEqual(torch.rand(10, device=NAME), x)

    def test_devices_have_generators_of_their_own(self):
        torch.manual_seed(5)
        x = torch.rand(10, device=f"{NAME}:0")
        self.assertEqual(torch.rand(10, device=f"{NAME}:1").cpu(), x.cpu())

    def test_state_brings_the_numbers_back(self):
        state = MODULE.get_rng_state()
        x = torch.nn.functional.dropout(torch.ones(100, device=NAME))
        MODULE.set_rng_state(state)
        self.assertEqual(torch.nn.functional.dropout(torch.ones(100, device=NAME)), x)

    def test_generator_is_used_and_has_its_device(self):
        generator = torch.Generator(NAME).manual_seed(3)
        x = torch.rand(5, device=NAME, generator=generator)
        clone = generator.clone_state()
        self.assertEqual(generator.device, torch.device(NAME, 0))
        self.assertEqual(
            torch.rand(5, device=NAME, generator=generator),
            torch.rand(5, device=NAME, generator=clone),
        )
        generator.manual_seed(3)
        self.assertEqual(torch.rand(5, device=NAME, generator=generator), x)

    def test_generator_of_the_cpu_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "Expected a .* device type for generator"):
            torch.rand(5, device=NAME, generator=torch.Generator())

    def test_processes_draw_different_numbers(self):
        program = f"import torch; print(torch.rand(4, device='{NAME}').tolist())"
        runs = {subprocess.check_output([sys.executable, "-c", program]) for _ in range(2)}
        self.assertEqual(len(runs), 2)


if __name__ == "__main__":
    run_tests()
