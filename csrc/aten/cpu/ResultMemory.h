// Result memory that is allocated before the kernel runs.
//
// Note [Results in place]
// Most CPU functions allocate their results, but a planned call has already allocated them on the
// device. So while such a function runs, its first allocation of exactly the size of a planned
// result returns that result's memory. If the function computes the planned result there, nothing
// needs to be copied. If the allocation was for a temporary, the result is elsewhere and is copied
// as usual. In both cases, the function gets uninitialized memory, as from any allocator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <unordered_map>

namespace at::openreg {

// Offers memory for the allocations of libtorch_cpu on the calling thread, during its lifetime. If
// two such objects are alive, the older one is inactive. It must outlive what was allocated from
// it, because allocations do not own the memory.
// Threads: threads that an operator starts get no offers.
class ResultMemory {
 public:
  ResultMemory();
  ~ResultMemory();

  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  // Offers the memory of a result, which has a storage of its own. Call before the first take().
  void offer(void* data, size_t nbytes) {
    if (nbytes > 0) {
      offers_.push_back({data, nbytes});
    }
  }

  // The memory for an allocation; null if no offer of that size is left.
  void* take(size_t nbytes);

  // Whether the tensor may lie in memory that was taken: its storage does not own its memory, so it
  // has no context.
  static bool mayHold(const Tensor& tensor) {
    return tensor.storage().nbytes() > 0 && tensor.storage().data_ptr().get_context() == nullptr;
  }

 private:
  struct Offer {
    void* data;
    size_t nbytes;
    bool is_taken = false;
    size_t next_alike = 0;  // in a long list: one more than the index of the next of this size
  };

  static constexpr size_t kShortList = 16;

  Offer* findFree(size_t nbytes);

  c10::SmallVector<Offer, 4> offers_;
  // Of a long list, whose offers must be found in constant time: one more than the index of the
  // first free offer of each size.
  std::unordered_map<size_t, size_t> first_of_size_;
  ResultMemory* outer_;
};

}  // namespace at::openreg
