#include "csrc/extras/cuda/CudaMemory.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/memory/AllocatorSettings.h"
#include "csrc/memory/BlockCache.h"
#include "csrc/memory/OutOfMemory.h"

namespace at::openreg {
namespace {

using c10::CachingAllocator::ConfigTokenizer;
using c10::CachingAllocator::format_size;

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
const std::unordered_map<std::string, Check>& knownKeys() {
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

std::vector<std::string> namesOfKeys() {
  std::vector<std::string> names;
  for (const auto& [name, check] : knownKeys()) {
    names.push_back(name);
  }
  return names;
}

// Checks the value after a key; returns its position.
size_t checkValue(const ConfigTokenizer& tokens, size_t i, const std::string& key, Check check) {
  const bool has_value = i + 2 < tokens.size() && tokens[i + 1] == ":";
  const std::string value = has_value ? tokens[i + 2] : "";
  const char* allowed = check(value);
  TORCH_CHECK_VALUE(allowed == nullptr, "PYTORCH_CUDA_ALLOC_CONF: ", key, " is invalid: expected ",
                    allowed, ", got '", value, "'");
  if (key == kFraction) {
    c10::openreg::setInitialMemoryFraction(*parseNumber<double>(value));
  }
  return i + 2;
}

// c10 has parsed its own keys, and rejected keys that are in neither table.
void checkKeys(const std::string& settings) {
  const ConfigTokenizer tokens(settings);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto found = knownKeys().find(tokens[i]);
    // A value may look like a key, but it follows a colon.
    if (found != knownKeys().end() && (i == 0 || tokens[i - 1] != ":")) {
      i = checkValue(tokens, i, found->first, found->second);
    }
  }
}

// As CUDA's allocator words it, which names the segment that it failed to reserve; the advice is
// ours.
std::string textAsOfCuda(const c10::openreg::OutOfMemory& failed) {
  return c10::str(
      "CUDA out of memory. Tried to allocate ", format_size(failed.segment), ". GPU ",
      static_cast<int>(failed.device), " has a total capacity of ", format_size(failed.total),
      " of which ", format_size(failed.free),
      " is free. Including non-PyTorch memory, this process has ",
      format_size(failed.total - failed.free), " memory in use. ",
      failed.allowed < failed.total ? format_size(failed.allowed) + " allowed; " : "",
      "Of the allocated memory ", format_size(failed.allocated), " is allocated by PyTorch, ",
      failed.reserved_privately == 0 ? ""
                                     : "with " + format_size(failed.reserved_privately) +
                                           " allocated in private pools (e.g., CUDA Graphs), ",
      "and ", format_size(failed.reserved - failed.allocated),
      " is reserved by PyTorch but unallocated.\n", c10::openreg::adviceOnMemory());
}

}  // namespace

void installCudaMemory() {
  c10::openreg::setAllocatorKeys({&namesOfKeys, &checkKeys});
  c10::openreg::setSmallestBlock(c10::CachingAllocator::kMinBlockSize);
  c10::openreg::setOutOfMemoryText(&textAsOfCuda);
}

}  // namespace at::openreg
