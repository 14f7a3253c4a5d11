#include "csrc/core/Settings.h"

#include <c10/util/StringUtil.h>

#include <cstdlib>

#include "torch_openreg/core/Exception.h"

namespace c10::openreg {

namespace {

std::string_view textOf(int setting) {
  OPENREG_CHECK(orCheckSettings());
  orSetting row{};
  OPENREG_CHECK(orGetSetting(&row, setting));
  return row.value == nullptr ? row.default_text : row.value;
}

}  // namespace

Setting::Setting(const char* variable, const char* default_text, const char* values,
                 const char* description, const char* allowed) {
  const orSetting setting{variable, default_text, allowed, description, nullptr, nullptr};
  OPENREG_CHECK(orDeclareSetting(&index_, &setting, values));
}

std::string_view Setting::text() const { return textOf(index_); }

bool Setting::isOn() const { return text() == "1"; }

size_t Setting::bytes() const {
  OPENREG_CHECK(orCheckSettings());
  size_t size = 0;
  OPENREG_CHECK(orGetSettingSize(&size, index_));
  return size;
}

std::string whyNoDevice() {
  orSetting row{};
  OPENREG_CHECK(orGetSetting(&row, orSettingIndex_OPENREG_VISIBLE_DEVICES));
  if (row.source == nullptr || textOf(orSettingIndex_OPENREG_DEVICE_COUNT) == "0") {
    OPENREG_CHECK(orGetSetting(&row, orSettingIndex_OPENREG_DEVICE_COUNT));
  }
  if (row.source == nullptr) {
    return "no setting says why";
  }
  // A variable of CUDA's was translated into this value; the error shows the user's text.
  const char* text = std::getenv(row.source);
  const std::string given = c10::str(row.source, " is '", text == nullptr ? row.value : text, "'");
  if (row.source == std::string_view("OPENREG_DEVICE_COUNT")) {
    return given;
  }
  return c10::str(given, ", and devices are numbered from 0 to ",
                  std::stoi(std::string(textOf(orSettingIndex_OPENREG_DEVICE_COUNT))) - 1);
}

}  // namespace c10::openreg
