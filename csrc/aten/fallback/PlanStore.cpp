#include "csrc/aten/fallback/PlanStore.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"

namespace at::openreg {
namespace {

constexpr size_t kMaxPlans = 1 << 15;
constexpr size_t kMaxWords = 1 << 21;  // 16 MiB

// A signature as it is stored: shrunk to its size.
struct KeptSignature {
  explicit KeptSignature(const CallSignature& signature)
      : words(signature.words().begin(), signature.words().end()), hash(signature.hash()) {}

  std::vector<int64_t> words;
  size_t hash;
};

c10::ArrayRef<int64_t> wordsOf(const KeptSignature& signature) { return signature.words; }
c10::ArrayRef<int64_t> wordsOf(const CallSignature& signature) { return signature.words(); }

struct Hash {
  using is_transparent = void;
  size_t operator()(const KeptSignature& signature) const { return signature.hash; }
  size_t operator()(const CallSignature& signature) const { return signature.hash(); }
};

struct Equal {
  using is_transparent = void;
  template <typename One, typename Other>
  bool operator()(const One& one, const Other& other) const {
    return wordsOf(one) == wordsOf(other);
  }
};

using Plan = std::shared_ptr<const CallPlan>;

// Approximate number of words of a plan and its signature.
size_t sizeOf(const CallSignature& signature, const CallPlan& plan) {
  size_t size = signature.words().size();
  for (const PlannedResult& result : plan.results) {
    size += result.tensors.size() * sizeof(PlannedTensor) / sizeof(int64_t);
  }
  return size;
}

// How many plans of an old generation are freed with each new one: two, so that the generation has
// gone when the next one follows, which is as large unless its descriptions are longer.
constexpr int kFreedPerPlan = 2;

class Store {
 public:
  Plan find(const CallSignature& signature) {
    Plan found;
    {
      const c10::openreg::SharedLock lock(mutex_);
      const auto young = young_.find(signature);
      if (young != young_.end()) {
        return young->second;
      }
      const auto old = old_.find(signature);
      if (old == old_.end()) {
        return nullptr;
      }
      found = old->second;
    }
    const c10::openreg::ExclusiveLock lock(mutex_);
    insert(signature, found);
    return found;
  }

  void keep(const CallSignature& signature, Plan plan) {
    const c10::openreg::ExclusiveLock lock(mutex_);
    ++made_;
    insert(signature, std::move(plan));
  }

  PlanCount count() {
    const c10::openreg::SharedLock lock(mutex_);
    return {.plans = young_.size() + old_.size(), .words = words_ + old_words_, .made = made_};
  }

 private:
  using Generation = std::unordered_map<KeptSignature, Plan, Hash, Equal>;

  void insert(const CallSignature& signature, Plan plan) OPENREG_REQUIRES(mutex_) {
    words_ += sizeOf(signature, *plan);
    young_.insert_or_assign(KeptSignature(signature), std::move(plan));
    for (int i = 0; i < kFreedPerPlan && !leaving_.empty(); ++i) {
      leaving_.erase(leaving_.begin());
    }
    if (young_.size() >= kMaxPlans || words_ >= kMaxWords) {
      leaving_ = std::exchange(old_, std::exchange(young_, {}));
      old_words_ = std::exchange(words_, 0);
    }
  }

  c10::openreg::SharedMutex mutex_;
  Generation young_ OPENREG_GUARDED_BY(mutex_);
  Generation old_ OPENREG_GUARDED_BY(mutex_);
  Generation leaving_ OPENREG_GUARDED_BY(mutex_);  // no look-up finds them
  size_t words_ OPENREG_GUARDED_BY(mutex_) = 0;    // of young_
  size_t old_words_ OPENREG_GUARDED_BY(mutex_) = 0;
  size_t made_ OPENREG_GUARDED_BY(mutex_) = 0;
};

Store& store() {
  static auto* instance = new Store();  // outlives all threads
  return *instance;
}

}  // namespace

Plan findPlan(const CallSignature& signature) { return store().find(signature); }

void keepPlan(const CallSignature& signature, Plan plan) {
  store().keep(signature, std::move(plan));
}

PlanCount countPlans() { return store().count(); }

}  // namespace at::openreg
