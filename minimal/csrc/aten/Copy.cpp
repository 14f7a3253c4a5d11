// Step 6 of docs/bring_up.md, copies. In full: csrc/aten/ops/Copy.cpp.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/CachingHostAllocator.h>

#include "Operators.h"

namespace chip {

// The kernel: moves elements between memory of the same sizes, as the strides say.
struct CopyElements {
  std::vector<int64_t> sizes, to_strides, from_strides;
  int64_t size;  // of an element

  void operator()(char* to, const char* from, size_t dim) const {
    if (dim == sizes.size()) std::memcpy(to, from, size);
    for (int64_t i = 0; dim < sizes.size() && i < sizes[dim]; ++i) {
      (*this)(to + i * to_strides[dim] * size, from + i * from_strides[dim] * size, dim + 1);
    }
  }
};

// Bytes between contiguous tensors, at least one of them on a device, whose current stream copies.
// Pinned memory is read or written later if that is allowed: then it must not be given out before.
static void copyBytes(const Tensor& from, const Tensor& to, bool non_blocking) {
  const Stream stream = currentStream((from.is_cpu() ? to : from).device().index());
  const Stream other = currentStream((to.is_cpu() ? from : to).device().index());
  waitForStream(stream, other);
  wait([&] {  // it does for host memory that is not pinned
    return orMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(),
                         orMemcpyDefault, handleOf(stream));
  });
  waitForStream(other, stream);
  if (from.is_cpu() != to.is_cpu()) copied_bytes += static_cast<int64_t>(from.nbytes());
  const Tensor& host = from.is_cpu() ? from : to;
  if (host.is_cpu() && non_blocking && host.is_pinned()) {
    at::getHostAllocator(kType)->record_event(host.storage().mutable_data(), nullptr, stream);
  } else if (host.is_cpu()) {
    stream.synchronize();
  }
}

// Strides are the device's matter; numbers are the host's: dtypes, and conjugates that are only
// marked as such. What needs both goes by a contiguous tensor in between.
static Tensor copyFrom(const Tensor& source, const Tensor& to, bool non_blocking) {
  at::assert_no_internal_overlap(to);
  const Tensor from = source.expand_as(to);
  const bool is_same =
      from.dtype() == to.dtype() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
  if (from.numel() == 0) return to;
  if (is_same && from.is_contiguous() && to.is_contiguous()) {
    copyBytes(from, to, non_blocking);
  } else if (is_same && from.device() == to.device()) {
    CopyElements kernel{to.sizes().vec(), to.strides().vec(), from.strides().vec(),
                        to.element_size()};
    check(orLaunchKernel(handleOf(currentStream(to.device().index())), std::move(kernel),
                         kernelAddress<char>(to), kernelAddress<char>(from), 0));
  } else {
    const bool is_with_source = !from.is_contiguous() || (from.is_cpu() && !is_same);
    const Tensor& like = from.is_cpu() ? to : from;
    const Device place = is_with_source ? from.device() : is_same ? to.device() : at::kCPU;
    Tensor between = at::empty(like.sizes(), like.options().device(place));
    between._set_conj(like.is_conj());
    between._set_neg(like.is_neg());
    to.copy_(between.copy_(from));
  }
  return to;
}

// What the CPU has resized gets the CPU's strides, too, which may leave elements out.
static Tensor copyFromAndResize(const Tensor& cpu, const Tensor& to) {
  const int64_t count = at::detail::computeStorageNbytes(cpu.sizes(), cpu.strides(), 1);
  if (cpu.sizes() != to.sizes()) to.resize_(count).as_strided_(cpu.sizes(), cpu.strides());
  return copyFrom(cpu, to, false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copyFrom));
  m.impl("_copy_from_and_resize", TORCH_FN(copyFromAndResize));
}

// Tensors that are marked as conjugates or negatives come as they are.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", CppFunction::makeFallthrough()); }

}  // namespace chip
