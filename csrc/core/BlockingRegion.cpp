#include "csrc/core/BlockingRegion.h"

namespace c10::openreg {
namespace {

BlockingHooks blocking_hooks{[]() -> void* { return nullptr; }, [](void*) {}};

}  // namespace

void setBlockingHooks(BlockingHooks hooks) { blocking_hooks = hooks; }

BlockingRegion::BlockingRegion() : state_(blocking_hooks.enter()) {}

BlockingRegion::~BlockingRegion() { blocking_hooks.leave(state_); }

}  // namespace c10::openreg
