"""The operator generator: its output, and that unchanged files are not written.

It needs torch's generator library and not the built backend, so nothing here uses a device.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torchgen
from torch.testing._internal.common_utils import TestCase, run_tests

_CODEGEN = Path(__file__).resolve().parents[2] / "csrc" / "aten" / "structured" / "codegen"
_DECLARATIONS = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
_MIN_GROUPS = 270  # torch 2.13 declares 275, torch 2.15 declares 279


def generate(directory, *arguments, hash_seed="0"):
    """Runs the generator. Returns the line that it prints."""
    return subprocess.run(
        [sys.executable, _CODEGEN / "gen_structured.py", "--output-dir", directory, *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def contents_of(directory):
    return {path.name: path.read_text() for path in Path(directory).rglob("*.*")}


def times_of(directory):
    return {path.name: path.stat().st_mtime_ns for path in Path(directory).rglob("*.*")}


class TestCodegen(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directories = contextlib.ExitStack()
        cls.addClassCleanup(cls.directories.close)
        cls.output = Path(cls.directories.enter_context(tempfile.TemporaryDirectory()))
        cls.summary = generate(cls.output)
        files = contents_of(cls.output)
        cls.table = json.loads(files.pop("structured_ops.json"))
        cls.count = len(files) + 1
        cls.shards = {name: text for name, text in files.items() if name.endswith(".cpp")}
        cls.source = "".join(cls.shards.values())

    def new_directory(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        return Path(directory.name)

    def block_of(self, namespace):
        pattern = rf"(^//[^\n]*\n)+namespace {namespace} {{.*?^}}  // namespace {namespace}$"
        return re.search(pattern, self.source, re.MULTILINE | re.DOTALL)[0]

    def test_every_structured_group_is_generated_or_has_a_reason(self):
        declared = re.findall(r"^  structured: True$", _DECLARATIONS.read_text(), re.MULTILINE)
        generated, skipped = self.table["generated"], self.table["skipped"]
        self.assertGreaterEqual(len(generated), _MIN_GROUPS)
        self.assertEqual(len(generated) + len(skipped), len(declared))
        self.assertTrue(all(skipped.values()))
        self.assertEqual(set(generated) & set(skipped), set())

    def test_the_table_lists_what_is_registered(self):
        registered = re.findall(r'm\.impl\("([^"]+)"', self.source)
        listed = [name for names in self.table["generated"].values() for name in names]
        self.assertEqual(sorted(registered), sorted(listed))
        self.assertEqual(len(set(registered)), len(registered))

    def test_the_summary_counts_groups_and_files(self):
        self.assertRegex(self.summary, rf"^structured operators: {len(self.table['generated'])} ")
        self.assertIn(f"{self.count} of {self.count} files written", self.summary)

    def test_two_runs_give_the_same_files(self):
        directory = self.new_directory()
        generate(directory, hash_seed="1")
        self.assertEqual(contents_of(directory), contents_of(self.output))

    def test_a_second_run_writes_nothing(self):
        directory = self.new_directory()
        generate(directory)
        times = times_of(directory)
        self.assertIn(f" 0 of {self.count} files written, 0 removed", generate(directory))
        self.assertEqual(times_of(directory), times)

    def test_a_run_restores_the_file_that_differs(self):
        directory = self.new_directory()
        generate(directory)
        (directory / "RegisterStructured_1.cpp").write_text("other\n")
        self.assertIn(f" 1 of {self.count} files written", generate(directory))
        self.assertEqual(contents_of(directory), contents_of(self.output))

    def test_fewer_shards_remove_the_stale_ones_and_hold_the_same_operators(self):
        directory = self.new_directory()
        generate(directory)
        self.assertIn("5 removed", generate(directory, "--shards", "3"))
        source = "".join(
            path.read_text() for path in sorted(directory.glob("RegisterStructured_*.cpp"))
        )
        self.assertEqual(
            sorted(re.findall(r"m\.impl\(.*?\);", source, re.DOTALL)),
            sorted(re.findall(r"m\.impl\(.*?\);", self.source, re.DOTALL)),
        )

    def test_a_run_removes_the_header_of_a_fact_that_is_gone(self):
        directory = self.new_directory()
        generate(directory)
        (directory / "facts" / "Gone.h").write_text("other\n")
        self.assertIn(" 0 of ", generate(directory))
        self.assertEqual(contents_of(directory), contents_of(self.output))

    def test_a_fact_is_a_header_with_its_entries(self):
        self.assertExpectedInline(
            (self.output / "facts" / "WrittenUnmarked.h").read_text(),
            """\
// Generated by csrc/aten/structured/codegen/gen_structured.py from csrc/aten/facts/operators.yaml;
// changes here are lost.
#pragma once

#include "csrc/aten/facts/FactTable.h"

namespace c10::openreg::facts {

// The operator writes arguments that its schema does not mark as written, each if the boolean
// argument that is its value is true.
inline constexpr Table<Conditions, 1> kWrittenUnmarked = {NameKind::Operator, {{
    {"native_batch_norm", {{{{"running_mean", "training"}, {"running_var", "training"}}}}},
}}};

}  // namespace c10::openreg::facts
""",
        )

    def test_a_header_lacks_the_entries_of_other_releases(self):
        program = (
            "from facts import fact_headers, load_facts\n"
            "for release in ('2.13', '2.14'):\n"
            "    text = fact_headers(load_facts(), release)['facts/DataChecks.h']\n"
            "    print('\"cholesky.out\"' in text, '\"cholesky_inverse\"' in text)\n"
        )
        printed = subprocess.run(
            [sys.executable, "-c", program],
            cwd=_CODEGEN,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        self.assertEqual(printed.split(), ["True", "True", "False", "True"])

    def test_shards_have_equally_many_operators(self):
        counts = [
            len(re.findall(r"^using Op = ", text, re.MULTILINE)) for text in self.shards.values()
        ]
        self.assertLessEqual(max(counts) - min(counts), 1)

    def test_a_bad_number_of_shards_is_refused(self):
        with self.assertRaises(subprocess.CalledProcessError) as raised:
            generate(self.new_directory(), "--shards", "0")
        self.assertIn("--shards: expected a positive number, got 0", raised.exception.stderr)

    def test_the_generator_does_not_import_torch(self):
        program = "import sys, gen_structured; sys.exit('torch' in sys.modules)"
        subprocess.run([sys.executable, "-c", program], cwd=_CODEGEN, check=True)

    def test_device_checks_are_those_that_torch_declares(self):
        # A TensorIterator checks devices itself and takes CPU scalars.
        self.assertNotIn("DeviceCheck", self.block_of("add_Tensor"))
        self.assertIn(
            'DeviceCheck("mm").add(self, "self").add(mat2, "mat2");',
            self.block_of("mm"),
        )

    def test_wrappers_of_cuda_that_check_devices_are_a_table(self):
        table = (self.output / "facts" / "DeviceChecks.h").read_text()
        for entry in (
            '{"add.Tensor", ""}',  # no check
            '{"addmm.out", "addmm_out_out"}',  # structured
            '{"index_select.out", "out_index_select_out"}',
            '{"put_", "_put_"}',
            '{"hspmm", "_hspmm"}',  # for sparse tensors only
        ):
            self.assertIn(f"    {entry},\n", table)
        # Composed on CUDA, the last one of dense tensors.
        for name in ("stack", "_convolution", "nan_to_num"):
            self.assertNotIn(f'{{"{name}",', table)

    def test_kernels_that_throw_what_they_find_run_on_the_calling_thread(self):
        self.assertIn("      LaunchMode::OnCallingThread);", self.block_of("_linalg_svd"))
        self.assertIn("check_errors ? LaunchMode::OnCallingThread", self.block_of("linalg_inv_ex"))

    def test_lines_fit(self):
        lines = [line for line in self.source.splitlines() if len(line) > 100]
        self.assertEqual(lines, [])

    def test_an_operator_with_three_forms(self):
        self.assertExpectedInline(
            self.block_of("add_Tensor"),
            """\
// add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
namespace add_Tensor {

using Op = StructuredOp<at::meta::structured_add_Tensor, 1>;

void enqueue(const Op& op, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  launchStructured<"aten::add.Tensor">(
      op, std::tie(self, other), std::tie(alpha),
      [](Tensor& out, const Tensor& self, const Tensor& other, const Scalar& alpha) {
        at::cpu::add_outf(self, other, alpha, out);
      });
}

Tensor functional(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  Op op;
  op.meta(self, other, alpha);
  enqueue(op, self, other, alpha);
  return op.result();
}

Tensor& out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  Op op(OutputForm::Out, out);
  op.meta(self, other, alpha);
  enqueue(op, self, other, alpha);
  return out;
}

Tensor& inplace(Tensor& self, const Tensor& other, const Scalar& alpha) {
  Op op(OutputForm::InPlace, self);
  op.meta(self, other, alpha);
  enqueue(op, self, other, alpha);
  return self;
}

}  // namespace add_Tensor""",
        )

    def test_an_operator_with_several_outputs_and_optional_tensors(self):
        self.assertExpectedInline(
            self.block_of("nll_loss_forward"),
            """\
// nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index)
//   -> (Tensor output, Tensor total_weight)
namespace nll_loss_forward {

using Op = StructuredOp<at::meta::structured_nll_loss_forward, 2>;

void enqueue(const Op& op, const Tensor& self, const Tensor& target,
             const std::optional<Tensor>& weight, int64_t reduction, int64_t ignore_index) {
  launchStructured<"aten::nll_loss_forward">(
      op, std::tie(self, target, weight), std::tie(reduction, ignore_index),
      [](Tensor& output, Tensor& total_weight, const Tensor& self, const Tensor& target,
         const Tensor& weight, int64_t reduction, int64_t ignore_index) {
        at::cpu::nll_loss_forward_outf(self, target, optionalTensor(weight), reduction,
                                       ignore_index, output, total_weight);
      });
}

std::tuple<Tensor, Tensor> functional(const Tensor& self, const Tensor& target,
                                      const std::optional<Tensor>& weight, int64_t reduction,
                                      int64_t ignore_index) {
  DeviceCheck("nll_loss_forward").add(self, "self").add(target, "target").add(weight, "weight");
  Op op;
  op.meta(self, target, tensorRef(weight), reduction, ignore_index);
  enqueue(op, self, target, weight, reduction, ignore_index);
  return op.result();
}

std::tuple<Tensor&, Tensor&> out(const Tensor& self, const Tensor& target,
                                 const std::optional<Tensor>& weight, int64_t reduction,
                                 int64_t ignore_index, Tensor& output, Tensor& total_weight) {
  DeviceCheck("nll_loss_forward_out_output")
      .add(output, "output")
      .add(total_weight, "total_weight")
      .add(self, "self")
      .add(target, "target")
      .add(weight, "weight");
  Op op(OutputForm::Out, output, total_weight);
  op.meta(self, target, tensorRef(weight), reduction, ignore_index);
  enqueue(op, self, target, weight, reduction, ignore_index);
  return std::tie(output, total_weight);
}

}  // namespace nll_loss_forward""",
        )


if __name__ == "__main__":
    run_tests()
