#include "csrc/core/Settings.h"

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

bool isSettingOn(orSettingIndex setting) { return settingText(setting) == "1"; }

}  // namespace c10::openreg
