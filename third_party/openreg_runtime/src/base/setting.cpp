#include "base/setting.h"

#include <openreg/device.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"

namespace openreg {
namespace {

constexpr size_t mebibyte = size_t{1} << 20;
constexpr size_t min_device_memory = 16 * mebibyte;
constexpr size_t min_default_device_memory = 1024 * mebibyte;

// Tidy numbers in reports; also the size of a huge page.
constexpr size_t default_device_memory_step = 2 * mebibyte;

size_t default_device_memory() {
  const size_t quarter = os::physical_memory() / 4;
  return std::max(min_default_device_memory, quarter - quarter % default_device_memory_step);
}

template <typename Integer>
std::optional<Integer> parse_integer(std::string_view text) {
  Integer value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end) return std::nullopt;
  return value;
}

std::optional<size_t> parse_size(std::string_view text) {
  constexpr std::array<std::string_view, 4> units = {"KiB", "MiB", "GiB", "TiB"};
  int shift = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!text.ends_with(units[i])) continue;
    shift = 10 * (static_cast<int>(i) + 1);
    text.remove_suffix(units[i].size());
    break;
  }
  const std::optional<size_t> count = parse_integer<size_t>(text);
  if (!count || *count > (std::numeric_limits<size_t>::max() >> shift)) return std::nullopt;
  return *count << shift;
}

std::optional<bool> parse_switch(std::string_view text) {
  if (text == "0") return false;
  if (text == "1") return true;
  return std::nullopt;
}

}  // namespace

std::optional<Schedule> parse_schedule(std::string_view text) {
  if (text == "free") return Schedule{};
  if (text == "lazy") return Schedule{.kind = Schedule::Kind::Lazy};
  if (text == "eager") return Schedule{.kind = Schedule::Kind::Eager};
  const std::optional<uint64_t> seed = parse_integer<uint64_t>(text);
  if (!seed) return std::nullopt;
  return Schedule{.kind = Schedule::Kind::Seeded, .seed = *seed};
}

namespace {

// One parser for each variable, named after it. Each returns false for a bad text. A null text
// asks for a default that is computed.

bool parse_OPENREG_DEVICE_COUNT(const char* text, Settings& settings) {
  const std::optional<int> count = parse_integer<int>(text);
  const bool is_good = count && *count >= 0 && *count <= OPENREG_MAX_DEVICES;
  // With a bad count, a list of visible devices is not bad, too.
  settings.device_count = is_good ? *count : OPENREG_MAX_DEVICES;
  return is_good;
}

bool parse_OPENREG_DEVICE_MEMORY(const char* text, Settings& settings) {
  const std::optional<size_t> size = text ? parse_size(text) : default_device_memory();
  if (!size || *size < min_device_memory) return false;
  settings.device_memory = *size - *size % os::page_size();
  return true;
}

bool parse_OPENREG_VISIBLE_DEVICES(const char* text, Settings& settings) {
  std::vector<int>& visible = settings.visible_devices;
  if (text == nullptr) {
    for (int i = 0; i < settings.device_count; ++i) visible.push_back(i);
    return true;
  }
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::optional<int> device = parse_integer<int>(rest.substr(0, comma));
    if (!device || *device < 0 || *device >= settings.device_count) return false;
    if (std::find(visible.begin(), visible.end(), *device) != visible.end()) return false;
    visible.push_back(*device);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) return false;
  }
  return true;
}

bool parse_OPENREG_MEMORY_PROTECTION(const char* text, Settings& settings) {
  const std::optional<bool> value = parse_switch(text);
  settings.has_memory_protection = value.value_or(true);
  return value.has_value();
}

bool parse_OPENREG_LAUNCH_BLOCKING(const char* text, Settings& settings) {
  const std::optional<bool> value = parse_switch(text);
  settings.is_launch_blocking = value.value_or(false);
  return value.has_value();
}

bool parse_OPENREG_SCHEDULE(const char* text, Settings& settings) {
  const std::optional<Schedule> schedule = parse_schedule(text);
  settings.schedule = schedule.value_or(Schedule{});
  return schedule.has_value();
}

bool parse_OPENREG_QUEUE_MEMORY(const char* text, Settings& settings) {
  const std::optional<size_t> size = parse_size(text);
  settings.queue_memory = size.value_or(0);
  return size.has_value();
}

// What the layers above read: the runtime only checks the text.

bool parse_OPENREG_DEVICE_TYPE(const char* text, Settings&) {
  const std::string_view type = text;
  return type == "openreg" || type == "cuda" || type == "none";
}

// Two numbers with a point between them.
bool is_version(std::string_view text) {
  const size_t point = text.find('.');
  return point != std::string_view::npos && parse_integer<unsigned>(text.substr(0, point)) &&
         parse_integer<unsigned>(text.substr(point + 1));
}

bool parse_OPENREG_CUDA_CAPABILITY(const char* text, Settings&) { return is_version(text); }

bool parse_OPENREG_CUDA_VERSION(const char* text, Settings&) {
  return std::string_view(text) == "none" || is_version(text);
}

bool parse_OPENREG_CUDA_NOTICE(const char* text, Settings&) {
  return parse_switch(text).has_value();
}

bool parse_OPENREG_FALLBACK(const char* text, Settings&) {
  const std::string_view mode = text;
  return mode == "silent" || mode == "warn" || mode == "error";
}

bool parse_OPENREG_FALLBACK_VERIFY(const char* text, Settings&) {
  return parse_switch(text).has_value();
}

bool parse_OPENREG_MEMORY_POISON(const char* text, Settings&) {
  return parse_switch(text).has_value();
}

bool parse_OPENREG_MEMORY_QUARANTINE(const char* text, Settings&) {
  return parse_size(text).has_value();
}

bool parse_OPENREG_OCCL_ON_ERROR(const char* text, Settings&) {
  const std::string_view action = text;
  return action == "raise" || action == "abort";
}

bool parse_OPENREG_SANITIZER(const char* text, Settings&) {
  const std::string_view action = text;
  return action == "raise" || action == "collect" || parse_switch(action).has_value();
}

bool parse_OPENREG_SANITIZER_EXIT(const char* text, Settings&) {
  return parse_switch(text).has_value();
}

bool parse_OPENREG_SANITIZER_HOST(const char* text, Settings&) {
  const std::string_view accesses = text;
  return accesses == "operators" || parse_switch(accesses).has_value();
}

bool parse_OPENREG_SANITIZER_REPORT(const char* text, Settings&) { return *text != '\0'; }

bool parse_OPENREG_SANITIZER_SUPPRESSIONS(const char* text, Settings&) { return *text != '\0'; }

bool parse_OPENREG_SANITIZER_UNINITIALIZED(const char* text, Settings&) {
  return parse_switch(text).has_value();
}

struct Variable {
  orSetting description;
  bool (*parse)(const char* text, Settings& settings);
};

constexpr Variable table[] = {
#define OPENREG_VARIABLE(variable, default_text, allowed, description) \
  {{#variable, default_text, allowed, description, nullptr, nullptr}, parse_##variable},
    OPENREG_SETTINGS(OPENREG_VARIABLE)
#undef OPENREG_VARIABLE
};

constexpr size_t variable_count = std::size(table);
static_assert(variable_count == orSettingIndexCount);

// Defaults that are described in the table, not written there.
bool has_computed_default(std::string_view variable) {
  return variable == "OPENREG_DEVICE_MEMORY" || variable == "OPENREG_VISIBLE_DEVICES";
}

// The devices of a list of CUDA's, as OPENREG_VISIBLE_DEVICES names them.
std::string from_cuda_devices(std::string_view rest, int device_count) {
  std::vector<int> devices;
  std::string text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view number = rest.substr(0, comma);
    const size_t begin = std::min(number.find_first_not_of(' '), number.size());
    const size_t end = number.find_last_not_of(' ') + 1;
    const std::optional<int> device =
        begin < end ? parse_integer<int>(number.substr(begin, end - begin)) : std::nullopt;
    if (!device || *device < 0 || *device >= device_count) break;
    if (std::find(devices.begin(), devices.end(), *device) != devices.end()) return {};
    devices.push_back(*device);
    text += (text.empty() ? "" : ",") + std::to_string(*device);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return text;
}

// What the environment says of a setting.
struct Given {
  std::string text;
  const char* source;  // the variable that it is from
};

// See Note [CUDA's variables] in openreg/setting.h.
std::optional<Given> find_given(const char* variable, const Settings& settings) {
  if (const char* own = std::getenv(variable); own != nullptr) return Given{own, variable};
  const char* type = std::getenv("OPENREG_DEVICE_TYPE");
  if (type == nullptr || std::string_view(type) != "cuda") return std::nullopt;
  const std::string_view name = variable;
  if (name == "OPENREG_VISIBLE_DEVICES") {
    constexpr const char* source = "CUDA_VISIBLE_DEVICES";
    const char* devices = std::getenv(source);
    if (devices != nullptr) {
      return Given{from_cuda_devices(devices, settings.device_count), source};
    }
  }
  if (name == "OPENREG_LAUNCH_BLOCKING") {
    constexpr const char* source = "CUDA_LAUNCH_BLOCKING";
    const char* is_blocking = std::getenv(source);
    if (is_blocking != nullptr) {
      return Given{std::string_view(is_blocking) == "1" ? "1" : "0", source};
    }
  }
  return std::nullopt;
}

// What the environment said when it was read.
struct Environment {
  std::array<std::optional<Given>, variable_count> given = {};
  Settings settings;
  std::vector<std::string> errors;  // one for each bad value

  Environment() {
    for (size_t i = 0; i < variable_count; ++i) read(i);
  }

  const char* value(size_t i) const { return given[i] ? given[i]->text.c_str() : nullptr; }

  void read(size_t i) {
    const orSetting& variable = table[i].description;
    given[i] = find_given(variable.variable, settings);
    const char* text = value(i);
    if (text == nullptr && !has_computed_default(variable.variable)) text = variable.default_text;
    if (table[i].parse(text, settings)) return;
    errors.push_back(concat(variable.variable, " is '", text, "'; allowed: ", variable.allowed));
  }
};

std::atomic<bool> is_environment_read{false};

// A mutex of our own rather than the one of a static variable, as a fork has to hold it: a child
// that is forked while another thread reads the environment would wait for that thread for ever.
constinit Mutex environment_mutex;  // a leaf
constinit std::atomic<const Environment*> read_environment{nullptr};

const Environment& environment() {
  const Environment* found = read_environment.load(std::memory_order_acquire);
  if (found == nullptr) {
    const Lock lock(environment_mutex);
    found = read_environment.load(std::memory_order_relaxed);
    if (found == nullptr) {
      is_environment_read = true;
      found = new Environment;
      read_environment.store(found, std::memory_order_release);
    }
  }
  return *found;
}

const ForkLocks fork_locks([]() OPENREG_UNCHECKED_LOCKING { environment_mutex.lock(); },
                           []() OPENREG_UNCHECKED_LOCKING { environment_mutex.unlock(); });

}  // namespace

orError_t check_settings() {
  const std::vector<std::string>& errors = environment().errors;
  return errors.empty() ? orSuccess : fail(orErrorInvalidSetting, errors.front());
}

const Settings& settings() { return environment().settings; }

std::string no_device_text() {
  const Environment& read = environment();
  if (read.settings.device_count > 0) {
    if (const std::optional<Given>& given = read.given[orSettingIndex_OPENREG_VISIBLE_DEVICES]) {
      const char* text = std::getenv(given->source);
      return concat(given->source, " is '", text == nullptr ? given->text : text, "'");
    }
  }
  return concat("OPENREG_DEVICE_COUNT is ", read.settings.device_count);
}

}  // namespace openreg

extern "C" {

orError_t orGetSettingCount(int* count) {
  return openreg::guarded([&] {
    if (count == nullptr) return openreg::fail(orErrorInvalidValue, "orGetSettingCount: null");
    *count = static_cast<int>(openreg::variable_count);
    return orSuccess;
  });
}

orError_t orGetSetting(orSetting* setting, int index) {
  return openreg::guarded([&] {
    using namespace openreg;
    if (setting == nullptr) return fail(orErrorInvalidValue, "orGetSetting: setting is null");
    if (index < 0 || static_cast<size_t>(index) >= variable_count) {
      return fail(orErrorInvalidValue, concat("orGetSetting: expected an index from 0 to ",
                                              variable_count - 1, ", got ", index));
    }
    *setting = table[index].description;
    const std::optional<Given>& given = environment().given[static_cast<size_t>(index)];
    if (given) {
      setting->value = given->text.c_str();
      setting->source = given->source;
    }
    return orSuccess;
  });
}

orError_t orGetSettingSize(size_t* size, int index) {
  return openreg::guarded([&] {
    using namespace openreg;
    orSetting setting;
    if (const orError_t error = orGetSetting(&setting, index)) return error;
    const char* text = setting.value == nullptr ? setting.default_text : setting.value;
    const std::optional<size_t> parsed = parse_size(text);
    if (size == nullptr || !parsed) {
      return fail(orErrorInvalidValue,
                  concat("orGetSettingSize: expected a setting that is a size, got ",
                         setting.variable, ", which is '", text, "'"));
    }
    *size = *parsed;
    return orSuccess;
  });
}

orError_t orCheckSettings(void) {
  return openreg::guarded([] { return openreg::check_settings(); });
}

orError_t orAreSettingsRead(int* are_read) {
  return openreg::guarded([&] {
    if (are_read == nullptr) {
      return openreg::fail(orErrorInvalidValue, "orAreSettingsRead: are_read is null");
    }
    *are_read = openreg::is_environment_read ? 1 : 0;
    return orSuccess;
  });
}

orError_t orReviewSettings(int* device_count, orBadSettingFn report, void* user_data) {
  return openreg::guarded([&] {
    if (device_count == nullptr || report == nullptr) {
      return openreg::fail(orErrorInvalidValue, "orReviewSettings: null");
    }
    const openreg::Environment now;
    *device_count = now.errors.empty() ? static_cast<int>(now.settings.visible_devices.size()) : 0;
    for (const std::string& error : now.errors) report(user_data, error.c_str());
    return orSuccess;
  });
}

}  // extern "C"
