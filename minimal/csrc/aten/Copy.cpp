// Step 6 of docs/bring_up.md, copies. In full: csrc/aten/ops/Copy.cpp.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>

#include "Operators.h"

namespace chip {

// docs: minimal-strided-copy
// The kernel: moves elements between memory of the same sizes, as the strides say.
struct CopyElements {
  std::vector<int64_t> sizes, to_strides, from_strides;
  size_t element;

  void operator()(char* to, const char* from) const { copy(to, from, 0); }
  void copy(char* to, const char* from, size_t dim) const {
    if (dim == sizes.size()) {
      std::memcpy(to, from, element);
      return;
    }
    for (int64_t i = 0; i < sizes[dim]; ++i) {
      copy(to + i * to_strides[dim] * element, from + i * from_strides[dim] * element, dim + 1);
    }
  }
};

static void copyOnDevice(const Tensor& from, const Tensor& to) {
  CopyElements kernel{to.sizes().vec(), to.strides().vec(), from.strides().vec(),
                      static_cast<size_t>(to.element_size())};
  launch(to.device(), std::move(kernel), kernelAddress<char>(to), kernelAddress<char>(from));
}
// docs: end

// A contiguous tensor on another device, for the same bytes.
static Tensor blankLike(const Tensor& tensor, c10::Device device) {
  Tensor blank = at::empty(tensor.sizes(), tensor.options().device(device));
  blank._set_conj(tensor.is_conj());
  blank._set_neg(tensor.is_neg());
  return blank;
}

// docs: minimal-copy
// Bytes between contiguous tensors, at least one of them on a device, whose current stream copies.
// Pinned memory is read or written later if that is allowed: then it must not be given out before.
static void copyBytes(const Tensor& from, const Tensor& to, bool non_blocking) {
  const c10::Stream stream = currentStream((from.is_cpu() ? to : from).device().index());
  const c10::Stream other = currentStream((to.is_cpu() ? from : to).device().index());
  const auto order = [](const c10::Stream& first, const c10::Stream& second) {
    c10::Event event(kType);
    event.record(first);
    event.block(second);
  };
  if (stream != other) order(other, stream);
  check(orMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), orMemcpyDefault,
                      handleOf(stream)));
  if (stream != other) order(stream, other);
  if (from.is_cpu() || to.is_cpu()) {
    const Tensor& host = from.is_cpu() ? from : to;
    const c10::DataPtr& data = host.storage().data_ptr();
    if (!non_blocking || !host.is_pinned() ||
        !at::getHostAllocator(kType)->record_event(data.get(), data.get_context(), stream)) {
      synchronizeStream(stream);
    }
  }
}

// Strides are the device's matter, other numbers are the host's: dtypes, and conjugates that are
// only marked as such.
void copy(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool is_same =
      from.dtype() == to.dtype() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
  if (from.numel() == 0) return;
  if (is_same && from.is_contiguous() && to.is_contiguous()) {
    copyBytes(from, to, non_blocking);
  } else if (is_same && from.device() == to.device()) {
    copyOnDevice(from, to);
  } else if (from.is_cpu()) {
    Tensor staged = blankLike(to, from.device());
    staged.copy_(from);
    if (!to.is_contiguous()) {
      Tensor dense = blankLike(to, to.device());
      copyBytes(staged, dense, false);
      copyOnDevice(dense, to);
    } else {
      copyBytes(staged, to, false);
    }
  } else if (!from.is_contiguous()) {
    Tensor dense = blankLike(from, from.device());
    copyOnDevice(from, dense);
    copy(dense, to, non_blocking);
  } else {  // to the host, and perhaps on to a device
    Tensor staged = blankLike(from, is_same && !to.is_cpu() ? to.device() : c10::Device(c10::kCPU));
    copyBytes(from, staged, false);
    to.copy_(staged);
  }
}

static Tensor copyFrom(const Tensor& self, const Tensor& dst, bool non_blocking) {
  at::assert_no_internal_overlap(dst);
  copy(self.expand_as(dst), dst, non_blocking);
  return dst;
}
// docs: end

static Tensor copyFromAndResize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copyFrom(self, dst, false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copyFrom));
  m.impl("_copy_from_and_resize", TORCH_FN(copyFromAndResize));
}

// Tensors that are marked as conjugates or negatives come as they are.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace chip
