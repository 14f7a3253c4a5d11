#include "csrc/aten/cpu/ErrorWords.h"

namespace at::openreg {
namespace {

constinit ErrorWords words_in_use = nullptr;

}  // namespace

void setErrorWords(ErrorWords words) noexcept { words_in_use = words; }

void rethrowInOwnWords(const c10::Error& error) {
  if (words_in_use != nullptr) {
    words_in_use(error);
  }
  throw;
}

}  // namespace at::openreg
