// Operators that give the host a value, and therefore wait for the stream.

#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/equal_native.h>
#include <openreg/memory.h>
#include <torch/library.h>

#include "csrc/core/SyncDebug.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using c10::openreg::getCurrentOpenRegStream;
using c10::openreg::HostWork;
using c10::openreg::OpenRegStream;
using c10::openreg::WorkDescription;

Scalar localScalarDense(const Tensor& self) {
  const OpenRegStream stream = getCurrentOpenRegStream(self.device().index());
  c10::openreg::noteSynchronization("aten::_local_scalar_dense");
  stream.synchronize("aten::_local_scalar_dense");
  const HostWork work(stream, WorkDescription::copy(orMemcpyDeviceToHost, self.itemsize()));
  return at::native::_local_scalar_dense_cpu(hostView(self));
}

bool equal(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", other.device(), "! (aten::equal)");
  const OpenRegStream stream = getCurrentOpenRegStream(self.device().index());
  c10::openreg::noteSynchronization("aten::equal");
  stream.synchronize("aten::equal");
  const HostWork work(stream, kKernelName<"aten::equal">.text);
  return at::native::cpu_equal(hostView(self), hostView(other));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_local_scalar_dense", TORCH_FN(localScalarDense));
  m.impl("equal", TORCH_FN(equal));
}

}  // namespace at::openreg
