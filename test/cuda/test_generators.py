"""Generators, in the words of programs for CUDA: offsets, and states that are shared."""

import torch
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)


def draw(generator, size=5):
    return torch.rand(size, device=generator.device, generator=generator)


class TestOffset(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.generator = torch.Generator("cuda").manual_seed(7)

    def test_offset_counts_the_numbers_since_the_seed(self):
        self.assertEqual(self.generator.get_offset(), 0)
        draw(self.generator)
        self.assertEqual(self.generator.get_offset(), 5)
        draw(self.generator, 2000)
        self.assertEqual(self.generator.get_offset(), 2005)
        self.generator.manual_seed(7)
        self.assertEqual(self.generator.get_offset(), 0)

    @parametrize("offset", [0, 1, 623, 624, 625, 1248, 100_000])
    def test_offset_can_be_set(self, offset):
        expected = draw(self.generator, offset + 5)[offset:]
        self.generator.set_offset(offset)
        self.assertEqual(self.generator.get_offset(), offset)
        self.assert_bit_equal(draw(self.generator), expected)
        self.assertEqual(self.generator.get_offset(), offset + 5)

    @parametrize("size", [1, 3, 15, 16, 17])
    def test_what_follows_an_offset_follows_it_again(self, size):
        torch.randn(size, device="cuda", generator=self.generator)
        offset = self.generator.get_offset()
        first = torch.randn(size, device="cuda", generator=self.generator)
        self.generator.set_offset(offset)
        again = torch.randn(size, device="cuda", generator=self.generator)
        self.assert_bit_equal(again, first)

    def test_offset_waits_for_the_kernels_that_draw(self):
        with StreamGate() as gate:
            draw(self.generator, 10)
            gate.open()
            self.assertEqual(self.generator.get_offset(), 10)

    def test_offset_of_a_state_that_was_set(self):
        draw(self.generator, 700)
        other = torch.Generator("cuda")
        other.set_state(self.generator.get_state())
        self.assertEqual(other.get_offset(), 700)

    def test_state_that_no_seed_leads_to_has_no_offset(self):
        with self.assertRaisesRegex(RuntimeError, "expected an offset of at most 4294967296"):
            self.generator.set_offset(1 << 33)

    def test_functions_of_torch_cuda(self):
        # Before that, torch queues the offset, and a seed that was set earlier runs after it.
        torch.cuda.init()
        before = torch.cuda.get_rng_state()
        torch.cuda._set_rng_state_offset(100)
        self.assertEqual(torch.cuda._get_rng_state_offset(), 100)
        self.assertEqual(torch.openreg.get_offset(), 100)
        torch.openreg.set_offset(8)
        self.assertEqual(torch.cuda._get_rng_state_offset(), 8)
        torch.cuda.set_rng_state(before)

    def test_offset_is_neither_read_nor_set_in_a_capture(self):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream):
            draw(self.generator)
            for call in (self.generator.get_offset, lambda: self.generator.set_offset(0)):
                with self.assertRaisesRegex(
                    RuntimeError,
                    r"^Cannot call CUDAGeneratorImpl::[gs]et_offset during CUDA graph capture\.",
                ):
                    call()


def state_of(seed, offset):
    return torch.tensor([seed, offset]).view(torch.uint8)


class TestStates(OpenRegTestCase):
    """A state has 16 bytes: the seed and the offset."""

    def setUp(self):
        super().setUp()
        self.generator = torch.Generator("cuda").manual_seed(7)

    def test_state_is_seed_and_offset(self):
        draw(self.generator, 2000)
        self.assertEqual(self.generator.get_state(), state_of(7, 2000))
        torch.cuda.manual_seed(11)
        self.assertEqual(torch.cuda.get_rng_state(), state_of(11, 0))

    @parametrize("offset", [0, 4, 623, 624, 1000])
    def test_state_that_a_program_has_made_can_be_set(self, offset):
        expected = draw(self.generator, offset + 5)[offset:]
        other = torch.Generator("cuda")
        other.set_state(state_of(7, offset))
        self.assertEqual((other.initial_seed(), other.get_offset()), (7, offset))
        self.assert_bit_equal(draw(other), expected)

    def test_state_without_an_offset_is_that_of_the_seed(self):
        expected = draw(self.generator)
        self.generator.set_state(torch.tensor([7]).view(torch.uint8))
        self.assert_bit_equal(draw(self.generator), expected)

    def test_state_of_another_size_is_refused(self):
        for state in (torch.get_rng_state(), torch.zeros(17, dtype=torch.uint8)):
            for set_state in (self.generator.set_state, torch.cuda.set_rng_state):
                with self.assertRaisesRegex(RuntimeError, "^RNG state is wrong size$"):
                    set_state(state)
        with self.assertRaisesRegex(TypeError, "ByteTensor"):
            self.generator.set_state(torch.zeros(16))

    @parametrize("size", [1, 3, 15, 16, 17])
    @parametrize("dtype", [torch.float32, torch.float64, torch.float16])
    def test_what_follows_a_state_follows_it_again(self, size, dtype):
        def numbers():
            return torch.randn(size, device="cuda", dtype=dtype, generator=self.generator)

        numbers()
        state = self.generator.get_state()
        first = numbers()
        self.generator.set_state(state)
        self.assert_bit_equal(numbers(), first)

    @parametrize("size", [1, 3, 15])
    def test_reading_the_state_does_not_change_what_follows(self, size):
        twin = torch.Generator().manual_seed(7)
        for _ in range(3):
            torch.cuda.synchronize()
            self.generator.get_state()
            self.assert_bit_equal(
                torch.randn(size, device="cuda", generator=self.generator),
                torch.randn(size, generator=twin),
            )

    def test_normal_number_that_was_kept_before_the_last_draw_is_dropped(self):
        torch.randn(1, device="cuda", generator=self.generator)
        draw(self.generator)
        state = self.generator.get_state()
        self.assertEqual(state, state_of(7, 9))
        first = torch.randn(3, device="cuda", generator=self.generator)
        self.generator.set_state(state)
        self.assert_bit_equal(torch.randn(3, device="cuda", generator=self.generator), first)

    def test_states_of_several_seeds_are_set_in_turn(self):
        states, expected = [], []
        for seed in (1, 2):
            self.generator.manual_seed(seed)
            for _ in range(200):
                states.append(self.generator.get_state())
                expected.append(draw(self.generator, 10))
        for state, numbers in reversed([*zip(states, expected, strict=True)]):
            self.generator.set_state(state)
            self.assert_bit_equal(draw(self.generator, 10), numbers)

    def test_helper_of_functionalized_random_numbers_can_set_the_state(self):
        helper = torch._prims_common.CUDARngStateHelper
        before = torch.cuda.get_rng_state()
        helper.set_torch_state_tensor(torch.tensor(7), torch.tensor(8))
        self.assertEqual([int(one) for one in helper.get_torch_state_as_tuple()], [7, 8])
        torch.cuda.set_rng_state(before)


class TestSharedStates(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.generator = torch.Generator("cuda").manual_seed(3)

    def test_a_state_is_shared(self):
        shared = self.generator.graphsafe_get_state()
        expected = draw(torch.Generator("cuda").manual_seed(3), 10)
        self.assert_bit_equal(torch.cat([draw(self.generator), draw(shared)]), expected)
        self.assertEqual(self.generator.get_offset(), 10)

    def test_a_copy_is_not(self):
        copy = self.generator.clone_state()
        self.assert_bit_equal(draw(copy), draw(self.generator))
        draw(copy)
        self.assertEqual((copy.get_offset(), self.generator.get_offset()), (10, 5))

    def test_a_generator_takes_another_state_and_gets_its_own_back(self):
        own = self.generator.graphsafe_get_state()
        other = torch.Generator("cuda").manual_seed(11)
        self.generator.graphsafe_set_state(other)
        draw(self.generator)
        self.assertEqual((other.get_offset(), own.get_offset()), (5, 0))
        self.generator.graphsafe_set_state(own)
        draw(self.generator)
        self.assertEqual((other.get_offset(), own.get_offset()), (5, 5))

    @requires_two_devices
    def test_a_state_of_another_device_is_refused(self):
        for other in (torch.Generator("cuda:1"), torch.Generator()):
            with self.assertRaisesRegex(RuntimeError, "expected a generator of cuda:0, got one of"):
                self.generator.graphsafe_set_state(other)

    def capture(self, *generators):
        graph, outputs = torch.cuda.CUDAGraph(), []
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            outputs += [draw(generator) for generator in generators]
        return graph, outputs

    def test_a_graph_draws_from_several_generators(self):
        seeds = (3, 4)
        generators = [torch.Generator("cuda").manual_seed(seed) for seed in seeds]
        graph, outputs = self.capture(*generators)
        for seed, generator in zip(seeds, generators, strict=True):
            self.assertEqual(generator.get_offset(), 0, f"of seed {seed}, after the capture")
        for turn in (1, 2):
            graph.replay()
            for seed, generator, output in zip(seeds, generators, outputs, strict=True):
                expected = draw(torch.Generator("cuda").manual_seed(seed), 5 * turn)[-5:]
                self.assert_bit_equal(output, expected)
                self.assertEqual(generator.get_offset(), 5 * turn)

    def test_a_graph_keeps_the_state_that_it_was_captured_with(self):
        default = torch.cuda.default_generators[0]
        own, captured = default.graphsafe_get_state(), torch.Generator("cuda").manual_seed(5)
        graph = torch.cuda.CUDAGraph()
        try:
            default.graphsafe_set_state(captured)
            with torch.cuda.graph(graph):
                x = torch.rand(5, device="cuda")
        finally:
            default.graphsafe_set_state(own)
        before = default.get_offset()
        graph.replay()
        self.assert_bit_equal(x, draw(torch.Generator("cuda").manual_seed(5)))
        self.assertEqual((default.get_offset(), captured.get_offset()), (before, 5))

    def test_register_generator_state_takes_generators_of_devices(self):
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(TypeError, "expected a torch.Generator, got 3"):
            graph.register_generator_state(3)
        with self.assertRaisesRegex(ValueError, "expected a generator of a cuda device"):
            graph.register_generator_state(torch.Generator())


instantiate_parametrized_tests(TestOffset)
instantiate_parametrized_tests(TestStates)

if __name__ == "__main__":
    run_tests()
