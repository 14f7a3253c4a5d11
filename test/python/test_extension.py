"""Extensions in C++: ``torch_openreg.cpp_extension`` and the package ``examples/extension``."""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import torch_openreg
from torch_openreg import cpp_extension

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "extension"
PACKAGE = Path(torch_openreg.__file__).resolve().parent

DTYPES = parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
DEVICES = parametrize("device", ["cpu", "openreg"])


def folder_of(case: type[unittest.TestCase]) -> Path:
    """Returns a folder that is removed when the tests of a class are done."""
    folder = tempfile.TemporaryDirectory()
    case.addClassCleanup(folder.cleanup)
    return Path(folder.name)


class TestPaths(OpenRegTestCase):
    def test_headers_are_where_the_include_path_says(self):
        (folder,) = map(Path, cpp_extension.include_paths())
        for header in ("openreg/openreg.h", "torch_openreg/core/Launch.h"):
            self.assertTrue((folder / header).is_file(), header)

    def test_libraries_are_where_the_library_path_says(self):
        (folder,) = map(Path, cpp_extension.library_paths())
        for library in ("libopenreg.so", "libtorch_openreg.so"):
            self.assertTrue((folder / library).is_file(), library)

    def test_paths_of_the_author_come_first(self):
        extension = cpp_extension.OpenRegExtension(
            "name",
            ["source.cpp"],
            include_dirs=["mine"],
            library_dirs=["mine"],
            libraries=["mine"],
            define_macros=[("MINE", "1")],
        )
        self.assertEqual(extension.include_dirs[:2], ["mine", *cpp_extension.include_paths()])
        self.assertEqual(extension.library_dirs[:2], ["mine", *cpp_extension.library_paths()])
        self.assertEqual(extension.libraries[:3], ["mine", "torch_openreg", "openreg"])
        self.assertEqual(extension.define_macros, [("MINE", "1")])


class TestLoad(OpenRegTestCase):
    """A library that is built and loaded at run time."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = folder_of(cls)
        source = folder / "fill.cpp"
        source.write_text(
            """
            #include <ATen/ops/empty.h>
            #include <torch/library.h>
            #include <torch_openreg/aten/KernelArguments.h>
            #include <torch_openreg/core/Event.h>

            // The numbers from 0 on, written on a stream of the pool.
            at::Tensor count(int64_t size) {
              const c10::Device device(c10::openreg::kDeviceType, c10::openreg::current_device());
              at::Tensor out = at::empty({size}, at::TensorOptions(device).dtype(at::kLong));
              const auto current = c10::openreg::getCurrentOpenRegStream();
              const auto side = c10::openreg::getStreamFromPool();
              c10::openreg::waitForStream(side, current);
              c10::openreg::launchKernel<"fill_test::count">(
                  side, [alias = at::openreg::TensorAlias(out)] {
                    at::Tensor out = alias.tensor();
                    int64_t* data = out.mutable_data_ptr<int64_t>();
                    for (int64_t i = 0; i < out.numel(); ++i) {
                      data[i] = i;
                    }
                  });
              c10::openreg::waitForStream(current, side);
              return out;
            }

            // Every view that a kernel may be given: the sum of what they view.
            void sumKernel(at::Tensor& out, std::string_view text,
                           std::optional<std::string_view> optional_text, at::IntArrayRef list,
                           at::OptionalIntArrayRef optional_list, at::ITensorListRef tensors,
                           const c10::List<std::optional<at::Tensor>>& optional_tensors) {
              int64_t sum = text == "eleven" ? 11 : 0;
              sum += optional_text == "twelve" ? 12 : 0;
              for (const int64_t value : list) sum += value;
              for (const int64_t value : *optional_list) sum += value;
              for (const at::Tensor& tensor : tensors) sum += *tensor.const_data_ptr<int64_t>();
              for (const std::optional<at::Tensor> tensor : optional_tensors) {
                sum += tensor.has_value() ? *tensor->const_data_ptr<int64_t>() : 1000;
              }
              *out.mutable_data_ptr<int64_t>() = sum;
            }

            // What the arguments view is overwritten and gone before the kernel runs.
            at::Tensor sumOfViews(const at::Tensor& value) {
              at::Tensor out = at::empty({}, value.options());
              std::string texts[] = {"eleven", "twelve"};
              std::vector<int64_t> numbers = {100, 200};
              std::vector<at::Tensor> tensors = {value, value};
              at::openreg::enqueue<"fill_test::sum_of_views">(
                  value.device(), &sumKernel, out, std::string_view(texts[0]),
                  std::optional<std::string_view>(texts[1]), at::IntArrayRef(numbers),
                  at::OptionalIntArrayRef(numbers), at::ITensorListRef(tensors),
                  c10::List<std::optional<at::Tensor>>({value, std::nullopt}));
              texts[0] = texts[1] = "gone";
              numbers[0] = numbers[1] = 0;
              tensors.clear();
              return out;
            }

            TORCH_LIBRARY(fill_test, m) {
              m.def("count(int size) -> Tensor", &count);
              m.def("sum_of_views(Tensor value) -> Tensor", &sumOfViews);
            }
            """
        )
        cls.result = cpp_extension.load(
            "fill_test",
            [str(source)],
            extra_cflags=["-O0", "-g0"],
            build_directory=str(folder),
            is_python_module=False,
        )

    def test_library_of_operators_is_loaded(self):
        self.assertEqual(torch.ops.fill_test.count(5).tolist(), [0, 1, 2, 3, 4])

    def test_kernel_arguments_own_what_the_call_viewed(self):
        value = torch.tensor(5, device="openreg")
        torch.openreg.synchronize()
        with StreamGate():
            out = torch.ops.fill_test.sum_of_views(value)
            self.assertFalse(torch.openreg.current_stream().query())
        self.assertEqual(out.item(), 11 + 12 + 2 * (100 + 200) + 3 * 5 + 1000)

    def test_streams_are_ordered_by_events(self):
        torch.openreg.synchronize()
        with StreamGate():
            x = torch.ops.fill_test.count(3)
            self.assertFalse(torch.openreg.current_stream().query())
        self.assertEqual(x.tolist(), [0, 1, 2])


class TestExampleExtension(OpenRegTestCase):
    """The package of ``examples/extension``, built from a copy as its author would."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = folder_of(cls) / "extension"
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("build", "*.so"))
        built = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if built.returncode != 0:
            raise AssertionError(f"the extension cannot be built\n{built.stdout}\n{built.stderr}")
        sys.path.insert(0, str(folder))
        cls.addClassCleanup(sys.path.remove, str(folder))
        cls.package = importlib.import_module("openreg_rows")

    def take_rows(self, table, rows):
        return self.package.take_rows(table, rows)

    @DEVICES
    @DTYPES
    def test_value_is_that_of_index(self, device, dtype):
        table = torch.randn(5, 3).to(dtype)
        rows = torch.tensor([4, 0, 0, 2])
        actual = self.take_rows(table.to(device), rows.to(device))
        self.assertEqual(actual.device.type, device)
        self.assert_bit_equal(actual, table[rows])

    @DEVICES
    @DTYPES
    def test_gradient_adds_up_rows_that_are_taken_twice(self, device, dtype):
        table = torch.zeros(4, 2, dtype=dtype, device=device, requires_grad=True)
        rows = torch.tensor([3, 1, 3], device=device)
        gradient = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=dtype, device=device)
        self.take_rows(table, rows).backward(gradient)
        self.assertEqual(table.grad.tolist(), [[0, 0], [3, 4], [0, 0], [6, 8]])

    @DEVICES
    def test_gradients_are_correct(self, device):
        table = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
        rows = torch.tensor([1, 3, 1], device=device)
        self.assertTrue(gradcheck(self.take_rows, (table, rows)))
        self.assertTrue(gradgradcheck(self.take_rows, (table, rows)))

    @DEVICES
    def test_strided_arguments_are_taken(self, device):
        table, rows = torch.randn(6, 8), torch.tensor([2, 0, 1, 0, 0, 0])
        actual = self.take_rows(table.to(device).t()[::2], rows.to(device)[::2])
        self.assert_bit_equal(actual, table.t()[::2][rows[::2]])

    @DEVICES
    def test_no_rows_give_no_rows(self, device):
        table = torch.ones(2, 3, device=device, requires_grad=True)
        taken = self.take_rows(table, torch.tensor([], dtype=torch.int64, device=device))
        self.assertEqual(taken.shape, (0, 3))
        taken.sum().backward()
        self.assertEqual(table.grad.tolist(), [[0, 0, 0]] * 2)

    def test_forward_and_backward_return_before_their_kernels_ran(self):
        table = torch.ones(4, 2, device="openreg", requires_grad=True)
        rows = torch.tensor([3, 1, 3], device="openreg")
        torch.openreg.synchronize()
        with StreamGate():
            taken = self.take_rows(table, rows)
            taken.sum().backward()
            self.assertFalse(torch.openreg.current_stream().query())
        self.assertEqual(taken.tolist(), [[1, 1]] * 3)
        self.assertEqual(table.grad.tolist(), [[0, 0], [1, 1], [0, 0], [2, 2]])

    def test_kernel_runs_on_the_current_stream(self):
        table = torch.ones(4, 2, device="openreg")
        rows = torch.tensor([3, 1, 3], device="openreg")
        torch.openreg.synchronize()
        side = torch.openreg.Stream()
        with StreamGate(), side:
            taken = self.take_rows(table, rows)
            side.synchronize()  # would not return if the kernel were after the gate
        self.assertEqual(taken.tolist(), [[1, 1]] * 3)

    def test_bad_row_is_an_error_of_the_next_synchronizing_call(self):
        table = torch.ones(4, 2, device="openreg")
        rows = torch.tensor([0, 4], device="openreg")
        torch.openreg.synchronize()
        with StreamGate():
            self.take_rows(table, rows)  # cannot know
        with self.assertRaisesRegex(IndexError, "openreg_rows::take_rows.*a row below 4, got 4"):
            torch.openreg.synchronize()
        self.assertEqual((table + 1).tolist(), [[2, 2]] * 4)

    def test_bad_row_is_an_error_of_the_call_on_the_cpu(self):
        with self.assertRaisesRegex(IndexError, "a row below 4, got -1"):
            self.take_rows(torch.ones(4, 2), torch.tensor([-1]))

    @DEVICES
    def test_arguments_that_the_host_can_check_are_refused_by_the_call(self, device):
        table, rows = torch.ones(4, 2, device=device), torch.tensor([0, 1], device=device)
        with self.assertRaisesRegex(RuntimeError, "expected values of 2 dimensions, got 1"):
            self.take_rows(table[0], rows)
        with self.assertRaisesRegex(RuntimeError, "expected rows of 1 dimension, got 2"):
            self.take_rows(table, rows[None])
        with self.assertRaisesRegex(TypeError, "expected int64 rows, got Int"):
            self.take_rows(table, rows.int())
        with self.assertRaisesRegex(NotImplementedError, "not implemented for 'Long'"):
            self.take_rows(table.long(), rows)

    def test_rows_on_the_cpu_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "all tensors to be on the same device"):
            self.take_rows(torch.ones(4, 2, device="openreg"), torch.tensor([0]))

    @requires_two_devices
    def test_result_is_on_the_device_of_the_table(self):
        table = torch.ones(4, 2, device="openreg:1")
        taken = self.take_rows(table, torch.tensor([3], device="openreg:1"))
        self.assertEqual(taken.device, table.device)
        self.assertEqual(taken.tolist(), [[1, 1]])

    @DEVICES
    def test_opcheck_finds_nothing(self, device):
        # test_autograd_registration raises NotImplementedError on devices outside of torch.
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        rows = torch.tensor([3, 1, 3], device=device)
        for requires_grad in (False, True):
            table = torch.randn(4, 2, device=device, requires_grad=requires_grad)
            opcheck(torch.ops.openreg_rows.take_rows, (table, rows), test_utils=checks)

    @parametrize("backend", ["aot_eager", "inductor"])
    def test_compiled_function_gives_value_and_gradient(self, backend):
        def function(table, rows):
            return self.package.take_rows(table * 2, rows) + 1

        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        table = torch.ones(4, 2, device="openreg", requires_grad=True)
        taken = compiled(table, torch.tensor([3, 3], device="openreg"))
        taken.sum().backward()
        self.assertEqual(taken.tolist(), [[3, 3]] * 2)
        self.assertEqual(table.grad.tolist(), [[0, 0], [0, 0], [0, 0], [4, 4]])


instantiate_parametrized_tests(TestExampleExtension)

if __name__ == "__main__":
    run_tests()
