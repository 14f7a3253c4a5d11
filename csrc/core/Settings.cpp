#include "csrc/core/Settings.h"

#include "torch_openreg/core/Exception.h"

namespace c10::openreg {

std::string_view settingText(orSettingIndex setting) {
  OPENREG_CHECK(orCheckSettings());
  orSetting row{};
  OPENREG_CHECK(orGetSetting(&row, setting));
  return row.value == nullptr ? row.default_text : row.value;
}

bool isSettingOn(orSettingIndex setting) { return settingText(setting) == "1"; }

}  // namespace c10::openreg
