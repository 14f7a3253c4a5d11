// Fourier transforms of float16 and complex32, which CUDA supports and the CPU does not.
//
// torch.fft is composed of transforms that use the fallback. Composing them in a wider type rounds
// only once, and avoids argument checks that allow float16 only for CUDA. The functions are
// registered for autograd keys, so autograd differentiates the conversions together with the other
// operators.

#include <ATen/core/Tensor.h>
#include <ATen/ops/fft_fft2_ops.h>
#include <ATen/ops/fft_fft_ops.h>
#include <ATen/ops/fft_fftn_ops.h>
#include <ATen/ops/fft_hfft2_ops.h>
#include <ATen/ops/fft_hfft_ops.h>
#include <ATen/ops/fft_hfftn_ops.h>
#include <ATen/ops/fft_ifft2_ops.h>
#include <ATen/ops/fft_ifft_ops.h>
#include <ATen/ops/fft_ifftn_ops.h>
#include <ATen/ops/fft_ihfft2_ops.h>
#include <ATen/ops/fft_ihfft_ops.h>
#include <ATen/ops/fft_ihfftn_ops.h>
#include <ATen/ops/fft_irfft2_ops.h>
#include <ATen/ops/fft_irfft_ops.h>
#include <ATen/ops/fft_irfftn_ops.h>
#include <ATen/ops/fft_rfft2_ops.h>
#include <ATen/ops/fft_rfft_ops.h>
#include <ATen/ops/fft_rfftn_ops.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "csrc/aten/dtypes/WideningKernel.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

template <typename Op, typename Signature = typename Op::schema>
struct Transform;

template <typename Op, typename Result, typename... Args>
struct Transform<Op, Result(Args...)> {
  // ATen's composite kernel, which the CPU also uses.
  static Result compose(Args... args) {
    return Op::redispatch(c10::DispatchKeySet(DispatchKey::CPU), std::forward<Args>(args)...);
  }
};

template <typename Op>
void registerOverload(torch::Library& m) {
  std::string name = Op::name;
  if (Op::overload_name[0] != '\0') {
    name.append(".").append(Op::overload_name);
  }
  m.impl(name.c_str(), wideningOf<Op, &Transform<Op>::compose>());
}

template <typename Functional, typename Out>
void registerTransform(torch::Library& m) {
  registerOverload<Functional>(m);
  registerOverload<Out>(m);
}

void registerTransforms(torch::Library& m) {
  registerTransform<at::_ops::fft_fft, at::_ops::fft_fft_out>(m);
  registerTransform<at::_ops::fft_fft2, at::_ops::fft_fft2_out>(m);
  registerTransform<at::_ops::fft_fftn, at::_ops::fft_fftn_out>(m);
  registerTransform<at::_ops::fft_hfft, at::_ops::fft_hfft_out>(m);
  registerTransform<at::_ops::fft_hfft2, at::_ops::fft_hfft2_out>(m);
  registerTransform<at::_ops::fft_hfftn, at::_ops::fft_hfftn_out>(m);
  registerTransform<at::_ops::fft_ifft, at::_ops::fft_ifft_out>(m);
  registerTransform<at::_ops::fft_ifft2, at::_ops::fft_ifft2_out>(m);
  registerTransform<at::_ops::fft_ifftn, at::_ops::fft_ifftn_out>(m);
  registerTransform<at::_ops::fft_ihfft, at::_ops::fft_ihfft_out>(m);
  registerTransform<at::_ops::fft_ihfft2, at::_ops::fft_ihfft2_out>(m);
  registerTransform<at::_ops::fft_ihfftn, at::_ops::fft_ihfftn_out>(m);
  registerTransform<at::_ops::fft_irfft, at::_ops::fft_irfft_out>(m);
  registerTransform<at::_ops::fft_irfft2, at::_ops::fft_irfft2_out>(m);
  registerTransform<at::_ops::fft_irfftn, at::_ops::fft_irfftn_out>(m);
  registerTransform<at::_ops::fft_rfft, at::_ops::fft_rfft_out>(m);
  registerTransform<at::_ops::fft_rfft2, at::_ops::fft_rfft2_out>(m);
  registerTransform<at::_ops::fft_rfftn, at::_ops::fft_rfftn_out>(m);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) { registerTransforms(m); }
OPENREG_LIBRARY_IMPL(aten, AutogradFunctionality, m) { registerTransforms(m); }

}  // namespace at::openreg
