// Operators that return a value to the host, and therefore wait for the stream.

#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/equal_native.h>
#include <openreg/memory.h>
#include <torch/library.h>

#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/core/SyncDebug.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using c10::openreg::getCurrentOpenRegStream;
using c10::openreg::observe;
using c10::openreg::observeAccesses;
using c10::openreg::Observer;
using c10::openreg::OpenRegStream;
using c10::openreg::TraceScope;
using c10::openreg::Verdict;
using c10::openreg::WorkDescription;

// Waits until the host can read the tensors. Returns whether it may, which observers say.
Verdict readOnHost(const char* operation, const OpenRegStream& stream,
                   std::initializer_list<const Tensor*> tensors) {
  const Verdict verdict =
      observeAccesses(stream, operation, [&](c10::openreg::OperandList& operands) {
        for (const Tensor* tensor : tensors) {
          operands.push_back({tensor->unsafeGetTensorImpl(), /*is_written=*/false});
        }
      });
  c10::openreg::reportSynchronization(operation);
  stream.synchronize(operation);
  observe(&Observer::streamSynchronization, stream);
  return verdict;
}

// Reads the first element of a tensor, without a view of its memory for the frequent dtypes.
Scalar readFirstElement(const Tensor& tensor) {
  const auto* address = static_cast<const std::byte*>(tensor.const_data_ptr()) + kernelOffset();
  const auto read = [&]<typename Element>(Element element) {
    std::memcpy(&element, address, sizeof(element));
    return Scalar(element);
  };
  switch (tensor.numel() > 0 ? tensor.scalar_type() : ScalarType::Undefined) {
    case kFloat:
      return read(float());
    case kDouble:
      return read(double());
    case kHalf:
      return read(Half());
    case kBFloat16:
      return read(BFloat16());
    case kInt:
      return read(int32_t());
    case kLong:
      return read(int64_t());
    case kBool:
      return read(bool());
    default:
      return at::native::_local_scalar_dense_cpu(hostView(tensor));
  }
}

Scalar localScalarDense(const Tensor& self) {
  const OpenRegStream stream = getCurrentOpenRegStream(self.device().index());
  const Verdict verdict = readOnHost("aten::_local_scalar_dense", stream, {&self});
  if (C10_UNLIKELY(verdict == Verdict::Skip)) {
    return at::native::_local_scalar_dense_cpu(dummy(self.scalar_type(), {}));
  }
  const TraceScope work(stream, WorkDescription::copy(orMemcpyDeviceToHost, self.itemsize()));
  return readFirstElement(self);
}

bool equal(const Tensor& self, const Tensor& other) {
  const OpenRegStream stream = getCurrentOpenRegStream(self.device().index());
  const Verdict verdict = readOnHost("aten::equal", stream, {&self, &other});
  if (C10_UNLIKELY(verdict == Verdict::Skip)) {
    return self.sizes() == other.sizes();
  }
  const TraceScope work(stream, kKernelName<"aten::equal">.text);
  return at::native::cpu_equal(hostView(self), hostView(other));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_local_scalar_dense", TORCH_FN(localScalarDense));
  m.impl("equal", &DeviceCheckingKernel<"aten::equal", &equal>::call);
}

}  // namespace at::openreg
