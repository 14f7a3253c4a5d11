#include "csrc/sanitizer/Shadow.h"

#include <iterator>

namespace c10::openreg {

Allocation* Shadow::find(uintptr_t address) {
  const auto after = live_.upper_bound(address);
  if (after == live_.begin()) {
    return nullptr;
  }
  Allocation* allocation = std::prev(after)->second.get();
  return address < allocation->address + allocation->size ? allocation : nullptr;
}

Allocation& Shadow::findOrAdd(uintptr_t address, size_t size) {
  Allocation* found = find(address);
  return found != nullptr ? *found : add(address, size);
}

Allocation& Shadow::add(uintptr_t address, size_t size) {
  while (Allocation* old = find(address)) {
    live_.erase(old->address);
  }
  live_.erase(live_.lower_bound(address), live_.lower_bound(address + size));
  auto allocation = std::make_shared<Allocation>();
  allocation->serial = ++serial_;
  allocation->address = address;
  allocation->size = size;
  return *live_.emplace(address, std::move(allocation)).first->second;
}

std::shared_ptr<Allocation> Shadow::take(uintptr_t address) {
  ++serial_;
  const auto node = live_.extract(address);
  return node.empty() ? nullptr : node.mapped();
}

}  // namespace c10::openreg
