#include "csrc/extras/dry_run/ZeroFill.h"

#include <ATen/DimVector.h>
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {
namespace {

using c10::openreg::launchKernel;
using c10::openreg::OpenRegStream;

constinit std::atomic<bool> are_ones{false};

// The bytes of one element.
using Pattern = std::array<std::byte, 16>;

// Zeros for dtypes without numbers, such as quantized ones.
Pattern patternOf(ScalarType dtype) {
  Pattern pattern{};
  if (!are_ones.load(std::memory_order_relaxed) || c10::isQIntType(dtype) ||
      c10::isBitsType(dtype) || c10::isFloat8Type(dtype)) {
    return pattern;
  }
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND4(kHalf, kBFloat16, kBool, kComplexHalf, dtype,
                                         "made-up value", [&] {
                                           const scalar_t one(1);
                                           std::memcpy(pattern.data(), &one, sizeof(one));
                                         });
  return pattern;
}

// For elements with gaps between them: `strides` are in bytes.
struct FillElements {
  std::byte* begin;
  size_t itemsize;
  Pattern pattern;
  DimVector sizes;
  DimVector strides;

  void operator()() const { fill(begin, 0); }

 private:
  void fill(std::byte* at, size_t dimension) const {
    if (dimension == sizes.size()) {
      std::memcpy(at, pattern.data(), itemsize);
      return;
    }
    for (int64_t i = 0; i < sizes[dimension]; ++i) {
      fill(at + i * strides[dimension], dimension + 1);
    }
  }
};

void fillBytes(const OpenRegStream& stream, std::byte* kernel_address, size_t nbytes) {
  launchKernel<"zeros of a dry run">(
      stream, [kernel_address, nbytes] { std::memset(kernel_address, 0, nbytes); });
}

}  // namespace

void makeUpOnes() { are_ones = true; }

void fillMadeUp(const OpenRegStream& stream, const c10::TensorImpl& tensor, bool is_host_memory) {
  const Tensor filled(
      c10::intrusive_ptr<TensorImpl>::reclaim_copy(const_cast<TensorImpl*>(&tensor)));
  if (filled.numel() == 0) {
    return;
  }
  const TensorAlias alias =
      is_host_memory ? TensorAlias::ofHostMemory(filled) : TensorAlias(TensorBase(filled));
  const size_t itemsize = filled.itemsize();
  auto* begin = static_cast<std::byte*>(alias.storageData()) +
                static_cast<size_t>(filled.storage_offset()) * itemsize;
  const Pattern pattern = patternOf(filled.scalar_type());
  if (filled.is_non_overlapping_and_dense()) {
    if (pattern == Pattern{}) {
      fillBytes(stream, begin, filled.nbytes());
    } else {
      launchKernel<"ones of a dry run">(
          stream, FillElements{begin, itemsize, pattern, DimVector{filled.numel()},
                               DimVector{static_cast<int64_t>(itemsize)}});
    }
    return;
  }
  DimVector strides(filled.strides());
  for (int64_t& stride : strides) {
    stride *= static_cast<int64_t>(itemsize);
  }
  launchKernel<"made-up values of a dry run">(
      stream,
      FillElements{begin, itemsize, pattern, DimVector(filled.sizes()), std::move(strides)});
}

void fillWithZeros(const OpenRegStream& stream, const void* address, size_t nbytes) {
  fillBytes(stream, static_cast<std::byte*>(const_cast<void*>(address)) + kernelOffset(), nbytes);
}

}  // namespace at::openreg
