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
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "csrc/aten/kernel/FirstPlaces.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

// Offers memory for the allocations of libtorch_cpu on the calling thread, during its lifetime. If
// two such objects are alive, the older one is inactive. It must outlive what was allocated from
// it, because allocations do not own the memory.
// Threads: threads that an operator starts get no offers.
class ResultMemory {
 public:
  // Offers the memory of these results. Each must have a storage of its own.
  explicit ResultMemory(c10::ArrayRef<TensorAlias> results);
  ~ResultMemory();

  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  // Whether the tensor's storage starts in memory that was offered and taken.
  bool holds(const Tensor& tensor) const;

  // The memory for an allocation; null if no offer of that size is left.
  void* take(size_t nbytes);

 private:
  struct Offer {
    void* data;
    size_t nbytes;
    bool is_taken;
    size_t next_alike = kNone;  // in a long list: the next one of this size
  };

  // In a long list: the offers of one size that are not taken yet.
  struct Alike {
    size_t first;
    size_t last;
  };

  static constexpr size_t kNone = static_cast<size_t>(-1);

  void index();
  Offer* findFree(size_t nbytes);

  c10::SmallVector<Offer, 4> offers_;
  size_t first_free_ = 0;
  // Set for a long list; see Note [Long lists].
  bool is_indexed_ = false;
  FirstPlaces<size_t> sizes_;  // in `alike_`
  c10::SmallVector<Alike, 1> alike_;
  FirstPlaces<const void*> places_;  // in `offers_`, by their memory
  ResultMemory* outer_;
};

}  // namespace at::openreg
