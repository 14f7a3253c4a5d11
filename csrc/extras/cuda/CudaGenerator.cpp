#include "csrc/extras/cuda/CudaGenerator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "csrc/core/Mutex.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {
namespace {

using c10::openreg::Lock;

// The position of an engine in the sequence of its seed.
struct Position {
  static Position startOf(uint64_t seed) { return {at::mt19937(seed).data(), 0}; }

  at::mt19937_data_pod numbers;
  int64_t offset;
};

// States that programs have read, by their seeds and offsets, so that setting one of them again
// costs little.
class KnownPositions {
 public:
  void add(uint64_t seed, const Position& position) {
    const auto [place, is_new] = positions_.try_emplace({seed, position.offset}, position);
    if (!is_new) {
      return;
    }
    order_.push_back(place);
    if (order_.size() > kMaxCount) {
      positions_.erase(order_.front());
      order_.pop_front();
    }
  }

  // The nearest one that is not after the offset.
  Position before(uint64_t seed, int64_t offset) const {
    const auto after = positions_.upper_bound({seed, offset});
    if (after == positions_.begin() || std::prev(after)->first.first != seed) {
      return Position::startOf(seed);
    }
    return std::prev(after)->second;
  }

 private:
  static constexpr size_t kMaxCount = 256;  // 650 KB

  using Positions = std::map<std::pair<uint64_t, int64_t>, Position>;
  Positions positions_;
  std::deque<Positions::iterator> order_;  // the oldest one first
};

at::CPUGeneratorImpl* implOf(const Generator& engine) {
  return static_cast<at::CPUGeneratorImpl*>(engine.unsafeGetGeneratorImpl());
}

constexpr int64_t kBlock = at::MERSENNE_STATE_N;  // numbers that the algorithm makes at once

// How many numbers a search for a state draws at most.
constexpr int64_t kSearchLimit = int64_t{1} << 32;

// Computes the next block of numbers, and takes the first.
void makeBlock(at::mt19937_data_pod& numbers) {
  numbers.left_ = 1;
  at::mt19937 engine;
  engine.set_data(numbers);
  engine();
  numbers = engine.data();
}

// How many numbers of the current block have been taken. Before the first, there is no block; it
// counts as a used-up one.
int64_t takenOf(const at::mt19937_data_pod& numbers) {
  const bool is_fresh = numbers.left_ == 1 && numbers.next_ == 0;
  return is_fresh ? kBlock : static_cast<int64_t>(numbers.next_);
}

// The offset of a state that is reached from a known one; nothing if it is not found.
std::optional<int64_t> findOffset(Position known, const at::mt19937_data_pod& wanted) {
  int64_t begin = known.offset - takenOf(known.numbers);
  for (const int64_t end = begin + kSearchLimit; begin < end; begin += kBlock) {
    if (known.numbers.state_ == wanted.state_) {
      return begin + takenOf(wanted);
    }
    makeBlock(known.numbers);
  }
  return std::nullopt;
}

// The state at an offset that is not before a known one.
Position advance(Position known, int64_t offset) {
  if (offset == known.offset) {
    return known;
  }
  int64_t begin = known.offset - takenOf(known.numbers);  // of the current block
  for (; begin + kBlock < offset; begin += kBlock) {
    makeBlock(known.numbers);
  }
  const int64_t taken = offset - begin;
  known.numbers.next_ = static_cast<uint32_t>(taken);
  known.numbers.left_ = static_cast<int>(kBlock + 1 - taken);
  return {known.numbers, offset};
}

// Note [States of CUDA's size]
// CUDA's generators are counters, and the state of one is its seed and its offset: 16 bytes, which
// programs check, make and exchange. Where the library serves CUDA, so is the state of ours; see
// Note [Offsets]. A draw of one normal number computes two, and the engine keeps the second one for
// the next draw. The state then has one of the bits below in its offset, if the draw was the last
// one. A number that was kept before that is dropped when the state is read, from the generator as
// well, so that what follows is what follows the state.
constexpr int64_t kKeepsFloat = int64_t{1} << 40;
constexpr int64_t kKeepsDouble = int64_t{1} << 41;

// How many numbers a draw of a normal one takes.
template <typename T>
constexpr int64_t kDraws = sizeof(T) / 2;

int64_t drawsOf(int64_t bits) {
  return bits == kKeepsFloat ? kDraws<float> : bits == kKeepsDouble ? kDraws<double> : 0;
}

// The engine of a seed that has drawn from a position on, and keeps the normal number that the bits
// say.
Generator engineAt(uint64_t seed, const Position& position, int64_t bits) {
  Generator engine = at::detail::createCPUGenerator(seed);
  at::CPUGeneratorImpl* impl = implOf(engine);
  at::mt19937 numbers;
  numbers.set_data(position.numbers);
  impl->set_engine(numbers);
  if (bits == kKeepsFloat) {
    at::normal_distribution<float>(0, 1)(impl);
  } else if (bits == kKeepsDouble) {
    at::normal_distribution<double>(0, 1)(impl);
  }
  return engine;
}

// The bits for the normal number that the engine keeps; 0 if its last draw was another one.
int64_t keptNormal(at::CPUGeneratorImpl& engine, const KnownPositions& known, uint64_t seed,
                   int64_t offset) {
  for (const int64_t bits : {kKeepsFloat, kKeepsDouble}) {
    const int64_t begin = offset - drawsOf(bits);
    const bool keeps = bits == kKeepsFloat ? engine.next_float_normal_sample().has_value()
                                           : engine.next_double_normal_sample().has_value();
    if (!keeps || begin < 0) {
      continue;
    }
    const Generator again = engineAt(seed, advance(known.before(seed, begin), begin), bits);
    if (bits == kKeepsFloat
            ? implOf(again)->next_float_normal_sample() == engine.next_float_normal_sample()
            : implOf(again)->next_double_normal_sample() == engine.next_double_normal_sample()) {
      return bits;
    }
  }
  return 0;
}

class CudaGenerator final : public GeneratorFormat {
 public:
  uint64_t offset(GeneratorState& state) override {
    return readOffset(state, /*keeps_normals=*/false).second;
  }

  void setOffset(GeneratorState& state, uint64_t offset) override {
    setSeedAndOffset(state, state.seed(), offset);
  }

  c10::intrusive_ptr<c10::TensorImpl> read(GeneratorState& state) override {
    const auto [seed, offset] = readOffset(state, /*keeps_normals=*/true);
    const std::array<uint64_t, 2> seed_and_offset{seed, offset};
    const TensorBase result = at::detail::empty_cpu({sizeof(seed_and_offset)}, kByte);
    std::memcpy(result.mutable_data_ptr(), seed_and_offset.data(), sizeof(seed_and_offset));
    return result.getIntrusivePtr();
  }

  // A state without the offset is that of the seed.
  void write(GeneratorState& state, const c10::TensorImpl& bytes) override {
    at::detail::check_rng_state(bytes);
    std::array<uint64_t, 2> seed_and_offset{};
    const auto nbytes = static_cast<size_t>(bytes.numel());
    TORCH_CHECK(nbytes == sizeof(seed_and_offset) || nbytes == sizeof(uint64_t),
                "RNG state is wrong size");
    std::memcpy(seed_and_offset.data(), bytes.data(), nbytes);
    setSeedAndOffset(state, seed_and_offset[0], seed_and_offset[1]);
  }

  std::string textInCapture(c10::Device device, const char* function) const override {
    return c10::str("Cannot call CUDAGeneratorImpl::", function,
                    " during CUDA graph capture.\nThe state of the generator of ", device,
                    " cannot be read or set while the current stream captures: the kernels of a "
                    "graph read the state when the graph is replayed");
  }

 private:
  struct Known {
    Generator engine;
    Position position;
  };

  // The seed and the offset of the current engine, with the bits for a normal number that it keeps.
  std::pair<uint64_t, uint64_t> readOffset(GeneratorState& state, bool keeps_normals) {
    Generator engine = state.waitForKernels();
    at::CPUGeneratorImpl* impl = implOf(engine);
    const std::lock_guard<std::mutex> engine_lock(engine.mutex());
    const Lock lock(mutex_);
    const uint64_t seed = impl->current_seed();
    const bool is_known = known_.has_value() && known_->engine == engine;
    Position present{impl->engine().data(), 0};
    const auto offset =
        findOffset(is_known ? known_->position : Position::startOf(seed), present.numbers);
    TORCH_CHECK(offset.has_value(), "The offset of the generator of ", state.device(),
                " is unknown: its state is not among the first ", kSearchLimit,
                " states after seed ", seed);
    present.offset = *offset;
    int64_t bits = 0;
    if (keeps_normals && (impl->next_float_normal_sample() || impl->next_double_normal_sample())) {
      bits = keptNormal(*impl, known_of_seeds_, seed, present.offset);
    }
    if (bits != kKeepsFloat) {
      impl->set_next_float_normal_sample(std::nullopt);
    }
    if (bits != kKeepsDouble) {
      impl->set_next_double_normal_sample(std::nullopt);
    }
    known_ = Known{engine, present};
    if (keeps_normals) {
      known_of_seeds_.add(seed, present);
    }
    return {seed, static_cast<uint64_t>(present.offset | bits)};
  }

  void setSeedAndOffset(GeneratorState& state, uint64_t seed, uint64_t offset_and_bits) {
    const int64_t bits = static_cast<int64_t>(offset_and_bits) & (kKeepsFloat | kKeepsDouble);
    const int64_t offset = static_cast<int64_t>(offset_and_bits) ^ bits;
    TORCH_CHECK(offset >= 0 && offset <= kSearchLimit, "set_offset: expected an offset of at most ",
                kSearchLimit, ", got ", static_cast<uint64_t>(offset));
    const int64_t begin = std::max<int64_t>(0, offset - drawsOf(bits));
    Position nearest{};
    {
      const Lock lock(mutex_);
      nearest = known_of_seeds_.before(seed, begin);
    }
    const Generator engine = engineAt(seed, advance(nearest, begin), bits);
    const Position position{implOf(engine)->engine().data(), begin + drawsOf(bits)};
    state.replaceEngine(engine);
    const Lock lock(mutex_);
    known_of_seeds_.add(seed, position);
    known_ = Known{engine, position};
  }

  c10::openreg::Mutex mutex_;
  // A position of an engine, from which later ones of it are searched; else from the start.
  std::optional<Known> known_ OPENREG_GUARDED_BY(mutex_);
  KnownPositions known_of_seeds_ OPENREG_GUARDED_BY(mutex_);
};

}  // namespace

void installCudaGenerator() {
  setGeneratorFormat(
      []() -> std::unique_ptr<GeneratorFormat> { return std::make_unique<CudaGenerator>(); });
}

}  // namespace at::openreg
