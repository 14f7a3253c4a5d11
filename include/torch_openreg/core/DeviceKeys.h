// The device type that the library serves, and the keys that follow from it.
//
// Note [Device type]
// One library serves either of two device types. PrivateUse1 is torch's device type for backends
// outside of its tree, which Python renames to "openreg". With OPENREG_DEVICE_TYPE=cuda the library
// serves CUDA, on a machine without a GPU: programs written for CUDA run unchanged. The
// choice is made from the environment when the library is loaded, and holds for the process
// (csrc/extras/cuda/Installation.cpp, by csrc/core/DeviceForm.h). It is read separately from the
// other settings, which are read at the first call that needs one; the settings table has a row
// for it, so that invalid values raise the usual error.
//
// All code that names a device type, a backend component or a dispatch key of one uses this header;
// a test checks that there are no literals elsewhere. Static objects may use everything, in any
// order.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKey.h>
#include <c10/macros/Macros.h>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// The device type that the library serves, and whether it is CUDA.
OPENREG_EXPORT DeviceType servedDeviceType() noexcept;
OPENREG_EXPORT bool servesCuda() noexcept;

inline const DeviceType kDeviceType = servedDeviceType();

inline BackendComponent backendComponent() {
  return servesCuda() ? BackendComponent::CUDABit : BackendComponent::PrivateUse1Bit;
}
inline const BackendComponent kBackendComponent = backendComponent();

// Of what is registered with torch for the device type: above that of a build with CUDA.
inline constexpr uint8_t kRegistrationPriority = 200;

// The dispatch key of a functionality on this device type: for DispatchKey::Dense that of strided
// tensors, for AutogradFunctionality that of their gradients, and likewise for Sparse and others.
inline DispatchKey keyOf(DispatchKey functionality) {
  return toRuntimePerBackendFunctionalityKey(functionality, kBackendComponent);
}

// Registers a kernel for this device type with a stub of ATen. For OPENREG_REGISTER_DISPATCH.
struct DispatchRegistration {
  template <typename Stub>
  DispatchRegistration(Stub& stub, typename Stub::FnPtr kernel) {
    servesCuda() ? stub.set_cuda_dispatch_ptr(kernel) : stub.set_privateuse1_dispatch_ptr(kernel);
  }
};

}  // namespace c10::openreg

// As TORCH_LIBRARY_IMPL, for the key of a functionality on this device type:
//
//   OPENREG_LIBRARY_IMPL(aten, Dense, m) { m.impl("relu", TORCH_FN(relu)); }
//
// Needs <torch/library.h>.
#define OPENREG_LIBRARY_IMPL(ns, functionality, m) \
  OPENREG_LIBRARY_IMPL_AS(ns, functionality, m, C10_UID)

#define OPENREG_LIBRARY_IMPL_AS(ns, functionality, m, uid)                                        \
  __attribute__((cold)) static void C10_CONCATENATE(openregLibraryInit_##ns##_##functionality##_, \
                                                    uid)(torch::Library&);                        \
  static const torch::detail::TorchLibraryInit C10_CONCATENATE(                                   \
      openregLibrary_##ns##_##functionality##_, uid)(                                             \
      torch::Library::IMPL, &C10_CONCATENATE(openregLibraryInit_##ns##_##functionality##_, uid),  \
      #ns, std::make_optional(c10::openreg::keyOf(c10::DispatchKey::functionality)), __FILE__,    \
      __LINE__);                                                                                  \
  void C10_CONCATENATE(openregLibraryInit_##ns##_##functionality##_, uid)(torch::Library & m)

// As REGISTER_PRIVATEUSE1_DISPATCH, for this device type.
#define OPENREG_REGISTER_DISPATCH(stub, kernel) \
  static const c10::openreg::DispatchRegistration stub##_registration(stub, kernel);
