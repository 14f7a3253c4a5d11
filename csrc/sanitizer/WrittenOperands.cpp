#include "csrc/sanitizer/WrittenOperands.h"

#include <algorithm>
#include <iterator>

namespace c10::openreg {
namespace {

constexpr std::string_view kOnlyWriting[] = {
    "aten::_foreach_copy_",
    "aten::_foreach_zero_",
    "aten::_fused_sgd_",  // reads no momentum in its first step
    "aten::_index_put_impl_",
    "aten::bernoulli_",
    "aten::cauchy_",
    "aten::copy_",
    "aten::exponential_",
    "aten::fill_",
    "aten::fill_diagonal_",
    "aten::geometric_",
    "aten::index_copy_",
    "aten::index_fill_",
    "aten::index_put_",
    "aten::log_normal_",
    "aten::masked_fill_",
    "aten::masked_scatter_",
    "aten::normal_",
    "aten::put_",
    "aten::random_",
    "aten::resize_",
    "aten::scatter_",
    "aten::set_",
    "aten::tril_",
    "aten::triu_",
    "aten::uniform_",
    "aten::zero_",
};

constexpr std::string_view kReadingSizes[] = {
    "aten::bernoulli.p", "aten::cauchy",     "aten::exponential",
    "aten::geometric",   "aten::log_normal", "aten::normal_functional",
    "aten::random",      "aten::uniform",
};

std::string_view baseOf(std::string_view kernel) { return kernel.substr(0, kernel.find('.')); }

}  // namespace

bool onlyWrites(std::string_view kernel) {
  const std::string_view base = baseOf(kernel);
  if (!base.starts_with("aten::")) {
    return true;  // as far as anybody knows
  }
  return std::ranges::any_of(kOnlyWriting, [&](std::string_view one) {
    return base == one || base == one.substr(0, one.size() - 1);
  });
}

bool isInPlace(std::string_view kernel) {
  const std::string_view base = baseOf(kernel);
  return (base.ends_with('_') && !base.ends_with("__")) || base.find("::__i") != base.npos;
}

bool readsOnlySizes(std::string_view kernel) {
  return std::ranges::find(kReadingSizes, kernel) != std::end(kReadingSizes);
}

}  // namespace c10::openreg
