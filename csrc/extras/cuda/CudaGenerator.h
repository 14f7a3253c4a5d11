// The state of generators, as CUDA's.
//
// Note [Offsets]
// CUDA's generators are counters; programs that recompute, such as checkpoints of activations, read
// the counter and set it. Where the library serves CUDA, the offset of a generator is the number of
// 32-bit numbers drawn since it was seeded. The engine does not count them: the offset is found by
// drawing from the last known position until the state equals the current one, which costs a small
// part of the original draws. An engine also keeps the second number of a pair of normal numbers,
// which an offset cannot represent. So reading the offset drops it, and the next draws equal those
// after setting the offset.
#pragma once

namespace at::openreg {

// Has generators (torch_openreg/random/Generator.h) show their state so. Before static objects.
void installCudaGenerator();

}  // namespace at::openreg
