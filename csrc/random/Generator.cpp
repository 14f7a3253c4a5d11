#include "csrc/random/Generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <openreg/device.h>

#include <array>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Event.h"
#include "csrc/core/Functions.h"

namespace at::openreg {

using c10::openreg::OpenRegStream;

OpenRegGeneratorImpl::OpenRegGeneratorImpl(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(device_type(), device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      engine_(at::detail::createCPUGenerator()) {}

// docs: generator-seed
void OpenRegGeneratorImpl::set_current_seed(uint64_t seed) {
  waitForKernels();
  engine_.set_current_seed(seed);
}
// docs: end

uint64_t OpenRegGeneratorImpl::current_seed() const {
  waitForKernels();
  return engine_.current_seed();
}

uint64_t OpenRegGeneratorImpl::seed() {
  waitForKernels();
  auto* engine = engine_.unsafeGetGeneratorImpl();
  return engine->seed();
}

void OpenRegGeneratorImpl::set_offset(uint64_t /*offset*/) {
  TORCH_CHECK(false, "The OpenReg generator does not support set_offset");
}

uint64_t OpenRegGeneratorImpl::get_offset() const {
  TORCH_CHECK(false, "The OpenReg generator does not support get_offset");
}

void OpenRegGeneratorImpl::set_state(const c10::TensorImpl& state) {
  waitForKernels();
  engine_.unsafeGetGeneratorImpl()->set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> OpenRegGeneratorImpl::get_state() const {
  waitForKernels();
  return engine_.unsafeGetGeneratorImpl()->get_state();
}

// docs: generator-order
void OpenRegGeneratorImpl::orderLaunch(const OpenRegStream& stream) {
  const std::lock_guard<std::mutex> lock(last_stream_mutex_);
  if (last_stream_.has_value()) {
    c10::openreg::waitForStream(stream, *last_stream_);
  }
  last_stream_ = stream;
}

void OpenRegGeneratorImpl::waitForKernels() const {
  std::optional<OpenRegStream> stream;
  {
    const std::lock_guard<std::mutex> lock(last_stream_mutex_);
    stream = last_stream_;
  }
  // last_stream_ stays: another thread may be here, too, and must wait as well.
  if (stream.has_value()) {
    const c10::openreg::BlockingRegion region;
    stream->isAlive() ? stream->synchronize()
                      : c10::openreg::synchronizeDevice(stream->device_index());
  }
}
// docs: end

OpenRegGeneratorImpl* OpenRegGeneratorImpl::clone_impl() const {
  auto* copy = new OpenRegGeneratorImpl(device().index());
  copy->engine_.unsafeGetGeneratorImpl()->set_state(*get_state());
  return copy;
}

const Generator& defaultGenerator(c10::DeviceIndex device) {
  // Leaked, as all state that workers use.
  static auto* generators = [] {
    auto* all = new std::array<Generator, OPENREG_MAX_DEVICES>();
    for (c10::DeviceIndex index = 0; index < c10::openreg::deviceCount(); ++index) {
      (*all)[index] = at::make_generator<OpenRegGeneratorImpl>(index);
    }
    return all;
  }();
  c10::openreg::ensureHasDevice();
  return (*generators)[c10::openreg::resolveDeviceIndex(device)];
}

Generator makeGenerator(c10::DeviceIndex device) {
  return at::make_generator<OpenRegGeneratorImpl>(c10::openreg::resolveDeviceIndex(device));
}

namespace {

OpenRegGeneratorImpl* select(const std::optional<Generator>& generator, c10::DeviceIndex device) {
  const Generator& chosen =
      generator.has_value() && generator->defined() ? *generator : defaultGenerator(device);
  TORCH_CHECK(chosen.device().type() == c10::openreg::kDeviceType, "Expected a '",
              c10::openreg::kDeviceType, "' device type for generator but found '",
              chosen.device().type(), "'");
  return static_cast<OpenRegGeneratorImpl*>(chosen.unsafeGetGeneratorImpl());
}

}  // namespace

Generator engineForLaunch(const std::optional<Generator>& generator, c10::DeviceIndex device) {
  OpenRegGeneratorImpl* impl = select(generator, device);
  impl->orderLaunch(c10::openreg::getCurrentOpenRegStream(device));
  return impl->engine();
}

Generator engineForHost(const std::optional<Generator>& generator, c10::DeviceIndex device) {
  OpenRegGeneratorImpl* impl = select(generator, device);
  impl->waitForKernels();
  return impl->engine();
}

}  // namespace at::openreg
