// Memory of results that exists before the kernel allocates them.
//
// Note [Results in place]
// Most functions of the CPU allocate their results, but a planned call has allocated them before,
// on the device. So while such a function runs, its first request for memory of just the size of a
// planned result gets that result's. Where a result then is what was planned, nothing is left to
// copy. The request may as well have come from something that the function needs on its way: then
// the result is elsewhere, and is copied as it would be without all this. In no case does the
// function see anything but uninitialized memory, as from any allocator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "csrc/aten/kernel/FirstPlaces.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

// Offers memory to what libtorch_cpu allocates on the calling thread, for as long as it lives. Of
// two that live at a time, the older one offers nothing meanwhile. It also has to outlive what was
// allocated: that does not own the memory.
// Threads: those that an operator's own threads allocate on are offered nothing.
class ResultMemory {
 public:
  // Offers the memory of these results. They have storages of their own.
  explicit ResultMemory(c10::ArrayRef<TensorAlias> results);
  ~ResultMemory();

  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  // Whether a tensor's storage begins in memory that was offered and taken.
  bool holds(const Tensor& tensor) const;

  // The memory for a request; null if there is none of that size left.
  void* take(size_t nbytes);

 private:
  struct Offer {
    void* data;
    size_t nbytes;
    bool is_taken;
    size_t next_alike = kNone;  // in a long list: the next one of this size
  };

  // Of a long list, those of one size that are not taken yet.
  struct Alike {
    size_t first;
    size_t last;
  };

  static constexpr size_t kNone = static_cast<size_t>(-1);

  void index();
  Offer* findFree(size_t nbytes);

  c10::SmallVector<Offer, 4> offers_;
  size_t first_free_ = 0;
  // Of a long list; see Note [Long lists].
  bool is_indexed_ = false;
  FirstPlaces<size_t> sizes_;  // in `alike_`
  c10::SmallVector<Alike, 1> alike_;
  FirstPlaces<const void*> places_;  // in `offers_`, by their memory
  ResultMemory* outer_;
};

}  // namespace at::openreg
