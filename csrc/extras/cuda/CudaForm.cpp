#include "csrc/extras/cuda/CudaForm.h"

#include <c10/util/StringUtil.h>
#include <openreg/device.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "csrc/extras/cuda/CudaErrors.h"
#include "csrc/extras/cuda/CudaVariables.h"
#include "torch_openreg/core/Exception.h"

namespace at::openreg {

using c10::openreg::KernelExceptionTag;

std::string_view CudaForm::capability() const { return cudaCapability(); }

const char* CudaForm::errorText(orError_t error) const noexcept { return cudaErrorText(error); }

// See Note [Errors of kernels on CUDA].
std::string CudaForm::describe(orError_t error, KernelExceptionTag tag,
                               const char* raised_by) const {
  const std::string detail = orGetLastErrorMessage();
  const bool keeps_type = tag != KernelExceptionTag::None && error != orErrorAssert;
  std::string text = keeps_type ? detail : describeCudaError(error);
  if (!keeps_type && !detail.empty()) {
    text += "\n" + detail;
  }
  if (error == orErrorInvalidDevice) {
    text +=
        "\nOPENREG_DEVICE_COUNT says how many devices there are, and so does --devices of python "
        "-m "
        "torch_openreg.cuda.";
  }
  return c10::str(text, "\nRaised by ", raised_by, ".");
}

std::string CudaForm::describeWarning(orError_t error, const char* raised_by) const {
  return c10::str("CUDA warning: ", cudaErrorText(error), "\n", orGetLastErrorMessage(),
                  "\nRaised by ", raised_by, ".");
}

void CudaForm::raise(orError_t error, c10::SourceLocation location, std::string text) const {
  if (error == orErrorForked) {
    DeviceForm::raise(error, location, std::move(text));
  }
  throw c10::AcceleratorError(location, static_cast<int32_t>(error), std::move(text));
}

void CudaForm::refuseIndex(int64_t index) const {
  // As cudaSetDevice does.
  OPENREG_CHECK(orSetDevice(static_cast<int>(std::clamp<int64_t>(index, INT_MIN, INT_MAX))));
  DeviceForm::refuseIndex(index);
}

orError_t CudaForm::codeOf(KernelExceptionTag tag) const noexcept {
  const bool is_check = tag == KernelExceptionTag::Check || tag == KernelExceptionTag::Index ||
                        tag == KernelExceptionTag::Value;
  return is_check ? orErrorAssert : orErrorLaunchFailure;
}

bool CudaForm::isLasting(orError_t error, KernelExceptionTag tag) const noexcept {
  return areCudaErrorsSticky() && (error == orErrorAssert || tag == KernelExceptionTag::None);
}

}  // namespace at::openreg
