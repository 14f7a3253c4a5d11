#include "csrc/extras/sanitizer/WrittenOperands.h"

#include "build/generated/facts/MayIgnoreSelf.h"
#include "build/generated/facts/OnlyWrites.h"
#include "build/generated/facts/ReadsOnlySizes.h"

namespace c10::openreg {

bool isOfTorch(std::string_view kernel) { return kernel.starts_with("aten::"); }

bool onlyWrites(std::string_view kernel) {
  return !isOfTorch(kernel) || facts::kOnlyWrites.contains(kernel);
}

bool readsOnlySizes(std::string_view kernel) {
  return facts::kMayIgnoreSelf.contains(kernel) || facts::kReadsOnlySizes.contains(kernel);
}

}  // namespace c10::openreg
