// Writing through index tensors. The shape of the written part follows from the indices' shapes, so
// the host waits only for masks, whose positions must be counted. As on CUDA, a CPU tensor may be
// written through device indices.

#include <ATen/DimVector.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/_index_put_impl_cpu_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <vector>

#include "csrc/aten/cpu/KernelWarnings.h"
#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/structured/StructuredOp.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using Indices = c10::List<std::optional<Tensor>>;

bool isDefined(const std::optional<Tensor>& index) { return index.has_value() && index->defined(); }

void checkBroadcasts(IntArrayRef common, const Tensor& index, const Indices& indices) {
  if (C10_LIKELY(at::are_expandable(common, index.sizes()))) {
    return;
  }
  std::vector<Tensor> defined;
  for (const std::optional<Tensor>& one : indices) {
    if (isDefined(one)) {
      defined.push_back(*one);
    }
  }
  TORCH_CHECK_INDEX(false,
                    "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                    at::native::shapes_as_str(defined));
}

// The shape of self[indices], without masks: the indexed dimensions are replaced by the broadcast
// shape of the indices, in place if they are adjacent, else in front.
DimVector indexedShape(const Tensor& self, const Indices& indices) {
  const IntArrayRef sizes = self.sizes();
  DimVector common;
  std::vector<size_t> indexed;
  for (size_t dim = 0; dim < indices.size(); ++dim) {
    if (const std::optional<Tensor> index = indices[dim]; isDefined(index)) {
      checkBroadcasts(common, *index, indices);
      common = at::infer_size_dimvector(common, index->sizes());
      indexed.push_back(dim);
    }
  }
  const bool is_empty = c10::multiply_integers(common) == 0;
  for (const size_t dim : indexed) {
    TORCH_CHECK_INDEX(is_empty || sizes[dim] > 0,
                      "index is out of bounds for dimension with size 0");
  }
  if (indexed.empty()) {
    return DimVector(sizes);
  }
  const bool are_neighbors = indexed.back() - indexed.front() + 1 == indexed.size();
  const size_t place = are_neighbors ? indexed.front() : 0;
  DimVector result(sizes.slice(0, place));
  result.append(common.begin(), common.end());
  for (size_t dim = place; dim < sizes.size(); ++dim) {
    if (!std::ranges::binary_search(indexed, dim)) {
      result.push_back(sizes[dim]);
    }
  }
  return result;
}

void checkOverlap(const Tensor& self, const Indices& indices, const Tensor& values) {
  at::assert_no_overlap(self, values);
  for (const std::optional<Tensor>& index : indices) {
    if (isDefined(index)) {
      at::assert_no_overlap(self, *index);
    }
  }
}

// The checks of the kernel.
void checkIndexPut(const Tensor& self, const Indices& indices, const Tensor& values,
                   bool accumulate) {
  const DimVector shape = indexedShape(self, indices);
  TORCH_CHECK(at::is_expandable_to(values.sizes(), shape), "shape mismatch: value tensor of shape ",
              values.sizes(), " cannot be broadcast to indexing result of shape ",
              IntArrayRef(shape));
  const ScalarType dtype = self.scalar_type();
  TORCH_CHECK(values.scalar_type() == dtype,
              "Index put requires the source and destination dtypes match, got ", dtype,
              " for the destination and ", values.scalar_type(), " for the source.");
  static std::array<CheckedDtypes, 2> checked;
  checked[accumulate].check(dtype, [&] {
    Tensor some = dummy(dtype, {1});
    at::cpu::_index_put_impl_(some, {dummy(kLong, {1})}, dummy(dtype, {1}), accumulate,
                              /*unsafe=*/false);
  });
}

// The indices, with those of other devices copied to the tensor's, as CUDA does here.
Indices onSameDevice(const Tensor& self, const Indices& indices) {
  const auto is_elsewhere = [&](const std::optional<Tensor>& index) {
    return isDefined(index) && isOpenReg(*index) && index->device() != self.device();
  };
  if (C10_LIKELY(std::none_of(indices.begin(), indices.end(), is_elsewhere))) {
    return indices;
  }
  Indices copies;
  for (const std::optional<Tensor>& index : indices) {
    copies.push_back(is_elsewhere(index) ? index->to(self.device()) : index);
  }
  return copies;
}

// For a CPU tensor: as torch's CPU and CUDA kernels do, copies the indices to the device of the
// tensor. The call uses the dispatcher, so that observers of CPU operators see it.
// Capture: an error, as for each copy to the host.
Tensor& indexPutOnHost(Tensor& self, const Indices& indices, const Tensor& values, bool accumulate,
                       bool unsafe) {
  at::native::checkIndexTensorTypes(indices, /*allow_int=*/true);
  TORCH_CHECK(values.is_cpu(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              values.device(), " and ", self.device(), "! (aten::_index_put_impl_)");
  Indices on_host;
  on_host.reserve(indices.size());
  for (const std::optional<Tensor>& index : indices) {
    on_host.push_back(index.has_value() && isOpenReg(*index) ? index->cpu() : index);
  }
  return at::_index_put_impl_(self, on_host, values, accumulate, unsafe);
}

Tensor& indexPut(Tensor& self, const Indices& indices, const Tensor& given, bool accumulate,
                 bool unsafe) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ",
                    indices.size(), ")");
  // A number may be on any device. The launch reads a CPU number.
  const Tensor values = given.dim() == 0 && isOpenReg(given) && given.device() != self.device()
                            ? given.to(self.device())
                            : given;
  if (self.is_cpu()) {
    return indexPutOnHost(self, indices, values, accumulate, unsafe);
  }
  TORCH_CHECK(isOpenReg(self), "_index_put_impl_: expected a tensor on ", c10::openreg::kDeviceType,
              " or cpu, got one on ", self.device());
  checkSameDevice("aten::_index_put_impl_", self.device(), {&values});
  const c10::DeviceGuard guard(self.device());
  if (C10_UNLIKELY(at::has_internal_overlap(self) == MemOverlap::Yes)) {
    const WarningRecorder recorder(WarningRecorder::Mode::Forward);
    TORCH_WARN(
        "Use of index_put_ on expanded tensors is deprecated. Please clone() the tensor before "
        "performing this operation. This also applies to advanced indexing e.g. tensor[indices] = "
        "tensor");
  }
  if (!accumulate) {
    auto [is_fill, mask] = at::native::canDispatchToMaskedFill(self, indices, values);
    if (is_fill) {
      return self.masked_fill_(mask, values.item());
    }
  }
  checkOverlap(self, indices, values);
  at::native::checkIndexTensorTypes(indices, /*allow_int=*/true);
  const Indices on_device = deviceIndices(self, onSameDevice(self, indices));
  checkIndexPut(self, on_device, values, accumulate);
  static constexpr c10::openreg::KernelName kName("aten::_index_put_impl_");
  const Verdict verdict = c10::openreg::observeAccesses(
      self.device().index(), kName.text, [&](c10::openreg::OperandList& operands) {
        operands.push_back(
            {.tensor = self.unsafeGetTensorImpl(), .is_written = true, .is_updated = accumulate});
        detail::addOperands(operands, on_device, /*is_written=*/false);
        detail::addOperands(operands, values, /*is_written=*/false);
      });
  launchOp<kName>(self.device(), MadeBy{[&] {
                    return bindArguments(self.device(), &at::cpu::_index_put_impl_, self, on_device,
                                         values, accumulate, unsafe);
                  }},
                  verdict);
  return self;
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) { m.impl("_index_put_impl_", TORCH_FN(indexPut)); }

}  // namespace at::openreg
