#include "torch_openreg/random/Generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <openreg/device.h>

#include <array>
#include <atomic>
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

namespace {

at::CPUGeneratorImpl* implOf(const Generator& engine) {
  return static_cast<at::CPUGeneratorImpl*>(engine.unsafeGetGeneratorImpl());
}

constinit MakeGeneratorFormat make_format = nullptr;

}  // namespace

GeneratorFormat::~GeneratorFormat() = default;

struct GeneratorState::Current {
  explicit Current(uint64_t seed) : engine(at::detail::createCPUGenerator(seed)), seed(seed) {}

  c10::openreg::Mutex mutex;
  Generator engine OPENREG_GUARDED_BY(mutex);
  // The seed it was created with.
  uint64_t seed OPENREG_GUARDED_BY(mutex);
  // The stream of the last kernel that draws from it.
  std::optional<OpenRegStream> last_stream OPENREG_GUARDED_BY(mutex);
};

GeneratorState::GeneratorState(c10::Device device, uint64_t seed)
    : device_(device),
      format_(make_format == nullptr ? nullptr : make_format()),
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
}

void setGeneratorFormat(MakeGeneratorFormat make) noexcept { make_format = make; }

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

std::shared_ptr<GeneratorState> OpenRegGeneratorImpl::usableState(const char* function) const {
  std::shared_ptr<GeneratorState> state = this->state();
  if (!c10::openreg::isDeviceActive(device().index()) ||
      !c10::openreg::getCurrentOpenRegStream(device().index()).isCapturing()) {
    return state;
  }
  TORCH_CHECK(state->format() == nullptr, state->format()->textInCapture(device(), function));
  TORCH_CHECK(false, "The state of the ", c10::openreg::kDeviceName, " generator of ", device(),
              " cannot be read or set while the current stream captures: the kernels of a graph "
              "read the state when the graph is replayed");
}

// docs: generator-seed
void OpenRegGeneratorImpl::set_current_seed(uint64_t seed) {
  usableState("set_current_seed")->replaceEngine(at::detail::createCPUGenerator(seed));
}
// docs: end

uint64_t OpenRegGeneratorImpl::current_seed() const { return usableState("current_seed")->seed(); }

uint64_t OpenRegGeneratorImpl::seed() {
  const std::shared_ptr<GeneratorState> state = usableState("seed");
  Generator engine = at::detail::createCPUGenerator();
  const uint64_t seed = implOf(engine)->seed();
  state->replaceEngine(std::move(engine));
  return seed;
}

void OpenRegGeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK(state()->format() != nullptr, "The ", c10::openreg::kDeviceName,
              " generator does not support set_offset; use set_state");
  const std::shared_ptr<GeneratorState> state = usableState("set_offset");
  state->format()->setOffset(*state, offset);
}

uint64_t OpenRegGeneratorImpl::get_offset() const {
  TORCH_CHECK(state()->format() != nullptr, "The ", c10::openreg::kDeviceName,
              " generator does not support get_offset; use get_state");
  const std::shared_ptr<GeneratorState> state = usableState("get_offset");
  return state->format()->offset(*state);
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
  const std::shared_ptr<GeneratorState> own = usableState("set_state");
  if (own->format() != nullptr) {
    own->format()->write(*own, state);
    return;
  }
  Generator engine = at::detail::createCPUGenerator();
  implOf(engine)->set_state(state);
  own->replaceEngine(std::move(engine));
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::get_state() const {
  const std::shared_ptr<GeneratorState> state = usableState("current_seed");
  if (state->format() != nullptr) {
    return state->format()->read(*state);
  }
  Generator engine = state->waitForKernels();
  const std::lock_guard<std::mutex> lock(engine.mutex());
  return implOf(engine)->get_state();
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
  return usableState("current_seed")->waitForKernels();
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
