// The settings of the device type CUDA, and the variables of CUDA.
//
// Note [CUDA's variables]
// With OPENREG_DEVICE_TYPE=cuda, CUDA_VISIBLE_DEVICES and CUDA_LAUNCH_BLOCKING stand in for the
// settings of these names that are not set, and mean what they mean to CUDA: the list of devices
// ends before the first that does not exist, and is empty if one comes twice; any value but 1 does
// not block. They are never an error.
#pragma once

#include <string_view>

namespace at::openreg {

// The compute capability that the devices have, such as "8.0".
std::string_view cudaCapability();

}  // namespace at::openreg
