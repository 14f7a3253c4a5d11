#include "csrc/extras/triton/TritonKernel.h"

#include <ATen/Parallel.h>
#include <c10/core/StreamGuard.h>
#include <dlfcn.h>
#include <openreg/memory.h>

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "csrc/core/Settings.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Trace.h"

namespace at::openreg {
namespace {

using c10::openreg::KernelError;
using c10::openreg::Trace;
using c10::openreg::TracedAccessKind;
using c10::openreg::TracedKernel;

const c10::openreg::Setting kCheck{
    "OPENREG_TRITON_CHECK", "1", "0 1",
    "1: each access of a Triton kernel is checked against its argument's storage. 0: none is."};

// Read by the package.
const c10::openreg::Setting kAutotune{
    "OPENREG_TRITON_AUTOTUNE", "measure", "measure first",
    "first: triton.autotune takes the first configuration, and measures none."};
const c10::openreg::Setting kInductor{
    "OPENREG_INDUCTOR", "cpp", "cpp triton",
    "triton: with device type cuda, torch.compile makes kernels in Triton, as for a GPU."};

// How long a loop of a program may wait for memory to change before that is an error. Programs
// that wait for others in a lock do so for microseconds.
constexpr uint64_t kWaitLimitNs = 60'000'000'000;

constexpr size_t kSlotsOfPointer = 3;

bool isPointer(TritonParameter kind) {
  return kind == TritonParameter::Read || kind == TritonParameter::Written ||
         kind == TritonParameter::Updated || kind == TritonParameter::Untouched;
}

bool isWritten(TritonParameter kind) {
  return kind == TritonParameter::Written || kind == TritonParameter::Updated;
}

// Null for memory of another device, or of none.
std::optional<orPointerAttributes> deviceMemoryAt(uint64_t address, c10::DeviceIndex device) {
  orPointerAttributes attributes;
  const orError_t error =
      orPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address));
  if (error != orSuccess || attributes.type != orMemoryTypeDevice || attributes.device != device) {
    return std::nullopt;
  }
  return attributes;
}

// The context of a launch's functions.
struct Context {
  c10::DeviceIndex device;
  Trace* trace;
};

// As OpenRegTritonLaunch::is_allocated.
bool isAllocated(void* context, uint64_t address, uint64_t nbytes) {
  const auto memory = deviceMemoryAt(address, static_cast<const Context*>(context)->device);
  if (!memory) {
    return false;
  }
  const uint64_t offset = address - reinterpret_cast<uint64_t>(memory->allocationBase);
  return nbytes <= memory->allocationSize - offset;
}

TracedAccessKind kindOf(OpenRegTritonAccessKind kind) {
  switch (kind) {
    case OPENREG_TRITON_READ:
      return TracedAccessKind::Read;
    case OPENREG_TRITON_WRITE:
      return TracedAccessKind::Written;
    case OPENREG_TRITON_ATOMIC:
    case OPENREG_TRITON_VOLATILE_READ:
      break;
  }
  return TracedAccessKind::Atomic;
}

// As OpenRegTritonLaunch::observe, for launches with a trace.
void tellTrace(void* context, const OpenRegTritonAccess* access) {
  static_cast<const Context*>(context)->trace->access(
      {kindOf(access->kind),
       access->location,
       access->argument,
       {access->program[0], access->program[1], access->program[2]},
       access->address,
       access->size * access->count});
}

TracedKernel tracedOf(const char* name, c10::ArrayRef<TritonKernel::Parameter> parameters,
                      c10::ArrayRef<TritonKernel::Location> locations) {
  TracedKernel kernel{name, {}, {}};
  for (const auto& parameter : parameters) {
    kernel.arguments.push_back(parameter.name);
  }
  for (const auto& location : locations) {
    kernel.places.push_back(location.place);
  }
  return kernel;
}

OpenRegTritonEntry findEntry(const std::string& name, const std::string& library) {
  // Never closed.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(handle != nullptr, name, ": expected the library of a Triton kernel, got one that ",
              "cannot be loaded: ", dlerror());
  void* entry = dlsym(handle, C10_STRINGIZE(OPENREG_TRITON_ENTRY));
  TORCH_CHECK(entry != nullptr, name,
              ": expected a library that exports " C10_STRINGIZE(OPENREG_TRITON_ENTRY) ", got ",
              library);
  return reinterpret_cast<OpenRegTritonEntry>(entry);
}

std::vector<TritonKernel::Parameter> parametersOf(const std::string& name, std::string_view kinds,
                                                  const std::vector<std::string>& names) {
  TORCH_CHECK(kinds.size() == names.size(), name, ": expected a name for each of ", kinds.size(),
              " parameters, got ", names.size());
  std::vector<TritonKernel::Parameter> parameters;
  size_t slot = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    TORCH_CHECK(std::string_view("rwunijf").find(kinds[i]) != std::string_view::npos, name,
                ": expected parameters of the kinds r, w, u, n, i, j and f, got '", kinds[i], "'");
    const auto kind = static_cast<TritonParameter>(kinds[i]);
    parameters.push_back({kind, names[i], slot});
    slot += isPointer(kind) ? kSlotsOfPointer : 1;
  }
  return parameters;
}

orError_t codeOf(OpenRegTritonStatus status) {
  switch (status) {
    case OPENREG_TRITON_SUCCESS:
      return orSuccess;
    case OPENREG_TRITON_ILLEGAL_READ:
    case OPENREG_TRITON_ILLEGAL_WRITE:
    case OPENREG_TRITON_ILLEGAL_ATOMIC:
    case OPENREG_TRITON_INDEX:
      return orErrorIllegalAddress;
    case OPENREG_TRITON_ASSERT:
      return orErrorAssert;
    case OPENREG_TRITON_OUT_OF_MEMORY:
      return orErrorMemoryAllocation;
    case OPENREG_TRITON_MISALIGNED_ATOMIC:
    case OPENREG_TRITON_WAIT:
      break;
  }
  return orErrorLaunchFailure;
}

bool isAccess(OpenRegTritonStatus status) {
  return status == OPENREG_TRITON_ILLEGAL_READ || status == OPENREG_TRITON_ILLEGAL_WRITE ||
         status == OPENREG_TRITON_ILLEGAL_ATOMIC || status == OPENREG_TRITON_MISALIGNED_ATOMIC;
}

const char* verbOf(OpenRegTritonStatus status) {
  switch (status) {
    case OPENREG_TRITON_ILLEGAL_READ:
      return " reads ";
    case OPENREG_TRITON_ILLEGAL_WRITE:
      return " writes ";
    default:
      return " updates ";
  }
}

// Where an address is, seen from the memory of an argument.
std::string distanceTo(uint64_t address, uint64_t begin, uint64_t end) {
  if (address < begin) {
    return c10::str(begin - address, " bytes before the begin of");
  }
  if (address >= end) {
    return c10::str(address - end, " bytes behind the end of");
  }
  return "across the end of";
}

}  // namespace

// What a stream's worker runs.
struct TritonKernel::Call {
  const TritonKernel* kernel;
  TritonGrid grid;
  c10::DeviceIndex device;
  std::unique_ptr<uint64_t[]> slots;
  std::shared_ptr<Trace> trace;  // or null

  KernelError operator()() const { return kernel->run(*this); }
};

TritonKernel& TritonKernel::load(const std::string& name, const std::string& library,
                                 std::string_view kinds, const std::vector<std::string>& names,
                                 std::vector<Location> locations) {
  std::vector<Parameter> parameters = parametersOf(name, kinds, names);
  // Leaked.
  return *new TritonKernel(name, findEntry(name, library), std::move(parameters),
                           std::move(locations));
}

TritonKernel::TritonKernel(std::string name, OpenRegTritonEntry entry,
                           std::vector<Parameter> parameters, std::vector<Location> locations)
    : name_(std::move(name)),
      entry_(entry),
      parameters_(std::move(parameters)),
      locations_(std::move(locations)),
      described_(c10::openreg::describeKernel<WrappedKernel<Call>>(name_.c_str())),
      traced_(tracedOf(name_.c_str(), parameters_, locations_)) {}

void TritonKernel::loadTraced(const std::string& library) {
  traced_entry_ = findEntry(name_, library);
}

void TritonKernel::launch(const c10::openreg::OpenRegStream& stream, const TritonGrid& grid,
                          const TritonArguments& arguments) const {
  TORCH_CHECK_TYPE(arguments.tensors_.size() == parameters_.size(), name_, ": expected ",
                   parameters_.size(), " arguments, got ", arguments.tensors_.size());
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) {
    return;
  }
  std::shared_ptr<Trace> trace = hasTraced() ? c10::openreg::findTrace(stream, traced_) : nullptr;
  const c10::openreg::Verdict verdict =
      c10::openreg::observeAccesses(stream, name(), [&](c10::openreg::OperandList& operands) {
        for (size_t i = 0; i < parameters_.size(); ++i) {
          const Tensor* tensor = arguments.tensors_[i];
          const TritonParameter kind = parameters_[i].kind;
          if (tensor == nullptr || kind == TritonParameter::Untouched) {
            continue;
          }
          operands.push_back({tensor->unsafeGetTensorImpl(), isWritten(kind),
                              parameters_[i].name.c_str(), /*is_host_memory=*/tensor->is_cpu(),
                              /*is_updated=*/kind == TritonParameter::Updated});
        }
      });
  const auto& given = arguments.slots_;
  auto slots = std::make_unique<uint64_t[]>(given.size());
  std::memcpy(slots.get(), given.data(), given.size() * sizeof(uint64_t));
  // Operators run on the current stream.
  std::optional<c10::StreamGuard> guard;
  if (C10_UNLIKELY(stream != c10::openreg::getCurrentOpenRegStream(stream.device_index()))) {
    guard.emplace(stream.unwrap());
  }
  launchOp(described_, stream.device(),
           Call{this, grid, stream.device_index(), std::move(slots), std::move(trace)}, verdict);
}

KernelError TritonKernel::run(const Call& call) const {
  Context context{call.device, call.trace.get()};
  const bool is_traced = context.trace != nullptr;
  const OpenRegTritonLaunch launch{
      .grid = {call.grid[0], call.grid[1], call.grid[2]},
      .threads = is_traced ? 1 : at::get_num_threads(),
      .kernel_offset = kernelOffset(),
      .wait_limit_ns = kWaitLimitNs,
      .context = &context,
      .is_allocated = &isAllocated,
      .print = nullptr,
      .observe = is_traced ? &tellTrace : nullptr,
  };
  OpenRegTritonError error{};
  if (C10_UNLIKELY(is_traced)) {
    context.trace->begin();
  }
  const OpenRegTritonEntry entry = is_traced ? traced_entry_.load() : entry_;
  const OpenRegTritonStatus status = entry(&launch, call.slots.get(), &error);
  if (C10_UNLIKELY(is_traced)) {
    context.trace->end(status == OPENREG_TRITON_SUCCESS);
  }
  if (C10_LIKELY(status == OPENREG_TRITON_SUCCESS)) {
    return {};
  }
  error.status = status;
  return recordOf(error, call);
}

KernelError TritonKernel::recordOf(const OpenRegTritonError& error, const Call& call) const {
  KernelError record;
  record.code = codeOf(error.status);
  record.text = textOf(error, call);
  if (isAccess(error.status)) {
    record.address = error.address;
  }
  if (error.location >= 0 && static_cast<size_t>(error.location) < locations_.size()) {
    const Location& location = locations_[error.location];
    record.location = location.place;
    if (!location.message.empty()) {
      record.text += ": " + location.message;
    }
  }
  return record;
}

// The runtime adds the location and the address.
std::string TritonKernel::textOf(const OpenRegTritonError& error, const Call& call) const {
  const std::string program = c10::str("program (", error.program[0], ", ", error.program[1], ", ",
                                       error.program[2], ") of ", name_);
  switch (error.status) {
    case OPENREG_TRITON_ASSERT:
      return c10::str(program, ": device-side assert triggered");
    case OPENREG_TRITON_INDEX:
      return c10::str(program, " gathers element ", static_cast<int64_t>(error.address),
                      " of a dimension of size ", error.size);
    case OPENREG_TRITON_WAIT:
      return c10::str(program, " has waited for ", kWaitLimitNs / 1'000'000'000,
                      " s in a loop for memory that no program changed: programs start in order, "
                      "and may wait only for earlier ones");
    case OPENREG_TRITON_OUT_OF_MEMORY:
      return c10::str(name_, ": the host has no memory for the tiles of a program, ", error.size,
                      " bytes");
    case OPENREG_TRITON_MISALIGNED_ATOMIC:
      return c10::str(program, " updates ", error.size,
                      " bytes at an address that is not a multiple of their number");
    case OPENREG_TRITON_ILLEGAL_READ:
    case OPENREG_TRITON_ILLEGAL_WRITE:
    case OPENREG_TRITON_ILLEGAL_ATOMIC:
    case OPENREG_TRITON_SUCCESS:
      break;
  }
  const std::string text = c10::str(program, verbOf(error.status), error.size, " bytes ");
  const auto index = static_cast<size_t>(error.argument);
  if (error.argument < 0 || index >= parameters_.size() || !isPointer(parameters_[index].kind)) {
    return text + "outside of the memory that is allocated on the device";
  }
  const uint64_t* slots = &call.slots[parameters_[index].slot];
  const std::string name = c10::str("argument '", parameters_[index].name, "'");
  if (slots[1] == slots[2]) {
    return c10::str(text, "by ", name, ", which has no memory");
  }
  return c10::str(text, distanceTo(error.address, slots[1], slots[2]), " ", name, " (",
                  slots[2] - slots[1], " bytes)");
}

const TritonKernel::Parameter& TritonArguments::parameter() const {
  TORCH_CHECK_TYPE(tensors_.size() < kernel_.parameters().size(), kernel_.name(), ": expected ",
                   kernel_.parameters().size(), " arguments, got more");
  return kernel_.parameters()[tensors_.size()];
}

void TritonArguments::refuse(const char* what, const std::string& where) const {
  const TritonKernel::Parameter& refused = parameter();
  TORCH_CHECK_VALUE(false, "Pointer argument cannot be accessed from Triton (", what,
                    "?)\nArgument '", refused.name, "' of ", kernel_.name(), " is on ", where,
                    ", and the kernel runs on ", c10::Device(c10::openreg::kDeviceType, device_));
}

void TritonArguments::add(uint64_t value) {
  std::ignore = parameter();
  slots_.push_back(value);
  tensors_.push_back(nullptr);
}

void TritonArguments::addPointer(uint64_t address, uint64_t begin, uint64_t nbytes) {
  add(address);
  const bool is_checked = kCheck.isOn();
  slots_.push_back(is_checked ? begin : 0);
  slots_.push_back(is_checked ? begin + nbytes : std::numeric_limits<uint64_t>::max());
}

void TritonArguments::addNumber(double value) { add(std::bit_cast<uint64_t>(value)); }

void TritonArguments::addTensor(const Tensor& tensor) {
  const void* address =
      isWritten(parameter().kind) ? tensor.mutable_data_ptr() : tensor.const_data_ptr();
  addTensorAt(tensor, reinterpret_cast<uint64_t>(address));
}

void TritonArguments::addTensorAt(const Tensor& tensor, uint64_t address) {
  const c10::Device device(c10::openreg::kDeviceType, device_);
  uint64_t begin = reinterpret_cast<uint64_t>(tensor.storage().data());
  if (C10_UNLIKELY(tensor.is_cpu() && tensor.is_pinned())) {
    // Kernels add an offset to each address. The host's memory is where they find it so.
    const auto alias = TensorAlias::ofHostMemory(tensor);
    const uint64_t seen = reinterpret_cast<uint64_t>(alias.storageData()) - kernelOffset();
    address = address - begin + seen;
    begin = seen;
  } else if (C10_UNLIKELY(tensor.device() != device)) {
    refuse(tensor.is_cpu() ? "cpu tensor" : "a tensor of another device", tensor.device().str());
  }
  addPointer(address, begin, tensor.storage().nbytes());
  tensors_.back() = &tensor;
}

void TritonArguments::addAddress(uint64_t address) {
  if (address != 0 && !deviceMemoryAt(address, device_)) {
    refuse("cpu tensor", "another device or the host");
  }
  addPointer(address, 0, 0);
}

}  // namespace at::openreg
