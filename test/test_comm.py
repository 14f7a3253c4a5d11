"""Tensors spread over devices, as torch.nn.parallel.comm and DataParallel do it."""

import torch
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)
from torch.nn.parallel import comm

DEVICES = [torch.device("openreg", 0), torch.device("openreg", 1)]


@requires_two_devices
class TestComm(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.arange(12.0).view(4, 3)

    def test_broadcast_copies_to_each_device(self):
        copies = comm.broadcast(self.x.to("openreg:0"), DEVICES)
        self.assertEqual([copy.device for copy in copies], DEVICES)
        for copy in copies:
            self.assert_bit_equal(copy, self.x)

    def test_broadcast_writes_tensors_that_are_given(self):
        out = [torch.empty(4, 3, device=device) for device in DEVICES]
        comm.broadcast(self.x.to("openreg:0"), out=out)
        for one in out:
            self.assert_bit_equal(one, self.x)

    def test_broadcast_coalesced_copies_all_tensors_to_each_device(self):
        tensors = [self.x.to("openreg:0"), self.x[0].to("openreg:0")]
        for device, copies in zip(DEVICES, comm.broadcast_coalesced(tensors, DEVICES), strict=True):
            for copy, expected in zip(copies, (self.x, self.x[0]), strict=True):
                self.assertEqual(copy.device, device)
                self.assert_bit_equal(copy, expected)

    @parametrize("source", ["cpu", "openreg:0"])
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

    @parametrize("destination", ["cpu", "openreg:0", "openreg:1"])
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


instantiate_parametrized_tests(TestComm)

if __name__ == "__main__":
    run_tests()
