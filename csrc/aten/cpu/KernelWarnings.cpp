#include "csrc/aten/cpu/KernelWarnings.h"

#include <string>
#include <unordered_set>

#include "csrc/core/Mutex.h"

namespace at::openreg {
namespace {

// Texts may have sizes in them, so their number is bounded. What is not kept is printed.
constexpr size_t kMaxKnown = 1000;

struct KnownTexts {
  c10::openreg::Mutex mutex;
  std::unordered_set<std::string> texts OPENREG_GUARDED_BY(mutex);

  void add(const std::string& text) {
    const c10::openreg::Lock lock(mutex);
    if (texts.size() < kMaxKnown) {
      texts.insert(text);
    }
  }

  bool contain(const std::string& text) {
    const c10::openreg::Lock lock(mutex);
    return texts.count(text) > 0;
  }
};

KnownTexts& known() {
  static auto* instance = new KnownTexts();  // outlives all threads
  return *instance;
}

class WithoutKnown final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (!known().contain(warning.msg())) {
      c10::WarningHandler::process(warning);
    }
  }
};

}  // namespace

void WarningRecorder::process(const c10::Warning& warning) {
  known().add(warning.msg());
  warnings_.push_back(warning);
  if (next_ != nullptr) {
    next_->process(warning);
  }
}

void dropKnownWarningsOfThisThread() {
  static auto* handler = new WithoutKnown();
  c10::WarningUtils::set_warning_handler(handler);
}

}  // namespace at::openreg
