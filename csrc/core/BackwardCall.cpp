#include "csrc/core/BackwardCall.h"

namespace c10::openreg {
namespace {

BackwardListener the_listener = nullptr;

}  // namespace

void setBackwardListener(BackwardListener listener) { the_listener = listener; }

void announceBackward() {
  if (the_listener != nullptr) {
    the_listener();
  }
}

}  // namespace c10::openreg
