#include "csrc/aten/structured/Concatenation.h"

#include <ATen/DimVector.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {
namespace {

// For larger tensors, the CPU's kernel may copy several tensors at a time.
constexpr int64_t kMaxMeanBytes = 4096;

struct Piece {
  const std::byte* data;  // for kernels
  size_t row_nbytes;
};

// Copies row after row of each piece.
struct CopyRows {
  std::vector<Piece> pieces;
  std::byte* out;
  int64_t row_count;

  size_t ownedBytes() const { return pieces.capacity() * sizeof(Piece); }

  void operator()() const {
    std::byte* to = out;
    for (int64_t row = 0; row < row_count; ++row) {
      for (const Piece& piece : pieces) {
        std::memcpy(to, piece.data + static_cast<size_t>(row) * piece.row_nbytes, piece.row_nbytes);
        to += piece.row_nbytes;
      }
    }
  }
};

std::byte* kernelData(const Tensor& tensor) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr())) + kernelOffset();
}

bool isCopied(ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true) || c10::isComplexType(dtype) ||
         (c10::isFloatingType(dtype) && c10::elementSize(dtype) > 1);
}

// Whether the tensor is fully described by its bytes. Tensors like it have the same keys and dtype.
bool isModel(const Tensor& tensor) {
  return isOpenReg(tensor) && tensor.layout() == kStrided && !tensor.is_quantized() &&
         !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor() &&
         isCopied(tensor.scalar_type());
}

bool isLike(const Tensor& model, const Tensor& tensor) {
  return tensor.defined() && tensor.key_set() == model.key_set() &&
         tensor.device() == model.device() && tensor.dtype() == model.dtype() &&
         tensor.dim() == model.dim() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && tensor.is_contiguous() &&
         (tensor.dim() < 4 || tensor.suggest_memory_format() == MemoryFormat::Contiguous);
}

}  // namespace

void checkJoins(const Tensor& joined, const ITensorListRef& tensors, int64_t dim) {
  // The CPU copies single elements otherwise, and along other dimensions than the first one.
  static std::array<std::array<CheckedDtypePairs, 2>, 2> checked;
  // Tensors of size {0} are joined along any dimension. If all are such, so is the result.
  const bool is_inner = joined.dim() > 1 && at::maybe_wrap_dim(dim, joined.dim()) > 0;
  for (const Tensor& tensor : tensors) {
    const ScalarType dtype = tensor.scalar_type();
    const bool is_single = tensor.numel() == 1;
    checked[is_inner][is_single][static_cast<size_t>(joined.scalar_type())].check(dtype, [&] {
      Tensor out = dummy(joined.scalar_type(), {0});
      const int64_t size = is_single ? 1 : 2;
      const Tensor one = is_inner ? dummy(dtype, {2, size}) : dummy(dtype, {size});
      const std::array<Tensor, 2> some{one, one};
      at::cpu::cat_outf(TensorList(some), /*dim=*/is_inner ? 1 : 0, out);
    });
  }
}

namespace detail {

std::optional<Tensor> joinMany(const ITensorListRef& tensors, int64_t dim, bool is_stack) {
  const Tensor& model = *tensors.begin();
  if (!isModel(model)) {
    return std::nullopt;
  }
  const int64_t dims = model.dim() + (is_stack ? 1 : 0);
  if (dim < -dims || dim >= dims) {
    return std::nullopt;
  }
  const auto joined = static_cast<size_t>(dim < 0 ? dim + dims : dim);
  const IntArrayRef outer = model.sizes().slice(0, joined);
  const IntArrayRef inner = model.sizes().slice(joined + (is_stack ? 0 : 1));
  const int64_t inner_nbytes =
      c10::multiply_integers(inner) * static_cast<int64_t>(model.itemsize());
  const int64_t row_count = c10::multiply_integers(outer);

  std::vector<Piece> pieces;
  pieces.reserve(tensors.size());
  int64_t length = 0;
  for (const Tensor& tensor : tensors) {
    if (!isLike(model, tensor) || tensor.sizes().slice(0, joined) != outer ||
        tensor.sizes().slice(joined + (is_stack ? 0 : 1)) != inner || tensor.numel() == 0) {
      return std::nullopt;
    }
    const int64_t size = is_stack ? 1 : tensor.sizes()[joined];
    length += size;
    pieces.push_back({kernelData(tensor), static_cast<size_t>(size * inner_nbytes)});
  }
  if (length * inner_nbytes * row_count > kMaxMeanBytes * static_cast<int64_t>(pieces.size())) {
    return std::nullopt;
  }

  DimVector sizes(outer.begin(), outer.end());
  sizes.push_back(length);
  sizes.append(inner.begin(), inner.end());
  const c10::DeviceGuard guard(model.device());
  Tensor out = emptyOnCurrentDevice(sizes, model.scalar_type());
  const char* const kernel = is_stack ? "aten::stack" : "aten::cat";
  const Verdict verdict = c10::openreg::observeAccesses(
      model.device().index(), kernel, [&](c10::openreg::OperandList& operands) {
        operands.push_back({out.unsafeGetTensorImpl(), /*is_written=*/true});
        for (const Tensor& tensor : tensors) {
          operands.push_back({tensor.unsafeGetTensorImpl(), /*is_written=*/false});
        }
      });
  CopyRows copy{std::move(pieces), kernelData(out), row_count};
  if (is_stack) {
    launchOp<"aten::stack">(model.device(), std::move(copy), verdict);
  } else {
    launchOp<"aten::cat">(model.device(), std::move(copy), verdict);
  }
  return out;
}

}  // namespace detail

}  // namespace at::openreg
