#include "torch_openreg/random/Generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <openreg/device.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/CaptureMode.h"
#include "csrc/core/Mutex.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {

using c10::openreg::Lock;
using c10::openreg::OpenRegStream;

namespace {

at::CPUGeneratorImpl* implOf(const Generator& engine) {
  return static_cast<at::CPUGeneratorImpl*>(engine.unsafeGetGeneratorImpl());
}

// Copies the state of one engine to another. The mutexes are torch's, so clang cannot check them.
void copyState(Generator target, Generator source) {
  const std::scoped_lock locks(target.mutex(), source.mutex());
  at::CPUGeneratorImpl* to = implOf(target);
  at::CPUGeneratorImpl* from = implOf(source);
  to->set_engine(from->engine());
  to->set_next_float_normal_sample(from->next_float_normal_sample());
  to->set_next_double_normal_sample(from->next_double_normal_sample());
}

void checkNotCapturing(c10::Device device) {
  TORCH_CHECK(!c10::openreg::isDeviceActive(device.index()) ||
                  !c10::openreg::getCurrentOpenRegStream(device.index()).isCapturing(),
              "The state of the OpenReg generator of ", device,
              " cannot be read or set while the current stream captures: the kernels of a graph "
              "read the state when the graph is replayed");
}

// The position of an engine in the sequence of its seed.
struct Position {
  at::mt19937_data_pod numbers;
  int64_t offset;
};

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

Position startOf(uint64_t seed) { return {at::mt19937(seed).data(), 0}; }

// The state after `offset` draws.
at::mt19937_data_pod stateAt(uint64_t seed, int64_t offset) {
  at::mt19937_data_pod numbers = startOf(seed).numbers;
  if (offset == 0) {
    return numbers;
  }
  const int64_t blocks = (offset - 1) / kBlock + 1;
  for (int64_t i = 0; i < blocks; ++i) {
    makeBlock(numbers);
  }
  const int64_t taken = offset - (blocks - 1) * kBlock;
  numbers.next_ = static_cast<uint32_t>(taken);
  numbers.left_ = static_cast<int>(kBlock + 1 - taken);
  return numbers;
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
};

GeneratorState::GeneratorState(c10::Device device, uint64_t seed)
    : device_(device),
      graph_engine_(at::detail::createCPUGenerator()),
      current_(std::make_unique<Current>(seed)) {}

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

uint64_t GeneratorState::offset() {
  Generator engine = waitForKernels();
  Position present{};
  {
    const std::lock_guard<std::mutex> lock(engine.mutex());
    at::CPUGeneratorImpl* impl = implOf(engine);
    impl->set_next_float_normal_sample(std::nullopt);
    impl->set_next_double_normal_sample(std::nullopt);
    present.numbers = impl->engine().data();
  }
  const Lock lock(current_->mutex);
  const auto offset =
      findOffset(current_->known.value_or(startOf(current_->seed)), present.numbers);
  TORCH_CHECK(offset.has_value(), "The offset of the generator of ", device_,
              " is unknown: its state is not among the first ", kSearchLimit, " states after seed ",
              current_->seed);
  present.offset = *offset;
  if (current_->engine.unsafeGetGeneratorImpl() == engine.unsafeGetGeneratorImpl()) {
    current_->known = present;
  }
  return static_cast<uint64_t>(present.offset);
}

void GeneratorState::setOffset(uint64_t offset) {
  TORCH_CHECK(offset <= static_cast<uint64_t>(kSearchLimit),
              "set_offset: expected an offset of at most ", kSearchLimit, ", got ", offset);
  const uint64_t seed = this->seed();
  const Position position{stateAt(seed, static_cast<int64_t>(offset)),
                          static_cast<int64_t>(offset)};
  Generator engine = at::detail::createCPUGenerator(seed);
  at::mt19937 numbers;
  numbers.set_data(position.numbers);
  implOf(engine)->set_engine(numbers);
  replaceEngine(std::move(engine));
  const Lock lock(current_->mutex);
  if (current_->seed == seed) {
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
  checkNotCapturing(device());
  state()->replaceEngine(at::detail::createCPUGenerator(seed));
}
// docs: end

uint64_t OpenRegGeneratorImpl::current_seed() const {
  checkNotCapturing(device());
  return state()->seed();
}

uint64_t OpenRegGeneratorImpl::seed() {
  checkNotCapturing(device());
  Generator engine = at::detail::createCPUGenerator();
  const uint64_t seed = implOf(engine)->seed();
  state()->replaceEngine(std::move(engine));
  return seed;
}

void OpenRegGeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK(c10::openreg::servesCuda(),
              "The OpenReg generator does not support set_offset; use set_state");
  checkNotCapturing(device());
  state()->setOffset(offset);
}

uint64_t OpenRegGeneratorImpl::get_offset() const {
  TORCH_CHECK(c10::openreg::servesCuda(),
              "The OpenReg generator does not support get_offset; use get_state");
  checkNotCapturing(device());
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
  TORCH_CHECK(false, "The OpenReg generator does not support philox_state");
}
#endif

void OpenRegGeneratorImpl::set_state(const c10::TensorImpl& state) {
  checkNotCapturing(device());
  Generator engine = at::detail::createCPUGenerator();
  implOf(engine)->set_state(state);
  this->state()->replaceEngine(std::move(engine));
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::get_state() const {
  Generator engine = waitForKernels();
  const std::lock_guard<std::mutex> lock(engine.mutex());
  return implOf(engine)->get_state();
}

namespace {

struct CapturedUse {
  std::shared_ptr<GeneratorState> generator;
  OpenRegStream last_stream;
};

// The current captures that have kernels that draw.
struct CapturedUses {
  c10::openreg::Mutex mutex;
  std::unordered_map<uint64_t, std::vector<CapturedUse>> of_captures OPENREG_GUARDED_BY(mutex);
};

CapturedUses& capturedUses() {
  static auto* uses = new CapturedUses();
  return *uses;
}

// Orders a launch after earlier launches of the same capture that draw.
void orderCapturedLaunch(const std::shared_ptr<GeneratorState>& generator,
                         const OpenRegStream& stream, uint64_t capture_id) {
  CapturedUses& uses = capturedUses();
  const Lock lock(uses.mutex);
  std::vector<CapturedUse>& of_capture = uses.of_captures[capture_id];
  const auto use = std::find_if(of_capture.begin(), of_capture.end(),
                                [&](const CapturedUse& one) { return one.generator == generator; });
  if (use == of_capture.end()) {
    of_capture.push_back({generator, stream});
    return;
  }
  c10::openreg::waitForStream(stream, use->last_stream);
  use->last_stream = stream;
}

}  // namespace

// docs: generator-order
Generator OpenRegGeneratorImpl::engineForLaunch(const OpenRegStream& stream) {
  const std::shared_ptr<GeneratorState> state = this->state();
  if (const uint64_t capture_id = stream.captureId(); capture_id != 0) {
    orderCapturedLaunch(state, stream, capture_id);
    return state->graphEngine();
  }
  return state->engineForLaunch(stream);
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
  checkNotCapturing(device());
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

Generator GeneratorState::beginReplay(const OpenRegStream& stream) {
  Generator engine = engineForLaunch(stream);
  c10::openreg::launchKernel<"random state to graph">(
      stream, [graph = graph_engine_, engine] { copyState(graph, engine); });
  return engine;
}

void GeneratorState::endReplay(const OpenRegStream& stream, const Generator& engine) {
  c10::openreg::launchKernel<"random state from graph">(
      stream, [graph = graph_engine_, engine = engine] { copyState(engine, graph); });
}
// docs: end

std::vector<std::shared_ptr<GeneratorState>> takeGeneratorsOfCapture(uint64_t capture_id) {
  std::vector<std::shared_ptr<GeneratorState>> generators;
  CapturedUses& uses = capturedUses();
  const Lock lock(uses.mutex);
  if (const auto node = uses.of_captures.extract(capture_id); !node.empty()) {
    for (const CapturedUse& use : node.mapped()) {
      generators.push_back(use.generator);
    }
  }
  return generators;
}

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
  TORCH_CHECK(chosen.device().index() == device, "Generator device index ",
              static_cast<int>(chosen.device().index()), " does not match the device index ",
              static_cast<int>(device), " of the tensors to fill; expected a generator of ",
              c10::Device(c10::openreg::kDeviceType, device));
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
