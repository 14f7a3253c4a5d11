// Names of the kernels of operators.
//
// Note [Names of kernels]
// As on CUDA, the name of a kernel in traces and error texts differs from that of its operator, so
// a search for the operator's name does not find its kernels. The kernel of "aten::add.out" is
// "openreg_kernel<aten::add.out>", on the stream's worker and on the calling thread. Copies and
// fills are not named after an operator; see WorkDescription in TraceScope.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "torch_openreg/core/Launch.h"

namespace at::openreg {
namespace detail {

inline constexpr std::string_view kKernelNameBegin = "openreg_kernel<";
inline constexpr std::string_view kKernelNameEnd = ">";

template <std::size_t Size>
consteval auto kernelNameOf(const c10::openreg::KernelName<Size>& op) {
  char text[kKernelNameBegin.size() + Size + kKernelNameEnd.size()] = {};
  char* end = text;
  for (const std::string_view part :
       {kKernelNameBegin, std::string_view(op.text, Size - 1), kKernelNameEnd}) {
    end = part.copy(end, part.size()) + end;
  }
  return c10::openreg::KernelName(text);
}

}  // namespace detail

// The name of the kernel of an operator, such as kKernelName<"aten::relu">.text.
template <c10::openreg::KernelName Operator>
inline constexpr auto kKernelName = detail::kernelNameOf(Operator);

// The same for an operator whose name is known only at run time.
inline std::string kernelNameOf(std::string_view op) {
  return std::string(detail::kKernelNameBegin).append(op).append(detail::kKernelNameEnd);
}

}  // namespace at::openreg
