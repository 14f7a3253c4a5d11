// The names of operators, such as "aten::add_.Tensor".
#pragma once

#include <string_view>

namespace c10::openreg {

// "aten::add_" of "aten::add_.Tensor".
constexpr std::string_view withoutOverload(std::string_view name) {
  return name.substr(0, name.find('.'));
}

// Whether the operator changes its first argument: "aten::add_.Tensor" and "aten::__iand__.Scalar",
// but not "aten::__and__.Scalar".
constexpr bool isInPlace(std::string_view name) {
  const std::string_view base = withoutOverload(name);
  return (base.ends_with('_') && !base.ends_with("__")) || base.find("::__i") != base.npos;
}

}  // namespace c10::openreg
