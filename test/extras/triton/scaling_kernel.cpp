// A kernel as the compiler of Triton's kernels makes them, by hand: y[i] = x[i] * factor, n numbers
// in programs of 4. `mode` makes program 1 fail with the status of that number.
#include "torch_openreg/triton/kernel.h"

namespace {

constexpr int64_t kBlock = 4;

double number(uint64_t bits) {
  double value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OpenRegTritonStatus OPENREG_TRITON_ENTRY(
    const OpenRegTritonLaunch* launch, const uint64_t* slots, OpenRegTritonError* error) {
  // x: 0, 1, 2; y: 3, 4, 5; then n, the factor, and the mode.
  const auto count = static_cast<int64_t>(slots[6]);
  const auto factor = static_cast<float>(number(slots[7]));
  const auto mode = static_cast<OpenRegTritonStatus>(slots[8]);
  for (uint32_t program = 0; program < launch->grid[0]; ++program) {
    if (mode != OPENREG_TRITON_SUCCESS && program == 1) {
      *error = {mode, 0, 1, {program, 0, 0}, slots[5] + 8, sizeof(float)};
      return mode;
    }
    for (int64_t i = program * kBlock; i < (program + 1) * kBlock && i < count; ++i) {
      const uint64_t from = slots[0] + 4 * i;
      const uint64_t to = slots[3] + 4 * i;
      const uint64_t last = from + 4;
      const bool has_storage = slots[2] != 0;
      const bool is_legal = has_storage
                                ? slots[1] <= from && last <= slots[2]
                                : launch->is_allocated(launch->context, from, sizeof(float));
      if (!is_legal) {
        *error = {OPENREG_TRITON_ILLEGAL_READ,
                  1,
                  has_storage ? 0 : -1,
                  {program, 0, 0},
                  from,
                  sizeof(float)};
        return OPENREG_TRITON_ILLEGAL_READ;
      }
      *reinterpret_cast<float*>(to + launch->kernel_offset) =
          *reinterpret_cast<const float*>(from + launch->kernel_offset) * factor;
    }
  }
  return OPENREG_TRITON_SUCCESS;
}
