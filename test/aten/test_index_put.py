"""Writing a tensor of the CPU at indices on the device: the host waits, and the CPU writes."""

import threading

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)

PUT = torch.ops.aten._index_put_impl_
CALLS = {
    "index_put": torch.ops.aten.index_put,
    "index_put_": torch.ops.aten.index_put_,
    "_index_put_impl_": PUT,
    "_unsafe_index_put": torch.ops.aten._unsafe_index_put,
}
MASK = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
INDICES = {
    "long": (torch.tensor([2, 0]),),
    "int": (torch.tensor([-1, 0], dtype=torch.int32),),
    "repeated": (torch.tensor([1, 1, 1]),),
    "two": (torch.tensor([2, 0]), torch.tensor([1, 3])),
    "second": (None, torch.tensor([3, 0, 2])),
    "mask": (MASK,),
    "mask_of_rows": (torch.tensor([True, False, True]),),
    "nothing": (torch.tensor([], dtype=torch.long),),
    "number": (torch.tensor(1),),
}


def on_device(indices, device=DEVICE_TYPE):
    return [None if one is None else one.to(device) for one in indices]


def written_shape(x, indices):
    return x[tuple(slice(None) if one is None else one for one in indices)].shape


class TestIndexPutOnHost(OpenRegTestCase):
    @parametrize("call", [subtest(one, name=name) for name, one in CALLS.items()])
    @parametrize("indices", [subtest(one, name=name) for name, one in INDICES.items()])
    @parametrize("accumulate", [False, True])
    def test_result_is_the_cpu_s(self, call, indices, accumulate):
        x = torch.randn(3, 4)
        values = torch.randn(written_shape(x, indices))
        expected, actual = x.clone(), x.clone()
        result = call(expected, list(indices), values, accumulate)
        returned = call(actual, on_device(indices), values, accumulate)
        self.assertEqual(returned.device, x.device)
        self.assertEqual(returned is actual, result is expected)
        self.assert_bit_equal(returned, result)
        self.assert_bit_equal(actual, expected)

    def test_assignments_are_the_cpu_s(self):
        x = torch.randn(3, 4)
        number = torch.tensor(7.0)
        for key, value in (
            (MASK, torch.randn(int(MASK.sum()))),
            (MASK, 2.0),
            (MASK, number),
            (torch.tensor([2, 0]), torch.randn(2, 4)),
            (torch.tensor([2, 0]), torch.randn(4)),
            (torch.tensor(1), torch.randn(4)),
            ((slice(None), torch.tensor([1, 3])), 3.0),
        ):
            expected, actual = x.clone(), x.clone()
            expected[key] = value
            moved = tuple(
                one.to(DEVICE_TYPE) if isinstance(one, torch.Tensor) else one
                for one in (key if isinstance(key, tuple) else (key,))
            )
            actual[moved] = value
            self.assert_bit_equal(actual, expected)

    @parametrize("accumulate", [False, True])
    @parametrize("place", ["cpu", DEVICE_TYPE])
    def test_number_of_the_device_is_taken(self, accumulate, place):
        x, index = torch.ones(3), torch.tensor([0, 2])
        expected = x.index_put((index,), torch.tensor(4.0), accumulate)
        number = torch.tensor(4.0, device=DEVICE_TYPE)
        self.assert_bit_equal(x.index_put((index.to(place),), number, accumulate), expected)

    @parametrize("accumulate", [False, True])
    @parametrize("place", ["cpu", DEVICE_TYPE])
    def test_other_values_of_the_device_are_refused(self, accumulate, place):
        index = torch.tensor([0, 2], device=place)
        for size in (1, 2):
            x, values = torch.zeros(3), torch.ones(size, device=DEVICE_TYPE)
            with self.assertRaisesRegex(RuntimeError, f"same device.*{DEVICE_TYPE}:0 and cpu"):
                x.index_put_((index,), values, accumulate)
            self.assert_bit_equal(x, torch.zeros(3))

    @parametrize("place", ["cpu", DEVICE_TYPE])
    def test_assigned_values_of_the_device_are_numbers(self, place):
        x, index = torch.zeros(3), torch.tensor([0, 2], device=place)
        with self.assertRaisesRegex(RuntimeError, f"same device.*{DEVICE_TYPE}:0 and cpu"):
            x[index] = torch.ones(2, device=DEVICE_TYPE)
        # torch drops dimensions of size 1 in front, which leaves a number.
        x[index] = torch.ones(1, device=DEVICE_TYPE)
        self.assertEqual(x.tolist(), [1.0, 0.0, 1.0])

    @parametrize(
        "indices,values",
        [
            subtest(([[0, 1], [0, 1]], [1.0]), name="too_many"),
            subtest(([[0.5]], [1.0]), name="floats"),
            subtest(([[0, 1]], [1.0, 2.0, 3.0]), name="shape"),
            subtest(([[0, 7]], [1.0, 2.0]), name="out_of_bounds"),
            subtest(([[0, 1]], [1, 2]), name="type"),
            subtest(([[True, False]], [1.0]), name="mask_of_another_size"),
        ],
    )
    def test_errors_are_the_cpu_s(self, indices, values):
        tensors, x = [torch.tensor(one) for one in indices], torch.zeros(3)
        errors = []
        for moved in (tensors, on_device(tensors)):
            with self.assertRaises((RuntimeError, IndexError)) as caught:
                x.index_put_(moved, torch.tensor(values))
            errors.append((type(caught.exception), str(caught.exception).split("\n")[0]))
        self.assertEqual(*errors)

    def test_reading_at_indices_of_the_device_is_refused_as_on_cuda(self):
        x, index = torch.zeros(3), torch.tensor([0, 2], device=DEVICE_TYPE)
        mask = torch.tensor([True, False, True], device=DEVICE_TYPE)
        text = r"indices should be either on cpu or on the same device as the indexed tensor \(cpu"
        for read in (
            lambda: x[index],
            lambda: x[mask],
            lambda: torch.ops.aten._unsafe_index(x, [index]),
        ):
            with self.assertRaisesRegex(RuntimeError, text):
                read()

    def test_gradient_of_the_tensor_is_the_cpu_s(self):
        gradients = []
        for device in ("cpu", DEVICE_TYPE):
            x = torch.arange(3.0, requires_grad=True)
            index = torch.tensor([0, 2], device=device)
            y = x.index_put((index,), torch.tensor(5.0)) * torch.tensor([1.0, 2.0, 3.0])
            gradients.append(torch.autograd.grad(y.sum(), x)[0])
        self.assert_bit_equal(*gradients)

    def test_gradient_of_the_values_is_read_at_the_indices(self):
        values = torch.ones(2, requires_grad=True)
        y = torch.zeros(3).index_put((torch.tensor([0, 2], device=DEVICE_TYPE),), values)
        with self.assertRaisesRegex(RuntimeError, "indices should be either on cpu"):
            y.sum().backward()

    def test_host_waits_for_the_indices(self):
        index, x = torch.tensor([0, 1], device=DEVICE_TYPE), torch.zeros(3)
        torch.openreg.synchronize()
        gate = StreamGate()
        with gate:
            index.add_(1)
            writer = threading.Thread(target=x.index_put_, args=((index,), torch.tensor(1.0)))
            writer.start()
            gate.wait_until_reached()
            self.assert_bit_equal(x, torch.zeros(3))
            gate.open()
            writer.join()
        self.assertEqual(x.tolist(), [0.0, 1.0, 1.0])

    def test_write_is_a_synchronizing_operation(self):
        x, index = torch.zeros(3), torch.tensor([0, 2], device=DEVICE_TYPE)
        self.addCleanup(torch.openreg.set_sync_debug_mode, "default")
        torch.openreg.set_sync_debug_mode("error")
        with self.assertRaisesRegex(RuntimeError, "called a synchronizing"):
            x[index] = 1.0
        self.assert_bit_equal(x, torch.zeros(3))

    def test_write_cannot_be_captured(self):
        x, index = torch.zeros(3), torch.tensor([0, 2], device=DEVICE_TYPE)
        torch.openreg.synchronize()
        graph = torch.openreg.Graph()
        with self.assertRaises(RuntimeError), torch.openreg.graph(graph):  # noqa: SIM117
            with self.assertRaisesRegex(torch.AcceleratorError, "device to host"):
                x[index] = 1.0
        self.assertFalse(torch.openreg.is_current_stream_capturing())
        self.assert_bit_equal(x, torch.zeros(3))

    @requires_two_devices
    def test_indices_and_numbers_of_another_device_move(self):
        first, second = (f"{DEVICE_TYPE}:{index}" for index in range(2))
        mask = torch.tensor([True, False, True, True])
        for device in ("cpu", first):
            x = torch.zeros(3, 4, device=device)
            x[torch.tensor([0, 2], device=second)] = torch.tensor(4.0, device=second)
            x[torch.tensor([1], device=first), mask.to(second)] = 5.0
            self.assertEqual(x.tolist(), [[4.0] * 4, [5.0, 0.0, 5.0, 5.0], [4.0] * 4])


class TestIndexing(OpenRegTestCase):
    """Errors of indexing on the device, which has the order of the CPU's checks."""

    def assert_raises_as_on_the_cpu(self, call):
        with self.assertRaises(Exception) as expected:
            call("cpu")
        with self.assertRaises(type(expected.exception)) as actual:
            call(DEVICE_TYPE)
        self.assertEqual(str(actual.exception), str(expected.exception))
        torch.openreg.synchronize()

    def test_indices_that_do_not_broadcast_are_an_index_error(self):
        def write(device):
            torch.zeros(5, 5, device=device)[[0, 1], [0, 1, 2]] = 0

        def read(device):
            torch.zeros(5, 5, device=device)[[0, 1], [0, 1, 2]]

        self.assert_raises_as_on_the_cpu(write)
        self.assert_raises_as_on_the_cpu(read)

    def test_shape_of_values_is_checked_before_their_dtype(self):
        def write(device):
            x = torch.zeros(3, dtype=torch.float64, device=device)
            x[x > -1] = torch.tensor([], device=device)

        self.assert_raises_as_on_the_cpu(write)

    def test_overlap_is_checked_before_the_shape(self):
        def write(device):
            x = torch.zeros(3, device=device)
            x[torch.tensor([0], device=device)] = x[:2]

        self.assert_raises_as_on_the_cpu(write)

    @parametrize("accumulate", [False, True])
    def test_dtypes_that_the_kernel_lacks_are_refused_at_the_call(self, accumulate):
        def write(device):
            x = torch.zeros(3, dtype=torch.uint16, device=device)
            x.index_put_((torch.tensor([0], device=device),), x[:1].clone(), accumulate)

        self.assert_raises_as_on_the_cpu(write)

    @requires_two_devices
    def test_indices_of_another_device_are_refused_for_reading(self):
        x = torch.zeros(3, device=f"{DEVICE_TYPE}:0")
        text = (
            "indices should be either on cpu or on the same device as the indexed tensor "
            rf"\({DEVICE_TYPE}:0\)"
        )
        for index in (torch.tensor([0, 2]), torch.tensor([True, False, True])):
            with self.assertRaisesRegex(RuntimeError, text):
                x[index.to(f"{DEVICE_TYPE}:1")]
            self.assertEqual(x[index].tolist(), [0.0, 0.0])


instantiate_parametrized_tests(TestIndexPutOnHost)
instantiate_parametrized_tests(TestIndexing)

if __name__ == "__main__":
    run_tests()
