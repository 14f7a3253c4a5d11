// The settings of the device type, see Note [Device type] in torch_openreg/core/DeviceKeys.h, and
// the variables of CUDA.
//
// Note [CUDA's variables]
// With OPENREG_DEVICE_TYPE=cuda, CUDA_VISIBLE_DEVICES and CUDA_LAUNCH_BLOCKING stand in for the
// settings of these names that are not set, and mean what they mean to CUDA: the list of devices
// ends before the first that does not exist, and is empty if one comes twice; any value but 1 does
// not block. They are never an error.
#pragma once

#include "csrc/core/Settings.h"

namespace c10::openreg {

OPENREG_EXPORT const Setting& deviceTypeSetting();
OPENREG_EXPORT const Setting& cudaCapabilitySetting();

}  // namespace c10::openreg
