#include "csrc/core/Settings.h"

#include <c10/util/StringUtil.h>

#include <cstdlib>

#include "torch_openreg/core/Exception.h"

namespace c10::openreg {

std::string_view settingText(orSettingIndex setting) {
  OPENREG_CHECK(orCheckSettings());
  orSetting row{};
  OPENREG_CHECK(orGetSetting(&row, setting));
  return row.value == nullptr ? row.default_text : row.value;
}

size_t sizeSetting(orSettingIndex setting) {
  OPENREG_CHECK(orCheckSettings());
  size_t size = 0;
  OPENREG_CHECK(orGetSettingSize(&size, setting));
  return size;
}

std::string whyNoDevice() {
  orSetting row{};
  OPENREG_CHECK(orGetSetting(&row, orSettingIndex_OPENREG_VISIBLE_DEVICES));
  if (row.source == nullptr || settingText(orSettingIndex_OPENREG_DEVICE_COUNT) == "0") {
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
                  std::stoi(std::string(settingText(orSettingIndex_OPENREG_DEVICE_COUNT))) - 1);
}

bool isSettingOn(orSettingIndex setting) { return settingText(setting) == "1"; }

}  // namespace c10::openreg
