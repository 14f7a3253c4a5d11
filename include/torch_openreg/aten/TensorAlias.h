// Aliases of device tensors for kernels: CPU tensors on the kernel addresses of device memory.
//
// Note [Lifetimes of enqueued work]
// A TensorAlias holds an address and metadata, not a reference. The memory may return to the
// allocator while the work is still queued: the allocator reuses it only on the same stream, so
// later writes run later. For memory used on a second stream, record_stream must be called, as on
// CUDA.
//
// Unless a function says otherwise:
//   Threads  Aliases are made on the calling thread. Any thread may convert one to a tensor,
//            several threads at a time: the alias does not change.
//   GIL      Neither needed nor released; no function waits.
//   Capture  Allowed. Replays use the captured addresses: memory that is allocated while a stream
//            captures belongs to the graph; for all other memory, the program must keep the
//            tensors.
//   Owns     Neither an alias nor its tensor keeps memory alive.
//   Errors   Throws c10::Error, at the call.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/SizesAndStrides.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

class TensorPool;

// Whether the tensor is defined and on an openreg device.
inline bool isOpenReg(const TensorBase& tensor) {
  return tensor.defined() && tensor.device().type() == c10::openreg::kDeviceType;
}

// The data for rebuilding a tensor as a CPU tensor. Made on the calling thread, moved into the
// closure, converted to a tensor by the worker.
class OPENREG_EXPORT TensorAlias {
 public:
  // An undefined tensor.
  TensorAlias() = default;

  // Accepts
  //   - a strided openreg tensor;
  //   - a strided CPU tensor of 0 dimensions, whose value is copied now;
  //   - an undefined tensor.
  //
  // Throws for other tensors, and names them. Conjugate and negative bits and "wrapped number" are
  // kept.
  explicit TensorAlias(const TensorBase& tensor) { assign(tensor); }

  // The same for an alias that is still undefined, in place.
  void assign(const TensorBase& tensor);

  // As above, and undefined for an empty optional.
  explicit TensorAlias(const std::optional<Tensor>& tensor);

  // As above, but a CPU tensor of any size is aliased, not copied: the caller must keep it alive
  // and unchanged until the kernel has run.
  static TensorAlias ofHostMemory(const TensorBase& tensor);

  TensorAlias(TensorAlias&&) noexcept = default;
  TensorAlias& operator=(TensorAlias&&) noexcept = default;
  TensorAlias(const TensorAlias&) = default;
  TensorAlias& operator=(const TensorAlias&) = default;

  bool defined() const { return kind_ != Kind::Undefined; }

  // Of the tensor; empty if it is undefined.
  IntArrayRef sizes() const { return sizes_and_strides_.sizes_arrayref(); }

  // The CPU tensor. If the alias holds a value, the tensor points to it, so the alias must outlive
  // the tensor. Each call makes a new tensor.
  Tensor tensor() const;

  // The same, with a tensor of the pool if it has one.
  Tensor tensor(TensorPool& pool) const;

  // The same on the storage of `other`, a tensor made by this class for the same device storage, so
  // that kernels detect that the two overlap.
  Tensor tensorOnStorageOf(const Tensor& other) const;

  // The address of the storage for a kernel, and its size.
  void* storageData() const { return storage_data_; }
  size_t storageNbytes() const { return storage_nbytes_; }

  // Whether both are tensors on the same device storage.
  bool sharesStorageWith(const TensorAlias& other) const {
    return storage_nbytes_ > 0 && kind_ == Kind::Memory && other.kind_ == Kind::Memory &&
           storage_data_ == other.storage_data_ && storage_nbytes_ == other.storage_nbytes_;
  }

  // Whether a tensor made by this alias still has the alias's sizes, strides and memory.
  bool isDescriptionOf(const Tensor& tensor) const {
    return !defined() || (tensor.storage().data() == storage_data_ &&
                          tensor.storage_offset() == storage_offset_ &&
                          tensor.sizes() == sizes_and_strides_.sizes_arrayref() &&
                          tensor.strides() == sizes_and_strides_.strides_arrayref());
  }

  // For a result for which that is false. Errors: RuntimeError with both descriptions.
  [[noreturn]] void throwNotWritten(const Tensor& tensor) const;

  // As tensor(), std::nullopt if undefined.
  std::optional<Tensor> optionalTensor() const;

 private:
  enum class Kind : uint8_t { Undefined, Memory, Value };

  void setMetadata(const TensorBase& tensor);
  DataPtr data() const;
  Tensor tensorOn(Storage storage) const;
  void describe(TensorImpl* impl) const;

  Kind kind_ = Kind::Undefined;
  bool is_conj_ = false;
  bool is_neg_ = false;
  bool is_wrapped_number_ = false;
  caffe2::TypeMeta dtype_;
  void* storage_data_ = nullptr;
  size_t storage_nbytes_ = 0;
  int64_t storage_offset_ = 0;
  c10::impl::SizesAndStrides sizes_and_strides_;
  alignas(16) std::array<std::byte, 16> value_{};  // the widest scalar, complex<double>
};

// The index of the first alias on the same storage as the one at `index`, or `index`. Kernels that
// check for overlap compare storages, so the tensors of these aliases must share theirs.
inline size_t firstSharing(c10::ArrayRef<TensorAlias> aliases, size_t index) {
  size_t first = 0;
  while (first < index && !aliases[index].sharesStorageWith(aliases[first])) {
    ++first;
  }
  return first;
}

// Aliases of a list of tensors, in order.
OPENREG_EXPORT std::vector<TensorAlias> aliasAll(const ITensorListRef& tensors);
OPENREG_EXPORT std::vector<TensorAlias> aliasAll(const c10::List<std::optional<Tensor>>& tensors);

// Their tensors, in order. Tensors that share a storage on the device share one here.
OPENREG_EXPORT std::vector<Tensor> tensorsOf(const std::vector<TensorAlias>& aliases);

// One for each alias; std::nullopt for an undefined one.
OPENREG_EXPORT c10::List<std::optional<Tensor>> optionalTensorsOf(
    const std::vector<TensorAlias>& aliases);

// A CPU tensor on the kernel addresses of an openreg tensor's memory, for the calling thread. The
// caller must have synchronized with the work that uses the memory, and must keep it alive.
OPENREG_EXPORT Tensor hostView(const TensorBase& tensor);

// The same on the storage of `other`, the host view of a tensor that shares the device storage.
OPENREG_EXPORT Tensor hostViewOnStorageOf(const Tensor& other, const TensorBase& tensor);

// The offset from a device address to the address that a kernel uses.
OPENREG_EXPORT ptrdiff_t kernelOffset();

}  // namespace at::openreg
