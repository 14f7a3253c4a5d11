#include "base/setting.h"

#include <openreg/device.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
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

// Stores what a text means. Returns false, and leaves the default, if it means nothing.
template <typename Value>
bool store(const std::optional<Value>& value, Value& setting) {
  if (value) setting = *value;
  return value.has_value();
}

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
  return store(parse_switch(text), settings.has_memory_protection);
}

bool parse_OPENREG_LAUNCH_BLOCKING(const char* text, Settings& settings) {
  return store(parse_switch(text), settings.is_launch_blocking);
}

bool parse_OPENREG_SCHEDULE(const char* text, Settings& settings) {
  return store(parse_schedule(text), settings.schedule);
}

bool parse_OPENREG_QUEUE_MEMORY(const char* text, Settings& settings) {
  return store(parse_size(text), settings.queue_memory);
}

// Two numbers with a point between them.
bool is_version(std::string_view text) {
  const size_t point = text.find('.');
  return point != std::string_view::npos && parse_integer<unsigned>(text.substr(0, point)) &&
         parse_integer<unsigned>(text.substr(point + 1));
}

// Whether a text is one of those that orDeclareSetting() was given.
bool is_among(std::string_view text, std::string_view values) {
  while (!values.empty()) {
    const std::string_view value = values.substr(0, values.find(' '));
    if (value == "<size>"      ? parse_size(text).has_value()
        : value == "<version>" ? is_version(text)
        : value == "<text>"    ? !text.empty()
                               : value == text) {
      return true;
    }
    values.remove_prefix(std::min(value.size() + 1, values.size()));
  }
  return false;
}

struct Variable {
  orSetting description;
  bool (*parse)(const char* text, Settings& settings);  // null: it is declared, with `values`
  const char* values;
};

constexpr Variable own_variables[] = {
#define OPENREG_VARIABLE(variable, default_text, allowed, description) \
  {{#variable, default_text, allowed, description, nullptr, nullptr}, parse_##variable, nullptr},
    OPENREG_SETTINGS(OPENREG_VARIABLE)
#undef OPENREG_VARIABLE
};

static_assert(std::size(own_variables) == orSettingIndexCount);

// Defaults that are described in the table, not written there.
bool has_computed_default(std::string_view variable) {
  return variable == "OPENREG_DEVICE_MEMORY" || variable == "OPENREG_VISIBLE_DEVICES";
}

// What the environment says of a setting.
struct Given {
  std::string text;
  const char* source;  // the variable that it is from
};

std::atomic<orSettingSourceFn> other_source{nullptr};

std::optional<Given> find_given(const char* variable, const Settings& settings) {
  if (const char* own = std::getenv(variable); own != nullptr) return Given{own, variable};
  const orSettingSourceFn find_other = other_source.load();
  const char* source = nullptr;
  const char* text =
      find_other == nullptr ? nullptr : find_other(variable, settings.device_count, &source);
  return text == nullptr ? std::nullopt : std::optional(Given{text, source});
}

// What the environment said when it was read.
struct Environment {
  std::vector<std::optional<Given>> given;  // one for each variable
  Settings settings;
  std::vector<std::string> errors;  // one for each bad value
  // The reading that this one extends. It stays, as other threads may refer to it.
  const Environment* earlier = nullptr;

  explicit Environment(const std::vector<Variable>& variables) {
    for (const Variable& variable : variables) read(variable);
  }

  void read(const Variable& variable) {
    const orSetting& row = variable.description;
    const std::optional<Given>& found = given.emplace_back(find_given(row.variable, settings));
    const char* text = found ? found->text.c_str() : nullptr;
    if (text == nullptr && !has_computed_default(row.variable)) text = row.default_text;
    const bool is_good = variable.parse != nullptr ? variable.parse(text, settings)
                                                   : is_among(text, variable.values);
    if (is_good) return;
    errors.push_back(concat(row.variable, " is '", text, "'; allowed: ", row.allowed));
  }
};

// A mutex of our own rather than the one of a static variable, as a fork has to hold it: a child
// that is forked while another thread reads the environment would wait for that thread for ever.
constinit Mutex environment_mutex;  // a leaf
constinit std::atomic<const Environment*> read_environment{nullptr};

// All settings: the runtime's own, then the declared ones.
std::vector<Variable>& variables() OPENREG_REQUIRES(environment_mutex) {
  static auto* all = new std::vector<Variable>(std::begin(own_variables), std::end(own_variables));
  return *all;
}

const Environment& environment() {
  const Environment* found = read_environment.load(std::memory_order_acquire);
  if (found == nullptr) {
    const Lock lock(environment_mutex);
    found = read_environment.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = new Environment(variables());
      read_environment.store(found, std::memory_order_release);
    }
  }
  return *found;
}

// Finds the description of a setting.
orError_t find_setting(int index, const char* function, orSetting* setting) {
  const Lock lock(environment_mutex);
  const std::vector<Variable>& all = variables();
  if (index >= 0 && static_cast<size_t>(index) < all.size()) {
    *setting = all[static_cast<size_t>(index)].description;
    return orSuccess;
  }
  return fail(orErrorInvalidValue,
              concat(function, ": expected an index from 0 to ", all.size() - 1, ", got ", index));
}

const ForkLocks environment_fork_locks([]() OPENREG_UNCHECKED_LOCKING { environment_mutex.lock(); },
                                       []() OPENREG_UNCHECKED_LOCKING {
                                         environment_mutex.unlock();
                                       });

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

using namespace openreg;

extern "C" {

orError_t orDeclareSetting(int* index, const orSetting* setting, const char* values) {
  return guarded([&] {
    if (index == nullptr || setting == nullptr || values == nullptr ||
        setting->variable == nullptr || setting->default_text == nullptr ||
        setting->allowed == nullptr || setting->description == nullptr) {
      return fail(orErrorInvalidValue, "orDeclareSetting: a pointer is null");
    }
    if (!is_among(setting->default_text, values)) {
      return fail(orErrorInvalidValue,
                  concat("orDeclareSetting: expected a default of ", setting->variable, " among '",
                         values, "', got '", setting->default_text, "'"));
    }
    const Lock lock(environment_mutex);
    std::vector<Variable>& all = variables();
    const auto known = std::find_if(all.begin(), all.end(), [&](const Variable& variable) {
      return std::string_view(variable.description.variable) == setting->variable;
    });
    *index = static_cast<int>(known - all.begin());
    if (known != all.end()) {
      if (known->values != nullptr && std::string_view(known->values) == values) return orSuccess;
      return fail(orErrorInvalidValue,
                  concat("orDeclareSetting: there is another setting ", setting->variable));
    }
    Variable added{*setting, nullptr, values};
    added.description.value = nullptr;
    added.description.source = nullptr;
    std::unique_ptr<Environment> extended;
    if (const Environment* read = read_environment.load(std::memory_order_relaxed)) {
      extended = std::make_unique<Environment>(*read);
      extended->earlier = read;
      extended->read(added);
    }
    all.push_back(added);
    if (extended != nullptr) read_environment.store(extended.release(), std::memory_order_release);
    return orSuccess;
  });
}

orError_t orSetSettingSource(orSettingSourceFn function) {
  other_source = function;
  return orSuccess;
}

orError_t orGetSettingCount(int* count) {
  return guarded_result("orGetSettingCount", count, [&] {
    const Lock lock(environment_mutex);
    *count = static_cast<int>(variables().size());
    return orSuccess;
  });
}

orError_t orGetSettingName(const char** variable, int index) {
  return guarded_result("orGetSettingName", variable, [&] {
    orSetting setting;
    if (const orError_t error = find_setting(index, "orGetSettingName", &setting)) return error;
    *variable = setting.variable;
    return orSuccess;
  });
}

orError_t orGetSetting(orSetting* setting, int index) {
  return guarded_result("orGetSetting", setting, [&] {
    orSetting found;
    if (const orError_t error = find_setting(index, "orGetSetting", &found)) return error;
    if (const std::optional<Given>& given = environment().given[static_cast<size_t>(index)]) {
      found.value = given->text.c_str();
      found.source = given->source;
    }
    *setting = found;
    return orSuccess;
  });
}

orError_t orGetSettingSize(size_t* size, int index) {
  return guarded([&] {
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
  return guarded([] { return check_settings(); });
}

orError_t orAreSettingsRead(int* are_read) {
  return guarded_result("orAreSettingsRead", are_read, [&] {
    *are_read = read_environment.load() == nullptr ? 0 : 1;
    return orSuccess;
  });
}

orError_t orReviewSettings(int* device_count, orBadSettingFn report, void* user_data) {
  return guarded([&] {
    if (device_count == nullptr || report == nullptr) {
      return fail(orErrorInvalidValue, "orReviewSettings: null");
    }
    std::vector<Variable> all;
    {
      const Lock lock(environment_mutex);
      all = variables();
    }
    const Environment now(all);
    *device_count = now.errors.empty() ? static_cast<int>(now.settings.visible_devices.size()) : 0;
    for (const std::string& error : now.errors) report(user_data, error.c_str());
    return orSuccess;
  });
}

}  // extern "C"
