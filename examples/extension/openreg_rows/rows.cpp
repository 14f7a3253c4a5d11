// Rows of a table, by number: take_rows(table, rows) is table[rows]. Kernels of our own, for the
// CPU and for openreg.

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <torch_openreg/aten/KernelArguments.h>
#include <torch_openreg/core/DeviceKeys.h>

namespace {

using at::Tensor;

// docs: rows-kernel
// A kernel sees CPU tensors, on the calling thread for the CPU and on a worker for openreg.
void checkRow(int64_t row, int64_t row_count) {
  TORCH_CHECK_INDEX(row >= 0 && row < row_count, "take_rows: expected a row below ", row_count,
                    ", got ", row);
}

void takeRowsKernel(Tensor& out, const Tensor& table, const Tensor& rows) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, table.scalar_type(), "take_rows", [&] {
    const auto from = table.accessor<const scalar_t, 2>();
    const auto row_of = rows.accessor<const int64_t, 1>();
    auto to = out.accessor<scalar_t, 2>();
    for (int64_t i = 0; i < to.size(0); ++i) {
      checkRow(row_of[i], from.size(0));
      for (int64_t j = 0; j < to.size(1); ++j) {
        to[i][j] = from[row_of[i]][j];
      }
    }
  });
}
// docs: end

void takeRowsBackwardKernel(Tensor& out, const Tensor& gradient, const Tensor& rows) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gradient.scalar_type(),
                                  "take_rows_backward", [&] {
                                    const auto from = gradient.accessor<const scalar_t, 2>();
                                    const auto row_of = rows.accessor<const int64_t, 1>();
                                    auto to = out.accessor<scalar_t, 2>();
                                    for (int64_t i = 0; i < to.size(0); ++i) {
                                      std::fill_n(to[i].data(), to.size(1), scalar_t(0));
                                    }
                                    for (int64_t i = 0; i < from.size(0); ++i) {
                                      checkRow(row_of[i], to.size(0));
                                      for (int64_t j = 0; j < to.size(1); ++j) {
                                        to[row_of[i]][j] += from[i][j];
                                      }
                                    }
                                  });
}

// docs: rows-check
// What the host can see is checked at the call; what only the data tells, by the kernel.
void checkArguments(const char* operation, const Tensor& values, const Tensor& rows) {
  at::openreg::checkSameDevice(operation, values.device(), {&rows});
  TORCH_CHECK(values.dim() == 2, operation, ": expected values of 2 dimensions, got ",
              values.dim());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "take_rows",
                                  [] {});
  TORCH_CHECK(rows.dim() == 1, operation, ": expected rows of 1 dimension, got ", rows.dim());
  TORCH_CHECK_TYPE(rows.scalar_type() == at::kLong, operation, ": expected int64 rows, got ",
                   rows.scalar_type());
}
// docs: end

Tensor emptyRows(const Tensor& table, const Tensor& rows) {
  checkArguments("take_rows", table, rows);
  return at::empty({rows.size(0), table.size(1)}, table.options());
}

Tensor emptyTable(const Tensor& gradient, const Tensor& rows, int64_t row_count) {
  checkArguments("take_rows_backward", gradient, rows);
  TORCH_CHECK(gradient.size(0) == rows.size(0), "take_rows_backward: expected ", rows.size(0),
              " rows of gradient, got ", gradient.size(0));
  return at::empty({row_count, gradient.size(1)}, gradient.options());
}

Tensor takeRowsOnCpu(const Tensor& table, const Tensor& rows) {
  Tensor out = emptyRows(table, rows);
  takeRowsKernel(out, table, rows);
  return out;
}

Tensor takeRowsBackwardOnCpu(const Tensor& gradient, const Tensor& rows, int64_t row_count) {
  Tensor out = emptyTable(gradient, rows, row_count);
  takeRowsBackwardKernel(out, gradient, rows);
  return out;
}

// docs: rows-launch
Tensor takeRowsOnOpenReg(const Tensor& table, const Tensor& rows) {
  const c10::DeviceGuard guard(table.device());
  Tensor out = emptyRows(table, rows);
  at::openreg::enqueue<"openreg_rows::take_rows">(table.device(), &takeRowsKernel, out, table,
                                                  rows);
  return out;
}
// docs: end

Tensor takeRowsBackwardOnOpenReg(const Tensor& gradient, const Tensor& rows, int64_t row_count) {
  const c10::DeviceGuard guard(gradient.device());
  Tensor out = emptyTable(gradient, rows, row_count);
  at::openreg::enqueue<"openreg_rows::take_rows_backward">(
      gradient.device(), &takeRowsBackwardKernel, out, gradient, rows);
  return out;
}

}  // namespace

// docs: rows-register
TORCH_LIBRARY(openreg_rows, m) {
  m.def("take_rows(Tensor table, Tensor rows) -> Tensor");
  m.def("take_rows_backward(Tensor gradient, Tensor rows, SymInt row_count) -> Tensor");
}

TORCH_LIBRARY_IMPL(openreg_rows, CPU, m) {
  m.impl("take_rows", TORCH_FN(takeRowsOnCpu));
  m.impl("take_rows_backward", TORCH_FN(takeRowsBackwardOnCpu));
}

OPENREG_LIBRARY_IMPL(openreg_rows, Dense, m) {
  m.impl("take_rows", TORCH_FN(takeRowsOnOpenReg));
  m.impl("take_rows_backward", TORCH_FN(takeRowsBackwardOnOpenReg));
}
// docs: end
