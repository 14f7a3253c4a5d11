#include "csrc/sanitizer/Stack.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <string_view>
#include <utility>

namespace c10::openreg {
namespace {

std::atomic<CachingDeviceAllocator::CreateContextFn> gatherer{nullptr};

constexpr std::string_view kBackwardName = "torch_openreg: who asked for the backward pass";
const DebugInfoKind kBackward(&kBackwardName);

struct BackwardCaller final : DebugInfoBase {
  explicit BackwardCaller(std::shared_ptr<GatheredContext> stack) : stack(std::move(stack)) {}
  const std::shared_ptr<GatheredContext> stack;
};

}  // namespace

void setStackGatherer(CachingDeviceAllocator::CreateContextFn gather) { gatherer = gather; }

Stack gatherStack() {
  Stack stack;
  if (const auto gather = gatherer.load(std::memory_order_relaxed)) {
    stack.here = gather();
  }
  if (const DebugInfoBase* info = ThreadLocalDebugInfo::get(kBackward)) {
    stack.backward = static_cast<const BackwardCaller*>(info)->stack;
  }
  return stack;
}

void beginBackward() {
  ThreadLocalDebugInfo::_push(kBackward, std::make_shared<BackwardCaller>(gatherStack().here));
}

void endBackward() { ThreadLocalDebugInfo::_pop(kBackward); }

}  // namespace c10::openreg
