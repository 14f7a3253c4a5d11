#include "csrc/memory/AllocatorSettings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;
using CachingAllocator::ConfigTokenizer;

std::atomic<double> initial_memory_fraction{1.0};

template <typename Number>
std::optional<Number> parseNumber(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional<Number>(number) : std::nullopt;
}

// Checks of a key's value: each returns a description of the allowed values if the text is invalid,
// else null.

using Check = const char* (*)(std::string_view text);

const char* checkBackend(std::string_view text) {
  return text == "native" || text == "cudaMallocAsync" ? nullptr : "native or cudaMallocAsync";
}

const char* checkSwitch(std::string_view text) {
  return text == "True" || text == "False" ? nullptr : "True or False";
}

const char* checkThreads(std::string_view text) {
  constexpr size_t kMaxThreads = 128;
  const auto count = parseNumber<size_t>(text);
  const bool is_good = count && *count > 0 && *count <= kMaxThreads && (*count & (*count - 1)) == 0;
  return is_good ? nullptr : "a power of 2 from 1 to 128";
}

const char* checkSize(std::string_view text) {
  const auto size = parseNumber<size_t>(text);
  return size && *size > 0 ? nullptr : "a number of MiB, at least 1";
}

const char* checkFraction(std::string_view text) {
  const auto fraction = parseNumber<double>(text);
  return fraction && *fraction >= 0 && *fraction <= 1 ? nullptr : "a number from 0.0 to 1.0";
}

// A fraction of the device's memory, or a size in GiB.
const char* checkReserve(std::string_view text) {
  const bool has_unit = !text.empty() && text.back() == 'G';
  const auto amount = parseNumber<double>(text.substr(0, text.size() - (has_unit ? 1 : 0)));
  return amount && *amount > 0 ? nullptr : "a share of the memory, or a size such as 4G";
}

constexpr std::string_view kFraction = "per_process_memory_fraction";

// See Note [Keys of CUDA's allocator].
const std::unordered_map<std::string, Check>& cudaKeys() {
  static const std::unordered_map<std::string, Check> keys{
      {"backend", &checkBackend},
      {"graph_capture_record_stream_reuse", &checkSwitch},
      {std::string(kFraction), &checkFraction},
      {"pinned_free_catch_all", &checkSwitch},
      {"pinned_num_register_threads", &checkThreads},
      {"pinned_reserve_segment_size_mb", &checkSize},
      {"pinned_use_cuda_host_register", &checkSwitch},
      {"pinned_use_hip_host_register", &checkSwitch},
      {"release_lock_on_cudamalloc", &checkSwitch},
      {"release_lock_on_hipmalloc", &checkSwitch},
      {"throw_on_cudamalloc_oom", &checkSwitch},
      {"expandable_segments_reserve", &checkReserve},  // this one and the next since torch 2.14
      {"expandable_segments_reserve_by_class", &checkReserve},
  };
  return keys;
}

// Those that a build with CUDA has not registered.
std::unordered_set<std::string> newKeys() {
  std::unordered_set<std::string> names;
  if (servesCuda()) {
    for (const auto& [name, check] : cudaKeys()) {
      if (!AcceleratorAllocatorConfig::getKeys().contains(name)) {
        names.insert(name);
      }
    }
  }
  return names;
}

// Checks the value after a key of CUDA's; returns its position.
size_t checkValue(const ConfigTokenizer& tokens, size_t i, const std::string& key, Check check) {
  const bool has_value = i + 2 < tokens.size() && tokens[i + 1] == ":";
  const std::string value = has_value ? tokens[i + 2] : "";
  const char* allowed = check(value);
  TORCH_CHECK_VALUE(allowed == nullptr, "PYTORCH_CUDA_ALLOC_CONF: ", key, " is invalid: expected ",
                    allowed, ", got '", value, "'");
  if (key == kFraction) {
    initial_memory_fraction = *parseNumber<double>(value);
  }
  return i + 2;
}

void check(const std::string& settings) {
  if (servesCuda()) {
    // c10 has parsed its own keys, and rejected keys that are in neither table.
    const ConfigTokenizer tokens(settings);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto found = cudaKeys().find(tokens[i]);
      // A value may look like a key, but it follows a colon.
      if (found != cudaKeys().end() && (i == 0 || tokens[i - 1] != ":")) {
        i = checkValue(tokens, i, found->first, found->second);
      }
    }
  }
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN_ONCE(
        "allocator settings: expandable_segments is not supported by openreg and ignored");
  }
}

const CachingAllocator::DeviceConfigParserHookRegistry hook_registration(&check, newKeys());

}  // namespace

void checkAllocatorSettings() { check(AcceleratorAllocatorConfig::last_allocator_settings()); }

double initialMemoryFraction() { return initial_memory_fraction; }

}  // namespace c10::openreg
