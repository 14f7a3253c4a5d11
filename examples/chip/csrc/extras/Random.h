// Step 10 of docs/bring_up.md, random numbers in graphs. In full: csrc/random/Generator.cpp.
#pragma once

#include <memory>
#include <mutex>

#include "../runtime/Event.h"
#include "../runtime/Generator.h"

namespace chip {

// docs: chip-captured-random
// A kernel computes its numbers from a key, which the generator draws at the call, and from the
// position of the kernel in its graph. The key of captured kernels is one that each replay draws.
inline uint64_t drawKey(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

struct CapturedKey {
  at::Generator generator;
  std::shared_ptr<uint64_t> key = std::make_shared<uint64_t>(0);  // a chip has it in its memory
  uint64_t kernel_count = 0;

  // Enqueues a new key before the kernels of a replay.
  void draw(const Stream& stream) const {
    const auto set = [](const std::shared_ptr<uint64_t>& to, uint64_t value) { *to = value; };
    check(orLaunchKernel(handleOf(stream), set, key, drawKey(generator)));
  }
};

// The generators that kernels of the captures under way draw from.
class CapturedKeys {
 public:
  static CapturedKeys& get() {
    static auto* keys = new CapturedKeys;
    return *keys;
  }
  // The key of a kernel, and its position among those with this key.
  std::pair<std::shared_ptr<uint64_t>, uint64_t> keyFor(const at::Generator& generator,
                                                        const Stream& stream) {
    const auto capture = captureOf(stream);
    if (capture == 0) return {std::make_shared<uint64_t>(drawKey(generator)), 0};
    const std::lock_guard lock(mutex_);
    std::vector<CapturedKey>& keys = keys_[capture];
    auto found = std::ranges::find(keys, generator, &CapturedKey::generator);
    if (found == keys.end()) found = keys.insert(found, CapturedKey{generator});
    return {found->key, found->kernel_count++};
  }
  std::vector<CapturedKey> take(unsigned long long capture) {
    const std::lock_guard lock(mutex_);
    const auto node = keys_.extract(capture);
    return node ? std::move(node.mapped()) : std::vector<CapturedKey>{};
  }

 private:
  std::mutex mutex_;
  std::map<unsigned long long, std::vector<CapturedKey>> keys_;
};
// docs: end

}  // namespace chip
