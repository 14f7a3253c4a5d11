#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>
#include <openreg/openreg.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>

#include "csrc/core/DeviceForm.h"
#include "csrc/core/DeviceName.h"
#include "csrc/core/ExitStatus.h"
#include "csrc/core/Interrupt.h"
#include "csrc/core/Settings.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"
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

// As in torch.cuda, a negative index changes nothing and is returned.
int64_t exchangeDevice(int64_t device) {
  return device < 0 ? -1 : exchange_device(resolveDeviceIndex(device));
}

int64_t maybeExchangeDevice(int64_t device) {
  return device < 0 ? -1
                    : maybe_exchange_device(static_cast<c10::DeviceIndex>(
                          std::min<int64_t>(device, OPENREG_MAX_DEVICES)));
}

// Note [Initialization]
// torch.accelerator.synchronize() and other functions skip a device type that torch considers
// unused, and torch calls the module's _lazy_init() only before it creates the first tensor. But a
// device is in use as soon as the runtime has created it, which streams, events, allocations and
// C++ extensions do as well. So the runtime calls a function here, which informs torch.
//
// If the thread holds the GIL, _lazy_init() runs at once; inside _lazy_init(), which calls
// initialize() below, torch is only marked as initialized. Without the GIL, the thread must not
// wait for it, because its owner may wait for this thread. Then torch is marked as initialized as
// well, and the main thread calls _lazy_init() the next time it runs Python code, to run the calls
// that were deferred until then.
thread_local bool is_initializing = false;

void tellTorch() {
  torch::utils::register_fork_handler_for_device_init(kDeviceType);
  torch::utils::set_requires_device_init(kDeviceType, false);
}

void initializeFromPython() {
  is_initializing = true;
  const auto reset = c10::make_scope_exit([] { is_initializing = false; });
  initialize();
  tellTorch();
}

// Called with the GIL held, as a pending call.
int initializeModule(void* /*unused*/) {
  try {
    py::module_::import(moduleName().c_str()).attr("_lazy_init")();
    return 0;
  } catch (py::error_already_set& error) {
    error.restore();
    return -1;
  }
}

void onDeviceCreated(int /*device*/) {
  if (is_initializing || Py_IsInitialized() == 0) {
    return;
  }
  if (PyGILState_Check() == 0) {
    tellTorch();
    Py_AddPendingCall(&initializeModule, nullptr);
    return;
  }
  try {
    torch::utils::device_lazy_init(kDeviceType);
  } catch (const python_error&) {
    // The function that creates the device cannot raise it. The main thread raises it soon.
    PyErr_Clear();
    Py_AddPendingCall(&initializeModule, nullptr);
  }
}

void synchronize(int64_t device) {
  const c10::DeviceIndex index = resolveDeviceIndex(device);
  static const std::string name = moduleName() + ".synchronize";
  synchronizeDevice(index, name.c_str());
  observe(&Observer::deviceSynchronization, index);
}

void synchronizeAll() {
  OPENREG_CHECK_RESULT(c10::openreg::waitInterruptibly(&orDeviceSynchronizeAll),
                       "orDeviceSynchronizeAll");
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    observe(&Observer::deviceSynchronization, index);
  }
}

void takeErrorAll(int timeout_ms, const std::string& raised_by) {
  OPENREG_CHECK_RESULT(orDeviceTakeErrorAll(timeout_ms), raised_by.c_str());
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
  // The others are declared in no particular order.
  std::sort(rows.begin() + orSettingIndexCount, rows.end());
  return rows;
}

std::vector<std::string> settingNames() {
  int count = 0;
  OPENREG_CHECK(orGetSettingCount(&count));
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    const char* name = nullptr;
    OPENREG_CHECK(orGetSettingName(&name, i));
    names.emplace_back(name);
  }
  return names;
}

void declareSetting(std::string variable, std::string default_text, std::string values,
                    std::string description, OptionalText allowed) {
  static auto* declared = new std::deque<std::string>;  // the texts live for ever
  const auto keep = [](std::string text) {
    return declared->emplace_back(std::move(text)).c_str();
  };
  c10::openreg::Setting(keep(std::move(variable)), keep(std::move(default_text)),
                        keep(std::move(values)), keep(std::move(description)),
                        allowed ? keep(*std::move(allowed)) : nullptr);
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

bool areSettingsRead() {
  int are_read = 0;
  OPENREG_CHECK(orAreSettingsRead(&are_read));
  return are_read != 0;
}

// With the texts that errors have in this process.
std::vector<std::tuple<std::string, int, std::string>> errorTable() {
  return {
#define OPENREG_ERROR_ROW(name, number, text) {#name, number, deviceForm().errorText(name)},
      OPENREG_ERRORS(OPENREG_ERROR_ROW)
#undef OPENREG_ERROR_ROW
  };
}

void bindDevice(py::module_& m) {
  OPENREG_CHECK(orSetDeviceCreatedFunction(&onDeviceCreated));
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
  m.def("_get_device_count", &device_count);
  m.def("_ensure_has_device", &ensureHasDevice);
  m.def("_check_device_index", &check_device_index);
  m.def("_get_device", &current_device);
  m.def("_set_device", [](int64_t device) { set_device(resolveDeviceIndex(device)); });
  m.def("_exchange_device", &exchangeDevice);
  m.def("_maybe_exchange_device", &maybeExchangeDevice);
  m.def("_device_properties", &properties);
  m.def("_device_can_access_peer", &canAccessPeer);
  m.def("_device_synchronize", &synchronize, ReleaseGil());
  m.def("_device_synchronize_all", &synchronizeAll, ReleaseGil());
  m.def("_device_take_error_all", &takeErrorAll, ReleaseGil());
  m.def("_fail_exit", &failExit);
  m.def("_init", &initializeFromPython);
  m.def("_serves_cuda", &servesCuda);
  m.def("_device_name", &deviceName);
  m.def("_announce_type_name", &announceTypeName);
  m.def("_has_cuda_hooks", &at::hasCUDA);
  m.def("_is_device_active",
        [](int64_t device) { return isDeviceActive(resolveDeviceIndex(device)); });
  m.def("_is_in_bad_fork", &isInBadFork);
  // Aliases with the spellings of PyTorch's pages for integrators.
  m.attr("_exchangeDevice") = m.attr("_exchange_device");
  m.attr("_isInBadFork") = m.attr("_is_in_bad_fork");
  m.def("_settings", &settings);
  m.def("_setting_names", &settingNames);
  m.def("_declare_setting", &declareSetting, py::arg("variable"), py::arg("default_text"),
        py::arg("values"), py::arg("description"), py::arg("allowed") = py::none());
  m.def("_review_settings", &reviewSettings);
  m.def("_are_settings_read", &areSettingsRead);
  m.def("_error_table", &errorTable);
  m.def("_take_assert_count", &takeAssertCount);
  // docs: end
}

const Bindings kDeviceBindings(&bindDevice);

}  // namespace

}  // namespace torch_openreg
