#include "csrc/core/Stack.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <string_view>
#include <utility>

namespace c10::openreg {
namespace {

std::atomic<GatherFrames> gatherer{nullptr};

constexpr std::string_view kBackwardName = "torch_openreg: caller of the backward pass";
const DebugInfoKind kBackward(&kBackwardName);

struct BackwardCaller final : DebugInfoBase {
  explicit BackwardCaller(Stack stack) : stack(std::move(stack)) {}
  const Stack stack;
};

}  // namespace

void setStackGatherer(GatherFrames gather) { gatherer = gather; }

Stack gatherStack() {
  const GatherFrames gather = gatherer.load(std::memory_order_relaxed);
  if (gather == nullptr) {
    return {};
  }
  const DebugInfoBase* info = ThreadLocalDebugInfo::get(kBackward);
  return gather(info == nullptr ? Stack() : static_cast<const BackwardCaller*>(info)->stack);
}

void beginBackward() {
  ThreadLocalDebugInfo::_push(kBackward, std::make_shared<BackwardCaller>(gatherStack()));
}

bool isInBackward() { return ThreadLocalDebugInfo::get(kBackward) != nullptr; }

void endBackward() { ThreadLocalDebugInfo::_pop(kBackward); }

}  // namespace c10::openreg
