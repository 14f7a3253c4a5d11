#include "csrc/extras/cuda/CudaErrors.h"

#include <c10/util/StringUtil.h>
#include <openreg/setting.h>

#include <string_view>

#include "csrc/core/Settings.h"

namespace at::openreg {
namespace {

const c10::openreg::Setting kStickyErrors{
    "OPENREG_CUDA_STICKY_ERRORS", "0", "0 1",
    "1: with OPENREG_DEVICE_TYPE=cuda, a device on which a kernel failed stays unusable until the "
    "process ends, as a GPU does; 0: it works again when the error has been raised."};

// The number of the first error that CUDA does not have.
constexpr int kFirstOwnError = 2000;

bool isOfKernel(orError_t error) {
  return error == orErrorAssert || error == orErrorLaunchFailure || error == orErrorIllegalAddress;
}

bool isLaunchBlocking() {
  orSetting row{};
  return orGetSetting(&row, orSettingIndex_OPENREG_LAUNCH_BLOCKING) == orSuccess &&
         row.value != nullptr && std::string_view(row.value) == "1";
}

}  // namespace

const char* cudaErrorText(orError_t error) noexcept {
  switch (error) {
    case orErrorNoDevice:
      return "no CUDA-capable device is detected";
    case orErrorOperatingSystem:
      return "OS call failed or operation not supported on this OS";
    case orErrorIllegalState:
      return "the operation cannot be performed in the present state";
    case orErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case orErrorAssert:
      return "device-side assert triggered";
    case orErrorLaunchFailure:
      return "unspecified launch failure";
    case orErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case orErrorStreamCaptureMerge:
      return "operation would result in a merge of separate capture sequences";
    case orErrorStreamCaptureUnmatched:
      return "capture was not ended in the same stream as it began";
    case orErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case orErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case orErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    case orErrorStreamCaptureWrongThread:
      return "attempt to terminate a thread-local capture sequence from another thread";
    default:
      return orGetErrorString(error);
  }
}

std::string describeCudaError(orError_t error) {
  std::string text = c10::str("CUDA error: ", cudaErrorText(error));
  if (error == orErrorInvalidDevice) {
    text += "\nGPU device may be out of range, do you have enough GPUs?";
  } else if (error < kFirstOwnError) {
    const std::string_view name = orGetErrorName(error);
    text += c10::str("\nSearch for `cuda", name.substr(2),
                     "' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html "
                     "for more information.");
  }
  if (isOfKernel(error) && !isLaunchBlocking()) {
    text +=
        "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect."
        "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1";
  }
  return text;
}

bool areCudaErrorsSticky() noexcept {
  try {
    return kStickyErrors.isOn();
  } catch (const std::exception&) {
    return false;  // settings that are invalid leave no device to lose
  }
}

}  // namespace at::openreg
