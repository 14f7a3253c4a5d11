#include "torch_openreg/core/Exception.h"

#include <atomic>
#include <optional>
#include <tuple>
#include <utility>

#include "csrc/core/DeviceForm.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {
namespace {

// Of errors with code 710; see takeAssertCount().
std::atomic<uint64_t> raised_asserts{0};

// Of an error that has been set: it stays, if it makes the device unusable.
void keepIfLasting(orError_t error, KernelExceptionTag tag) {
  if (deviceForm().isLasting(error, tag)) {
    orMakeKernelErrorSticky();
  }
}

orError_t report(KernelExceptionTag tag, const char* text) {
  orSetKernelError(text, static_cast<int>(tag));
  const orError_t error = deviceForm().codeOf(tag);
  keepIfLasting(error, tag);
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
  std::string text = deviceForm().describe(error, tag, raised_by);
  // Where checks of kernels are asserts.
  if (error == orErrorAssert && deviceForm().codeOf(KernelExceptionTag::Check) == error) {
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
  deviceForm().raise(error, location, std::move(text));
  __builtin_unreachable();  // which g++ does not take from the attribute of a virtual function
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
    TORCH_WARN(deviceForm().describeWarning(error, raised_by));
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
  keepIfLasting(error.code, KernelExceptionTag::None);
  return error.code;
}

KernelAcceleratorError::KernelAcceleratorError(SourceLocation location, std::string text,
                                               KernelError error, std::string kernel)
    : c10::AcceleratorError(location, static_cast<int32_t>(error.code), std::move(text)),
      error_(std::move(error)),
      kernel_(std::move(kernel)) {}

uint64_t takeAssertCount() noexcept { return raised_asserts.exchange(0); }

}  // namespace c10::openreg
