#include "csrc/core/DeviceName.h"

#include <vector>

namespace c10::openreg {
namespace {

std::vector<RegisterByName>& registrations() {
  static auto* functions = new std::vector<RegisterByName>();
  return *functions;
}

}  // namespace

void registerByTypeName(RegisterByName function) {
  registrations().push_back(function);
  function(kTypeName);
}

void announceTypeName() {
  static std::string known = kTypeName;
  const std::string name = DeviceTypeName(kDeviceType, /*lower_case=*/true);
  if (name == known) {
    return;
  }
  known = name;
  for (const RegisterByName function : registrations()) {
    function(name);
  }
}

}  // namespace c10::openreg
