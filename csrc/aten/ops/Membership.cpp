// torch.isin with a number as its first argument. ATen's shape function reports no elements, and
// its kernel resizes the result, which a kernel on a worker cannot do. With the number as a tensor,
// both agree.

#include <ATen/ops/isin.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include "csrc/aten/fallback/MixedDevices.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

Tensor onDeviceOf(const Tensor& tensor, const Scalar& element) {
  Tensor number = at::scalar_tensor(element, tensor.options().dtype(element.type()));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

Tensor isin(const Scalar& element, const Tensor& test_elements, bool assume_unique, bool invert) {
  return at::isin(onDeviceOf(test_elements, element), test_elements, assume_unique, invert);
}

Tensor& isinInto(const Scalar& element, const Tensor& test_elements, bool assume_unique,
                 bool invert, Tensor& out) {
  return at::isin_out(out, onDeviceOf(test_elements, element), test_elements, assume_unique,
                      invert);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("isin.Scalar_Tensor", TORCH_FN(isin));
  m.impl("isin.Scalar_Tensor_out",
         &DeviceCheckingKernel<"aten::isin.Scalar_Tensor_out", &isinInto>::call);
}

}  // namespace at::openreg
