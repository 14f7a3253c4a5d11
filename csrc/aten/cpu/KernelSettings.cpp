#include "csrc/aten/cpu/KernelSettings.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "csrc/aten/cpu/SymbolInterposer.h"
#include "csrc/core/Mutex.h"

namespace at::openreg {
namespace {

using PrecisionKey = std::pair<Float32Backend, Float32Op>;
using Precisions = std::unordered_map<PrecisionKey, Float32Precision, c10::hash<PrecisionKey>>;

// docs: context-settings
// Members of at::Context that CPU kernels read: type, name, bits. A test compares the list with
// torch's header.
#define OPENREG_CONTEXT_SETTINGS(X)                                \
  X(bool, _deterministic_algorithms, 1)                            \
  X(bool, _deterministic_algorithms_warn_only, 1)                  \
  X(bool, _deterministic_fill_uninitialized_memory, 1)             \
  X(bool, allow_fp16_bf16_reduction_mathSDP, 1)                    \
  X(bool, allow_fp16_reduction_cpu, 1)                             \
  X(bool, allow_tf32_onednn, 1)                                    \
  X(bool, deterministic_mkldnn, 1)                                 \
  X(std::optional<bool>, enable_sparse_tensor_invariant_checks, 2) \
  X(bool, enabled_flashSDP, 1)                                     \
  X(bool, enabled_mathSDP, 1)                                      \
  X(bool, enabled_mem_efficientSDP, 1)                             \
  X(bool, enabled_mkldnn, 1)                                       \
  X(bool, enabled_nnpack, 1)                                       \
  X(bool, enabled_overrideable, 1)                                 \
  X(Float32MatmulPrecision, float32_matmul_precision, 2)           \
  X(std::atomic<QEngine>, quantized_engine, 4)                     \
  X(bool, release_original_weights, 1)
// docs: end

// The CPU's entries of the member fp32_precision.
constexpr std::array<PrecisionKey, 5> kPrecisionKeys = {{
    {Float32Backend::GENERIC, Float32Op::ALL},
    {Float32Backend::MKLDNN, Float32Op::ALL},
    {Float32Backend::MKLDNN, Float32Op::CONV},
    {Float32Backend::MKLDNN, Float32Op::RNN},
    {Float32Backend::MKLDNN, Float32Op::MATMUL},
}};

constexpr int kPrecisionBits = 3;
constexpr int kDtypeBits = 8;

// The members are private, and reading them through the public getters can cost more than a small
// kernel. An explicit instantiation may name private members.
template <typename Name, auto Pointer>
struct Expose {
  friend auto memberOf(Name /*name*/) { return Pointer; }
};

#define OPENREG_EXPOSE(type, name, bits)        \
  struct name##_name {                          \
    friend auto memberOf(name##_name /*name*/); \
  };                                            \
  template struct Expose<name##_name, &Context::name>;

OPENREG_CONTEXT_SETTINGS(OPENREG_EXPOSE)
OPENREG_EXPOSE(Precisions, fp32_precision, 0)
#undef OPENREG_EXPOSE

// A context, and the iterators of the precisions in its map.
struct Settings {
  explicit Settings(Context& of) : context(of) {
    Precisions& map = context.*memberOf(fp32_precision_name());
    for (size_t i = 0; i < precisions.size(); ++i) {
      precisions[i] = &map.at(kPrecisionKeys[i]);
    }
  }

  Context& context;
  std::array<Float32Precision*, kPrecisionKeys.size()> precisions;
};

// Visits all settings of a context in a fixed order.
template <typename Visit>
void visitSettings(const Settings& settings, const Visit& visit) {
#define OPENREG_VISIT(type, name, bits) visit(settings.context.*memberOf(name##_name()), bits);
  OPENREG_CONTEXT_SETTINGS(OPENREG_VISIT)
#undef OPENREG_VISIT
  for (Float32Precision* precision : settings.precisions) {
    visit(*precision, kPrecisionBits);
  }
}

constexpr int usedBits() {
#define OPENREG_BITS(type, name, bits) +bits
  return kDtypeBits + kPrecisionBits * int(kPrecisionKeys.size())
                                           OPENREG_CONTEXT_SETTINGS(OPENREG_BITS);
#undef OPENREG_BITS
}
static_assert(usedBits() <= 64, "the settings have to fit into one word");

template <typename T>
uint64_t encode(const T& value) {
  return static_cast<uint64_t>(value);
}
uint64_t encode(const std::atomic<QEngine>& value) {
  return static_cast<uint64_t>(value.load(std::memory_order_relaxed));
}
uint64_t encode(const std::optional<bool>& value) { return value.has_value() ? 2U + *value : 0U; }

template <typename T>
void decode(uint64_t code, T& value) {
  value = static_cast<T>(code);
}
void decode(uint64_t code, std::atomic<QEngine>& value) { value = static_cast<QEngine>(code); }
void decode(uint64_t code, std::optional<bool>& value) {
  value = code == 0 ? std::nullopt : std::optional<bool>(code == 3);
}

ScalarType dtypeOf(KernelSettings settings) {
  return static_cast<ScalarType>(settings & ((1U << kDtypeBits) - 1));
}

// A context with these settings. It is never destroyed; threads share it and do not modify it.
Context* contextWith(KernelSettings settings) {
  struct Contexts {
    c10::openreg::Mutex mutex;
    std::unordered_map<KernelSettings, std::unique_ptr<Context>> by_settings
        OPENREG_GUARDED_BY(mutex);
  };
  static auto* contexts = new Contexts;
  const c10::openreg::Lock lock(contexts->mutex);
  std::unique_ptr<Context>& context = contexts->by_settings[settings];
  if (context == nullptr) {
    context = std::make_unique<Context>();
    uint64_t rest = settings >> kDtypeBits;
    visitSettings(Settings(*context), [&](auto& member, int bits) {
      decode(rest & ((1U << bits) - 1), member);
      rest >>= bits;
    });
  }
  return context.get();
}

// Overrides the process's settings on the calling thread. Null: no override.
struct ThreadSettings {
  Context* context = nullptr;
  ScalarType default_dtype = ScalarType::Undefined;
};

thread_local ThreadSettings thread_settings;

Context& contextOfThread() {
  return thread_settings.context != nullptr ? *thread_settings.context : at::globalContext();
}

ScalarType defaultDtypeOfThread() {
  return thread_settings.context != nullptr ? thread_settings.default_dtype
                                            : c10::get_default_dtype_as_scalartype();
}

const caffe2::TypeMeta defaultTypeOfThread() {  // NOLINT(readability-const-return-type): as in c10
  return c10::scalarTypeToTypeMeta(defaultDtypeOfThread());
}

const caffe2::TypeMeta defaultComplexTypeOfThread() {  // NOLINT(readability-const-return-type)
  if (thread_settings.context == nullptr) {
    return c10::get_default_complex_dtype();
  }
  switch (thread_settings.default_dtype) {
    case ScalarType::Half:
      return caffe2::TypeMeta::Make<c10::complex<c10::Half>>();
    case ScalarType::Double:
      return caffe2::TypeMeta::Make<c10::complex<double>>();
    default:
      return caffe2::TypeMeta::Make<c10::complex<float>>();
  }
}

// Whether libtorch_cpu reads the thread's settings in place of the process's.
bool areThreadSettingsSeen() {
  const ThreadSettings before = thread_settings;
  KernelSettings other = currentSettings() & ~uint64_t((1U << kDtypeBits) - 1);
  const ScalarType dtype = c10::get_default_dtype_as_scalartype() == kDouble ? kFloat : kDouble;
  other |= static_cast<uint64_t>(dtype);
  auto deterministic = std::make_unique<Context>();
  deterministic->setDeterministicAlgorithms(true, /*warn_only=*/false);
  thread_settings = {deterministic.get(), dtype};
  bool is_seen = at::detail::empty_cpu({0}, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
                                       std::nullopt)
                     .scalar_type() == dtype;
  try {
    Context::alertNotDeterministic("openreg: settings of a thread");
    is_seen = false;
  } catch (const c10::Error&) {
    // Called if and only if the context is deterministic.
  }
  thread_settings = before;
  return is_seen;
}

// Redirects libtorch_cpu to the functions above, once. Returns whether it calls them.
bool enableThreadSettings() {
  static const bool is_enabled = [] {
    const bool are_found =
        redirectTorch("_ZN2at13globalContextEv", reinterpret_cast<void*>(&contextOfThread)) &&
        redirectTorch("_ZN3c1031get_default_dtype_as_scalartypeEv",
                      reinterpret_cast<void*>(&defaultDtypeOfThread)) &&
        redirectTorch("_ZN3c1017get_default_dtypeEv",
                      reinterpret_cast<void*>(&defaultTypeOfThread)) &&
        redirectTorch("_ZN3c1025get_default_complex_dtypeEv",
                      reinterpret_cast<void*>(&defaultComplexTypeOfThread));
    return are_found && areThreadSettingsSeen();
  }();
  return is_enabled;
}

}  // namespace

KernelSettings currentSettings() {
  static const Settings process(at::globalContext());
  uint64_t word = static_cast<uint64_t>(c10::get_default_dtype_as_scalartype());
  int shift = kDtypeBits;
  visitSettings(process, [&](const auto& member, int bits) {
    word |= encode(member) << shift;
    shift += bits;
  });
  return word;
}

void useSettings(KernelSettings settings) {
  if (C10_LIKELY(enableThreadSettings())) {
    thread_settings = {contextWith(settings), dtypeOf(settings)};
    return;
  }
  TORCH_CHECK(
      settings == currentSettings(),
      "openreg kernel: a process-wide setting, such as the default dtype or the precision of "
      "matrix products, changed between the call and its kernel; with this build of torch, "
      "synchronize before you change one");
}

}  // namespace at::openreg
