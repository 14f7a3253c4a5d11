#include "csrc/extras/sanitizer/Shadow.h"

#include <iterator>

namespace c10::openreg {

Shadow::Allocations::const_iterator Shadow::at(uintptr_t address) const {
  const auto after = live_.upper_bound(address);
  if (after == live_.begin()) {
    return live_.end();
  }
  const auto found = std::prev(after);
  const Allocation& allocation = *found->second;
  return address < allocation.address + allocation.size ? found : live_.end();
}

Shadow::AllocationPtr Shadow::find(uintptr_t address) const {
  const auto found = at(address);
  return found == live_.end() ? nullptr : found->second;
}

const Shadow::AllocationPtr& Shadow::findOrAdd(uintptr_t address, size_t size) {
  const auto found = at(address);
  return found == live_.end() ? add(address, size) : found->second;
}

const Shadow::AllocationPtr& Shadow::add(uintptr_t address, size_t size) {
  auto first = at(address);
  if (first == live_.end()) {
    first = live_.lower_bound(address);
  }
  while (first != live_.end() && first->first < address + size) {
    first->second->is_live = false;
    first = live_.erase(first);
  }
  auto allocation = std::make_shared<Allocation>();
  allocation->serial = ++serial_;
  allocation->address = address;
  allocation->size = size;
  return live_.emplace(address, std::move(allocation)).first->second;
}

Shadow::AllocationPtr Shadow::take(uintptr_t address) {
  ++serial_;
  const auto node = live_.extract(address);
  if (node.empty()) {
    return nullptr;
  }
  node.mapped()->is_live = false;
  return node.mapped();
}

}  // namespace c10::openreg
