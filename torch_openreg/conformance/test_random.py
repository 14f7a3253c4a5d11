"""Random numbers: a seed determines them, a state brings them back, generators are apart."""

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import target

DEVICE = target().device


class TestDefaultGenerator(ConformanceTestCase):
    def drawn(self) -> torch.Tensor:
        return torch.cat(
            [
                torch.rand(100, device=DEVICE),
                torch.randn(100, device=DEVICE),
                torch.nn.functional.dropout(torch.ones(100, device=DEVICE), 0.5),
            ]
        ).cpu()

    def test_seed_determines_the_numbers(self) -> None:
        torch.manual_seed(5)
        first = self.drawn()
        torch.manual_seed(5)
        self.assert_bit_equal(self.drawn(), first)
        torch.manual_seed(6)
        self.assertNotEqual(self.drawn(), first)

    def test_numbers_go_on(self) -> None:
        self.assertNotEqual(self.drawn(), self.drawn())

    def test_numbers_are_in_their_range_and_have_their_moments(self) -> None:
        torch.manual_seed(1)
        uniform = torch.rand(100_000, device=DEVICE).cpu()
        self.assertTrue(((uniform >= 0) & (uniform < 1)).all())
        self.assertEqual(uniform.mean().item(), 0.5, atol=0.01, rtol=0)
        normal = torch.randn(100_000, device=DEVICE).cpu()
        self.assertEqual(normal.mean().item(), 0.0, atol=0.02, rtol=0)
        self.assertEqual(normal.std().item(), 1.0, atol=0.02, rtol=0)

    @needs("random state")
    def test_state_brings_the_numbers_back(self) -> None:
        module = torch.get_device_module(DEVICE.type)
        state = module.get_rng_state(DEVICE)
        first = self.drawn()
        module.set_rng_state(state, DEVICE)
        self.assert_bit_equal(self.drawn(), first)

    @needs("random state")
    def test_forked_state_leaves_the_outer_one_alone(self) -> None:
        torch.manual_seed(2)
        expected = self.drawn()
        torch.manual_seed(2)
        with torch.random.fork_rng(device_type=DEVICE.type):
            self.drawn()
        self.assert_bit_equal(self.drawn(), expected)


@needs("generator")
class TestGenerator(ConformanceTestCase):
    def test_generators_with_one_seed_give_the_same_numbers(self) -> None:
        one, other = (torch.Generator(DEVICE).manual_seed(3) for _ in range(2))
        first = torch.rand(50, generator=one, device=DEVICE)
        self.assert_bit_equal(torch.rand(50, generator=other, device=DEVICE), first)

    def test_generator_leaves_the_default_one_alone(self) -> None:
        torch.manual_seed(4)
        expected = torch.rand(20, device=DEVICE).cpu()
        torch.manual_seed(4)
        torch.rand(20, generator=torch.Generator(DEVICE).manual_seed(9), device=DEVICE)
        self.assert_bit_equal(torch.rand(20, device=DEVICE), expected)

    def test_generator_of_the_cpu_is_refused(self) -> None:
        with self.assertRaises(RuntimeError):
            torch.rand(5, generator=torch.Generator(), device=DEVICE)

    def test_state_of_a_generator_is_set_and_read(self) -> None:
        generator = torch.Generator(DEVICE).manual_seed(11)
        self.assertEqual(generator.initial_seed(), 11)
        state = generator.get_state()
        first = torch.randn(30, generator=generator, device=DEVICE).cpu()
        generator.set_state(state)
        self.assert_bit_equal(torch.randn(30, generator=generator, device=DEVICE), first)
