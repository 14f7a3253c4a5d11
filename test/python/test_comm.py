"""Tensors spread over devices, as torch.nn.parallel.comm and DataParallel do it."""

import copy
import warnings
from unittest import mock

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)
from torch.nn.parallel import comm

from torch_openreg import _comm
from torch_openreg._torch_release import HAS_ACCELERATOR_AUTOCAST

DEVICES = [torch.device(DEVICE_TYPE, 0), torch.device(DEVICE_TYPE, 1)]


@requires_two_devices
class TestComm(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.arange(12.0).view(4, 3)

    def test_broadcast_copies_to_each_device(self):
        copies = comm.broadcast(self.x.to(f"{DEVICE_TYPE}:0"), DEVICES)
        self.assertEqual([one.device for one in copies], DEVICES)
        for one in copies:
            self.assert_bit_equal(one, self.x)

    def test_broadcast_writes_tensors_that_are_given(self):
        out = [torch.empty(4, 3, device=device) for device in DEVICES]
        comm.broadcast(self.x.to(f"{DEVICE_TYPE}:0"), out=out)
        for one in out:
            self.assert_bit_equal(one, self.x)

    def test_broadcast_coalesced_copies_all_tensors_to_each_device(self):
        tensors = [self.x.to(f"{DEVICE_TYPE}:0"), self.x[0].to(f"{DEVICE_TYPE}:0")]
        for device, copies in zip(DEVICES, comm.broadcast_coalesced(tensors, DEVICES), strict=True):
            for one, expected in zip(copies, (self.x, self.x[0]), strict=True):
                self.assertEqual(one.device, device)
                self.assert_bit_equal(one, expected)

    def test_broadcast_coalesced_under_autocast_does_not_warn(self):
        tensors = [self.x.to(f"{DEVICE_TYPE}:0")]
        with torch.autocast(DEVICE_TYPE), warnings.catch_warnings():
            warnings.simplefilter("error")
            comm.broadcast_coalesced(tensors, DEVICES)

    @parametrize("source", ["cpu", f"{DEVICE_TYPE}:0"])
    @parametrize("dim", [0, 1])
    def test_scatter_gives_equal_chunks(self, source, dim):
        chunks = comm.scatter(self.x.to(source), DEVICES, dim=dim)
        for device, chunk, expected in zip(DEVICES, chunks, self.x.chunk(2, dim), strict=True):
            self.assertEqual(chunk.device, device)
            self.assert_bit_equal(chunk, expected)

    def test_scatter_gives_chunks_of_the_sizes_asked_for(self):
        chunks = comm.scatter(self.x, DEVICES, chunk_sizes=[1, 3])
        self.assert_bit_equal(chunks[0], self.x[:1])
        self.assert_bit_equal(chunks[1], self.x[1:])

    def test_scatter_writes_tensors_that_are_given(self):
        out = [torch.empty(1, 3, device=DEVICES[0]), torch.empty(3, 3, device=DEVICES[1])]
        comm.scatter(self.x, out=out)
        self.assert_bit_equal(torch.cat([one.cpu() for one in out]), self.x)

    def test_scatter_copies_on_the_streams_that_are_given(self):
        stream = torch.openreg.Stream(DEVICES[1])
        with torch.openreg.device(1), StreamGate() as gate:  # holds the device's current stream
            chunks = comm.scatter(self.x, [DEVICES[1]], streams=[stream])
            stream.synchronize()
            gate.open()
        self.assert_bit_equal(chunks[0], self.x)

    @parametrize("destination", ["cpu", f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:1"])
    def test_gather_joins_at_the_destination(self, destination):
        parts = [self.x[:1].to(DEVICES[0]), self.x[1:].to(DEVICES[1])]
        joined = comm.gather(parts, destination=destination)
        self.assertEqual(joined.device, torch.device(destination))
        self.assert_bit_equal(joined, self.x)

    def test_gather_joins_on_the_current_device_by_default(self):
        with torch.openreg.device(1):
            joined = comm.gather([self.x.to(device) for device in DEVICES])
        self.assertEqual(joined.device, DEVICES[1])

    def test_gather_writes_a_tensor_that_is_given(self):
        out = torch.empty(4, 3, device=DEVICES[1])
        parts = [self.x[:1].to(DEVICES[0]), self.x[1:].to(DEVICES[1])]
        self.assertIs(comm.gather(parts, out=out), out)
        self.assert_bit_equal(out, self.x)


class TestChoice(OpenRegTestCase):
    """A build of torch with CUDA has its own functions, for CUDA."""

    def setUp(self):
        super().setUp()
        self.choose = _comm._by_devices(lambda *_: "ours", lambda *_: "theirs")
        self.x = torch.ones(1)

    def test_our_devices_get_our_functions(self):
        y = self.x.to(DEVICE_TYPE)
        self.assertEqual(self.choose(y, [0]), "ours")
        self.assertEqual(self.choose([[self.x], [y]], 0, None), "ours")
        self.assertEqual(self.choose(self.x, [y]), "ours")
        self.assertEqual(self.choose(self.x, [0], None, 0, [None, torch.openreg.Stream()]), "ours")

    def test_other_devices_keep_theirs(self):
        self.assertEqual(self.choose(self.x.to("meta"), [0]), "theirs")
        self.assertEqual(self.choose([self.x, self.x.to("meta")], 0, None), "theirs")

    def test_tensors_of_the_cpu_go_where_data_parallel_sends_them(self):
        for available, chosen in ((DEVICE_TYPE, "ours"), ("xpu", "theirs")):
            with mock.patch.object(_comm, "_get_available_device_type", return_value=available):
                self.assertEqual(self.choose(self.x, [0], None, 0, None), chosen)


@requires_two_devices
class TestModule(OpenRegTestCase):
    """torch.openreg.comm has the functions of torch.cuda.comm."""

    def test_functions_are_those_of_torch_cuda_comm(self):
        import torch.cuda.comm

        self.assertEqual(sorted(torch.openreg.comm.__all__), sorted(torch.cuda.comm.__all__))
        for name in torch.cuda.comm.__all__:
            self.assertIs(getattr(torch.openreg.comm, name), getattr(comm, name))

    def test_it_can_be_imported_by_its_path(self):
        import torch.openreg.comm as imported

        self.assertIs(imported, torch.openreg.comm)

    def test_reduce_add_sums_on_the_destination(self):
        x = torch.arange(12.0).view(4, 3)
        parts = [x.to(device) for device in DEVICES]
        total = torch.openreg.comm.reduce_add(parts, destination=1)
        self.assertEqual(total.device, DEVICES[1])
        self.assert_bit_equal(total, x + x)

    def test_reduce_add_coalesced_sums_lists(self):
        x = torch.arange(12.0).view(4, 3)
        lists = [[x.to(device), x[0].to(device)] for device in DEVICES]
        totals = torch.openreg.comm.reduce_add_coalesced(lists, destination=0)
        for total, expected in zip(totals, (x + x, x[0] + x[0]), strict=True):
            self.assertEqual(total.device, DEVICES[0])
            self.assert_bit_equal(total, expected)


class Scaled(torch.nn.Module):
    """A linear layer; remembers what each replica was given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.seen = []

    def forward(self, x, *, scale=1.0, more=None):
        self.seen.append((x.device, len(x)))
        y = self.layer(x) * scale
        return {"y": y if more is None else y + more["shift"]}


@requires_two_devices
class TestDataParallel(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.model = Scaled()
        self.x = torch.randn(6, 3)

    def parallel(self, **settings):
        return torch.nn.DataParallel(copy.deepcopy(self.model).to(DEVICES[0]), **settings)

    def train(self, forward, parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            forward(self.x).square().sum().backward()
            optimizer.step()

    def test_all_devices_take_part_by_default(self):
        parallel = self.parallel()
        self.assertEqual(parallel.device_ids, list(range(torch.openreg.device_count())))
        parallel(self.x)
        self.assertEqual(sum(size for _, size in parallel.module.seen), 6)
        self.assertEqual(
            {device for device, _ in parallel.module.seen},
            {torch.device(DEVICE_TYPE, index) for index in parallel.device_ids},
        )

    def test_training_gives_the_bits_of_training_half_by_half(self):
        parallel = self.parallel(device_ids=[0, 1])
        self.train(lambda x: parallel(x)["y"], parallel.parameters())
        self.train(
            lambda x: torch.cat([self.model(half)["y"] for half in x.chunk(2)]),
            self.model.parameters(),
        )
        for actual, expected in zip(parallel.parameters(), self.model.parameters(), strict=True):
            self.assertEqual(actual.device, DEVICES[0])
            self.assert_bit_equal(actual.detach(), expected.detach())

    def test_output_is_gathered_where_it_is_asked_for(self):
        for index in (0, 1):
            output = self.parallel(device_ids=[0, 1], output_device=index)(self.x)["y"]
            self.assertEqual(output.device, DEVICES[index])
            self.assert_bit_equal(output.detach(), self.model(self.x)["y"].detach())

    def test_keywords_and_containers_are_scattered(self):
        more = {"shift": torch.arange(12.0).view(6, 2)}
        output = self.parallel(device_ids=[0, 1])(self.x, scale=2.0, more=more)["y"]
        expected = self.model(self.x, scale=2.0, more=more)["y"]
        self.assert_bit_equal(output.detach(), expected.detach())

    def test_batch_of_one_row_uses_one_device(self):
        parallel = self.parallel(device_ids=[0, 1])
        parallel(self.x[:1])
        self.assertEqual(parallel.module.seen, [(DEVICES[0], 1)])

    def test_module_on_another_device_is_refused(self):
        parallel = torch.nn.DataParallel(copy.deepcopy(self.model).to(DEVICES[1]), [0, 1])
        with self.assertRaisesRegex(RuntimeError, "module must have its parameters"):
            parallel(self.x)

    def test_autocast_outside_of_forward_works_or_is_warned_of(self):
        # Up to 2.13, torch passes CUDA's autocast to the threads of the replicas, and no other.
        parallel = self.parallel(device_ids=[0, 1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.autocast(DEVICE_TYPE, dtype=torch.float16):
                output = parallel(self.x)["y"]
        warned = [one for one in caught if "DataParallel: autocast" in str(one.message)]
        if DEVICE_TYPE == "cuda" or HAS_ACCELERATOR_AUTOCAST:
            self.assertEqual((output.dtype, warned), (torch.float16, []))
            return
        self.assertEqual(output.dtype, torch.float32)
        self.assertEqual(len(warned), 1)
        self.assertIn("Enter torch.autocast('openreg') in the module's forward", str(warned[0]))
        self.assertEqual(warned[0].filename, __file__)

    def test_autocast_in_forward_works_without_a_warning(self):
        forward = torch.autocast(DEVICE_TYPE, dtype=torch.float16)(Scaled.forward)
        with (
            mock.patch.object(Scaled, "forward", forward),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")
            self.assertEqual(self.parallel(device_ids=[0, 1])(self.x)["y"].dtype, torch.float16)

    def test_error_of_a_replica_comes_out(self):
        with self.assertRaisesRegex(RuntimeError, "in replica"):
            self.parallel(device_ids=[0, 1])(torch.randn(6, 4))


instantiate_parametrized_tests(TestComm)

if __name__ == "__main__":
    run_tests()
