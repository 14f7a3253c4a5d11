// A small backend for the tests of the conformance kit: two devices made of plain memory, work that
// is done when a call returns, and the CPU's kernels for what it has none of. It is incomplete on
// purpose, and SKETCH_DEFECTS=1 gives it one mistake for each chapter; see test_kit.py.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using at::Tensor;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

bool hasDefects() {
  static const bool has = [] {
    const char* text = std::getenv("SKETCH_DEFECTS");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return has;
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

c10::DeviceIndex checked(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "sketch: expected a device below ", int{kDevices},
              ", got ", int{index});
  return index;
}

// --- Memory

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* memory = size == 0 ? nullptr : std::malloc(size);
    return {memory, memory, &std::free, c10::Device(kType, current_device)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }

  void copy_data(void* target, const void* source, size_t size) const override {
    std::memcpy(target, source, size);
  }
};

Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

// --- Guard

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return hasDefects() ? device : before;  // mistake: says that the new device was current before
  }

  c10::Device getDevice() const override { return {kType, current_device}; }

  void setDevice(c10::Device device) const override { current_device = checked(device.index()); }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      current_device = device.index();
    }
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, current_streams.at(index));
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }

  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> last{0};
    // Mistake: all new streams are one.
    const c10::StreamId id = hasDefects() ? 1 : ++last;
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, {kType, checked(index)}, id);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams.at(stream.device_index()) = stream.id();
    return before;
  }

  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits =
        (1ULL << c10::kIndex_Float) | (1ULL << c10::kIndex_Long);
    return capability;
  }

  // Work is done when a call returns, and so is everything that can be waited for.

  bool queryStream(const c10::Stream&) const override { return true; }

  void synchronizeStream(const c10::Stream&) const override {}

  void synchronizeDevice(c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    static int recorded = 0;
    *event = &recorded;
  }

  void block(void*, const c10::Stream&) const override {}

  bool queryEvent(void*) const override {
    return !hasDefects();  // mistake: what was recorded is never done
  }

  void synchronizeEvent(void*) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// --- Hooks

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return true; }

  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }

  c10::DeviceIndex deviceCount() const override { return kDevices; }

  c10::DeviceIndex getCurrentDevice() const override { return current_device; }

  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = checked(index); }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, checked(index));
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DataPtr memory = allocator.allocate(size);
    // Mistake: the contents are lost.
    if (!hasDefects() && storage.data() != nullptr) {
      std::memcpy(memory.get(), storage.data(), std::min(size, storage.nbytes()));
    } else if (memory.get() != nullptr) {
      std::memset(memory.get(), 0, size);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

// --- Operators without which there are no tensors

class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex index) : before_(current_device) {
    current_device = checked(index);
  }
  ~DeviceScope() { current_device = before_; }

 private:
  c10::DeviceIndex before_;
};

DeviceScope scopeOf(std::optional<c10::Device> device) {
  return DeviceScope(device && device->has_index() ? device->index() : current_device);
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Deterministic programs read what nobody has written, too.
Tensor filled(Tensor tensor);

Tensor emptyMemoryFormat(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device> device,
                         std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const DeviceScope scope = scopeOf(device);
  return filled(
      at::detail::empty_generic(size, &allocator, kKeys, at::dtype_or_default(dtype), format));
}

Tensor emptyStrided(c10::IntArrayRef size, c10::IntArrayRef stride,
                    std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<c10::Device> device, std::optional<bool>) {
  const DeviceScope scope = scopeOf(device);
  return filled(at::detail::empty_strided_generic(size, stride, &allocator, kKeys,
                                                  at::dtype_or_default(dtype)));
}

// The same memory as a tensor of the CPU.
Tensor onHost(const Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  const c10::Storage& storage = tensor.storage();
  const Tensor bytes = at::from_blob(const_cast<void*>(storage.data()),
                                     {static_cast<int64_t>(storage.nbytes())}, at::kByte);
  Tensor host = at::empty({0}, tensor.options().device(at::kCPU));
  host.set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

Tensor filled(Tensor tensor) {
  if (at::globalContext().deterministicAlgorithms() &&
      at::globalContext().deterministicFillUninitializedMemory()) {
    Tensor host = onHost(tensor);
    if (host.is_floating_point() || host.is_complex()) {
      host.fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
  return tensor;
}

Tensor copyFrom(const Tensor& source, const Tensor& target, bool) {
  onHost(target).copy_(onHost(source));
  return target;
}

Tensor copyFromAndResize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  onHost(target).copy_(onHost(source));
  return target;
}

const Tensor& resize(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t bytes = (self.numel() + self.storage_offset()) * self.element_size();
  if (bytes > self.storage().nbytes()) {
    const DeviceScope scope(self.device().index());
    Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
  return self;
}

Tensor& setStorage(Tensor& self, c10::Storage storage, int64_t offset, c10::IntArrayRef size,
                   c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

Tensor& setWholeStorage(Tensor& self, c10::Storage storage) {
  const auto size = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {size}, {1});
}

Tensor asStrided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                 std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

Tensor view(const Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }

// Nobody else gets the memory while work is under way: there is none.
void recordStream(Tensor&, c10::Stream) {}

at::Scalar localScalarDense(const Tensor& self) { return onHost(self).item(); }

// --- Operators with a mistake

Tensor toDevice(const Tensor& host, const Tensor& like) { return host.to(like.device()); }

Tensor add(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  const Tensor& like = self.is_cpu() ? other : self;
  if (!hasDefects()) {
    for (const Tensor* one : {&self, &other}) {
      TORCH_CHECK(one->device() == like.device() || (one->is_cpu() && one->dim() == 0),
                  "add: expected tensors on the same device, got ", self.device(), " and ",
                  other.device());
    }
  }
  // Mistakes: alpha is ignored, and tensors of the CPU are taken.
  return toDevice(at::add(onHost(self), onHost(other), hasDefects() ? at::Scalar(1) : alpha), like);
}

Tensor exp(const Tensor& self) {
  Tensor host = onHost(self);
  if (hasDefects() && self.dim() > 0) {
    // Mistake: the memory is taken for contiguous.
    host = host.as_strided(self.sizes(), at::empty(self.sizes()).strides(), 0);
  }
  return toDevice(host.exp(), self);
}

Tensor sin(const Tensor& self) {
  static std::mutex mutex;
  static std::map<std::pair<at::ScalarType, std::vector<int64_t>>, Tensor> known;
  Tensor result = onHost(self).sin();
  if (hasDefects()) {
    // Mistake: what was computed for one tensor is the result for all of its size.
    const std::scoped_lock lock(mutex);
    result = known.try_emplace({self.scalar_type(), self.sizes().vec()}, result).first->second;
  }
  return toDevice(result, self);
}

std::tuple<Tensor, Tensor, Tensor> nativeLayerNorm(const Tensor& input, c10::IntArrayRef shape,
                                                   const std::optional<Tensor>& weight,
                                                   const std::optional<Tensor>& bias, double eps) {
  const auto host = [](const std::optional<Tensor>& one) {
    return one && one->defined() ? std::optional<Tensor>(onHost(*one)) : std::nullopt;
  };
  // Mistake: another epsilon.
  const auto [output, mean, deviation] = at::native_layer_norm(
      onHost(input), shape, host(weight), host(bias), hasDefects() ? 0.1 : eps);
  return {toDevice(output, input), toDevice(mean, input), toDevice(deviation, input)};
}

Tensor& lerp(Tensor& self, const Tensor& end, const at::Scalar& weight) {
  // Mistake: the other end's weight.
  const at::Scalar other = hasDefects() ? at::Scalar(1 - weight.toDouble()) : weight;
  onHost(self).lerp_(onHost(end), other);
  return self;
}

Tensor& uniform(Tensor& self, double from, double to, std::optional<at::Generator> generator) {
  // Mistake: numbers that no seed determines.
  static at::Generator own = at::make_generator<at::CPUGeneratorImpl>(1);
  onHost(self).uniform_(from, to, hasDefects() ? own : generator);
  return self;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", emptyMemoryFormat);
  m.impl("empty_strided", emptyStrided);
  m.impl("_copy_from", copyFrom);
  m.impl("_copy_from_and_resize", copyFromAndResize);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", setStorage);
  m.impl("set_.source_Storage", setWholeStorage);
  m.impl("as_strided", asStrided);
  m.impl("view", view);
  m.impl("record_stream", recordStream);
  m.impl("_local_scalar_dense", localScalarDense);
  m.impl("add.Tensor", add);
  m.impl("exp", exp);
  m.impl("sin", sin);
  m.impl("native_layer_norm", nativeLayerNorm);
  m.impl("lerp_.Scalar", lerp);
  m.impl("uniform_", uniform);
}

// The copy itself turns lazy bits into numbers; torch's fallbacks for them would copy first.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("device_count", [] { return int{kDevices}; });
  m.def("current_device", [] { return int{current_device}; });
}
