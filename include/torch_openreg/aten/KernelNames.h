// What the kernels of operators are called.
//
// Note [Names of kernels]
// A kernel is not its operator, and traces and error texts call it by a name of its own, as on
// CUDA: whoever looks an operator up by its name finds the operator alone. The kernel of
// "aten::add.out" is "openreg_kernel<aten::add.out>", whether the stream's worker runs it or the
// calling thread. Copies and fills are not called by an operator at all; see WorkDescription in
// HostWork.h.
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

// The same for an operator whose name is known when the program runs.
inline std::string kernelNameOf(std::string_view op) {
  return std::string(detail::kKernelNameBegin).append(op).append(detail::kKernelNameEnd);
}

}  // namespace at::openreg
