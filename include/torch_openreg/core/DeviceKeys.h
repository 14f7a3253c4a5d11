// Which of torch's device types the library serves, and the keys that follow from it.
//
// Note [Device type]
// One library serves either of two device types. PrivateUse1 is torch's place for backends outside
// of its tree, which Python renames to "openreg". With OPENREG_DEVICE_TYPE=cuda the library serves
// CUDA, in a build of torch that has no CUDA of its own: programs written for CUDA run on it as
// they are. The choice is made when the library is loaded, from the environment, and holds for the
// process. It is read apart from the other settings, which are read at the first call that needs
// one; the table has a row for it, so that a bad value is refused in the same words.
//
// Whatever names a device type, a backend component or a dispatch key of one takes it from here: a
// test looks for literals elsewhere. Static objects may use all of it, in any order.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKey.h>
#include <c10/macros/Macros.h>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Whether the library serves the device type CUDA.
OPENREG_EXPORT bool servesCuda() noexcept;

inline const DeviceType kDeviceType = servesCuda() ? DeviceType::CUDA : DeviceType::PrivateUse1;

inline const BackendComponent kBackendComponent =
    servesCuda() ? BackendComponent::CUDABit : BackendComponent::PrivateUse1Bit;

// The key of a functionality on this device type: of DispatchKey::Dense the one of strided tensors,
// of AutogradFunctionality the one of their gradients, of Sparse and so on.
inline DispatchKey keyOf(DispatchKey functionality) {
  return toRuntimePerBackendFunctionalityKey(functionality, kBackendComponent);
}

// Gives a stub of ATen the kernel for this device type. For OPENREG_REGISTER_DISPATCH.
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

#define OPENREG_LIBRARY_IMPL_AS(ns, functionality, m, uid)                                         \
  static void C10_CONCATENATE(openregLibraryInit_##ns##_##functionality##_, uid)(torch::Library&); \
  static const torch::detail::TorchLibraryInit C10_CONCATENATE(                                    \
      openregLibrary_##ns##_##functionality##_, uid)(                                              \
      torch::Library::IMPL, &C10_CONCATENATE(openregLibraryInit_##ns##_##functionality##_, uid),   \
      #ns, std::make_optional(c10::openreg::keyOf(c10::DispatchKey::functionality)), __FILE__,     \
      __LINE__);                                                                                   \
  void C10_CONCATENATE(openregLibraryInit_##ns##_##functionality##_, uid)(torch::Library & m)

// As REGISTER_PRIVATEUSE1_DISPATCH, for this device type.
#define OPENREG_REGISTER_DISPATCH(stub, kernel) \
  static const c10::openreg::DispatchRegistration stub##_registration(stub, kernel);
