// Warnings of kernels.
//
// Note [Warnings of kernels]
// On the CPU, a warning of a kernel is a Python warning of the call. A worker has no Python call,
// so its warnings are printed on stderr. What is known at the call is therefore given there: what a
// trial run warns of (Note [Trial runs]), and what the first call of a kind warned of in the
// fallback (Note [Calls that repeat]). When the kernel runs on a worker, it warns of the same
// again; workers drop these texts. TORCH_WARN_ONCE, which warns once per process, warns in
// whichever run is first.
#pragma once

#include <c10/util/Exception.h>

#include <vector>

namespace at::openreg {

// During its lifetime, records the warnings of the calling thread. Workers drop those texts from
// now on.
class WarningRecorder final : public c10::WarningHandler {
 public:
  // Whether warnings are also given at once, to the handler that was there before.
  enum class Mode { Record, Forward };

  explicit WarningRecorder(Mode mode)
      : next_(mode == Mode::Forward ? c10::WarningUtils::get_warning_handler() : nullptr),
        guard_(this) {}

  void process(const c10::Warning& warning) override;

  std::vector<c10::Warning> take() { return std::move(warnings_); }

 private:
  c10::WarningHandler* next_;
  std::vector<c10::Warning> warnings_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

// Call on a worker, once: from then on, it drops warnings that calls have given.
void dropKnownWarningsOfThisThread();

}  // namespace at::openreg
