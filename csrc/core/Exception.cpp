#include "torch_openreg/core/Exception.h"

#include <c10/util/StringUtil.h>

#include <atomic>
#include <optional>
#include <tuple>
#include <utility>

#include "csrc/core/CudaErrors.h"
#include "csrc/core/DeviceName.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {
namespace {

// The type of the exception that a kernel threw; the runtime passes it on as the error's tag.
enum class KernelExceptionTag : int {
  None = 0,
  Check,  // c10::Error itself
  Index,
  Value,
  Type,
  NotImplemented,
  LinAlg,
  OutOfMemory,
  Distributed,
};

std::string forkText() {
  const char* device = deviceName();
  return c10::str("Cannot re-initialize ", device, " in forked subprocess. To use ", device,
                  " with multiprocessing, you must use the 'spawn' start method");
}

// Of errors with code 710; see takeAssertCount().
std::atomic<uint64_t> raised_asserts{0};

// See Note [Errors of kernels on CUDA].
std::string describeAsCuda(orError_t error, KernelExceptionTag tag, const char* raised_by) {
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

std::string describe(orError_t error, KernelExceptionTag tag, const char* raised_by) {
  if (servesCuda()) {
    return describeAsCuda(error, tag, raised_by);
  }
  const std::string detail = orGetLastErrorMessage();
  std::string text = c10::str(kDeviceName, " error: ", orGetErrorString(error), " (",
                              orGetErrorName(error), ", code ", static_cast<int>(error), ")");
  if (!detail.empty()) {
    text += ": " + detail;
  }
  text += c10::str("\nRaised by ", raised_by, ".");
  if (error == orErrorLaunchFailure) {
    text +=
        "\nKernels run asynchronously, so the Python stack may point at a later call. For a "
        "stack that points at the failing one, set OPENREG_LAUNCH_BLOCKING=1.";
  }
  return text;
}

// See Note [Errors of kernels on CUDA].
orError_t codeOf(KernelExceptionTag tag) {
  const bool is_check = tag == KernelExceptionTag::Check || tag == KernelExceptionTag::Index ||
                        tag == KernelExceptionTag::Value;
  return servesCuda() && is_check ? orErrorAssert : orErrorLaunchFailure;
}

// Of an error that has been set: it stays, if that is set and a GPU's would.
void makeStickyAsOnCuda(orError_t error, KernelExceptionTag tag) {
  if (servesCuda() && areCudaErrorsSticky() &&
      (error == orErrorAssert || tag == KernelExceptionTag::None)) {
    orMakeKernelErrorSticky();
  }
}

orError_t report(KernelExceptionTag tag, const char* text) {
  orSetKernelError(text, static_cast<int>(tag));
  const orError_t error = codeOf(tag);
  makeStickyAsOnCuda(error, tag);
  return error;
}

// What the kernel that failed has said, if this thread's last error came from one that returned a
// KernelError.
std::optional<KernelAcceleratorError> kernelErrorOf(orError_t code, SourceLocation location,
                                                    const std::string& text) {
  orErrorRecord record{};
  if (orGetLastErrorRecord(&record) != orSuccess ||
      (*record.location == '\0' && record.address == 0)) {
    return std::nullopt;
  }
  return std::optional<KernelAcceleratorError>(
      std::in_place, location, text,
      KernelError{code, record.message, record.location, record.address}, record.kernel);
}

}  // namespace

void throwRuntimeError(orError_t error, const char* raised_by, SourceLocation location) {
  const auto tag =
      static_cast<KernelExceptionTag>(error == orErrorLaunchFailure ? orGetLastErrorTag() : 0);
  std::string text = describe(error, tag, raised_by);
  if (servesCuda() && error == orErrorAssert) {
    raised_asserts.fetch_add(1, std::memory_order_relaxed);
  }
  observe(&Observer::callRefusal, error, raised_by);
  const auto of_kernel = kernelErrorOf(error, location, text);
  // The error is being reported, so it must not stay this thread's last error.
  std::ignore = orGetLastError();
  if (of_kernel.has_value()) {
    throw *of_kernel;
  }
  switch (tag) {
    case KernelExceptionTag::Index:
      throw c10::IndexError(location, std::move(text));
    case KernelExceptionTag::Value:
      throw c10::ValueError(location, std::move(text));
    case KernelExceptionTag::Type:
      throw c10::TypeError(location, std::move(text));
    case KernelExceptionTag::NotImplemented:
      throw c10::NotImplementedError(location, std::move(text));
    case KernelExceptionTag::LinAlg:
      throw c10::LinAlgError(location, std::move(text));
    case KernelExceptionTag::OutOfMemory:
      throw c10::OutOfMemoryError(location, std::move(text));
    case KernelExceptionTag::Distributed:
      throw c10::DistBackendError(location, std::move(text));
    case KernelExceptionTag::Check:
    case KernelExceptionTag::None:
      break;
  }
  if (servesCuda() && error != orErrorForked) {
    throw c10::AcceleratorError(location, static_cast<int32_t>(error), std::move(text));
  }
  switch (error) {
    case orErrorMemoryAllocation:
      throw c10::OutOfMemoryError(location, std::move(text));
    case orErrorForked:
      throw c10::Error(location, forkText());
    case orErrorInvalidDevice:
      throw c10::Error(location, "The device index is out of range. " + text);
    default:
      throw c10::AcceleratorError(location, static_cast<int32_t>(error), std::move(text));
  }
}

void throwLaunchError(orError_t error, const char* kernel, SourceLocation location) {
  const std::string raised_by = std::string("the launch of ") + kernel;
  throwRuntimeError(error, raised_by.c_str(), location);
}

void warnRuntimeError(orError_t error, const char* raised_by) noexcept {
  // In a forked child every clean-up call fails, which is expected; a warning for each would only
  // clutter the output of DataLoader workers.
  if (error == orErrorForked) {
    return;
  }
  try {
    if (servesCuda()) {
      TORCH_WARN("CUDA warning: ", cudaErrorText(error), "\n", orGetLastErrorMessage(),
                 "\nRaised by ", raised_by, ".");
      return;
    }
    TORCH_WARN(describe(error, KernelExceptionTag::None, raised_by));
  } catch (const std::exception& exception) {
    // Warnings can be turned into exceptions, which must not leave this function.
    std::fprintf(stderr, "%s\n", exception.what());
  }
}

orError_t reportKernelException(std::exception_ptr exception) noexcept {
  try {
    std::rethrow_exception(std::move(exception));
  } catch (const c10::IndexError& error) {
    return report(KernelExceptionTag::Index, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return report(KernelExceptionTag::Value, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return report(KernelExceptionTag::Type, error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    return report(KernelExceptionTag::NotImplemented, error.what_without_backtrace());
  } catch (const c10::LinAlgError& error) {
    return report(KernelExceptionTag::LinAlg, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    return report(KernelExceptionTag::OutOfMemory, error.what_without_backtrace());
  } catch (const c10::DistBackendError& error) {
    return report(KernelExceptionTag::Distributed, error.what_without_backtrace());
  } catch (const c10::AcceleratorError& error) {
    return report(KernelExceptionTag::None, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return report(KernelExceptionTag::Check, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return report(KernelExceptionTag::None, error.what());
  } catch (...) {
    return report(KernelExceptionTag::None, "an exception that is not a std::exception");
  }
}

orError_t reportKernelError(const KernelError& error) noexcept {
  const orKernelError record{.text = error.text.c_str(),
                             .tag = static_cast<int>(KernelExceptionTag::None),
                             .location = error.location.c_str(),
                             .address = error.address};
  orSetKernelErrorRecord(&record);
  makeStickyAsOnCuda(error.code, KernelExceptionTag::None);
  return error.code;
}

KernelAcceleratorError::KernelAcceleratorError(SourceLocation location, std::string text,
                                               KernelError error, std::string kernel)
    : c10::AcceleratorError(location, static_cast<int32_t>(error.code), std::move(text)),
      error_(std::move(error)),
      kernel_(std::move(kernel)) {}

uint64_t takeAssertCount() noexcept { return raised_asserts.exchange(0); }

}  // namespace c10::openreg
