"""Random numbers: the CPU's, from one generator per device."""

import copy
import pickle
import threading
import unittest

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OUT_OF_RANGE_TEXT,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_children,
    run_program,
    run_tests,
    subtest,
)

from torch_openreg._torch_release import HAS_PHILOX_STATE

pytestmark = pytest.mark.sample(0.2)

LAST = DEVICE_COUNT - 1
SEED = 1234

# name -> what draws: a function of a device and a generator (None: the default one).
DRAWS = {
    "normal_": lambda d, g: torch.empty(5, 7, device=d).normal_(1, 2, generator=g),
    "normal_of_two_elements": lambda d, g: torch.empty(2, device=d).normal_(generator=g),
    "normal_in_double": lambda d, g: torch.empty(33, device=d, dtype=torch.float64).normal_(
        generator=g
    ),
    "normal_of_a_transposed_tensor": lambda d, g: (
        torch.empty(5, 7, device=d).t().normal_(generator=g)
    ),
    "normal_of_tensors": lambda d, g: torch.normal(
        torch.arange(20.0).to(d), torch.ones(20).to(d), generator=g
    ),
    "uniform_": lambda d, g: torch.empty(100, device=d).uniform_(-3, 5, generator=g),
    "uniform_in_half": lambda d, g: torch.empty(100, device=d, dtype=torch.float16).uniform_(
        generator=g
    ),
    "rand": lambda d, g: torch.rand(3, 4, 5, device=d, generator=g),
    "randn": lambda d, g: torch.randn(1000, device=d, generator=g),
    "randint": lambda d, g: torch.randint(-5, 1000, (100,), device=d, generator=g),
    "randint_of_many_values": lambda d, g: torch.randint(0, 2**40, (100,), device=d, generator=g),
    "random_": lambda d, g: torch.empty(50, device=d, dtype=torch.int32).random_(generator=g),
    "randperm": lambda d, g: torch.randperm(100, device=d, generator=g),
    "randperm_of_nothing": lambda d, g: torch.randperm(0, device=d, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((100,), 0.3).to(d), generator=g),
    "bernoulli_": lambda d, g: torch.empty(100, device=d).bernoulli_(0.7, generator=g),
    "bernoulli_of_tensor": lambda d, g: torch.empty(100, device=d).bernoulli_(
        torch.linspace(0, 1, 100).to(d), generator=g
    ),
    "exponential_": lambda d, g: torch.empty(100, device=d).exponential_(2, generator=g),
    "geometric_": lambda d, g: torch.empty(100, device=d).geometric_(0.2, generator=g),
    "log_normal_": lambda d, g: torch.empty(100, device=d).log_normal_(generator=g),
    "cauchy_": lambda d, g: torch.empty(100, device=d).cauchy_(generator=g),
    "multinomial": lambda d, g: torch.multinomial(
        torch.arange(1.0, 11.0).to(d), 50, replacement=True, generator=g
    ),
    "poisson": lambda d, g: torch.poisson(torch.full((50,), 4.0).to(d), generator=g),
}
MODULE_DRAWS = {
    "dropout": lambda d: torch.nn.functional.dropout(torch.ones(500).to(d), 0.4),
    "alpha_dropout": lambda d: torch.nn.functional.alpha_dropout(
        torch.ones(500).to(d), 0.4, training=True
    ),
    "rand_like": lambda d: torch.rand_like(torch.empty(20, device=d)),
    "randn_like": lambda d: torch.randn_like(torch.empty(20, device=d)),
    "randint_like": lambda d: torch.randint_like(torch.empty(20, device=d), 100),
    "kaiming_uniform": lambda d: torch.nn.init.kaiming_uniform_(torch.empty(9, 9, device=d)),
}


class TestRandom(OpenRegTestCase):
    @parametrize("device", sorted({0, LAST}))
    @parametrize("draw", list(DRAWS))
    def test_same_seed_gives_the_cpus_numbers(self, draw, device):
        torch.manual_seed(SEED)
        expected = [DRAWS[draw]("cpu", None) for _ in range(2)]
        torch.manual_seed(SEED)
        actual = [DRAWS[draw](f"{DEVICE_TYPE}:{device}", None) for _ in range(2)]
        for one, other in zip(actual, expected, strict=True):
            self.assertEqual(one.device, torch.device(DEVICE_TYPE, device))
            self.assert_bit_equal(one, other)

    @parametrize("draw", list(MODULE_DRAWS))
    def test_same_seed_gives_the_cpus_numbers_without_a_generator(self, draw):
        torch.manual_seed(SEED)
        expected = MODULE_DRAWS[draw]("cpu")
        torch.manual_seed(SEED)
        self.assert_bit_equal(MODULE_DRAWS[draw](DEVICE_TYPE), expected)

    @parametrize("draw", list(DRAWS))
    def test_generator_of_ones_own_gives_the_cpus_numbers(self, draw):
        expected = DRAWS[draw]("cpu", torch.Generator().manual_seed(SEED))
        before = torch.openreg.get_rng_state()
        actual = DRAWS[draw](DEVICE_TYPE, torch.Generator(DEVICE_TYPE).manual_seed(SEED))
        self.assert_bit_equal(actual, expected)
        self.assertEqual(torch.openreg.get_rng_state(), before, "the default generator was used")

    def test_drawing_leaves_the_cpus_generator(self):
        before = torch.get_rng_state()
        torch.randn(10, device=DEVICE_TYPE)
        self.assertEqual(torch.get_rng_state(), before)

    def test_draws_on_two_streams_are_ordered(self):
        torch.manual_seed(SEED)
        expected = [torch.randn(50) for _ in range(6)]
        torch.openreg.manual_seed_all(SEED)
        streams = [torch.openreg.Stream(0) for _ in range(3)]
        actual = []
        with StreamGate(streams[0]) as gate:
            for index in range(6):
                with streams[index % 3]:
                    actual.append(torch.randn(50, device=DEVICE_TYPE))
            gate.open()
        torch.openreg.synchronize()
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other)

    def test_drawing_goes_on_after_an_external_stream_was_destroyed(self):
        # In a separate process: a defective generator would break all later tests.
        output = run_child(
            """
            import torch
            from torch_openreg import _C
            torch.manual_seed(5)
            expected = [torch.rand(5) for _ in range(2)]
            torch.manual_seed(5)
            handle = _C._create_external_stream(0, 0)
            with torch.openreg.ExternalStream(handle, 0) as stream:
                first = torch.rand(5, device="openreg")
                stream.synchronize()
            _C._destroy_external_stream(handle)
            second = torch.rand(5, device="openreg")
            print([torch.equal(*pair) for pair in zip((first.cpu(), second.cpu()), expected)])
            """
        )
        self.assertEqual(output.strip(), "[True, True]")

    @parametrize("way", ["manual_seed", "set_state", "seed"])
    def test_seeding_waits_for_nothing_and_leaves_numbers_already_asked_for(self, way):
        generator = torch.Generator(DEVICE_TYPE).manual_seed(SEED)
        state = torch.Generator(DEVICE_TYPE).manual_seed(7).get_state()
        x, y = torch.empty(8, device=DEVICE_TYPE), torch.empty(8, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate():
            x.normal_(generator=generator)
            if way == "manual_seed":
                seed = generator.manual_seed(7).initial_seed()
            elif way == "set_state":
                seed = generator.set_state(state).initial_seed()
            else:
                seed = generator.seed()
            self.assertEqual(generator.initial_seed(), seed)
            y.normal_(generator=generator)
            self.assertFalse(torch.openreg.current_stream().query())
        for tensor, its_seed in ((x, SEED), (y, seed)):
            expected = torch.empty(8).normal_(generator=torch.Generator().manual_seed(its_seed))
            self.assert_bit_equal(tensor, expected)

    def test_reading_the_state_waits_without_the_gil(self):
        # The thread that opens the gate can take the GIL only when the reader releases it. If the
        # reader keeps it, the program hangs.
        output = run_child(
            """
            import sys, threading
            import torch
            from torch_openreg.testing import StreamGate
            may_open = threading.Event()
            with StreamGate() as gate:
                torch.empty(4, device="openreg").normal_()
                opener = threading.Thread(target=lambda: (may_open.wait(), gate.open()))
                opener.start()
                sys.setswitchinterval(1000)
                may_open.set()
                torch.openreg.get_rng_state()
                opener.join()
            print("read")
            """
        )
        self.assertEqual(output.strip(), "read")

    def test_callers_that_hold_no_lock_may_seed_and_read(self):
        # torch's JIT operators do not lock the generator. In a separate process: it may hang.
        output = run_child(
            """
            import torch

            unit = torch.jit.CompilationUnit(
                "def reseed(generator: Generator, seed: int):\\n"
                "    return generator.manual_seed(seed)\\n"
                "def first_seed(generator: Generator):\\n"
                "    return generator.initial_seed()\\n"
                "def random_seed(generator: Generator):\\n"
                "    return generator.seed()\\n"
            )
            reseed, first_seed, random_seed = unit.reseed, unit.first_seed, unit.random_seed

            generator = torch.Generator("openreg")
            for seed in range(3):
                reseed(generator, seed)
                assert first_seed(generator) == seed
                assert random_seed(generator) % 2**64 == generator.initial_seed()
                generator.manual_seed(seed + 10).get_state()
                assert generator.clone_state().initial_seed() == seed + 10
            print("done")
            """
        )
        self.assertEqual(output.strip(), "done")

    @requires_two_devices
    @parametrize("draw", DRAWS)
    def test_generator_of_another_device_draws_as_its_own(self, draw):
        # As for CUDA, only the type of a generator's device counts.
        generators = [torch.Generator(f"{DEVICE_TYPE}:{index}") for index in range(2)]
        for generator in generators:
            generator.manual_seed(SEED)
        for _ in range(3):
            expected, actual = (DRAWS[draw](f"{DEVICE_TYPE}:0", each) for each in generators)
            self.assert_bit_equal(actual, expected)
        states = [generator.get_state() for generator in generators]
        self.assertEqual(states[1], states[0])

    @requires_two_devices
    def test_draws_on_two_devices_from_one_generator_are_ordered(self):
        own = torch.Generator().manual_seed(SEED)
        expected = [torch.randn(50, generator=own) for _ in range(6)]
        generator = torch.Generator(f"{DEVICE_TYPE}:1").manual_seed(SEED)
        actual = []
        with StreamGate(torch.openreg.current_stream(0)) as gate:
            for index in range(6):
                device = f"{DEVICE_TYPE}:{index % 2}"
                actual.append(torch.randn(50, device=device, generator=generator))
            gate.open()
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other)

    def test_generator_of_another_kind_of_device_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "device type"):
            torch.randn(3, device=DEVICE_TYPE, generator=torch.Generator())
        with self.assertRaisesRegex(RuntimeError, "device"):
            torch.randn(3, generator=torch.Generator(DEVICE_TYPE))

    def test_permutation_of_nothing_takes_any_generator(self):
        for generator in (torch.Generator(), torch.Generator(DEVICE_TYPE)):
            for device in ("cpu", DEVICE_TYPE):
                x = torch.randperm(0, device=device, generator=generator)
                self.assertEqual((x.device.type, x.shape), (device, (0,)))

    @parametrize(
        "draw",
        [
            "bernoulli_",
            "cauchy_",
            "exponential_",
            "geometric_",
            "log_normal_",
            "normal_",
            "random_",
            "uniform_",
        ],
    )
    def test_a_tensor_without_elements_may_have_any_dtype(self, draw):
        numbers = {"geometric_": (0.5,)}.get(draw, ())
        for dtype in (torch.int8, torch.bool, torch.uint16, torch.cfloat, torch.float8_e4m3fn):
            outcomes = []
            for device in ("cpu", DEVICE_TYPE):
                x = torch.empty(0, dtype=dtype, device=device)
                try:
                    outcomes.append(getattr(x, draw)(*numbers).dtype)
                except (RuntimeError, NotImplementedError) as error:
                    outcomes.append((type(error), str(error)))
            self.assertEqual(outcomes[1], outcomes[0])
        self.assertEqual(torch.randn(0, dtype=torch.int8, device=DEVICE_TYPE).shape, (0,))

    def test_drawing_returns_before_it_is_done(self):
        with StreamGate():
            torch.empty(5, device=DEVICE_TYPE).normal_()
            self.assertFalse(torch.openreg.current_stream().query())


class TestSeed(OpenRegTestCase):
    def test_torch_manual_seed_seeds_all_devices(self):
        torch.manual_seed(77)
        for generator in torch.openreg.default_generators:
            self.assertEqual(generator.initial_seed(), 77)

    def test_torch_seed_seeds_all_devices(self):
        seed = torch.seed()
        for generator in torch.openreg.default_generators:
            self.assertEqual(generator.initial_seed(), seed)

    @requires_two_devices
    def test_manual_seed_seeds_the_current_device_only(self):
        torch.openreg.manual_seed_all(5)
        with torch.openreg.device(1):
            torch.openreg.manual_seed(6)
            self.assertEqual(torch.openreg.initial_seed(), 6)
        self.assertEqual(torch.openreg.initial_seed(), 5)

    @parametrize("seed", [0, -1, 2**63, 2**64 - 1, -(2**63)])
    def test_manual_seed_takes_what_the_cpu_takes(self, seed):
        torch.openreg.manual_seed(seed)
        self.assertEqual(
            torch.openreg.initial_seed(), torch.Generator().manual_seed(seed).initial_seed()
        )

    @requires_two_devices
    def test_seed_gives_the_current_device_a_random_seed(self):
        torch.openreg.manual_seed_all(5)
        torch.openreg.seed()
        self.assertNotEqual(torch.openreg.default_generators[0].initial_seed(), 5)
        self.assertEqual(torch.openreg.default_generators[1].initial_seed(), 5)

    def test_seed_all_gives_all_devices_one_random_seed(self):
        torch.openreg.manual_seed_all(5)
        torch.openreg.seed_all()
        seeds = {generator.initial_seed() for generator in torch.openreg.default_generators}
        self.assertEqual(len(seeds), 1)
        self.assertNotEqual(seeds, {5})

    def test_default_generators_are_one_per_device(self):
        generators = torch.openreg.default_generators
        self.assertEqual(
            [generator.device for generator in generators],
            [torch.device(DEVICE_TYPE, index) for index in range(DEVICE_COUNT)],
        )
        self.assertEqual(
            torch.openreg._get_generator(torch.device(DEVICE_TYPE, LAST)).device,
            torch.device(DEVICE_TYPE, LAST),
        )

    def test_seeding_and_reading_the_state_create_no_device(self):
        run_child(
            """
            import torch
            from torch_openreg import _C
            torch.manual_seed(3)
            torch.openreg.manual_seed(4)
            torch.openreg.manual_seed_all(5)
            torch.openreg.seed_all()
            torch.openreg.set_rng_state(torch.openreg.get_rng_state(1), 0)
            torch.openreg.initial_seed()
            assert not any(_C._is_device_active(i) for i in range(torch.openreg.device_count()))
            assert not torch.openreg.is_initialized()
            """,
            {"OPENREG_DEVICE_COUNT": "2"},
        )

    def test_seed_set_before_first_use_counts(self):
        result = run_child(
            """
            import torch
            torch.manual_seed(9)
            x = torch.randn(4, device="openreg")
            torch.manual_seed(9)
            print(torch.equal(x.cpu(), torch.randn(4)))
            """
        )
        self.assertEqual(result.strip(), "True")

    def test_default_generators_are_seeded_from_entropy(self):
        code = """
            import torch
            print(*(generator.initial_seed() for generator in torch.openreg.default_generators))
            print(torch.rand(2, device=DEVICE).tolist())
            """
        program = code.replace("DEVICE", repr(DEVICE_TYPE))
        runs = run_children([(program, {"OPENREG_DEVICE_COUNT": "3"})] * 3)
        self.assertEqual([run.returncode for run in runs], [0, 0, 0])
        lines = [run.output.splitlines() for run in runs]
        seeds = [int(seed) for first, _ in lines for seed in first.split()]
        self.assertEqual(len(set(seeds)), 9)  # processes differ, devices differ
        self.assertNotIn(torch.Generator().initial_seed(), seeds)
        self.assertEqual(len({numbers for _, numbers in lines}), 3)

    def test_a_seed_from_entropy_repeats_its_numbers(self):
        run_child(
            f"""
            import torch
            x = torch.rand(3, device="{DEVICE_TYPE}")
            torch.manual_seed(torch.openreg.initial_seed())
            assert torch.equal(x.cpu(), torch.rand(3))
            """
        )

    @parametrize("method", ["fork", "spawn"])
    def test_processes_that_a_program_starts_have_seeds_of_their_own(self, method):
        output = run_program(
            f"""
            import multiprocessing
            import torch

            if __name__ == "__main__":
                context = multiprocessing.get_context("{method}")
                read = "__import__('torch').openreg.initial_seed()"
                seeds = []
                for _ in range(2):
                    with context.Pool(1) as pool:
                        seeds.append(pool.apply(eval, (read,)))
                print(*seeds, torch.openreg.initial_seed())
            """
        ).stdout
        self.assertEqual(len(set(output.split())), 3)

    def test_a_state_of_a_seed_from_entropy_is_restored(self):
        run_child(
            f"""
            import torch
            state = torch.openreg.get_rng_state()
            x = torch.rand(3, device="{DEVICE_TYPE}")
            torch.openreg.manual_seed(1)
            torch.openreg.set_rng_state(state)
            assert torch.equal(x, torch.rand(3, device="{DEVICE_TYPE}"))
            """
        )

    def test_a_first_draw_may_be_captured(self):
        run_child(
            """
            import torch
            graph = torch.openreg.Graph()
            x = torch.empty(4, device="openreg")
            with torch.openreg.graph(graph):
                x.uniform_()
            graph.replay()
            assert x.sum().item() > 0
            """
        )

    def test_seeding_does_nothing_without_devices(self):
        run_child(
            """
            import torch
            torch.manual_seed(1)
            torch.openreg.manual_seed(1)
            torch.openreg.manual_seed_all(1)
            torch.openreg.seed()
            torch.openreg.seed_all()
            assert torch.openreg.default_generators == ()
            assert torch.openreg.get_rng_state_all() == []
            """,
            {"OPENREG_DEVICE_COUNT": "0"},
        )


def cuda_state(seed, offset):
    """The state of a generator of CUDA."""
    return torch.tensor([seed, offset]).view(torch.uint8)


class TestState(OpenRegTestCase):
    def test_state_is_that_of_the_cpu_or_of_cuda(self):
        torch.manual_seed(SEED)
        expected = {"openreg": torch.get_rng_state(), "cuda": cuda_state(SEED, 0)}[DEVICE_TYPE]
        self.assertEqual(torch.openreg.get_rng_state(), expected)
        self.assertEqual(torch.openreg.get_rng_state().device, torch.device("cpu"))

    def test_setting_the_state_repeats_the_numbers(self):
        state = torch.openreg.get_rng_state()
        first = torch.randn(10, device=DEVICE_TYPE)
        torch.openreg.set_rng_state(state)
        self.assert_bit_equal(torch.randn(10, device=DEVICE_TYPE), first)

    def test_state_read_after_drawing_continues_there(self):
        torch.openreg.manual_seed(SEED)
        torch.randn(7, device=DEVICE_TYPE)
        state = torch.openreg.get_rng_state()
        generator = torch.Generator(DEVICE_TYPE)
        generator.set_state(state)
        self.assert_bit_equal(
            torch.rand(5, device=DEVICE_TYPE),
            torch.rand(5, device=DEVICE_TYPE, generator=generator).cpu(),
        )

    @parametrize(
        "spell", [subtest(int, name="int"), subtest((DEVICE_TYPE + ":{}").format, name="str")]
    )
    def test_state_of_a_device(self, spell):
        torch.openreg.manual_seed_all(1)
        state = torch.openreg.get_rng_state(spell(LAST))
        torch.rand(3, device=f"{DEVICE_TYPE}:{LAST}")
        self.assertNotEqual(torch.openreg.get_rng_state(spell(LAST)), state)
        torch.openreg.set_rng_state(state, spell(LAST))
        self.assertEqual(torch.openreg.get_rng_state(torch.device(DEVICE_TYPE, LAST)), state)

    @requires_two_devices
    def test_devices_draw_independently(self):
        torch.openreg.manual_seed_all(1)
        state = torch.openreg.get_rng_state(1)
        torch.rand(3, device=f"{DEVICE_TYPE}:0")
        self.assertEqual(torch.openreg.get_rng_state(1), state)

    def test_states_of_all_devices_round_trip(self):
        states = torch.openreg.get_rng_state_all()
        self.assertEqual(len(states), DEVICE_COUNT)
        first = [torch.rand(4, device=f"{DEVICE_TYPE}:{i}").cpu() for i in range(DEVICE_COUNT)]
        torch.openreg.set_rng_state_all(states)
        for index in range(DEVICE_COUNT):
            self.assert_bit_equal(torch.rand(4, device=f"{DEVICE_TYPE}:{index}"), first[index])

    def test_reading_the_state_waits_for_kernels_that_draw(self):
        torch.openreg.manual_seed(SEED)
        expected = torch.Generator().manual_seed(SEED)
        torch.rand(8, generator=expected)
        with StreamGate() as gate:
            torch.rand(8, device=DEVICE_TYPE)
            gate.open()
            states = {"openreg": expected.get_state(), "cuda": cuda_state(SEED, 8)}
            self.assertEqual(torch.openreg.get_rng_state(), states[DEVICE_TYPE])

    def test_setting_the_state_does_not_change_numbers_already_asked_for(self):
        torch.openreg.manual_seed(SEED)
        expected = torch.rand(8, generator=torch.Generator().manual_seed(SEED))
        x = torch.rand(8, device=DEVICE_TYPE)
        torch.openreg.manual_seed(0)
        self.assert_bit_equal(x, expected)

    def test_clone_of_a_generator_draws_the_same_numbers(self):
        generator = torch.Generator(DEVICE_TYPE).manual_seed(SEED)
        torch.rand(3, device=DEVICE_TYPE, generator=generator)
        clone = generator.clone_state()
        self.assert_bit_equal(
            torch.rand(5, device=DEVICE_TYPE, generator=clone),
            torch.rand(5, device=DEVICE_TYPE, generator=generator),
        )

    def test_fork_rng_restores_the_states(self):
        before = torch.openreg.get_rng_state_all()
        with torch.random.fork_rng(devices=range(DEVICE_COUNT), device_type=DEVICE_TYPE):
            torch.rand(5, device=DEVICE_TYPE)
            self.assertNotEqual(torch.openreg.get_rng_state(), before[0])
        self.assertEqual(torch.openreg.get_rng_state_all(), before)

    @parametrize("use_reentrant", [True, False])
    def test_checkpoint_draws_the_same_numbers_again(self, use_reentrant):
        x = torch.ones(100, device=DEVICE_TYPE, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(
            lambda value: torch.nn.functional.dropout(value, 0.5), x, use_reentrant=use_reentrant
        )
        y.sum().backward()
        # The gradient comes from the second run of the forward.
        self.assert_bit_equal(x.grad, y.detach())

    @unittest.skipIf(DEVICE_TYPE == "cuda", "CUDA's have one: cuda/test_generators.py")
    def test_offset_is_not_supported(self):
        with self.assertRaisesRegex(RuntimeError, "does not support set_offset"):
            torch.openreg.set_offset(4)
        with self.assertRaisesRegex(RuntimeError, "does not support get_offset"):
            torch.openreg.get_offset()
        with self.assertRaisesRegex(RuntimeError, "does not support set_offset"):
            torch.openreg._set_rng_state_offset(4)
        generator = torch.Generator(DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, "does not support set_offset"):
            generator.set_offset(4)
        with self.assertRaisesRegex(RuntimeError, "does not support get_offset"):
            generator.get_offset()

    @unittest.skipUnless(HAS_PHILOX_STATE, "torch 2.13 asks no generator for it")
    def test_state_of_a_counter_is_not_supported(self):
        with self.assertRaisesRegex(RuntimeError, "does not support philox_state"):
            torch.Generator(DEVICE_TYPE).philox_state(4)

    @parametrize(
        "copy",
        [
            subtest(lambda g: pickle.loads(pickle.dumps(g)), name="pickle"),
            subtest(copy.copy, name="copy"),
            subtest(copy.deepcopy, name="deepcopy"),
        ],
    )
    @parametrize("device", ["cpu", f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:{LAST}"])
    def test_copies_draw_the_same_numbers(self, copy, device):
        generator = torch.Generator(device).manual_seed(SEED)
        torch.rand(3, device=device, generator=generator)
        twin = copy(generator)
        self.assertIsNot(twin, generator)
        self.assertEqual(twin.device, generator.device)
        self.assertEqual(twin.initial_seed(), SEED)
        self.assert_bit_equal(
            torch.rand(5, device=device, generator=twin),
            torch.rand(5, device=device, generator=generator).cpu(),
        )

    def test_bad_device_is_refused(self):
        state = torch.openreg.get_rng_state()
        for device in (DEVICE_COUNT, -1, f"{DEVICE_TYPE}:{DEVICE_COUNT}"):
            with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
                torch.openreg.get_rng_state(device)
            with self.assertRaisesRegex(RuntimeError, OUT_OF_RANGE_TEXT):
                torch.openreg.set_rng_state(state, device)

    def test_bad_state_is_refused(self):
        for state in (torch.zeros(3, dtype=torch.uint8), torch.zeros(5056)):
            with self.assertRaises((RuntimeError, TypeError)):
                torch.openreg.set_rng_state(state)

    @parametrize("way", ["module", "generator", "seed"])
    def test_threads_may_save_and_restore_the_state_of_one_device(self, way):
        generator = torch.openreg.default_generators[0]

        def work():
            for _ in range(300):
                torch.rand(64, device=f"{DEVICE_TYPE}:0")
                if way == "module":
                    torch.openreg.set_rng_state(torch.openreg.get_rng_state(0), 0)
                elif way == "generator":
                    generator.set_state(generator.clone_state().get_state())
                else:
                    generator.manual_seed(generator.seed())

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(torch.rand(64, device=DEVICE_TYPE).isfinite().all())

    def test_generator_may_be_used_by_several_threads(self):
        torch.openreg.manual_seed(SEED)
        drawn = [call_in_thread(lambda: torch.rand(4, device=DEVICE_TYPE)) for _ in range(4)]
        expected = torch.Generator().manual_seed(SEED)
        for x in drawn:
            self.assert_bit_equal(x, torch.rand(4, generator=expected))


instantiate_parametrized_tests(TestRandom)
instantiate_parametrized_tests(TestSeed)
instantiate_parametrized_tests(TestState)

if __name__ == "__main__":
    run_tests()
