"""The parts of a training script around its model: loading data, overlapping copies with compute,
recomputing activations, and choosing a default device.
"""

import collections
import warnings
from unittest import mock

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    FORK_TEXT,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from torch.utils import benchmark
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.data import DataLoader, TensorDataset, default_collate

pytestmark = pytest.mark.sample(0.2)

LAST = DEVICE_COUNT - 1
DEVICES = parametrize("index", range(DEVICE_COUNT))
METHODS = parametrize("method", ["fork", "spawn", "forkserver"])
REENTRANT = parametrize("use_reentrant", [True, False])
Pair = collections.namedtuple("Pair", ["number", "text"])


class Rows(torch.utils.data.Dataset):
    """Twelve rows; remembers in which process it is read."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info()
        return torch.full((3,), float(index)), -1 if worker is None else worker.id


class DeviceRows(torch.utils.data.Dataset):
    """Rows made on the device, which a forked worker cannot do."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), float(index), device=DEVICE_TYPE)


class BadRow(Rows):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError("row five")
        return super().__getitem__(index)


class Packed:
    """A batch with its own method for pinning."""

    def __init__(self, rows):
        self.rows = default_collate([row for row, _ in rows])

    def pin_memory(self):
        self.rows = self.rows.pin_memory()
        return self


def nested(rows):
    """Collates to a dictionary with a named tuple and a list in it."""
    numbers = torch.stack([row for row, _ in rows])
    return {"pair": Pair(numbers, "text"), "list": [numbers + 1, 7]}


class TestDataLoader(OpenRegTestCase):
    def loader(self, dataset=None, **settings):
        return DataLoader(dataset or Rows(), batch_size=4, **settings)

    @METHODS
    def test_persistent_workers_serve_several_epochs(self, method):
        torch.ones(1, device=DEVICE_TYPE)  # the parent uses the device before it has workers
        loader = self.loader(
            num_workers=1,
            multiprocessing_context=method,
            persistent_workers=True,
            pin_memory=True,
        )
        processes = set()
        for _ in range(2):
            seen = []
            for rows, workers in loader:
                self.assertTrue(rows.is_pinned())
                self.assertEqual(workers.tolist(), [0] * 4)
                seen.append(rows.to(DEVICE_TYPE, non_blocking=True))
            self.assert_bit_equal(torch.cat(seen)[:, 0], torch.arange(12.0))
            processes.update(worker.pid for worker in loader._iterator._workers)
        self.assertEqual(len(processes), 1)

    @parametrize("num_workers", [0, 1])
    @parametrize("index", range(DEVICE_COUNT))
    def test_batches_are_pinned_while_any_device_is_current(self, num_workers, index):
        with torch.openreg.device(index):
            loader = self.loader(num_workers=num_workers, pin_memory=True)
            batches = [rows.to(DEVICE_TYPE, non_blocking=True) for rows, _ in loader]
        self.assertEqual({batch.device.index for batch in batches}, {index})
        self.assert_bit_equal(torch.cat(batches)[:, 0], torch.arange(12.0))

    @parametrize("num_workers", [0, 1])
    def test_pinning_goes_through_containers(self, num_workers):
        loader = self.loader(collate_fn=nested, num_workers=num_workers, pin_memory=True)
        batch = next(iter(loader))
        self.assertIsInstance(batch["pair"], Pair)
        self.assertTrue(batch["pair"].number.is_pinned())
        self.assertTrue(batch["list"][0].is_pinned())
        self.assertEqual((batch["pair"].text, batch["list"][1]), ("text", 7))

    @parametrize("num_workers", [0, 1])
    def test_batch_may_pin_itself(self, num_workers):
        loader = self.loader(collate_fn=Packed, num_workers=num_workers, pin_memory=True)
        for batch in loader:
            self.assertTrue(batch.rows.is_pinned())

    @parametrize("num_workers", [0, 1])
    @parametrize("device", [DEVICE_TYPE, f"{DEVICE_TYPE}:{LAST}", "xpu"])
    def test_pin_memory_device_gives_way_to_the_accelerator(self, num_workers, device):
        loader = self.loader(num_workers=num_workers, pin_memory=True, pin_memory_device=device)
        with self.assertWarnsRegex(UserWarning, "pin_memory_device is deprecated"):
            batches = list(loader)
        self.assertTrue(all(rows.is_pinned() for rows, _ in batches))

    def test_loader_can_be_left_in_the_middle(self):
        loader = self.loader(num_workers=2, pin_memory=True, prefetch_factor=3)
        for _ in range(3):
            rows, _ = next(iter(loader))
            self.assertEqual(rows[:, 0].tolist(), [0.0, 1.0, 2.0, 3.0])

    @METHODS
    def test_error_of_a_worker_comes_out(self, method):
        loader = self.loader(
            BadRow(), num_workers=1, multiprocessing_context=method, pin_memory=True
        )
        with self.assertRaisesRegex(KeyError, "row five"):
            list(loader)

    def test_dataset_on_the_device_needs_no_worker(self):
        rows = torch.cat(list(DataLoader(DeviceRows(), batch_size=2)))
        self.assertEqual(rows.device.type, DEVICE_TYPE)
        self.assert_bit_equal(rows[:, 0], torch.arange(4.0))

    def test_dataset_on_the_device_cannot_be_pinned(self):
        with self.assertRaisesRegex(RuntimeError, "only dense CPU tensors can be pinned"):
            list(DataLoader(DeviceRows(), batch_size=2, pin_memory=True))

    def test_dataset_on_the_device_is_refused_in_a_forked_worker(self):
        torch.ones(1, device=DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, FORK_TEXT):
            list(
                DataLoader(
                    DeviceRows(), batch_size=2, num_workers=1, multiprocessing_context="fork"
                )
            )

    def test_shuffle_takes_a_generator_of_the_host_only(self):
        generator = torch.Generator(DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, f"Expected a .cpu. .* found .{DEVICE_TYPE}"):
            list(DataLoader(Rows(), shuffle=True, generator=generator))


class Prefetcher:
    """Copies the next batch on a separate stream while the present one is used."""

    def __init__(self, batches, device, stream=None):
        self.batches = iter(batches)
        self.device = torch.device(device)
        self.stream = stream or torch.Stream(self.device)
        self.copied = self._copy()

    def _copy(self):
        batch = next(self.batches, None)
        if batch is None:
            return None
        with self.stream:
            return batch.to(self.device, non_blocking=True)

    def __iter__(self):
        while self.copied is not None:
            user = torch.accelerator.current_stream(self.device)
            user.wait_stream(self.stream)
            batch = self.copied
            batch.record_stream(user)  # its memory belongs to the stream of the copies
            self.copied = self._copy()
            yield batch


class TestPrefetch(OpenRegTestCase):
    SIZE = 50_000

    def batches(self, count):
        return [torch.full((self.SIZE,), float(number)).pin_memory() for number in range(count)]

    @DEVICES
    def test_next_batch_is_copied_while_the_present_one_is_computed(self, index):
        with torch.openreg.device(index):
            main = torch.openreg.current_stream()
            prefetcher = Prefetcher(self.batches(3), f"{DEVICE_TYPE}:{index}")
            total = torch.zeros(self.SIZE, device=DEVICE_TYPE)
            torch.openreg.synchronize()
            loop = iter(prefetcher)
            with StreamGate(main) as gate:
                gate.wait_until_reached()
                total += next(loop)  # the compute of batch 0 is held
                prefetcher.stream.synchronize()  # and the copy of batch 1 is done
                self.assertFalse(main.query())
                total += next(loop)
                prefetcher.stream.synchronize()  # that of batch 2, too
                self.assertFalse(main.query())
                gate.open()
            total += next(loop)
            self.assertEqual(total.unique().tolist(), [0.0 + 1.0 + 2.0])

    @DEVICES
    def test_compute_waits_for_the_copy_of_its_batch(self, index):
        with torch.openreg.device(index):
            main = torch.openreg.current_stream()
            stream = torch.Stream(f"{DEVICE_TYPE}:{index}")
            with StreamGate(stream) as gate:
                prefetcher = Prefetcher(self.batches(2)[1:], f"{DEVICE_TYPE}:{index}", stream)
                doubled = next(iter(prefetcher)) * 2
                self.assertFalse(main.query())
                gate.open()
                self.assertEqual(doubled.unique().tolist(), [2.0])

    @DEVICES
    def test_batch_in_use_is_not_overwritten_by_a_later_copy(self, index):
        with torch.openreg.device(index):
            main = torch.openreg.current_stream()
            prefetcher = Prefetcher(self.batches(8), f"{DEVICE_TYPE}:{index}")
            torch.openreg.synchronize()
            results = []
            with StreamGate(main) as gate:
                for batch in prefetcher:  # each is dropped before it has been read
                    results.append(batch + 1)
                    del batch
                prefetcher.stream.synchronize()
                self.assertFalse(main.query())
                gate.open()
            self.assertEqual(
                [result.unique().tolist() for result in results],
                [[number + 1.0] for number in range(8)],
            )

    @DEVICES
    def test_training_gives_the_bits_of_training_without_prefetch(self, index):
        def train(device, prefetch):
            torch.manual_seed(0)
            model = torch.nn.Linear(6, 6).to(device)
            optimizer = torch.optim.Adam(model.parameters())
            loader = DataLoader(torch.randn(40, 6), batch_size=8, pin_memory=True)
            batches = Prefetcher(loader, device) if prefetch else (x.to(device) for x in loader)
            for batch in batches:
                optimizer.zero_grad()
                (model(batch) - batch).square().mean().backward()
                optimizer.step()
            return model.weight.detach()

        device = f"{DEVICE_TYPE}:{index}"
        with torch.openreg.device(index):
            self.assert_bit_equal(train(device, True), train("cpu", False))


class TestCheckpoint(OpenRegTestCase):
    def dropout_twice(self, run, *inputs):
        """Returns the masks of a function's runs, and the gradients of its inputs."""
        masks = []

        def function(*inputs):
            outputs = [torch.nn.functional.dropout(one, 0.5) for one in inputs]
            masks.append([(one != 0).cpu() for one in outputs])
            return sum(one.cpu() for one in outputs)

        with set_checkpoint_early_stop(False):  # or the second run ends before it has masks
            run(function, *inputs).sum().backward()
        return masks, [one.grad.cpu() for one in inputs]

    @REENTRANT
    @parametrize("index", range(DEVICE_COUNT))
    def test_numbers_are_repeated_on_any_device(self, use_reentrant, index):
        x = torch.ones(64, device=f"{DEVICE_TYPE}:{index}", requires_grad=True)
        masks, (gradient,) = self.dropout_twice(
            lambda f, x: checkpoint(f, x, use_reentrant=use_reentrant), x
        )
        self.assertEqual(len(masks), 2)
        self.assertEqual(masks[0], masks[1])
        self.assert_bit_equal(gradient, masks[0][0] * 2.0)

    # Without re-entrance, the threads of both devices would run the function again at once, and
    # torch's bookkeeping of that is meant for one.
    @requires_two_devices
    def test_numbers_are_repeated_on_both_devices_at_once(self):
        inputs = [torch.ones(64, device=f"{DEVICE_TYPE}:{i}", requires_grad=True) for i in (0, 1)]
        torch.openreg.manual_seed_all(3)
        torch.rand(5, device=f"{DEVICE_TYPE}:1")  # so that the devices draw different numbers
        masks, gradients = self.dropout_twice(
            lambda f, *xs: checkpoint(f, *xs, use_reentrant=True), *inputs
        )
        self.assertEqual(masks[0], masks[1])
        self.assertNotEqual(masks[0][0], masks[0][1])
        for gradient, mask in zip(gradients, masks[0], strict=True):
            self.assert_bit_equal(gradient, mask * 2.0)

    @REENTRANT
    def test_numbers_drawn_between_forward_and_backward_are_not_drawn_again(self, use_reentrant):
        drawn = []
        for run in (
            lambda f, x: f(x),
            lambda f, x: checkpoint(f, x, use_reentrant=use_reentrant),
        ):
            torch.manual_seed(4)
            x = torch.ones(64, device=DEVICE_TYPE, requires_grad=True)
            y = run(lambda x: torch.nn.functional.dropout(x, 0.5), x)
            between = torch.rand(8, device=DEVICE_TYPE).cpu()
            y.sum().backward()
            drawn.append([between, torch.rand(8, device=DEVICE_TYPE).cpu(), torch.rand(8)])
        self.assertEqual(drawn[0], drawn[1])

    @REENTRANT
    def test_new_numbers_are_drawn_if_the_state_is_not_kept(self, use_reentrant):
        torch.manual_seed(0)
        x = torch.ones(64, device=DEVICE_TYPE, requires_grad=True)
        masks, _ = self.dropout_twice(
            lambda f, x: checkpoint(f, x, use_reentrant=use_reentrant, preserve_rng_state=False),
            x,
        )
        self.assertNotEqual(masks[0], masks[1])


class TestForkRng(OpenRegTestCase):
    def draw(self):
        return [torch.rand(4, device=d).cpu() for d in ("cpu", *range_of_devices())]

    def test_all_devices_and_the_host_go_back(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns once that all devices take part
            with torch.random.fork_rng(device_type=DEVICE_TYPE):
                inside = self.draw()
        self.assertEqual(self.draw(), inside)

    def test_accelerator_is_the_default(self):
        with torch.random.fork_rng(devices=range(DEVICE_COUNT)):
            inside = self.draw()
        self.assertEqual(self.draw(), inside)

    def test_devices_go_back_after_an_exception(self):
        before = torch.openreg.get_rng_state_all()
        with (
            self.assertRaises(KeyError),
            torch.random.fork_rng(devices=[LAST], device_type=DEVICE_TYPE),
        ):
            torch.rand(4, device=f"{DEVICE_TYPE}:{LAST}")
            raise KeyError
        self.assertEqual(torch.openreg.get_rng_state_all(), before)

    @requires_two_devices
    def test_devices_that_are_not_named_go_on(self):
        with torch.random.fork_rng(devices=[1], device_type=DEVICE_TYPE):
            first, second = (torch.rand(8, device=f"{DEVICE_TYPE}:{i}").cpu() for i in (0, 1))
        self.assertNotEqual(torch.rand(8, device=f"{DEVICE_TYPE}:0").cpu(), first)
        self.assert_bit_equal(torch.rand(8, device=f"{DEVICE_TYPE}:1"), second)

    def test_nothing_is_kept_if_it_is_switched_off(self):
        with torch.random.fork_rng(devices=[0], enabled=False, device_type=DEVICE_TYPE):
            inside = torch.rand(8, device=DEVICE_TYPE).cpu()
        self.assertNotEqual(torch.rand(8, device=DEVICE_TYPE).cpu(), inside)


def range_of_devices():
    return [f"{DEVICE_TYPE}:{index}" for index in range(DEVICE_COUNT)]


FACTORIES = {
    "empty": lambda: torch.empty(2),
    "ones": lambda: torch.ones(2),
    "full": lambda: torch.full((2,), 3.0),
    "arange": lambda: torch.arange(3),
    "linspace": lambda: torch.linspace(0, 1, 3),
    "eye": lambda: torch.eye(2),
    "rand": lambda: torch.rand(2),
    "randn": lambda: torch.randn(2),
    "randint": lambda: torch.randint(5, (2,)),
    "randperm": lambda: torch.randperm(4),
    "tensor": lambda: torch.tensor([1.0]),
    "as_tensor": lambda: torch.as_tensor([1.0]),
    "scalar_tensor": lambda: torch.scalar_tensor(2.0),
    "tril_indices": lambda: torch.tril_indices(3, 3),
    "hann_window": lambda: torch.hann_window(4),
    "fftfreq": lambda: torch.fft.fftfreq(4),
    "sparse": lambda: torch.sparse_coo_tensor([[0]], [1.0], (2,)),
    "linear": lambda: torch.nn.Linear(2, 2).weight,
    "buffer": lambda: torch.nn.BatchNorm1d(2).running_mean,
    "like": lambda: torch.ones_like(torch.empty(2)),
}
SETTERS = [
    subtest(lambda device: torch.device(device), name="context"),
    subtest(lambda device: default_device(device), name="set_default_device"),
]


class default_device:
    """``torch.set_default_device`` for the length of a block."""

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        torch.set_default_device(self.device)

    def __exit__(self, *exc_info):
        torch.set_default_device(None)


class TestDefaultDevice(OpenRegTestCase):
    @parametrize("setter", SETTERS)
    @parametrize("index", range(DEVICE_COUNT))
    @parametrize("factory", list(FACTORIES))
    def test_factory_uses_it(self, setter, index, factory):
        with setter(f"{DEVICE_TYPE}:{index}"):
            made = FACTORIES[factory]()
        self.assertEqual(made.device, torch.device(DEVICE_TYPE, index))
        self.assertEqual(FACTORIES[factory]().device, torch.device("cpu"))
        self.assertEqual(torch.openreg.current_device(), 0)

    def test_device_without_index_is_the_current_one(self):
        with default_device(DEVICE_TYPE):
            self.assertEqual(torch.get_default_device(), torch.device(DEVICE_TYPE, 0))
            with torch.openreg.device(LAST):
                self.assertEqual(torch.ones(1).device, torch.device(DEVICE_TYPE, LAST))

    def test_none_goes_back_to_the_host(self):
        torch.set_default_device(DEVICE_TYPE)
        torch.set_default_device(None)
        self.assertEqual(torch.get_default_device(), torch.device("cpu"))
        self.assertEqual(torch.ones(1).device, torch.device("cpu"))

    def test_blocks_nest(self):
        with torch.device(f"{DEVICE_TYPE}:0"):
            with torch.device("cpu"):
                self.assertEqual(torch.ones(1).device.type, "cpu")
            with torch.device(f"{DEVICE_TYPE}:{LAST}"):
                self.assertEqual(torch.get_default_device(), torch.device(DEVICE_TYPE, LAST))
            self.assertEqual(torch.ones(1).device, torch.device(DEVICE_TYPE, 0))

    def test_device_that_is_given_wins(self):
        with torch.device(DEVICE_TYPE):
            self.assertEqual(torch.ones(1, device="cpu").device.type, "cpu")

    def test_other_threads_keep_theirs(self):
        with torch.device(DEVICE_TYPE):
            self.assertEqual(call_in_thread(lambda: torch.ones(1).device.type), "cpu")

    def test_generator_and_old_constructor_stay_on_the_host(self):
        with default_device(DEVICE_TYPE):
            self.assertEqual(torch.Generator().device.type, "cpu")
            self.assertEqual(torch.Tensor([1.0]).device.type, "cpu")

    def test_numbers_are_those_of_the_host(self):
        torch.manual_seed(0)
        expected = torch.nn.Linear(5, 5).weight
        torch.manual_seed(0)
        with default_device(DEVICE_TYPE):
            actual = torch.nn.Linear(5, 5).weight
        self.assert_bit_equal(actual.detach(), expected.detach())

    def test_model_trains(self):
        with default_device(DEVICE_TYPE):
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
        self.assertEqual(next(iter(optimizer.state.values()))["exp_avg"].device.type, DEVICE_TYPE)

    def test_loader_makes_its_batches_there(self):
        with default_device(DEVICE_TYPE):
            batches = list(DataLoader(list(range(6)), batch_size=3))
        self.assertEqual({batch.device.type for batch in batches}, {DEVICE_TYPE})
        self.assertEqual(torch.cat(batches).tolist(), list(range(6)))

    def test_loader_shuffles_with_a_generator_of_that_device(self):
        data = TensorDataset(torch.arange(6))
        with default_device(DEVICE_TYPE):
            with self.assertRaisesRegex(RuntimeError, f"Expected a '{DEVICE_TYPE}' device type"):
                list(DataLoader(data, shuffle=True))
            generator = torch.Generator(DEVICE_TYPE).manual_seed(1)
            seen = [x.item() for (x,) in DataLoader(data, shuffle=True, generator=generator)]
        self.assertEqual(sorted(seen), list(range(6)))


class TestBenchmarkTimer(OpenRegTestCase):
    def test_timer_waits_for_the_device_before_it_reads_the_clock(self):
        x = torch.zeros(1000, device=DEVICE_TYPE)
        stream = torch.openreg.current_stream()
        gates, was_idle = [], []
        synchronize = torch.accelerator.synchronize

        def work():
            gate = StreamGate()
            gate.__enter__()
            gates.append(gate)
            x.add_(1)

        def open_and_synchronize(*arguments):
            was_idle.append(stream.query())
            for gate in gates:
                gate.open()
            synchronize(*arguments)

        with mock.patch.object(torch.accelerator, "synchronize", open_and_synchronize):
            benchmark.Timer("work()", globals={"work": work}).timeit(1)
        # Work stands at its gate until the timer synchronizes.
        self.assertTrue(stream.query())
        self.assertIn(False, was_idle)
        self.assertEqual(x[0].item(), len(gates))

    def test_timer_measures_all_runs(self):
        x = torch.zeros(10, device=DEVICE_TYPE)
        measurement = benchmark.Timer("x.add_(1)", globals={"x": x}).timeit(20)
        self.assertEqual(measurement.number_per_run, 20)
        self.assertGreater(measurement.median, 0)
        self.assertGreaterEqual(x[0].item(), 20)

    def test_timer_of_cpp_code_is_refused_by_torch(self):
        with self.assertRaisesRegex(NotImplementedError, "does not yet support accelerator"):
            benchmark.Timer("int x = 1;", language="c++")


instantiate_parametrized_tests(TestDataLoader)
instantiate_parametrized_tests(TestPrefetch)
instantiate_parametrized_tests(TestCheckpoint)
instantiate_parametrized_tests(TestForkRng)
instantiate_parametrized_tests(TestDefaultDevice)

if __name__ == "__main__":
    run_tests()
