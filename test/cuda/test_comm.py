"""``torch.cuda.comm``: the errors of CUDA's functions, with their texts."""

import torch
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from torch.cuda import comm


@requires_two_devices
class TestRefusals(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.arange(24.0).view(6, 4)
        self.y = self.x.cuda(0)
        self.z = self.x.cuda(1)

    def refuses(self, text):
        return self.assertRaisesRegex(RuntimeError, text)

    def test_broadcast_writes_tensors_of_devices_only(self):
        on_host = torch.zeros_like(self.x)
        text = (
            "all output tensors to be CUDA tensors, but output tensor at index 1 has device 'cpu'"
        )
        with self.refuses(f"Expected {text}"):
            comm.broadcast(self.x, out=[self.y, on_host])
        self.assertEqual(on_host.count_nonzero(), 0)

    def test_broadcast_writes_tensors_of_the_same_shape_only(self):
        text = (
            r"same shape as the source tensor \[6, 4\], but output .* index 1 has shape \[1, 6, 4\]"
        )
        with self.refuses(text):
            comm.broadcast(self.x, out=[self.y, self.z.unsqueeze(0)])

    def test_broadcast_needs_devices_with_an_index(self):
        with self.refuses("Expected non-negative device index, but got -1"):
            comm.broadcast(self.x, [0, -1])

    def test_broadcast_to_no_device_gives_nothing(self):
        self.assertEqual(list(comm.broadcast(self.x, [])), [])

    @parametrize("source", ["x", "z"])
    def test_broadcast_coalesced_takes_tensors_of_the_first_device_only(self, source):
        with self.refuses(r"All tensors must be on devices\[0\]: 0"):
            comm.broadcast_coalesced([self.y, getattr(self, source)], [0, 1])

    def test_broadcast_coalesced_needs_a_device(self):
        with self.refuses("Expected at least one device to broadcast to"):
            comm.broadcast_coalesced([self.y], [])

    def test_scatter_needs_a_size_for_each_device(self):
        text = r"same length, but got len\(devices\) = 2 and len\(chunk_sizes\) = 1"
        for source in (self.x, self.y):
            with self.refuses(f"Expected devices and chunk_sizes to be of {text}"):
                comm.scatter(source, [0, 1], chunk_sizes=(6,))

    def test_scatter_needs_sizes_that_add_up(self):
        with self.refuses("split_with_sizes expects split_sizes to sum exactly to 6"):
            comm.scatter(self.x, [0, 1], chunk_sizes=(1, 4))

    def test_scatter_needs_a_device_or_a_tensor(self):
        with self.refuses("Expected at least one device to scatter to"):
            comm.scatter(self.x, [])
        with self.refuses("Expected at least one output tensor to scatter to"):
            comm.scatter(self.x, out=[])

    def test_scatter_takes_dimensions_that_there_are(self):
        with self.assertRaisesRegex(IndexError, r"range of \[-2, 1\], but got 2"):
            comm.scatter(self.x, [0, 1], dim=2)
        halves = comm.scatter(self.x, [0, 1], dim=-1)
        self.assertEqual([tuple(half.shape) for half in halves], [(6, 2), (6, 2)])

    @parametrize(
        "sizes,text",
        [
            subtest(([(1, 6, 2), (6, 2)], "at index 0 has incorrect shape"), name="rank"),
            subtest(([(6, 2), (5, 2)], "at index 1 has incorrect shape"), name="other_dimension"),
            subtest(([(6, 2), (6, 1)], "dim 1. Expected 4, but got total size 3"), name="total"),
        ],
    )
    def test_scatter_writes_tensors_that_fit_only(self, sizes, text):
        out = [torch.empty(size, device=f"cuda:{i}") for i, size in enumerate(sizes)]
        with self.refuses(text):
            comm.scatter(self.x, dim=1, out=out)

    def test_scatter_writes_tensors_of_devices_only(self):
        with self.refuses("output tensor at index 0 has device 'cpu'"):
            comm.scatter(self.x, out=[self.x[:3].clone(), self.z[:3]])

    @parametrize("form", ["devices", "out"])
    def test_scatter_takes_streams_of_their_devices_only(self, form):
        streams = [None, torch.cuda.Stream(0)]
        targets = {"devices": [0, 1]} if form == "devices" else {"out": [self.y[:3], self.z[:3]]}
        text = r"stream at index 1 \(was 0\) to match the device supplied .* \(expected 1\)"
        with self.refuses(text):
            comm.scatter(self.x, streams=streams, **targets)

    def test_scatter_leaves_a_chunk_on_its_device_as_it_is(self):
        chunks = comm.scatter(self.y, [0, 1])
        self.assertEqual(chunks[0].data_ptr(), self.y.data_ptr())

    def test_gather_takes_tensors_of_devices_only(self):
        text = "all input tensors to be CUDA tensors, but tensor at index 1 has device 'cpu'"
        for to in ({"destination": 0}, {"destination": "cpu"}, {"out": torch.empty(12, 4).cuda()}):
            with self.refuses(f"Expected {text}"):
                comm.gather([self.y, self.x], **to)

    def test_gather_needs_a_tensor(self):
        for to in ({}, {"out": self.y}):
            with self.refuses("Expected at least one tensor to gather from"):
                comm.gather([], **to)

    def test_gather_takes_shapes_that_fit_only(self):
        with self.refuses(r"tensor at index 1 has 3 dimensions, \(expected 2\)"):
            comm.gather([self.y, self.z.unsqueeze(0)])
        with self.refuses(r"index 1 has invalid shape \[6, 2\], but expected \[6, 4\]"):
            comm.gather([self.y, self.z[:, :2]])
        with self.refuses(r"Expected out tensor to have shape \[12, 4\], but got \[6, 4\]"):
            comm.gather([self.y, self.z], out=torch.empty_like(self.x))
        with self.refuses("with a dimension to gather along, got scalars"):
            comm.gather([self.y.sum(), self.z.sum()])

    def test_gather_has_the_dtype_of_the_first_tensor(self):
        joined = comm.gather([self.y, self.z.double()], destination="cpu")
        self.assertEqual(joined, torch.cat([self.x, self.x]))
        self.assertEqual(joined.dtype, torch.float32)

    @parametrize("is_channels_last", [False, True])
    def test_gather_keeps_the_memory_format(self, is_channels_last):
        layout = torch.channels_last if is_channels_last else torch.contiguous_format
        images = [torch.ones(2, 3, 4, 4, device=i).to(memory_format=layout) for i in (0, 1)]
        self.assertTrue(comm.gather(images).is_contiguous(memory_format=layout))


instantiate_parametrized_tests(TestRefusals)

if __name__ == "__main__":
    run_tests()
