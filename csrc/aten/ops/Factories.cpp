// Uninitialized tensors, and resizing of storages.

#include "csrc/aten/ops/Factories.h"

#include <ATen/AccumulateType.h>
#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/arange_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include "csrc/aten/cpu/ErrorWords.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "csrc/memory/StorageResize.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace at::openreg {
namespace {

const c10::DispatchKeySet kKeys(c10::openreg::keyOf(c10::DispatchKey::Dense));

c10::Device targetDevice(const std::optional<Device>& device, const std::optional<Layout>& layout,
                         const std::optional<bool>& pin_memory) {
  TORCH_CHECK(layout.value_or(kStrided) == kStrided, "empty: expected the strided layout, got ",
              *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::Device target = device.value_or(c10::Device(c10::openreg::kDeviceType));
  TORCH_CHECK(target.type() == c10::openreg::kDeviceType, "empty: expected a device of type ",
              c10::openreg::kDeviceType, ", got ", target);
  c10::openreg::ensureHasDevice();
  return {c10::openreg::kDeviceType, c10::openreg::resolveDeviceIndex(target.index())};
}

Tensor finished(Tensor result) {
  // Deterministic mode requires that uninitialized memory has the same contents in every run: NaN
  // or the type's largest value.
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    enqueue<"aten::empty (deterministic fill)">(
        result.device(), [](Tensor& memory) { at::native::fill_empty_deterministic_(memory); },
        result);
  }
  return result;
}

Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout> layout,
             std::optional<Device> device, std::optional<bool> pin_memory,
             std::optional<MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(targetDevice(device, layout, pin_memory));
  return finished(emptyOnCurrentDevice(size, c10::dtype_or_default(dtype), memory_format));
}

Tensor emptyStrided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype,
                    std::optional<Layout> layout, std::optional<Device> device,
                    std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(targetDevice(device, layout, pin_memory));
  return finished(emptyStridedOnCurrentDevice(size, stride, c10::dtype_or_default(dtype)));
}

// A tensor of zeros without memory, which autograd uses for a derivative that vanishes.
Tensor efficientZeroTensor(IntArrayRef size, std::optional<ScalarType> dtype,
                           std::optional<Layout> layout, std::optional<Device> device,
                           std::optional<bool> pin_memory) {
  at::native::ZeroTensorAllocator allocator(targetDevice(device, layout, pin_memory));
  return Tensor(at::detail::empty_generic(size, &allocator,
                                          kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                          c10::dtype_or_default(dtype), std::nullopt));
}

// Makes the storage large enough for a tensor of these sizes. Call before the tensor gets them: if
// the storage cannot be resized, the tensor stays unchanged.
void growStorage(TensorImpl* impl, IntArrayRef size, size_t new_size) {
  // A storage only grows, and not for a tensor without elements.
  if (c10::multiply_integers(size) > 0 && new_size > impl->unsafe_storage().nbytes()) {
    c10::openreg::resizeStorage(impl->unsafe_storage(), new_size);
  }
}

const Tensor& resizeTensor(const Tensor& self, IntArrayRef size,
                           std::optional<MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  TensorImpl* impl = self.unsafeGetTensorImpl();
  const size_t old_size = self.storage().nbytes();
  if (impl->sizes() != size) {
    growStorage(impl, size,
                at::detail::computeStorageNbytesContiguous(size, self.element_size(),
                                                           impl->storage_offset()));
    impl->set_sizes_contiguous(size);
  }
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != MemoryFormat::Preserve, "Unsupported memory format",
                *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory() &&
                   self.storage().nbytes() > old_size)) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(old_size));
  }
  return self;
}

}  // namespace

Tensor& setStorage(Tensor& self, Storage source, int64_t storage_offset, IntArrayRef size,
                   IntArrayRef stride) {
  at::native::checkSetStorage(self, source, storage_offset, size, stride);
  TensorImpl* impl = self.unsafeGetTensorImpl();
  // The old sizes do not fit the new storage: if it cannot grow, the tensor becomes empty.
  auto empty = c10::make_scope_exit([impl] {
    impl->set_storage_offset(0);
    impl->set_sizes_contiguous({0});
  });
  impl->set_storage_offset(storage_offset);
  if (stride.data() != nullptr) {
    if (impl->sizes() != size || impl->strides() != stride) {
      growStorage(
          impl, size,
          at::detail::computeStorageNbytes(size, stride, self.element_size(), storage_offset));
      impl->set_sizes_and_strides(size, stride);
    }
  } else {
    resizeTensor(self, size, std::nullopt);
  }
  empty.release();
  return self;
}

namespace {

// Has a kernel, because the fallback would wait for each new end.
Tensor& arange(const Scalar& start, const Scalar& end, const Scalar& step, Tensor& out) {
  int64_t size = 0;
  inOwnWords([&] {
    AT_DISPATCH_ALL_TYPES_AND2(kHalf, kBFloat16, out.scalar_type(), "arange_cpu", [&] {
      // The kernel computes in this type, so the numbers have to fit it.
      using Wide = at::acc_type<scalar_t, /*is_cuda=*/false>;
      size = at::native::compute_arange_size<scalar_t>(start, end, step);
      static_cast<void>(start.to<Wide>());
      static_cast<void>(step.to<Wide>());
    });
  });
  at::assert_no_internal_overlap(out);
  if (out.numel() != size) {
    if (out.numel() > 0) {
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ",
                 out.numel(), " which does not match the computed number of elements ", size,
                 ". Note that this may occur as a result of rounding error. "
                 "The out tensor will be resized to a tensor of shape (",
                 size, ",).");
    }
    out.resize_({size});
  }
  const c10::DeviceGuard guard(out.device());
  enqueue<"aten::arange.start_out">(
      out.device(),
      [](Tensor& result, const Scalar& first, const Scalar& last, const Scalar& by) {
        at::cpu::arange_outf(first, last, by, result);
      },
      out, start, end, step);
  return out;
}

Tensor& setWholeStorage(Tensor& self, Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.element_size());
  return setStorage(self, std::move(source), 0, {numel}, {});
}

Tensor& setEmpty(Tensor& self) {
  Storage storage(Storage::use_byte_size_t(), 0, c10::GetAllocator(c10::openreg::kDeviceType),
                  /*resizable=*/true);
  const c10::DeviceGuard guard(self.device());
  storage.set_data_ptr_noswap(c10::GetAllocator(c10::openreg::kDeviceType)->allocate(0));
  return setStorage(self, std::move(storage), 0, {0}, {});
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(emptyStrided));
  m.impl("_efficientzerotensor", TORCH_FN(efficientZeroTensor));
  m.impl("arange.start_out", TORCH_FN(arange));
  m.impl("resize_", TORCH_FN(resizeTensor));
  m.impl("set_", TORCH_FN(setEmpty));
  m.impl("set_.source_Storage", TORCH_FN(setWholeStorage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(setStorage));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
}

}  // namespace at::openreg
