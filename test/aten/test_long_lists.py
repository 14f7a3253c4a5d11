"""Lists of many tensors: results are the CPU's, and a tensor costs as much as in a short list."""

import time

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
    subtest,
)

from torch_openreg.extras.sanitizer import sanitizer

COUNT = 40  # more than the number that is compared one by one


def like_ones():
    return [torch.randn(3, 4, 2) for _ in range(COUNT)]


def with_one_else(other):
    tensors = like_ones()
    tensors[COUNT // 2] = other
    return tensors


LISTS = {
    "alike": like_ones,
    "other_dtype": lambda: with_one_else(torch.ones(3, 4, 2, dtype=torch.float64)),
    "not_contiguous": lambda: with_one_else(torch.randn(2, 4, 3).transpose(0, 2)),
    "the_same_twice": lambda: like_ones()[:1] * COUNT,
    "views": lambda: list(torch.randn(COUNT, 3, 4, 2)),
    "overlapping_views": lambda: list(torch.randn(COUNT + 24).unfold(0, 24, 1).view(-1, 3, 4, 2)),
    "integers": lambda: [torch.full((3, 4, 2), i) for i in range(COUNT)],
    "booleans": lambda: [torch.full((3, 4, 2), i % 2 == 0) for i in range(COUNT)],
    "halves": lambda: [t.half() for t in like_ones()],
    "complex": lambda: [torch.randn(3, 4, 2, dtype=torch.complex64) for _ in range(COUNT)],
    "conjugated": lambda: [torch.randn(3, 4, 2, dtype=torch.complex64).conj()] * COUNT,
    "no_elements": lambda: [torch.empty(3, 0, 2)] * COUNT,
    "large": lambda: [torch.randn(30, 40, 20) for _ in range(COUNT)],
}
UNEQUAL = {
    "first_dim": (0, lambda i: (i % 5 + 1, 3)),
    "last_dim": (-1, lambda i: (3, i % 5 + 1)),
    "middle_dim": (1, lambda i: (2, i % 7, 3)),
    "one_dim": (0, lambda i: (i,)),
    "some_have_no_dim_of_size": (0, lambda i: (0,) if i % 3 == 0 else (i,)),
    "channels_last": (1, lambda i: (2, i % 2 + 1, 3, 1)),
}


def on_device(tensors):
    """The tensors on the device; those of one storage stay on one."""
    storages = {}
    moved = []
    for tensor in tensors:
        key = tensor.untyped_storage().data_ptr()
        if key not in storages:
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            storages[key] = whole.to(DEVICE_TYPE)
        view = storages[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        moved.append(view.conj() if tensor.is_conj() else view)
    return moved


def cost_per_tensor(function, count, repetitions=5):
    """Seconds that a call takes per tensor, the least of some calls."""
    tensors = list(torch.ones(count, 2, device=DEVICE_TYPE).unbind())
    seconds = []
    for _ in range(repetitions):
        torch.accelerator.synchronize()
        start = time.perf_counter()
        function(tensors)
        torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds) / count


class TestLongLists(OpenRegTestCase):
    @parametrize("name", list(LISTS))
    @parametrize("function", [torch.stack, torch.cat], name_fn=lambda function: function.__name__)
    @parametrize("dim", [0, 1, -1])
    def test_joined_tensors_are_the_cpus(self, function, name, dim):
        tensors = LISTS[name]()
        expected = function(tensors, dim)
        moved = on_device(tensors)
        for _ in range(2):
            actual = function(moved, dim)
            self.assertEqual(actual.stride(), expected.stride())
            self.assert_bit_equal(actual, expected)

    @parametrize("name", list(UNEQUAL))
    def test_cat_of_different_sizes_is_the_cpus(self, name):
        dim, size = UNEQUAL[name]
        tensors = [torch.randn(size(i)) for i in range(COUNT)]
        if name == "channels_last":
            tensors = [t.to(memory_format=torch.channels_last) for t in tensors]
        moved = [t.to(DEVICE_TYPE) for t in tensors]
        expected = torch.cat(tensors, dim)
        actual = torch.cat(moved, dim)
        self.assertEqual(actual.stride(), expected.stride())
        self.assert_bit_equal(actual, expected)

    @parametrize("dim", [0, 1, 5, -3])
    def test_cat_of_tensors_without_elements_takes_any_dimension(self, dim):
        for count in (1, 2, COUNT):
            expected = torch.cat([torch.empty(0)] * count, dim)
            actual = torch.cat([torch.empty(0, device=DEVICE_TYPE)] * count, dim)
            self.assertEqual(actual.shape, expected.shape)

    @parametrize("function", [torch.stack, torch.cat], name_fn=lambda function: function.__name__)
    def test_results_go_where_out_says(self, function):
        tensors = like_ones()
        moved = on_device(tensors)
        for out in (torch.empty(0), torch.empty(0, dtype=torch.float64)):
            actual = out.to(DEVICE_TYPE)
            function(moved, out=actual)
            self.assert_bit_equal(actual, function(tensors, out=out))

    @parametrize("function", [torch.stack, torch.cat], name_fn=lambda function: function.__name__)
    def test_gradients_are_the_cpus(self, function):
        tensors = like_ones()
        moved = on_device(tensors)
        for each in (tensors, moved):
            for tensor in each:
                tensor.requires_grad_()
            (function(each) ** 2).sum().backward()
        for actual, expected in zip(moved, tensors, strict=True):
            self.assert_bit_equal(actual.grad, expected.grad)

    @parametrize("function", [torch.stack, torch.cat], name_fn=lambda function: function.__name__)
    def test_mistakes_are_the_cpus(self, function):
        good = like_ones()
        wrong = with_one_else(torch.ones(5, 4, 7))
        for tensors, dim in ((good, 4), (good, -5), (wrong, 1)):
            with self.assertRaises((IndexError, RuntimeError)) as expected:
                function(tensors, dim)
            with self.assertRaisesRegex(type(expected.exception), ".+"):
                function(on_device(tensors), dim)
                torch.accelerator.synchronize()

    def test_stack_of_tensors_on_two_devices_is_refused(self):
        moved = on_device(like_ones())
        moved[COUNT // 2] = moved[COUNT // 2].cpu()
        with self.assertRaisesRegex(RuntimeError, "same device"):
            torch.stack(moved)

    @parametrize(
        "name",
        [
            subtest("the_same_twice", name="the_same_twice"),
            subtest("views", name="views"),
            subtest("overlapping_views", name="overlapping_views"),
        ],
    )
    def test_kernels_see_what_is_shared(self, name):
        tensors = LISTS[name]()
        moved = on_device(tensors)
        for _ in range(3):  # the first call is different from the others
            torch._foreach_mul_(tensors, 1.5)
            torch._foreach_mul_(moved, 1.5)
        for actual, expected in zip(moved, tensors, strict=True):
            self.assert_bit_equal(actual, expected)

    @parametrize("function", [torch._foreach_add, torch._foreach_norm, torch._foreach_sqrt])
    def test_results_of_any_sizes_are_the_cpus(self, function):
        tensors = [torch.rand(i % 7 + 1, i % 3 + 1) for i in range(COUNT)]
        moved = [t.to(DEVICE_TYPE) for t in tensors]
        others = [2.0] if function is torch._foreach_add else []
        expected = function(tensors, *others)
        for _ in range(3):
            for one, other in zip(function(moved, *others), expected, strict=True):
                self.assert_bit_equal(one, other)

    # A plan applies only to lists whose tensors have the same metadata.
    def test_lists_of_the_same_tensors_in_another_order_are_told_apart(self):
        small, large = torch.rand(2), torch.rand(3)
        for count in (2, 3, COUNT):
            for first in range(count + 1):
                tensors = [small.clone() for _ in range(first)]
                tensors += [large.clone() for _ in range(count - first)]
                for order in (tensors, tensors[::-1], tensors[1:] + tensors[:1]):
                    moved = [t.to(DEVICE_TYPE) for t in order]
                    sums = torch._foreach_add(order, order)
                    for one, other in zip(torch._foreach_add(moved, moved), sums, strict=True):
                        self.assert_bit_equal(one, other)
                moved = [t.to(DEVICE_TYPE) for t in tensors]
                twice = [*moved, moved[0], moved[-1]]
                for one, other in zip(torch._foreach_neg(twice), twice, strict=True):
                    self.assertEqual(one.size(), other.size())

    def test_results_that_are_arguments_are_found(self):
        tensors = [torch.randn(2) for _ in range(COUNT)]
        moved = on_device(tensors)
        for _ in range(2):
            views = torch.broadcast_tensors(*moved)
            for actual, original in zip(views, moved, strict=True):
                self.assertEqual(actual.data_ptr(), original.data_ptr())

    def test_the_sanitizer_sees_each_tensor(self):
        tensors = [torch.ones(4, device=DEVICE_TYPE) for _ in range(COUNT)]
        torch.accelerator.synchronize()
        side = torch.Stream(DEVICE_TYPE)
        for function in (torch.stack, torch.cat, torch._foreach_neg):
            with sanitizer.check("collect"):
                tensors[COUNT - 1].fill_(2)
                with side:
                    result = function(tensors)
                torch.accelerator.synchronize()
            (finding,) = sanitizer.findings()
            sanitizer.clear()
            self.assertEqual({access.is_write for access in finding.accesses}, {False, True})
            del result

    # A cost that grew with the square would be 16 times as large.
    @parametrize(
        "name",
        ["stack", "cat", "stack_of_two_dtypes", "in_place", "new_results", "learning", "into_out"],
    )
    def test_a_tensor_costs_the_same_in_a_longer_list(self, name):
        numbers = iter(range(1000))

        def learn(tensors):
            torch._foreach_neg(tensors[next(numbers) :])  # all calls differ

        def mix(tensors):
            torch.stack([*tensors, torch.ones(2, dtype=torch.float64, device=DEVICE_TYPE)])

        function = {
            "stack": torch.stack,
            "cat": torch.cat,
            "stack_of_two_dtypes": mix,
            "in_place": lambda tensors: torch._foreach_add_(tensors, 1),
            "new_results": torch._foreach_sqrt,
            "learning": learn,
            "into_out": lambda tensors: torch.cat(tensors, out=torch.empty(0, device=DEVICE_TYPE)),
        }[name]
        cost_per_tensor(function, 100)  # work that the process does once
        short = cost_per_tensor(function, 500)
        long = cost_per_tensor(function, 8000)
        self.assertLess(long / short, 6, f"{1e6 * short:.2f} and {1e6 * long:.2f} us per tensor")

    # Nothing runs under the schedule before the host waits, which it does when the queue is full.
    @pytest.mark.slow
    @parametrize("name", ["foreach", "stack"])
    @parametrize("limit", [subtest("1MiB", name="a_limit"), subtest("0", name="no_limit")])
    def test_lists_count_in_the_memory_of_a_queue(self, name, limit):
        run_program(
            f"""
            import torch
            tensors = [torch.ones(2, device="openreg") for _ in range(3000)]
            one = torch.ones(1, device="openreg")
            host = torch.zeros(1, pin_memory=True)
            call = {{
                "foreach": lambda: torch._foreach_add_(tensors, 1),
                "stack": lambda: torch.stack(tensors),
            }}["{name}"]
            for _ in range(3):
                call()
            torch.accelerator.synchronize()
            host.copy_(one, non_blocking=True)
            assert host.item() == 0, "the copy has run"
            for _ in range(60):
                call()
            assert host.item() == ("{limit}" != "0"), host
            """,
            {"OPENREG_SCHEDULE": "lazy", "OPENREG_QUEUE_MEMORY": limit},
        )


instantiate_parametrized_tests(TestLongLists)

if __name__ == "__main__":
    run_tests()
