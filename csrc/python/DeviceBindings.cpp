#include <ATen/Context.h>
#include <openreg/openreg.h>
#include <pybind11/stl.h>

#include "csrc/core/Interrupt.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Sanitizer.h"
#include "torch_openreg/core/Stream.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;

orDeviceProp properties(int64_t device) {
  orDeviceProp result{};
  OPENREG_CHECK(orGetDeviceProperties(&result, resolveDeviceIndex(device)));
  return result;
}

bool canAccessPeer(int64_t device, int64_t peer) {
  int can_access = 0;
  OPENREG_CHECK(
      orDeviceCanAccessPeer(&can_access, resolveDeviceIndex(device), resolveDeviceIndex(peer)));
  return can_access != 0;
}

void synchronize(int64_t device) {
  const c10::DeviceIndex index = resolveDeviceIndex(device);
  synchronizeDevice(index, "torch.openreg.synchronize");
  if (isSanitizerOn()) {
    noteDeviceDone(index);
  }
}

void synchronizeAll() {
  OPENREG_CHECK_RESULT(c10::openreg::waitInterruptibly(&orDeviceSynchronizeAll),
                       "orDeviceSynchronizeAll");
  if (isSanitizerOn()) {
    for (c10::DeviceIndex index = 0; index < deviceCount(); ++index) {
      noteDeviceDone(index);
    }
  }
}

std::string describeDevice(const orDeviceProp& prop) {
  return c10::str("_OpenRegDeviceProperties(name='", prop.name, "', major=", prop.major,
                  ", minor=", prop.minor, ", total_memory=", prop.totalGlobalMem / (1024 * 1024),
                  "MB, multi_processor_count=", prop.multiProcessorCount, ")");
}

using OptionalText = std::optional<std::string>;
using SettingRow =
    std::tuple<std::string, std::string, std::string, std::string, OptionalText, OptionalText>;

OptionalText optionalText(const char* text) {
  return text == nullptr ? std::nullopt : OptionalText(text);
}

std::vector<SettingRow> settings() {
  int count = 0;
  OPENREG_CHECK(orGetSettingCount(&count));
  std::vector<SettingRow> rows;
  for (int i = 0; i < count; ++i) {
    orSetting setting{};
    OPENREG_CHECK(orGetSetting(&setting, i));
    rows.emplace_back(setting.variable, setting.default_text, setting.allowed, setting.description,
                      optionalText(setting.value), optionalText(setting.source));
  }
  return rows;
}

std::vector<std::string> settingNames() {
  return {
#define OPENREG_SETTING_NAME(variable, default_text, allowed, description) #variable,
      OPENREG_SETTINGS(OPENREG_SETTING_NAME)
#undef OPENREG_SETTING_NAME
  };
}

std::pair<int, std::vector<std::string>> reviewSettings() {
  int device_count = 0;
  std::vector<std::string> texts;
  OPENREG_CHECK(orReviewSettings(
      &device_count,
      [](void* found, const char* text) {
        static_cast<std::vector<std::string>*>(found)->emplace_back(text);
      },
      &texts));
  return {device_count, texts};
}

std::vector<std::tuple<std::string, int, std::string>> errorTable() {
  return {
#define OPENREG_ERROR_ROW(name, number, text) {#name, number, text},
      OPENREG_ERRORS(OPENREG_ERROR_ROW)
#undef OPENREG_ERROR_ROW
  };
}

}  // namespace

void bindDevice(py::module_& m) {
  py::class_<orDeviceProp>(m, "_DeviceProperties")
      .def_property_readonly("name", [](const orDeviceProp& p) { return std::string(p.name); })
      .def_readonly("major", &orDeviceProp::major)
      .def_readonly("minor", &orDeviceProp::minor)
      .def_readonly("total_memory", &orDeviceProp::totalGlobalMem)
      .def_readonly("multi_processor_count", &orDeviceProp::multiProcessorCount)
      .def_readonly("physical_index", &orDeviceProp::physicalOrdinal)
      .def_readonly("clock_rate", &orDeviceProp::clockRate)
      .def_readonly("warp_size", &orDeviceProp::warpSize)
      .def_property_readonly("is_integrated",
                             [](const orDeviceProp& p) { return p.integrated != 0; })
      .def("__repr__", &describeDevice);

  // docs: bindings-device
  m.def("_device_count", &deviceCount);
  m.def("_ensure_has_device", &ensureHasDevice);
  m.def("_current_device", &currentDevice);
  m.def("_set_device", [](int64_t device) { setDevice(resolveDeviceIndex(device)); });
  m.def("_exchange_device",
        [](int64_t device) { return exchangeDevice(resolveDeviceIndex(device)); });
  m.def("_maybe_exchange_device", [](int64_t device) {
    return device < 0 ? currentDevice() : exchangeDevice(resolveDeviceIndex(device));
  });
  m.def("_device_properties", &properties);
  m.def("_device_can_access_peer", &canAccessPeer);
  m.def("_device_synchronize", &synchronize, ReleaseGil());
  m.def("_device_synchronize_all", &synchronizeAll, ReleaseGil());
  m.def("_init", &initialize);
  m.def("_serves_cuda", &servesCuda);
  m.def("_has_cuda_hooks", &at::hasCUDA);
  m.def("_is_device_active",
        [](int64_t device) { return isDeviceActive(resolveDeviceIndex(device)); });
  m.def("_is_in_bad_fork", &isInBadFork);
  m.def("_settings", &settings);
  m.def("_setting_names", &settingNames);
  m.def("_review_settings", &reviewSettings);
  m.def("_error_table", &errorTable);
  // docs: end
}

}  // namespace torch_openreg
