// Step 5 of docs/bring_up.md, random numbers. In full: csrc/random/Generator.cpp.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "Functions.h"

namespace chip {

// docs: minimal-generator
// The fallback draws its numbers from a generator of the CPU, whose state is the state of this one.
// A chip's kernels have a seed and an offset instead.
class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  static c10::DeviceType device_type() { return kType; }  // which torch checks
  explicit GeneratorImpl(DeviceIndex device)
      : c10::GeneratorImpl({kType, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }  // chooses one at random
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    host.get<c10::GeneratorImpl>()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.get_state().getIntrusivePtr();
  }

  at::Generator host = at::detail::createCPUGenerator();

 private:
  GeneratorImpl* clone_impl() const override {
    auto* copy = new GeneratorImpl(device().index());
    copy->host = host.clone();
    return copy;
  }
};

inline at::Generator createGenerator(DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(device < 0 ? current_device() : device);
}

// One for each device, seeded at random when it is first asked for.
inline const at::Generator& getDefaultGenerator(DeviceIndex device) {
  static const auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (DeviceIndex d = 0; d < device_count(); ++d) made->emplace_back(createGenerator(d)).seed();
    return made;
  }();
  return generators->at(device < 0 ? current_device() : device);
}

// The generator of an operator's call: the one that was given, or the default one.
inline GeneratorImpl& generatorOf(const std::optional<at::Generator>& given, DeviceIndex device) {
  return *at::get_generator_or_default<GeneratorImpl>(given, getDefaultGenerator(device));
}
// docs: end

}  // namespace chip
