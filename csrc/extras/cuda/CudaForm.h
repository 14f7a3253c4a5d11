// The form of devices that stand for GPUs (csrc/core/DeviceForm.h).
#pragma once

#include "csrc/core/DeviceForm.h"

namespace at::openreg {

class CudaForm final : public c10::openreg::DeviceForm {
 public:
  c10::DeviceType type() const noexcept override { return c10::DeviceType::CUDA; }
  const char* name() const noexcept override { return "CUDA"; }
  const char* choice() const noexcept override { return "cuda"; }
  std::string_view capability() const override;
  const char* errorText(orError_t error) const noexcept override;
  std::string describe(orError_t error, c10::openreg::KernelExceptionTag tag,
                       const char* raised_by) const override;
  std::string describeWarning(orError_t error, const char* raised_by) const override;
  [[noreturn]] void raise(orError_t error, c10::SourceLocation location,
                          std::string text) const override;
  [[noreturn]] void refuseIndex(int64_t index) const override;
  orError_t codeOf(c10::openreg::KernelExceptionTag tag) const noexcept override;
  bool isLasting(orError_t error, c10::openreg::KernelExceptionTag tag) const noexcept override;
};

}  // namespace at::openreg
