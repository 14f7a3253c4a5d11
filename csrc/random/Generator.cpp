#include "torch_openreg/random/Generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/DistributionsHelper.h>
#include <openreg/device.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/CaptureMode.h"
#include "csrc/core/DeviceName.h"
#include "csrc/core/Mutex.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {

using c10::openreg::Lock;
using c10::openreg::OpenRegStream;

// Not in the unnamed namespace, as GeneratorState::Current has members of these types.

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

namespace {

at::CPUGeneratorImpl* implOf(const Generator& engine) {
  return static_cast<at::CPUGeneratorImpl*>(engine.unsafeGetGeneratorImpl());
}

// `function` is the one that torch has called, for the text.
void checkStateUsable(c10::Device device, const char* function) {
  if (!c10::openreg::isDeviceActive(device.index()) ||
      !c10::openreg::getCurrentOpenRegStream(device.index()).isCapturing()) {
    return;
  }
  TORCH_CHECK(!c10::openreg::servesCuda(), "Cannot call CUDAGeneratorImpl::", function,
              " during CUDA graph capture.\nThe state of the generator of ", device,
              " cannot be read or set while the current stream captures: the kernels of a graph "
              "read the state when the graph is replayed");
  TORCH_CHECK(false, "The state of the ", c10::openreg::kDeviceName, " generator of ", device,
              " cannot be read or set while the current stream captures: the kernels of a graph "
              "read the state when the graph is replayed");
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

}  // namespace

struct GeneratorState::Current {
  explicit Current(uint64_t seed) : engine(at::detail::createCPUGenerator(seed)), seed(seed) {}

  c10::openreg::Mutex mutex;
  Generator engine OPENREG_GUARDED_BY(mutex);
  // The seed it was created with.
  uint64_t seed OPENREG_GUARDED_BY(mutex);
  // The stream of the last kernel that draws from it.
  std::optional<OpenRegStream> last_stream OPENREG_GUARDED_BY(mutex);
  // A known position of this engine, from which later ones are searched; none means the start.
  std::optional<Position> known OPENREG_GUARDED_BY(mutex);
  KnownPositions known_of_seeds OPENREG_GUARDED_BY(mutex);
};

GeneratorState::GeneratorState(c10::Device device, uint64_t seed)
    : device_(device), current_(std::make_unique<Current>(seed)) {}

GeneratorState::~GeneratorState() = default;

uint64_t GeneratorState::seed() const {
  const Lock lock(current_->mutex);
  return current_->seed;
}

void GeneratorState::replaceEngine(Generator engine) {
  const Lock lock(current_->mutex);
  current_->seed = implOf(engine)->current_seed();
  current_->engine = std::move(engine);
  current_->last_stream.reset();  // no kernel draws from this one yet
  current_->known.reset();
}

uint64_t GeneratorState::offset() { return readOffset(/*keeps_normals=*/false).second; }

std::pair<uint64_t, uint64_t> GeneratorState::seedAndOffset() {
  return readOffset(/*keeps_normals=*/true);
}

std::pair<uint64_t, uint64_t> GeneratorState::readOffset(bool keeps_normals) {
  Generator engine = waitForKernels();
  at::CPUGeneratorImpl* impl = implOf(engine);
  const std::lock_guard<std::mutex> engine_lock(engine.mutex());
  const Lock lock(current_->mutex);
  const uint64_t seed = impl->current_seed();
  const bool is_current = current_->engine.unsafeGetGeneratorImpl() == impl;
  const Position start = is_current && current_->known ? *current_->known : Position::startOf(seed);
  Position present{impl->engine().data(), 0};
  const auto offset = findOffset(start, present.numbers);
  TORCH_CHECK(offset.has_value(), "The offset of the generator of ", device_,
              " is unknown: its state is not among the first ", kSearchLimit, " states after seed ",
              seed);
  present.offset = *offset;
  int64_t bits = 0;
  if (keeps_normals && (impl->next_float_normal_sample() || impl->next_double_normal_sample())) {
    bits = keptNormal(*impl, current_->known_of_seeds, seed, present.offset);
  }
  if (bits != kKeepsFloat) {
    impl->set_next_float_normal_sample(std::nullopt);
  }
  if (bits != kKeepsDouble) {
    impl->set_next_double_normal_sample(std::nullopt);
  }
  if (is_current) {
    current_->known = present;
  }
  if (keeps_normals) {
    current_->known_of_seeds.add(seed, present);
  }
  return {seed, static_cast<uint64_t>(present.offset | bits)};
}

void GeneratorState::setOffset(uint64_t offset) { setSeedAndOffset(seed(), offset); }

void GeneratorState::setSeedAndOffset(uint64_t seed, uint64_t offset_and_bits) {
  const int64_t bits = static_cast<int64_t>(offset_and_bits) & (kKeepsFloat | kKeepsDouble);
  const int64_t offset = static_cast<int64_t>(offset_and_bits) ^ bits;
  TORCH_CHECK(offset >= 0 && offset <= kSearchLimit, "set_offset: expected an offset of at most ",
              kSearchLimit, ", got ", static_cast<uint64_t>(offset));
  const int64_t begin = std::max<int64_t>(0, offset - drawsOf(bits));
  Position known{};
  {
    const Lock lock(current_->mutex);
    known = current_->known_of_seeds.before(seed, begin);
  }
  Generator engine = engineAt(seed, advance(known, begin), bits);
  const Position position{implOf(engine)->engine().data(), begin + drawsOf(bits)};
  at::CPUGeneratorImpl* impl = implOf(engine);
  replaceEngine(std::move(engine));
  const Lock lock(current_->mutex);
  current_->known_of_seeds.add(seed, position);
  if (current_->engine.unsafeGetGeneratorImpl() == impl) {
    current_->known = position;
  }
}

struct OpenRegGeneratorImpl::Shared {
  explicit Shared(std::shared_ptr<GeneratorState> state) : state(std::move(state)) {}

  c10::openreg::Mutex mutex;
  std::shared_ptr<GeneratorState> state OPENREG_GUARDED_BY(mutex);
};

OpenRegGeneratorImpl::OpenRegGeneratorImpl(c10::DeviceIndex device, uint64_t seed)
    : OpenRegGeneratorImpl(
          device, std::make_shared<GeneratorState>(c10::Device(device_type(), device), seed)) {}

OpenRegGeneratorImpl::OpenRegGeneratorImpl(c10::DeviceIndex device,
                                           std::shared_ptr<GeneratorState> state)
    : c10::GeneratorImpl(c10::Device(device_type(), device),
                         c10::DispatchKeySet(c10::openreg::keyOf(c10::DispatchKey::Dense))),
      shared_(std::make_unique<Shared>(std::move(state))) {}

OpenRegGeneratorImpl::~OpenRegGeneratorImpl() = default;

std::shared_ptr<GeneratorState> OpenRegGeneratorImpl::state() const {
  const Lock lock(shared_->mutex);
  return shared_->state;
}

// docs: generator-seed
void OpenRegGeneratorImpl::set_current_seed(uint64_t seed) {
  checkStateUsable(device(), "set_current_seed");
  state()->replaceEngine(at::detail::createCPUGenerator(seed));
}
// docs: end

uint64_t OpenRegGeneratorImpl::current_seed() const {
  checkStateUsable(device(), "current_seed");
  return state()->seed();
}

uint64_t OpenRegGeneratorImpl::seed() {
  checkStateUsable(device(), "seed");
  Generator engine = at::detail::createCPUGenerator();
  const uint64_t seed = implOf(engine)->seed();
  state()->replaceEngine(std::move(engine));
  return seed;
}

void OpenRegGeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK(c10::openreg::servesCuda(), "The ", c10::openreg::kDeviceName,
              " generator does not support set_offset; use set_state");
  checkStateUsable(device(), "set_offset");
  state()->setOffset(offset);
}

uint64_t OpenRegGeneratorImpl::get_offset() const {
  TORCH_CHECK(c10::openreg::servesCuda(), "The ", c10::openreg::kDeviceName,
              " generator does not support get_offset; use get_state");
  checkStateUsable(device(), "get_offset");
  return state()->offset();
}

c10::intrusive_ptr<c10::GeneratorImpl> OpenRegGeneratorImpl::graphsafe_get_state() const {
  return c10::make_intrusive<OpenRegGeneratorImpl>(device().index(), state());
}

void OpenRegGeneratorImpl::graphsafe_set_state(
    const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  const auto* own = dynamic_cast<const OpenRegGeneratorImpl*>(other.get());
  TORCH_CHECK(own != nullptr && own->device() == device(),
              "graphsafe_set_state: expected a generator of ", device(), ", got ",
              other.defined() ? c10::str("one of ", other->device()) : "none");
  std::shared_ptr<GeneratorState> state = own->state();
  const Lock lock(shared_->mutex);
  shared_->state = std::move(state);
}

#if OPENREG_TORCH_HAS_PHILOX_STATE
void OpenRegGeneratorImpl::philox_state(uint64_t /*increment*/, at::Tensor& /*seed*/,
                                        at::Tensor& /*offset*/, at::Tensor& /*intragraph_offset*/) {
  TORCH_CHECK(false, "The generator of ", device(), " does not support philox_state");
}
#endif

void OpenRegGeneratorImpl::set_state(const c10::TensorImpl& state) {
  checkStateUsable(device(), "set_state");
  if (!c10::openreg::servesCuda()) {
    Generator engine = at::detail::createCPUGenerator();
    implOf(engine)->set_state(state);
    this->state()->replaceEngine(std::move(engine));
    return;
  }
  // See Note [States of CUDA's size]. A state without the offset is that of the seed.
  at::detail::check_rng_state(state);
  std::array<uint64_t, 2> seed_and_offset{};
  const auto nbytes = static_cast<size_t>(state.numel());
  TORCH_CHECK(nbytes == sizeof(seed_and_offset) || nbytes == sizeof(uint64_t),
              "RNG state is wrong size");
  std::memcpy(seed_and_offset.data(), state.data(), nbytes);
  this->state()->setSeedAndOffset(seed_and_offset[0], seed_and_offset[1]);
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::get_state() const {
  checkStateUsable(device(), "current_seed");
  if (!c10::openreg::servesCuda()) {
    Generator engine = state()->waitForKernels();
    const std::lock_guard<std::mutex> lock(engine.mutex());
    return implOf(engine)->get_state();
  }
  const auto [seed, offset] = state()->seedAndOffset();
  const std::array<uint64_t, 2> seed_and_offset{seed, offset};
  const TensorBase result = at::detail::empty_cpu({sizeof(seed_and_offset)}, kByte);
  std::memcpy(result.mutable_data_ptr(), seed_and_offset.data(), sizeof(seed_and_offset));
  return result.getIntrusivePtr();
}

namespace {

std::atomic<CapturedEngine> captured_engine{nullptr};

}  // namespace

void setCapturedEngine(CapturedEngine function) { captured_engine = function; }

// docs: generator-order
Generator OpenRegGeneratorImpl::engineForLaunch(const OpenRegStream& stream) {
  const std::shared_ptr<GeneratorState> state = this->state();
  if (const uint64_t capture_id = stream.captureId(); capture_id != 0) {
    const CapturedEngine engine_of = captured_engine.load();
    TORCH_CHECK(engine_of != nullptr,
                "A stream captures, and random kernels of graphs are missing");
    return engine_of(state, stream, capture_id);
  }
  Generator engine = state->engineForLaunch(stream);
  c10::openreg::observe(&c10::openreg::Observer::numberDraw, stream,
                        *engine.unsafeGetGeneratorImpl());
  return engine;
}

Generator GeneratorState::engineForLaunch(const OpenRegStream& stream) {
  const Lock lock(current_->mutex);
  // Waiting for a capturing stream would join its capture. The program that began the capture has
  // waited for the stream, or has left the order undefined.
  std::optional<OpenRegStream>& last_stream = current_->last_stream;
  if (last_stream.has_value() && !(last_stream->isAlive() && last_stream->isCapturing())) {
    c10::openreg::waitForStream(stream, *last_stream);
  }
  last_stream = stream;
  return current_->engine;
}

Generator OpenRegGeneratorImpl::waitForKernels() const {
  checkStateUsable(device(), "current_seed");
  return state()->waitForKernels();
}

Generator GeneratorState::waitForKernels() const {
  std::optional<OpenRegStream> stream;
  Generator engine;
  {
    const Lock lock(current_->mutex);
    stream = current_->last_stream;
    engine = current_->engine;
  }
  if (stream.has_value()) {
    const c10::openreg::RelaxedCaptureGuard relaxed;
    const c10::openreg::CallerHoldsLock locked;  // torch's bindings lock the generator
    stream->isAlive() ? stream->synchronize()
                      : c10::openreg::synchronizeDevice(stream->device_index());
  }
  return engine;
}
// docs: end

OpenRegGeneratorImpl* OpenRegGeneratorImpl::clone_impl() const {
  auto* copy = new OpenRegGeneratorImpl(device().index());
  copy->set_state(*get_state());
  return copy;
}

// docs: default-generator
const Generator& getDefaultOpenRegGenerator(c10::DeviceIndex device) {
  struct DefaultGenerator {
    std::once_flag created;
    Generator generator;
  };
  // Leaked, like all state that workers use.
  static auto* generators = new std::array<DefaultGenerator, OPENREG_MAX_DEVICES>();
  c10::openreg::ensureHasDevice();
  const c10::DeviceIndex index = c10::openreg::resolveDeviceIndex(device);
  DefaultGenerator& found = (*generators)[index];
  std::call_once(found.created, [&] {
    found.generator =
        at::make_generator<OpenRegGeneratorImpl>(index, c10::detail::getNonDeterministicRandom());
  });
  return found.generator;
}
// docs: end

Generator createOpenRegGenerator(c10::DeviceIndex device) {
  return at::make_generator<OpenRegGeneratorImpl>(c10::openreg::resolveDeviceIndex(device));
}

namespace {

OpenRegGeneratorImpl* select(const std::optional<Generator>& generator, c10::DeviceIndex device) {
  const Generator& chosen = generator.has_value() && generator->defined()
                                ? *generator
                                : getDefaultOpenRegGenerator(device);
  TORCH_CHECK(chosen.device().type() == c10::openreg::kDeviceType, "Expected a '",
              c10::openreg::kDeviceType, "' device type for generator but found '",
              chosen.device().type(), "'");
  TORCH_CHECK(device >= 0, "Expected a 'cpu' device type for generator but found '",
              c10::openreg::kDeviceType, "'");
  return static_cast<OpenRegGeneratorImpl*>(chosen.unsafeGetGeneratorImpl());
}

}  // namespace

Generator engineForLaunch(const std::optional<Generator>& generator, c10::DeviceIndex device) {
  return select(generator, device)->engineForLaunch(c10::openreg::getCurrentOpenRegStream(device));
}

Generator engineForHost(const std::optional<Generator>& generator, c10::DeviceIndex device) {
  const OpenRegGeneratorImpl* impl = select(generator, device);
  const c10::openreg::BlockingRegion region;
  return impl->waitForKernels();
}

}  // namespace at::openreg
