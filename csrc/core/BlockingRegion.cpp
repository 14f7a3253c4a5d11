#include "csrc/core/BlockingRegion.h"

namespace c10::openreg {
namespace {

BlockingHooks blocking_hooks{[]() -> void* { return nullptr; }, [](void*) {}};

thread_local int locks_of_caller = 0;

}  // namespace

void setBlockingHooks(BlockingHooks hooks) { blocking_hooks = hooks; }

BlockingRegion::BlockingRegion()
    : state_(locks_of_caller == 0 ? blocking_hooks.enter() : nullptr) {}

BlockingRegion::~BlockingRegion() { blocking_hooks.leave(state_); }

CallerHoldsLock::CallerHoldsLock() { ++locks_of_caller; }

CallerHoldsLock::~CallerHoldsLock() { --locks_of_caller; }

}  // namespace c10::openreg
