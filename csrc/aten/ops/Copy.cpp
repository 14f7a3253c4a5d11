#include "csrc/aten/ops/Copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/real.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/MaybeOwned.h>
#include <openreg/memory.h>
#include <torch/library.h>

#include <type_traits>

#include "csrc/aten/cpu/SubByteIntegers.h"
#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/launch/HostMemory.h"
#include "csrc/core/SyncDebug.h"
#include "csrc/memory/PinnedAllocator.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {
namespace {

using c10::openreg::getCurrentOpenRegStream;
using c10::openreg::kDeviceType;
using c10::openreg::observe;
using c10::openreg::Observer;
using c10::openreg::OpenRegStream;
using c10::openreg::WorkDescription;

// From this size on, a copy is a kernel, because kernels copy with several intra-op threads, and
// the runtime with one. On two idle processors, 512 KiB take 8 us with two threads and 12 us with
// one; at 128 KiB, starting the second thread costs more than it saves.
constexpr size_t kParallelCopySize = size_t{256} << 10;

void copyKernel(Tensor& destination, const Tensor& source) {
  if (C10_UNLIKELY(
          destination.scalar_type() == kComplexHalf && source.scalar_type() == kComplexHalf &&
          destination.is_conj() != source.is_conj() && destination.is_neg() != source.is_neg())) {
    // The CPU conjugates half precision, and negates it, but not both at once.
    at::native::copy_(destination, at::_neg_view(source), /*non_blocking=*/false);
    destination.neg_();
    return;
  }
  at::native::copy_(destination, source, /*non_blocking=*/false);
}

// Whether the copy is one of bytes: the tensors have the same elements in the same order, without
// gaps.
bool isCopyOfBytes(const Tensor& destination, const Tensor& source) {
  return destination.scalar_type() == source.scalar_type() &&
         destination.is_conj() == source.is_conj() && destination.is_neg() == source.is_neg() &&
         destination.layout() == kStrided && source.layout() == kStrided &&
         ((destination.is_contiguous() && source.is_contiguous()) ||
          (destination.strides() == source.strides() &&
           destination.is_non_overlapping_and_dense()));
}

const Tensor& tensorOf(const Tensor& tensor) { return tensor; }
const Tensor& tensorOf(const HostTensor& host) { return host.tensor; }
const Tensor& tensorOf(const StagedTensor& staged) { return staged.tensor; }

// docs: copy-bytes
// Has the runtime copy bytes: `copy` is orMemcpyAsync, or orMemcpyWithStream to wait.
void copyBytes(const OpenRegStream& stream, const WorkDescription& description,
               decltype(&orMemcpyAsync) copy, const Tensor& destination, const Tensor& source) {
  const orError_t error =
      copy(destination.mutable_data_ptr(), source.const_data_ptr(), description.bytes,
           static_cast<orMemcpyKind>(description.memcpy_kind), stream.stream());
  if (C10_UNLIKELY(error != orSuccess)) {
    c10::openreg::throwLaunchError(error, description.name(),
                                   {__func__, __FILE__, uint32_t(__LINE__)});
  }
}
// docs: end

// docs: copy-described
// Enqueues a copy on the current stream of `device`. The runtime copies bytes; other copies are
// kernels, for which a staged source is copied aside here.
template <typename Destination, typename Source>
void enqueueCopy(c10::Device device, const WorkDescription& description,
                 const Destination& destination, const Source& source) {
  const Verdict verdict = observeArguments("aten::copy_", device, &copyKernel, destination, source);
  if (verdict == Verdict::Skip) {
    return;
  }
  if (isCopyOfBytes(tensorOf(destination), tensorOf(source)) &&
      description.bytes < kParallelCopySize) {
    observe(&Observer::kernelLaunch, description.name());
    copyBytes(getCurrentOpenRegStream(device.index()), description, &orMemcpyAsync,
              tensorOf(destination), tensorOf(source));
    KernelWrapper::noteLaunched();
  } else if constexpr (std::is_same_v<Source, StagedTensor>) {
    const StagedTensor aside{source.tensor.clone()};
    launchOp(device,
             WorkKernel{bindArguments(device, copyKernel, destination, aside), description});
  } else {
    launchOp(device,
             WorkKernel{bindArguments(device, copyKernel, destination, source), description});
  }
}
// docs: end

// Keeps pinned memory from being reused before the stream has passed this point.
void recordPinned(const Tensor& host, const OpenRegStream& stream) {
  const c10::DataPtr& data = host.storage().data_ptr();
  observe(&Observer::pinnedCopy, data.get());
  at::getHostAllocator(kDeviceType)->record_event(data.get(), data.get_context(), stream.unwrap());
}

// A side of a copy, for the calling thread. Memory of the host is accessed as kernels do, which
// find some of it at another address.
Tensor onThisThread(const Tensor& tensor) {
  if (isOpenReg(tensor)) {
    return hostView(tensor);
  }
  return hasKernelAddress(tensor) ? TensorAlias::ofHostMemory(tensor).tensor() : tensor;
}

// Waits for the stream, and copies on the calling thread. That has to wait for the copy in any
// case, and waking a worker takes longer than copying a megabyte. `is_promised` says whether the
// program may rely on the wait, and `verdict` is what observers have said of the copy.
// Errors: the stream's asynchronous error.
void copyAndWait(const OpenRegStream& stream, const WorkDescription& description,
                 const Tensor& destination, const Tensor& source, bool is_promised,
                 Verdict verdict) {
  c10::openreg::reportSynchronization("aten::copy_");
  stream.synchronize("aten::copy_");
  if (is_promised) {
    observe(&Observer::streamSynchronization, stream);
  }
  if (C10_UNLIKELY(verdict == Verdict::Skip)) {
    return;
  }
  if (isCopyOfBytes(destination, source) && description.bytes < kParallelCopySize) {
    copyBytes(stream, description, &orMemcpyWithStream, destination, source);
    return;
  }
  const c10::openreg::TraceScope work(stream, description);
  const HostKernelScope scope;
  Tensor written = onThisThread(destination);
  copyKernel(written, onThisThread(source));
}

void copyFromHost(Tensor& self, const Tensor& source, bool non_blocking) {
  const OpenRegStream stream = getCurrentOpenRegStream(self.device().index());
  const auto description = WorkDescription::copy(orMemcpyHostToDevice, self.nbytes());
  if (non_blocking && isPinnedPointer(source.storage().data())) {
    enqueueCopy(self.device(), description, self, HostTensor{source});
    recordPinned(source, stream);
    return;
  }
  checkNotCapturing(stream,
                    "aten::copy_ (host to device), which is asynchronous only from "
                    "pinned memory with non_blocking=True");
  if (non_blocking && source.nbytes() <= OPENREG_MAX_STAGED_COPY) {
    enqueueCopy(self.device(), description, self, StagedTensor{source});
    return;
  }
  // Of pageable memory the copy is done when the call returns, so the host may use it in any case.
  const Verdict verdict =
      observeArguments("aten::copy_", self.device(), &copyKernel, self, HostTensor{source});
  copyAndWait(stream, description, self, source, /*is_promised=*/!non_blocking, verdict);
}

void copyToHost(Tensor& self, const Tensor& source, bool non_blocking) {
  const OpenRegStream stream = getCurrentOpenRegStream(source.device().index());
  const auto description = WorkDescription::copy(orMemcpyDeviceToHost, self.nbytes());
  if (non_blocking && isPinnedPointer(self.storage().data())) {
    enqueueCopy(source.device(), description, HostTensor{self}, source);
    recordPinned(self, stream);
    return;
  }
  checkNotCapturing(stream,
                    "aten::copy_ (device to host), which is asynchronous only to "
                    "pinned memory with non_blocking=True");
  const Verdict verdict =
      observeArguments("aten::copy_", source.device(), &copyKernel, HostTensor{self}, source);
  // To pageable memory a copy is over when the call returns, whatever was asked for.
  copyAndWait(stream, description, self, source, /*is_promised=*/true, verdict);
}

void orderBehind(const OpenRegStream& stream, const OpenRegStream& other) {
  observe(&Observer::streamWait, stream, other);
  c10::openreg::waitForStream(stream, other);
}

void copyBetweenDevices(Tensor& self, const Tensor& source) {
  const OpenRegStream stream = getCurrentOpenRegStream(source.device().index());
  const OpenRegStream other = getCurrentOpenRegStream(self.device().index());
  // The destination may still be in use by its own stream, and is needed there afterwards.
  orderBehind(stream, other);
  const auto description =
      WorkDescription::copy(orMemcpyDeviceToDevice, self.nbytes(), self.device().index());
  enqueueCopy(source.device(), description, self, source);
  orderBehind(other, stream);
}

}  // namespace

void checkConversion(ScalarType destination, ScalarType source) {
  static CheckedDtypePairs checked;
  // The kernel has all pairs of the other dtypes.
  if (C10_UNLIKELY(isRare(destination) || isRare(source))) {
    checked[static_cast<size_t>(destination)].check(source, [&] {
      Tensor some = dummy(destination, {2});
      copyKernel(some, dummy(source, {2}));
    });
  }
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source)) {
    return self;
  }
  if (source._is_zerotensor()) {
    return self.zero_();
  }
  TORCH_CHECK((isOpenReg(self) || self.is_cpu()) && (isOpenReg(source) || source.is_cpu()),
              "copy_: expected tensors on ", kDeviceType, " or cpu, got ", self.device(), " and ",
              source.device());
  if (self.scalar_type() == source.scalar_type() && isSubByteInteger(self.scalar_type())) {
    Tensor bytes = copyable(self);
    copy(bytes, copyable(source), non_blocking);
    return self;
  }
  if (source.is_complex() && !self.is_complex()) {
    // Here, as a worker's warning is no Python warning.
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
    return copy(self, at::real(source), non_blocking);
  }
  // The shapes are checked here, so that the error comes from this call.
  const auto expanded = self.sizes() == source.sizes()
                            ? c10::MaybeOwned<Tensor>::borrowed(source)
                            : c10::MaybeOwned<Tensor>::owned(source.expand(self.sizes()));
  const Tensor& from = *expanded;
  at::assert_no_internal_overlap(self);
  if (self.numel() == 0) {
    return self;
  }
  checkConversion(self.scalar_type(), from.scalar_type());
  if (!isOpenReg(source)) {
    copyFromHost(self, from, non_blocking);
  } else if (!isOpenReg(self)) {
    copyToHost(self, from, non_blocking);
  } else if (self.device() != source.device()) {
    copyBetweenDevices(self, from);
  } else {
    at::assert_no_partial_overlap(self, from);
    // A conversion is a kernel like any other.
    if (self.scalar_type() == from.scalar_type()) {
      enqueueCopy(self.device(), WorkDescription::copy(orMemcpyDeviceToDevice, self.nbytes()), self,
                  from);
    } else {
      enqueue<"aten::copy_">(self.device(), copyKernel, self, from);
    }
  }
  return self;
}

namespace {

Tensor copyFrom(const Tensor& self, const Tensor& destination, bool non_blocking) {
  Tensor target = destination;
  return copy(target, self, non_blocking);
}

Tensor copyFromAndResize(const Tensor& self, const Tensor& destination) {
  destination.resize_(self.sizes());
  return copyFrom(self, destination, /*non_blocking=*/false);
}

// Kernels write through addresses, so a storage would not learn that it has to be copied before:
// the copy is made at once.
Tensor lazyClone(const Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  const c10::Storage& source = self.storage();
  c10::Allocator* allocator = c10::GetAllocator(kDeviceType);
  c10::Storage storage(c10::Storage::use_byte_size_t(), source.nbytes(),
                       source.nbytes() == 0 ? allocator->allocate(0)
                                            : allocator->clone(source.data(), source.nbytes()),
                       allocator, /*resizable=*/true);
  auto copy =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), self.key_set(), self.dtype());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides(),
                                                    self.storage_offset());
  return copy;
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_lazy_clone", TORCH_FN(lazyClone));
  m.impl("copy_", TORCH_FN(copy));
  m.impl("_copy_from", TORCH_FN(copyFrom));
  m.impl("_copy_from_and_resize", TORCH_FN(copyFromAndResize));
}

}  // namespace at::openreg
