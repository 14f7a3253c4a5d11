#include "base/setting.h"

#include <openreg/device.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
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

// What the text of a setting means: a word, by its place among the words that are allowed, or what
// the kind of the value says.
struct Value {
  std::optional<size_t> word = std::nullopt;
  uint64_t number = 0;
  std::vector<int> devices = {};

  bool is_on() const { return word == size_t{1}; }  // of a switch, whose words are 0 and 1
};

struct Limits {
  std::optional<uint64_t> bound = std::nullopt;  // what follows the name of the kind
  int device_count;
};

std::optional<Value> size_value(std::string_view text, const Limits& limits) {
  const std::optional<size_t> size = parse_size(text);
  if (!size || *size < limits.bound.value_or(0)) return std::nullopt;
  return Value{.number = *size};
}

std::optional<Value> number_value(std::string_view text, const Limits& limits) {
  const std::optional<uint64_t> number = parse_integer<uint64_t>(text);
  if (!number || (limits.bound && *number > *limits.bound)) return std::nullopt;
  return Value{.number = *number};
}

std::optional<Value> devices_value(std::string_view text, const Limits& limits) {
  Value value;
  std::vector<int>& devices = value.devices;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::optional<int> device = parse_integer<int>(text.substr(0, comma));
    if (!device || *device < 0 || *device >= limits.device_count) return std::nullopt;
    if (std::find(devices.begin(), devices.end(), *device) != devices.end()) return std::nullopt;
    devices.push_back(*device);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return std::nullopt;
  }
  return value;
}

std::optional<Value> version_value(std::string_view text, const Limits& /*limits*/) {
  const size_t point = text.find('.');
  const bool is_version = point != std::string_view::npos &&
                          parse_integer<unsigned>(text.substr(0, point)) &&
                          parse_integer<unsigned>(text.substr(point + 1));
  return is_version ? std::optional(Value{}) : std::nullopt;
}

std::optional<Value> text_value(std::string_view text, const Limits& /*limits*/) {
  return text.empty() ? std::nullopt : std::optional(Value{});
}

// The kinds of values, see orDeclareSetting(). What is not one of them is a word.
struct Kind {
  std::string_view name;
  std::optional<Value> (*parse)(std::string_view text, const Limits& limits);
};

constexpr Kind kinds[] = {
    {"<size", size_value},       {"<number", number_value}, {"<devices", devices_value},
    {"<version", version_value}, {"<text", text_value},
};

// Returns the kind that a part of a setting's values names, null for a word.
const Kind* find_kind(std::string_view part) {
  const std::string_view name = part.substr(0, part.find_first_of(":>"));
  const Kind* kind = std::find_if(std::begin(kinds), std::end(kinds),
                                  [&](const Kind& one) { return one.name == name; });
  return kind == std::end(kinds) ? nullptr : kind;
}

std::vector<std::string_view> split(std::string_view values) {
  std::vector<std::string_view> parts;
  while (!values.empty()) {
    parts.push_back(values.substr(0, values.find(' ')));
    values.remove_prefix(std::min(parts.back().size() + 1, values.size()));
  }
  return parts;
}

// Returns what a text means to a setting with these values; nothing if it is none of them.
std::optional<Value> parse(std::string_view text, std::string_view values, int device_count) {
  const std::vector<std::string_view> parts = split(values);
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string_view part = parts[i];
    const Kind* const kind = find_kind(part);
    if (kind == nullptr) {
      if (text == part) return Value{.word = i};
      continue;
    }
    Limits limits{std::nullopt, device_count};
    if (const size_t colon = part.find(':'); colon != std::string_view::npos) {
      limits.bound = parse_size(part.substr(colon + 1, part.size() - colon - 2));
    }
    if (std::optional<Value> value = kind->parse(text, limits)) return value;
  }
  return std::nullopt;
}

// Returns the words of a setting as people write them, such as "free, lazy or eager".
std::string listed(std::string_view values) {
  const std::vector<std::string_view> words = split(values);
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

bool are_words(std::string_view values) {
  const std::vector<std::string_view> parts = split(values);
  return std::all_of(parts.begin(), parts.end(),
                     [](std::string_view part) { return find_kind(part) == nullptr; });
}

struct Variable {
  orSetting description;
  const char* values;
};

constexpr Variable own_variables[] = {
#define OPENREG_VARIABLE(variable, default_text, values, allowed, description) \
  {{#variable, default_text, allowed, description, nullptr, nullptr}, values},
    OPENREG_SETTINGS(OPENREG_VARIABLE)
#undef OPENREG_VARIABLE
};

static_assert(std::size(own_variables) == orSettingIndexCount);

// Makes the text for people where a declaration has none. It lives as long as the process.
Variable completed(Variable variable) {
  static auto* texts = new std::deque<std::string>;
  if (variable.description.allowed == nullptr) {
    variable.description.allowed = texts->emplace_back(listed(variable.values)).c_str();
  }
  return variable;
}

Schedule schedule_of(const Value& value) {
  if (!value.word) return {.kind = Schedule::Kind::Seeded, .seed = value.number};
  constexpr Schedule::Kind by_word[] = {Schedule::Kind::Free, Schedule::Kind::Lazy,
                                        Schedule::Kind::Eager};
  return {.kind = by_word[*value.word]};
}

std::vector<int> all_devices(int count) {
  std::vector<int> devices(static_cast<size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
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
    for (const Variable& variable : variables) {
      const size_t index = given.size();
      const std::optional<Value> value = read(variable);
      if (index < orSettingIndexCount) keep(static_cast<orSettingIndex>(index), value);
    }
  }

  // Returns what the setting is; nothing if that is computed, or bad.
  std::optional<Value> read(const Variable& variable) {
    const orSetting& row = variable.description;
    const std::optional<Given>& found = given.emplace_back(find_given(row.variable, settings));
    const char* text = found ? found->text.c_str() : row.default_text;
    std::optional<Value> value = parse(text, variable.values, settings.device_count);
    if (!value && found) {
      errors.push_back(concat(row.variable, " is '", text, "'; allowed: ", row.allowed));
    }
    return value;
  }

 private:
  // Stores one of the runtime's own settings.
  void keep(orSettingIndex index, const std::optional<Value>& value) {
    switch (index) {
      case orSettingIndex_OPENREG_DEVICE_COUNT:
        // With a bad count, a list of visible devices is not bad, too.
        settings.device_count = value ? static_cast<int>(value->number) : OPENREG_MAX_DEVICES;
        break;
      case orSettingIndex_OPENREG_DEVICE_MEMORY: {
        const size_t size = value ? value->number : default_device_memory();
        settings.device_memory = size - size % os::page_size();
        break;
      }
      case orSettingIndex_OPENREG_VISIBLE_DEVICES:
        settings.visible_devices = value ? value->devices : all_devices(settings.device_count);
        break;
      case orSettingIndex_OPENREG_MEMORY_PROTECTION:
        settings.has_memory_protection = !value || value->is_on();
        break;
      case orSettingIndex_OPENREG_LAUNCH_BLOCKING:
        settings.is_launch_blocking = value && value->is_on();
        break;
      case orSettingIndex_OPENREG_SCHEDULE:
        if (value) settings.schedule = schedule_of(*value);
        break;
      case orSettingIndex_OPENREG_QUEUE_MEMORY:
        settings.queue_memory = value ? value->number : 0;
        break;
      case orSettingIndexCount:
        break;
    }
  }
};

// A mutex of our own rather than the one of a static variable, as a fork has to hold it: a child
// that is forked while another thread reads the environment would wait for that thread for ever.
constinit Mutex environment_mutex;  // a leaf
constinit std::atomic<const Environment*> read_environment{nullptr};

// All settings: the runtime's own, then the declared ones.
std::vector<Variable>& variables() OPENREG_REQUIRES(environment_mutex) {
  static auto* all = [] {
    auto* variables = new std::vector<Variable>;
    for (const Variable& variable : own_variables) variables->push_back(completed(variable));
    return variables;
  }();
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

std::optional<Schedule> parse_schedule(std::string_view text) {
  const char* const values = own_variables[orSettingIndex_OPENREG_SCHEDULE].values;
  const std::optional<Value> value = parse(text, values, 0);
  return value ? std::optional(schedule_of(*value)) : std::nullopt;
}

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
        setting->description == nullptr || (setting->allowed == nullptr && !are_words(values))) {
      return fail(orErrorInvalidValue, "orDeclareSetting: a pointer is null");
    }
    if (!parse(setting->default_text, values, OPENREG_MAX_DEVICES)) {
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
      const bool is_own = *index < orSettingIndexCount;
      if (!is_own && std::string_view(known->values) == values) return orSuccess;
      return fail(orErrorInvalidValue,
                  concat("orDeclareSetting: there is another setting ", setting->variable));
    }
    Variable added = completed({*setting, values});
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
