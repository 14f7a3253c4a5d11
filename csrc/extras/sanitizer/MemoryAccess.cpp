#include "csrc/extras/sanitizer/MemoryAccess.h"

#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <utility>

#include "csrc/core/OperatorName.h"
#include "csrc/extras/sanitizer/ByteRuns.h"
#include "csrc/extras/sanitizer/WrittenOperands.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {

namespace {

bool isMemoryHere(const Operand& operand) {
  const TensorImpl& tensor = *operand.tensor;
  return operand.tensor != UndefinedTensorImpl::singleton() &&
         (operand.is_host_memory || tensor.device_type() == kDeviceType) && tensor.has_storage() &&
         tensor.layout() == kStrided;
}

bool hasSame(ArrayRef<Operand> operands, const Operand& operand, bool is_written) {
  return std::any_of(operands.begin(), operands.end(), [&](const Operand& other) {
    return other.tensor == operand.tensor && other.is_written == is_written;
  });
}

// Whether the kernel reads the contents; `index` counts the operands that are read.
bool isRead(const char* kernel, ArrayRef<Operand> operands, const Operand& operand, int index) {
  if (!operand.is_written) {
    return index > 0 || !readsOnlySizes(kernel);
  }
  const bool is_passed_in =
      operand.is_updated || isInPlace(kernel) || hasSame(operands, operand, false);
  return is_passed_in && !onlyWrites(kernel);
}

// Whether it is the tensor that an in-place operator is called on.
bool isSelf(ArrayRef<Operand> operands, const Operand& operand) {
  const auto* const first_read = std::find_if(
      operands.begin(), operands.end(), [](const Operand& other) { return !other.is_written; });
  return operand.is_written && first_read != operands.end() && first_read->tensor == operand.tensor;
}

}  // namespace

Access accessOf(const Operand& operand) {
  const TensorImpl& tensor = *operand.tensor;
  Access access;
  access.is_write = operand.is_written;
  access.is_host_memory = operand.is_host_memory;
  access.argument = operand.name;
  access.dtype = typeMetaToScalarType(tensor.dtype());
  access.sizes = shareSizes(tensor.sizes());
  const auto storage = reinterpret_cast<uintptr_t>(tensor.storage().data());
  if (storage != 0) {
    const size_t itemsize = tensor.itemsize();
    access.runs = ByteRuns(storage + static_cast<size_t>(tensor.storage_offset()) * itemsize,
                           tensor.sizes(), tensor.strides(), itemsize);
  }
  return access;
}

std::vector<MemoryAccess> memoryAccessesOf(const char* kernel, ArrayRef<Operand> operands) {
  std::vector<MemoryAccess> memory_accesses;
  memory_accesses.reserve(operands.size());
  int read_count = 0;
  int written_count = 0;
  for (const Operand& operand : operands) {
    const int index = operand.is_written ? written_count++ : read_count++;
    const bool is_output_too = !operand.is_written && hasSame(operands, operand, true);
    if (!isMemoryHere(operand) || is_output_too) {
      continue;
    }
    const Storage& storage = operand.tensor->storage();
    MemoryAccess memory_access{accessOf(operand), reinterpret_cast<uintptr_t>(storage.data()),
                               storage.nbytes()};
    memory_access.access.operand = static_cast<int16_t>(index);
    memory_access.is_unknown = operand.is_unknown;
    memory_access.is_read = !operand.is_unknown && isRead(kernel, operands, operand, index);
    if (operand.name == nullptr && isSelf(operands, operand)) {
      memory_access.access.argument = "self";
    }
    if (!memory_access.access.runs.isEmpty()) {
      memory_accesses.push_back(std::move(memory_access));
    }
  }
  return memory_accesses;
}

MemoryAccess memoryAccessOf(const void* address, size_t nbytes, bool is_written) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  MemoryAccess memory_access{Access(), begin, nbytes};
  memory_access.access.runs = ByteRuns(begin, nbytes);
  memory_access.access.is_write = is_written;
  return memory_access;
}

}  // namespace c10::openreg
