// Environment variables: defaults, values, and every kind of invalid value.
#include <unistd.h>

#include "check.h"

namespace {

void set(const char* variable, const char* value) { CHECK_EQUAL(setenv(variable, value, 1), 0); }

// Checks that the process rejects a value, and that the error names it.
void check_refused(const char* variable, const char* value, const char* allowed) {
  test::check_child([=] {
    set(variable, value);
    CHECK_ERROR(orCheckSettings(), orErrorInvalidSetting);
    CHECK_EQUAL(std::string(orGetLastErrorMessage()),
                std::string(variable) + " is '" + value + "'; allowed: " + allowed);
  });
}

size_t device_memory(const char* value) {
  set("OPENREG_DEVICE_MEMORY", value);
  orDeviceProp properties;
  CHECK_OK(orGetDeviceProperties(&properties, 0));
  return properties.totalGlobalMem;
}

// Checks in a child what a value of OPENREG_DEVICE_MEMORY means.
void check_memory(const char* value, size_t expected) {
  test::check_child([=] { CHECK_EQUAL(device_memory(value), expected); });
}

int device_count() {
  int count = -1;
  CHECK_OK(orGetDeviceCount(&count));
  return count;
}

// A setting of a layer above the runtime.
int declare(const char* variable, const char* default_text, const char* values) {
  const orSetting setting = {variable, default_text, values, "For this test.", nullptr, nullptr};
  int index = -1;
  CHECK_OK(orDeclareSetting(&index, &setting, values));
  return index;
}

std::string value_of(int index) {
  orSetting setting;
  CHECK_OK(orGetSetting(&setting, index));
  return setting.value == nullptr ? "" : setting.value;
}

// What TEST_COLOR is if it is not set, and OPENREG_VISIBLE_DEVICES.
const char* find_other(const char* variable, int device_count, const char** source) {
  static thread_local std::string text;
  if (std::string_view(variable) == "TEST_COLOR") {
    text = "blue";
  } else if (std::string_view(variable) == "OPENREG_VISIBLE_DEVICES") {
    text = std::to_string(device_count - 1);
  } else {
    return nullptr;
  }
  *source = "OTHER_VARIABLE";
  return text.c_str();
}

}  // namespace

TEST(settings_can_be_listed) {
  set("OPENREG_LAUNCH_BLOCKING", "1");
  int count = 0;
  CHECK_OK(orGetSettingCount(&count));
  CHECK_EQUAL(count, static_cast<int>(orSettingIndexCount));
  for (int i = 0; i < count; ++i) {
    orSetting setting;
    CHECK_OK(orGetSetting(&setting, i));
    CHECK_CONTAINS(setting.variable, "OPENREG_");
    CHECK(*setting.default_text != '\0' && *setting.allowed != '\0');
    CHECK(*setting.description != '\0');
    const char* name = nullptr;
    CHECK_OK(orGetSettingName(&name, i));
    CHECK_EQUAL(std::string(name), setting.variable);
    if (i == orSettingIndex_OPENREG_LAUNCH_BLOCKING) {
      CHECK_EQUAL(std::string(setting.variable), "OPENREG_LAUNCH_BLOCKING");
      CHECK_EQUAL(std::string(setting.value), "1");
    } else {
      CHECK(setting.value == nullptr);
    }
  }
}

TEST(settings_are_read_by_the_first_call_that_needs_one) {
  test::check_child([] {
    int are_read = -1;
    int count = 0;
    CHECK_OK(orReviewSettings(&count, [](void*, const char*) {}, nullptr));
    CHECK_OK(orAreSettingsRead(&are_read));
    CHECK_EQUAL(are_read, 0);
    CHECK_EQUAL(device_count(), 2);
    CHECK_OK(orAreSettingsRead(&are_read));
    CHECK_EQUAL(are_read, 1);
    CHECK_ERROR(orAreSettingsRead(nullptr), orErrorInvalidValue);
  });
}

TEST(declared_settings_are_read_with_the_others) {
  test::check_child([] {
    set("TEST_COLOR", "green");
    const int color = declare("TEST_COLOR", "red", "red green");
    CHECK_EQUAL(color, static_cast<int>(orSettingIndexCount));
    CHECK_EQUAL(declare("TEST_SIZE", "3KiB", "<size>"), color + 1);
    int value = -1;
    CHECK_OK(orAreSettingsRead(&value));
    CHECK_EQUAL(value, 0);
    CHECK_OK(orGetSettingCount(&value));
    CHECK_EQUAL(value, color + 2);
    CHECK_EQUAL(value_of(color), "green");
    set("TEST_COLOR", "red");
    CHECK_EQUAL(value_of(color), "green");
    orSetting setting;
    CHECK_OK(orGetSetting(&setting, color));
    CHECK_EQUAL(std::string(setting.source), "TEST_COLOR");
    CHECK_EQUAL(std::string(setting.default_text), "red");
    CHECK_OK(orGetSetting(&setting, color + 1));
    CHECK(setting.value == nullptr && setting.source == nullptr);
  });
}

TEST(bad_values_of_declared_settings_fail_every_call_that_needs_a_setting) {
  struct Case {
    const char* values;
    const char* default_text;
    std::vector<const char*> good;
    std::vector<const char*> bad;
  };
  const std::vector<Case> cases = {
      {"0 1 raise", "0", {"1", "raise"}, {"", "2", "0 1", "rais", "<size>"}},
      {"<size>", "1MiB", {"0", "7", "64GiB"}, {"", "-1", "64GB", "99999999999TiB"}},
      {"none <version>", "none", {"12.8", "0.0"}, {"", "12", "12.x", ".8", "1.2.3"}},
      {"<text>", "none", {"x", "a b"}, {""}},
      {"<size:2KiB>", "1MiB", {"2048", "64GiB"}, {"", "0", "2047", "1KiB"}},
      {"<number>", "7", {"0", "18446744073709551615"}, {"", "-1", "1.5", "18446744073709551616"}},
      {"off <number:9>", "off", {"0", "9"}, {"", "10", "on"}},
      {"<devices>", "", {"", "1", "1,0"}, {"2", "0,0", "0,", "all"}},
  };
  for (const Case& one : cases) {
    for (const char* value : one.good) {
      test::check_child([=] {
        set("TEST_SETTING", value);
        const int index = declare("TEST_SETTING", one.default_text, one.values);
        CHECK_OK(orCheckSettings());
        CHECK_EQUAL(value_of(index), value);
      });
    }
    for (const char* value : one.bad) {
      test::check_child([=] {
        set("TEST_SETTING", value);
        declare("TEST_SETTING", one.default_text, one.values);
        int count = 0;
        CHECK_ERROR(orGetDeviceCount(&count), orErrorInvalidSetting);
        CHECK_EQUAL(std::string(orGetLastErrorMessage()),
                    std::string("TEST_SETTING is '") + value + "'; allowed: " + one.values);
      });
    }
  }
}

TEST(setting_that_is_declared_late_is_read_at_once) {
  test::check_child([] {
    CHECK_OK(orCheckSettings());
    set("TEST_COLOR", "green");
    const int color = declare("TEST_COLOR", "red", "red green");
    set("TEST_COLOR", "red");
    CHECK_EQUAL(value_of(color), "green");
    CHECK_OK(orCheckSettings());
    set("TEST_SWITCH", "2");
    declare("TEST_SWITCH", "0", "0 1");
    CHECK_ERROR(orCheckSettings(), orErrorInvalidSetting);
  });
}

TEST(text_of_allowed_words_is_made_of_them) {
  const std::pair<const char*, const char*> cases[] = {
      {"one", "one"}, {"0 1", "0 or 1"}, {"0 1 raise collect", "0, 1, raise or collect"}};
  for (const auto& [values, allowed] : cases) {
    test::check_child([values = values, allowed = allowed] {
      const std::string first(
          std::string_view(values).substr(0, std::string_view(values).find(' ')));
      const orSetting words = {"TEST_WORDS", first.c_str(), nullptr, "Words.", nullptr, nullptr};
      int index = -1;
      CHECK_OK(orDeclareSetting(&index, &words, values));
      orSetting setting;
      CHECK_OK(orGetSetting(&setting, index));
      CHECK_EQUAL(std::string(setting.allowed), allowed);
      const orSetting size = {"TEST_SIZE", "1MiB", nullptr, "A size.", nullptr, nullptr};
      CHECK_ERROR(orDeclareSetting(&index, &size, "<size>"), orErrorInvalidValue);
    });
  }
}

TEST(declarations_are_checked) {
  const int color = declare("TEST_COLOR", "red", "red green");
  CHECK_EQUAL(declare("TEST_COLOR", "red", "red green"), color);
  int index = -1;
  const orSetting other = {"TEST_COLOR", "red", "red", "Another one.", nullptr, nullptr};
  CHECK_ERROR(orDeclareSetting(&index, &other, "red blue"), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "another setting TEST_COLOR");
  const orSetting own = {"OPENREG_SCHEDULE", "free", "free", "The runtime's.", nullptr, nullptr};
  CHECK_ERROR(orDeclareSetting(&index, &own, "free"), orErrorInvalidValue);
  const orSetting bad_default = {"TEST_SWITCH", "2", "0 or 1", "A switch.", nullptr, nullptr};
  CHECK_ERROR(orDeclareSetting(&index, &bad_default, "0 1"), orErrorInvalidValue);
  const orSetting unnamed = {nullptr, "0", "0 or 1", "A switch.", nullptr, nullptr};
  CHECK_ERROR(orDeclareSetting(&index, &unnamed, "0 1"), orErrorInvalidValue);
  CHECK_ERROR(orDeclareSetting(nullptr, &bad_default, "2"), orErrorInvalidValue);
  CHECK_ERROR(orDeclareSetting(&index, nullptr, "2"), orErrorInvalidValue);
  CHECK_ERROR(orDeclareSetting(&index, &bad_default, nullptr), orErrorInvalidValue);
}

TEST(variables_that_are_not_set_may_have_another_source) {
  test::check_child([] {
    CHECK_OK(orSetSettingSource(find_other));
    set("OPENREG_DEVICE_COUNT", "4");
    const int color = declare("TEST_COLOR", "red", "red blue");
    orSetting setting;
    CHECK_OK(orGetSetting(&setting, color));
    CHECK_EQUAL(std::string(setting.value), "blue");
    CHECK_EQUAL(std::string(setting.source), "OTHER_VARIABLE");
    CHECK_EQUAL(device_count(), 1);
    orDeviceProp properties;
    CHECK_OK(orGetDeviceProperties(&properties, 0));
    CHECK_EQUAL(properties.physicalOrdinal, 3);
    CHECK_OK(orGetSetting(&setting, orSettingIndex_OPENREG_DEVICE_COUNT));
    CHECK_EQUAL(std::string(setting.source), "OPENREG_DEVICE_COUNT");
  });
  test::check_child([] {
    CHECK_OK(orSetSettingSource(find_other));
    CHECK_OK(orSetSettingSource(nullptr));
    set("OPENREG_VISIBLE_DEVICES", "0");
    CHECK_EQUAL(value_of(declare("TEST_COLOR", "red", "red blue")), "");
    CHECK_EQUAL(device_count(), 1);
  });
}

TEST(review_tells_every_bad_value_and_keeps_none) {
  const orBadSettingFn add = [](void* found, const char* text) {
    static_cast<std::vector<std::string>*>(found)->emplace_back(text);
  };
  test::check_child([=] {
    std::vector<std::string> found;
    int count = -1;
    declare("TEST_SWITCH", "0", "0 1");
    set("OPENREG_DEVICE_COUNT", "many");
    set("OPENREG_VISIBLE_DEVICES", "1,0");
    set("TEST_SWITCH", "on");
    CHECK_OK(orReviewSettings(&count, add, &found));
    CHECK_EQUAL(count, 0);
    CHECK_EQUAL(found.size(), size_t{2});
    CHECK_EQUAL(found[0], "OPENREG_DEVICE_COUNT is 'many'; allowed: an integer from 0 to 64");
    CHECK_EQUAL(found[1], "TEST_SWITCH is 'on'; allowed: 0 1");

    set("OPENREG_DEVICE_COUNT", "5");
    set("TEST_SWITCH", "1");
    found.clear();
    CHECK_OK(orReviewSettings(&count, add, &found));
    CHECK_EQUAL(count, 2);
    CHECK(found.empty());
    CHECK_EQUAL(device_count(), 2);
    CHECK_ERROR(orReviewSettings(nullptr, add, &found), orErrorInvalidValue);
    CHECK_ERROR(orReviewSettings(&count, nullptr, &found), orErrorInvalidValue);
  });
}

TEST(listing_checks_its_arguments) {
  orSetting setting;
  CHECK_ERROR(orGetSetting(&setting, -1), orErrorInvalidValue);
  CHECK_ERROR(orGetSetting(&setting, orSettingIndexCount), orErrorInvalidValue);
  CHECK_ERROR(orGetSetting(nullptr, 0), orErrorInvalidValue);
  CHECK_ERROR(orGetSettingCount(nullptr), orErrorInvalidValue);
  const char* name = nullptr;
  CHECK_ERROR(orGetSettingName(&name, -1), orErrorInvalidValue);
  CHECK_ERROR(orGetSettingName(&name, orSettingIndexCount), orErrorInvalidValue);
  CHECK_ERROR(orGetSettingName(nullptr, 0), orErrorInvalidValue);
}

TEST(bad_values_are_refused) {
  for (const char* value : {"", "abc", "-1", "65", "2x", " 2"}) {
    check_refused("OPENREG_DEVICE_COUNT", value, "an integer from 0 to 64");
  }
  for (const char* value : {"", "1MiB", "15.5GiB", "4GB", "MiB", "-16MiB", "99999999999TiB"}) {
    check_refused("OPENREG_DEVICE_MEMORY", value,
                  "a size of at least 16MiB, such as 512MiB, 4GiB or a number of bytes");
  }
  for (const char* value : {"2", "0,0", "0,", ",", "a", "-1", "0 1"}) {
    check_refused("OPENREG_VISIBLE_DEVICES", value,
                  "different device numbers below OPENREG_DEVICE_COUNT, separated by commas");
  }
  for (const char* value : {"", "2", "true"}) {
    check_refused("OPENREG_MEMORY_PROTECTION", value, "0 or 1");
    check_refused("OPENREG_LAUNCH_BLOCKING", value, "0 or 1");
  }
  for (const char* value : {"", "much", "-1"}) {
    check_refused("OPENREG_QUEUE_MEMORY", value, "a size, such as 64MiB; 0: no limit");
    check_refused("OPENREG_SCHEDULE", value, "free, lazy, eager or a seed, an integer from 0");
  }
}

TEST(a_bad_value_fails_every_call_that_needs_a_setting) {
  set("OPENREG_DEVICE_COUNT", "many");
  int value = 0;
  void* memory = nullptr;
  orStream_t stream = nullptr;
  orDeviceProp properties;
  size_t size = 0;
  CHECK_ERROR(orGetDeviceCount(&value), orErrorInvalidSetting);
  CHECK_CONTAINS(orGetLastErrorMessage(), "OPENREG_DEVICE_COUNT is 'many'");
  CHECK_ERROR(orSetDevice(0), orErrorInvalidSetting);
  CHECK_ERROR(orMalloc(&memory, 1), orErrorInvalidSetting);
  CHECK_ERROR(orMallocHost(&memory, 1), orErrorInvalidSetting);
  CHECK_ERROR(orStreamCreate(&stream), orErrorInvalidSetting);
  CHECK_ERROR(orGetDeviceProperties(&properties, 0), orErrorInvalidSetting);
  CHECK_ERROR(orMemGetInfo(&size, &size, 0), orErrorInvalidSetting);
  CHECK_ERROR(orDeviceSynchronize(), orErrorInvalidSetting);
  CHECK_ERROR(orDeviceSynchronizeAll(), orErrorInvalidSetting);
  CHECK_OK(orGetDevice(&value));
}

TEST(settings_are_read_once) {
  set("OPENREG_DEVICE_COUNT", "3");
  CHECK_OK(orCheckSettings());
  set("OPENREG_DEVICE_COUNT", "5");
  CHECK_EQUAL(device_count(), 3);
}

TEST(device_count_is_two_by_default) { CHECK_EQUAL(device_count(), 2); }

TEST(device_count_can_be_0_to_64) {
  test::check_child([] {
    set("OPENREG_DEVICE_COUNT", "0");
    CHECK_EQUAL(device_count(), 0);
  });
  test::check_child([] {
    set("OPENREG_DEVICE_COUNT", "64");
    set("OPENREG_DEVICE_MEMORY", "16MiB");
    CHECK_EQUAL(device_count(), 64);
    for (int i = 0; i < 64; ++i) {
      CHECK_OK(orSetDevice(i));
      CHECK_OK(orMemset(test::device_malloc(1), 1, 1));
    }
  });
}

TEST(device_memory_has_units) {
  check_memory("16MiB", size_t{16} << 20);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  check_memory("17000000", 17000000 - 17000000 % page);
  check_memory("20480KiB", size_t{20} << 20);
  check_memory("3GiB", size_t{3} << 30);
  check_memory("1TiB", size_t{1} << 40);
}

TEST(device_memory_is_at_least_1_gib_by_default) {
  orDeviceProp properties;
  CHECK_OK(orGetDeviceProperties(&properties, 0));
  CHECK(properties.totalGlobalMem >= size_t{1} << 30);
  CHECK_EQUAL(properties.totalGlobalMem % (size_t{2} << 20), size_t{0});
}

TEST(visible_devices_selects_and_orders) {
  set("OPENREG_DEVICE_COUNT", "4");
  set("OPENREG_VISIBLE_DEVICES", "3,1");
  CHECK_EQUAL(device_count(), 2);
  orDeviceProp properties;
  CHECK_OK(orGetDeviceProperties(&properties, 0));
  CHECK_EQUAL(properties.physicalOrdinal, 3);
  CHECK_OK(orGetDeviceProperties(&properties, 1));
  CHECK_EQUAL(properties.physicalOrdinal, 1);
  CHECK_ERROR(orGetDeviceProperties(&properties, 2), orErrorInvalidDevice);
}

TEST(no_visible_device_is_no_device) {
  set("OPENREG_VISIBLE_DEVICES", "");
  CHECK_EQUAL(device_count(), 0);
  void* memory = nullptr;
  CHECK_ERROR(orMalloc(&memory, 1), orErrorNoDevice);
  CHECK_ERROR(orMallocHost(&memory, 1), orErrorNoDevice);
  CHECK_ERROR(orSetDevice(0), orErrorNoDevice);
  CHECK_OK(orDeviceSynchronizeAll());
}

TEST(addresses_that_cannot_be_reserved_are_an_initialization_error) {
  set("OPENREG_DEVICE_COUNT", "64");
  set("OPENREG_DEVICE_MEMORY", "16000TiB");
  void* memory = nullptr;
  CHECK_ERROR(orMalloc(&memory, 1), orErrorInitializationError);
  CHECK_CONTAINS(orGetLastErrorMessage(), "OPENREG_DEVICE_MEMORY");
  CHECK_OK(orSetDevice(1));
}

TEST(addresses_beyond_the_address_space_are_an_initialization_error) {
  set("OPENREG_DEVICE_COUNT", "64");
  set("OPENREG_DEVICE_MEMORY", "1000000TiB");
  void* memory = nullptr;
  CHECK_ERROR(orMalloc(&memory, 1), orErrorInitializationError);
}

TEST(size_of_a_setting_is_in_bytes) {
  test::check_child([] {
    set("OPENREG_QUEUE_MEMORY", "3KiB");
    size_t size = 0;
    CHECK_OK(orGetSettingSize(&size, orSettingIndex_OPENREG_QUEUE_MEMORY));
    CHECK_EQUAL(size, size_t{3072});
  });
  size_t size = 0;
  CHECK_OK(orGetSettingSize(&size, orSettingIndex_OPENREG_QUEUE_MEMORY));
  CHECK_EQUAL(size, size_t{64} << 20);
  CHECK_ERROR(orGetSettingSize(&size, orSettingIndex_OPENREG_SCHEDULE), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "OPENREG_SCHEDULE, which is 'free'");
  CHECK_ERROR(orGetSettingSize(&size, orSettingIndexCount), orErrorInvalidValue);
  CHECK_ERROR(orGetSettingSize(nullptr, orSettingIndex_OPENREG_QUEUE_MEMORY), orErrorInvalidValue);
}
